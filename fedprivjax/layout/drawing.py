"""Shared parts of plots: panels, points on a grid, curves with intervals, axes, and saving."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any
from urllib.parse import quote

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from fedprivjax.atomic_write import write_atomically
from fedprivjax.engine.metric import Metric
from fedprivjax.layout.colours import letter_width, new_figure, themed_svg
from fedprivjax.layout.wording import CHOSEN, CHOSEN_NOTE, Point
from fedprivjax.sweeps.intervals import INTERVAL, mean_interval

ACROSS = 3  # largest number of panels per row
TICKS = 6  # largest number of values of a swept setting that all have a tick
LINE = 0.2  # height of a legend's line in inches
SPACE = 0.06  # space above and below all curves, as a part of their range
LABEL = 0.3  # largest part of a figure for names beside curves
NEAR_END = 0.8  # smallest place along the axis where a curve may end that is named at its end
HANDLE = 0.7  # width of a legend's handle in inches
PLOT = 0.75  # part of a figure's width that a panel takes beside its axis
FONT = 10.0  # font size in points at which these hold
NO_LIMITS = -np.inf, np.inf
Panel = tuple[Axes, Point]  # with the values of the settings that are drawn in it
SAFE = " '!*+),/:;=?@{}"  # characters that a `data:` URL may have in quotes, in HTML
SYMBOLS = {"machines": "M", "per_round": "m", "rounds": "T", "records": "n", "mu": "μ", "epsilon": "ε"}


def save(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG files named by their keys, and return the paths."""
    return [save_figure(figure, folder / f"{name}.png", follow=False) for name, figure in figures.items()]


def save_figure(figure: Figure, file: Path, *, follow: bool = True) -> Path:
    """Write a figure as PNG, and return its path. With `follow`, links are followed as in `write_together`."""
    write_atomically(file, lambda written: figure.savefig(written, format="png", dpi=130), follow=follow)
    return file


def as_address(figure: Figure) -> str:
    """Return a figure as an SVG `data:` URL, for a self-contained page. Lengths are rounded to 0.01 points."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", themed_svg(figure), flags=re.DOTALL)
    svg = re.sub(r' d="[^"]+"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return f"data:image/svg+xml,{quote(' '.join(svg.split()).replace(chr(34), chr(39)), safe=SAFE)}"


def stack_panels(figure: Figure) -> bool:
    """Move the panels of a figure into one column, for a narrow page. Return False if they are in one already."""
    placed: list[Any] = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
    panels = [axis for axis in placed if axis.axison]
    grid = placed[0].get_gridspec() if panels else None
    if grid is None or grid.ncols == 1:
        return False
    for spare in set(placed) - set(panels):
        spare.remove()
    width, height = figure.get_size_inches() / (grid.ncols, grid.nrows)
    figure.set_size_inches(width, height * len(panels))
    column = GridSpec(len(panels), 1, figure)
    for row, axis in enumerate(panels):
        axis.set_subplotspec(column[row])
        axis.set_ylabel(axis.get_ylabel() or panels[0].get_ylabel())
        axis.tick_params(labelleft=True)  # which panels in a row share
    for legend in figure.legends:
        legend.remove()
        add_legend(figure, panels)
    return True


def panelled(
    count: int, width: float | None = None, height: float = 3.6, across: int | None = None, *, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, by default with one vertical axis.

    Args:
        count: number of panels.
        width, height: size of a panel in inches. None is a width for this number of panels.
        across: largest number of panels per row, or None for that of `columns`.
        sharey: whether all panels have one vertical axis.
    """
    across = columns(count) if across is None else min(count, across)
    rows = -(-count // across)
    width = (6.0 if count == 1 else 4.2) if width is None else width
    figure = new_figure(width, height, across, rows)
    axes = figure.subplots(rows, across, sharey=sharey, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def columns(count: int) -> int:
    """Return the number of panels per row: at most `ACROSS`, and two of four.

    >>> columns(2), columns(3), columns(4), columns(5)
    (2, 3, 2, 3)
    """
    return 2 if count == 4 else min(count, ACROSS)


def finish(figure: Figure, panels: list[Panel], metric: Metric, words: str, across: int | None = None) -> Figure:
    """Add labels, ticks in the metric's unit, names of the curves, and space above and below all of them."""
    axes = [axis for axis, _ in panels]
    for axis in axes[:: across or columns(len(axes))]:
        axis.set_ylabel(words)
    if metric.unit == "%":
        percent_ticks(axes[0].yaxis)
    for axis in axes:
        axis.margins(y=SPACE)
        axis.autoscale_view()  # now, since names at the ends of curves are placed by these limits
        axis.grid(alpha=0.3, which="major")
    if len(axes) > 1 or not label_ends(axes[0]):
        add_legend(figure, axes)
    return figure


def label_ends(axis: Axes) -> bool:
    """Write the names of curves beside their right ends, and return True, if they have space and need no note."""
    handles, labels = curves_of(axis)
    size, (width, height) = matplotlib.rcParams["font.size"], axis.get_figure(root=True).get_size_inches()  # type: ignore[union-attr]
    if len(labels) < 2 or letter_width() * max(map(len, labels)) * size / FONT > LABEL * width:
        return False
    if any(label.endswith(CHOSEN) for label in labels) or not all(isinstance(handle, Line2D) for handle in handles):
        return False
    ends = [(axis.transData + axis.transAxes.inverted()).transform(line.get_xydata()[-1]) for line in handles]
    across = [
        end[0] if line.get_transform() == axis.transData else 1.0 for line, end in zip(handles, ends, strict=True)
    ]
    heights = sorted(end[1] for end in ends)
    apart = 1.3 * size / 72 / (0.75 * height)  # of the axis, which takes about three quarters of the height
    if min(across) < NEAR_END or min(np.diff(heights)) < apart:
        return False
    for line, label, end in zip(handles, labels, ends, strict=True):
        style = {"color": line.get_color(), "fontsize": 0.9 * size, "va": "center", "annotation_clip": False}
        axis.annotate(label, (1.0, end[1]), (4, 0), "axes fraction", "offset points", **style)
    return True


def curves_of(axis: Axes) -> tuple[list[Any], list[str]]:
    """Return what a legend lists, and the labels: curves in the order of their right ends, the highest first."""
    found = list(zip(*axis.get_legend_handles_labels(), strict=True))
    if all(isinstance(handle, Line2D) for handle, _ in found):
        found.sort(key=lambda pair: -float(np.ravel(pair[0].get_ydata())[-1]))  # type: ignore[attr-defined]
    return [handle for handle, _ in found], [label for _, label in found]


def add_legend(figure: Figure, axes: list[Axes]) -> None:
    """Add a legend below the panels, or for a single curve its name above them. Names beyond the width are broken."""
    handles, names = curves_of(axes[0])
    size = matplotlib.rcParams["font.size"]
    note = CHOSEN_NOTE if any(name.endswith(CHOSEN) for name in names) else ""
    width, inch = figure.get_size_inches()[0], size / FONT  # of text in points of `FONT`
    if len(names) > 1:
        labels = [broken(figure, name, width - HANDLE * inch, 0.9 * size) for name in names]
        longest = max(len(line) for label in labels for line in label.split("\n"))
        columns = max(1, min(len(labels), int(width / inch / (HANDLE + letter_width() * longest))))
        text: dict[str, Any] = {"fontsize": 0.9 * size, "title": note, "title_fontsize": 0.9 * size}
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, **text)
        further = LINE * inch * (-(-len(labels) // columns) + bool(note) - 1)
        if labels != names:
            further = legend.get_window_extent().height / figure.dpi - LINE * inch
        figure.set_figheight(figure.get_figheight() + further)
    else:
        whole = len(axes) > 1 or bool(axes[0].get_title())
        place = figure.suptitle if whole else axes[0].set_title
        labels = [broken(figure, name, width if whole else PLOT * width, size) for name in names]
        place("\n".join([*labels, *[note] * bool(note)]), fontsize=size)


def broken(figure: Figure, label: str, width: float, size: float) -> str:
    """Return a label of a figure in lines that are not wider than a number of inches, at a font size."""
    if letter_width() * len(label) * size / FONT < 0.7 * width:  # also in wide letters
        return label
    text = figure.text(0, 0, label, fontsize=size)
    letters = len(label)
    while text.get_window_extent().width > width * figure.dpi and letters > 1:
        letters -= 1
        text.set_text(fill(label, letters, break_on_hyphens=False))
    text.remove()
    return text.get_text()


def over_seeds(words: str, best: Mapping[str, xr.Dataset]) -> str:
    """Return the label of a vertical axis: the metric in words, and what curves and bands are.

    >>> over_seeds("test loss", {"ours": xr.Dataset(coords={"seed": range(8)})})
    'test loss\\n(mean, 95% interval, 8 seeds)'
    """
    counts = sorted({data.sizes["seed"] for data in best.values()})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"
    shown = ["mean"] * (counts != [1]) + ["95% interval"] * (counts[-1] >= INTERVAL) + [seeds]
    return f"{words}\n({', '.join(shown)})"


def epsilon_axis(axis: Axes, values: Collection[float] = ()) -> None:
    """Make the axis of ε logarithmic, with plain numbers as ticks; if there are few values, the ticks are at these."""
    axis.set_xscale("log")
    plain_ticks(axis.xaxis, *axis.get_xlim())
    name_few(axis, sorted({f"{value:.3g}" for value in values}, key=float))


def name_few(axis: Axes, names: list[str]) -> None:
    """Set the ticks to all values of an axis if there are few."""
    if 0 < len(names) <= TICKS:
        axis.set_xticks([float(name) for name in names], names)
        axis.set_xticks([], minor=True)


def percent_ticks(axis: Axis) -> None:
    """Format ticks as percentages, with no more digits than they need."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Format ticks of a logarithmic axis as plain numbers, at 1, 2 and 5 if there is space, else at 1."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def seen_interval(runs: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean over seeds and the half-width of its 95% interval, NaN for fewer than three seeds."""
    mean, half = mean_interval(runs)
    return mean, half if runs.sizes["seed"] >= INTERVAL else np.nan * half


def draw_curve(
    axis: Axes, along: Any, mean: Any, half: Any, limits: tuple[float, float] = NO_LIMITS, *, color: str, **style: Any
) -> None:
    """Draw a line of means, and a band of their intervals, cut at the metric's limits. A single mean has a bar."""
    axis.plot(along, mean, color=color, **style)
    if np.isnan(half).all():
        return
    low, high = np.clip(mean - half, *limits), np.clip(mean + half, *limits)
    if axis.get_yscale() == "log":  # which has no zero
        low = np.maximum(low, 0.1 * mean)
    if np.size(along) > 1:
        axis.fill_between(along, low, high, color=color, alpha=0.2, lw=0)
    else:
        axis.vlines(along, low, high, color=color)


def point_title(point: Point, fixed: Mapping[str, str] = {}, chosen: Collection[str] = ()) -> str:
    """Return a panel's title: the panel's own point, and the values that are `fixed` in all panels.

    Args:
        chosen: names of fixed settings with a range, of which each curve has one value.

    >>> point_title({"per_round": 5}, {"mu": "2", "clip": "0.5 to 1"}, ["clip"])
    'm = 5, μ = 2, clip chosen: 0.5 to 1'
    """
    texts = {**{name: f"{value:g}" for name, value in point.items()}, **fixed}
    signs = {name: " chosen:" if name in chosen else " =" for name in texts}
    return ", ".join(f"{SYMBOLS.get(name, name)}{signs[name]} {text}" for name, text in texts.items())
