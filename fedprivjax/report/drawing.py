"""Shared parts of plots: panels, points on a grid, curves with intervals, axes, and saving."""

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import offset_copy

from fedprivjax.atomic_write import write_atomically
from fedprivjax.engine.metric import Metric
from fedprivjax.report import colours
from fedprivjax.report.cells import CHOSEN, Cells, Point, at
from fedprivjax.report.colours import letter_width, new_figure, themed_svg
from fedprivjax.report.remarks import CHOSEN_NOTE
from fedprivjax.report.tables import CONSTANT
from fedprivjax.sweeps.intervals import INTERVAL, mean_interval

ACROSS = 3  # panels per row
APART, SPREAD = 3.5, 14.0  # largest offset in points between bars of neighbouring curves, and of the first and last
BESIDE = 0.08  # fraction of an axis left free on each side for bars that are moved aside
TICKS = 6  # largest number of values of a swept setting that all have a tick
LINE = 0.2  # height of a legend's line in inches
SPACE = 0.06  # space above and below all curves, as a part of their range
LABEL = 0.3  # largest part of a figure for names beside curves
NEAR_END = 0.8  # smallest place along the axis where a curve may end that is named at its end
HANDLE = 0.7  # width of a legend's handle in inches
FONT = 10.0  # font size in points at which these hold
SYMBOLS = {"machines": "M", "per_round": "m", "rounds": "T", "records": "n", "mu": "μ", "epsilon": "ε"}
Curve = Line2D | ErrorbarContainer


def save(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG files named by their keys, and return the paths."""
    return [save_figure(figure, folder / f"{name}.png", follow=False) for name, figure in figures.items()]


def save_figure(figure: Figure, file: Path, *, follow: bool = True) -> Path:
    """Write a figure as PNG, and return its path. With `follow`, links are followed as in `write_together`."""
    with matplotlib.rc_context({"savefig.dpi": 130}):
        write_atomically(file, lambda written: figure.savefig(written, format="png"), follow=follow)
    return file


def as_address(figure: Figure) -> str:
    """Return a figure as an SVG `data:` URL, for a self-contained page."""
    return f"data:image/svg+xml;base64,{b64encode(themed_svg(figure).encode()).decode()}"


def panelled(
    count: int, width: float | None = None, height: float = 3.6, across: int = ACROSS, *, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, at most `across` of them per row, by default with one vertical axis."""
    across = min(count, across)
    rows = -(-count // across)
    width = (6.0 if count == 1 else 4.2) if width is None else width
    figure = new_figure(width, height, across, rows)
    axes = figure.subplots(rows, across, sharey=sharey, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def finish(figure: Figure, axes: list[Axes], metric: Metric, words: str, across: int = ACROSS) -> Figure:
    """Add labels, ticks in the metric's unit, names of the curves, and space above and below all of them."""
    for axis in axes[::across]:
        axis.set_ylabel(words)
    if metric.unit == "%":
        percent_ticks(axes[0].yaxis)
    if axes[0].get_yscale() == "linear":
        low, high = min(axis.dataLim.y0 for axis in axes), max(axis.dataLim.y1 for axis in axes)
        if low <= high < np.inf:  # not of an empty figure
            axes[0].set_ylim(low - SPACE * (high - low or 1.0), high + SPACE * (high - low or 1.0))
    for axis in axes:
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
    if any(label.endswith(CHOSEN) for label in labels) or not all(isinstance(handle, Curve) for handle in handles):
        return False
    lines = [line_of(handle) for handle in handles]
    ends = [(axis.transData + axis.transAxes.inverted()).transform(np.asarray(line.get_xydata())[-1]) for line in lines]
    across = [end[0] if line.get_transform() == axis.transData else 1.0 for line, end in zip(lines, ends, strict=True)]
    heights = sorted(end[1] for end in ends)
    apart = 1.3 * size / 72 / (0.75 * height)  # of the axis, which takes about three quarters of the height
    if min(across) < NEAR_END or min(np.diff(heights)) < apart:
        return False
    for line, label, end in zip(lines, labels, ends, strict=True):
        style = {"color": line.get_color(), "fontsize": 0.9 * size, "va": "center", "annotation_clip": False}
        axis.annotate(label, (1.0, end[1]), (4, 0), "axes fraction", "offset points", **style)
    return True


def line_of(curve: Line2D | ErrorbarContainer) -> Line2D:
    """Return a curve without its bars."""
    return curve.lines[0] if isinstance(curve, ErrorbarContainer) else curve


def curves_of(axis: Axes) -> tuple[list[Any], list[str]]:
    """Return what a legend lists, and the labels: curves in the order of their right ends, the highest first."""
    found = list(zip(*axis.get_legend_handles_labels(), strict=True))
    if all(isinstance(handle, Curve) for handle, _ in found):
        found.sort(key=lambda pair: -float(np.asarray(line_of(pair[0]).get_ydata())[-1]))  # type: ignore[arg-type]
    return [handle for handle, _ in found], [label for _, label in found]


def add_legend(figure: Figure, axes: list[Axes]) -> None:
    """Add a legend below the panels, or for a single curve its name above them."""
    handles, labels = curves_of(axes[0])
    size = matplotlib.rcParams["font.size"]
    note = CHOSEN_NOTE if any(label.endswith(CHOSEN) for label in labels) else ""
    if len(labels) > 1:
        inch = size / FONT  # of text in points of `FONT`
        fitting = int(figure.get_size_inches()[0] / inch / (HANDLE + letter_width() * max(map(len, labels))))
        columns = max(1, min(len(labels), fitting))
        text: dict[str, Any] = {"fontsize": 0.9 * size, "title": note, "title_fontsize": 0.9 * size}
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, **text)
        lines = -(-len(labels) // columns) + bool(note)
        figure.set_figheight(figure.get_figheight() + LINE * inch * (lines - 1))
    else:
        place = figure.suptitle if len(axes) > 1 or axes[0].get_title() else axes[0].set_title
        place("\n".join([*labels, *[note] * bool(note)]), fontsize=size)


def over_seeds(best: Mapping[str, xr.Dataset], bars: str = "interval") -> str:
    """Return what a figure's curves and bars are.

    >>> over_seeds({"ours": xr.Dataset(coords={"seed": range(8)})})
    'mean, 95% interval, 8 seeds'
    """
    counts = sorted({data.sizes["seed"] for data in best.values()})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"
    shown = {"interval": "95% interval", "percentiles": "half of 5th to 95th percentile"}[bars]
    return ", ".join(["mean"] * (counts != [1]) + [shown] * (counts[-1] >= INTERVAL) + [seeds])


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


def aside(axis: Axes, bars: ErrorbarContainer, index: int, count: int) -> None:
    """Shift the index-th of several curves sideways, since error bars at one place would hide each other.

    The data do not change.
    """
    apart = min(APART, SPREAD / max(1, count - 1))
    axis.margins(x=BESIDE)
    x = apart * (index - (count - 1) / 2)
    moved = offset_copy(axis.transData, axis.figure, x=x, units="points")  # type: ignore[arg-type]
    for artist in bars.get_children():
        artist.set_transform(moved)


def bars_of(runs: xr.DataArray, bars: str, limits: tuple[float, float]) -> tuple[xr.DataArray, xr.DataArray | None]:
    """Return means, and lengths of bars below and above them, shape [2, ...], or None for fewer than three seeds.

    Bars are 95% intervals of the mean, or with "percentiles" half the distance of the 5th and 95th percentiles of the
    runs. They end at `limits`.
    """
    mean, half = mean_interval(runs)
    if runs.sizes["seed"] < INTERVAL:
        return mean, None
    if bars == "percentiles":
        half = (runs.quantile(0.95, "seed") - runs.quantile(0.05, "seed")) / 2
    below, above = half.clip(max=mean - limits[0]), half.clip(max=limits[1] - mean)
    return mean, xr.concat([below.clip(min=0), above.clip(min=0)], xr.Variable("side", ["below", "above"]))


def draw_path(
    axis: Axes, values: xr.DataArray, limits: tuple[float, float], *, scale: float = 1.0, **style: Any
) -> None:
    """Draw means against rounds, multiplied by the cost `scale` of a round, with their intervals as a band."""
    values = values.dropna("round", how="all")
    mean, beyond = bars_of(values, "interval", limits)
    draw_band(axis, scale * mean["round"], mean, beyond, **style)


def draw_band(
    axis: Axes, along: xr.DataArray, mean: xr.DataArray, beyond: xr.DataArray | None, *, color: str, **style: Any
) -> None:
    """Draw a line of means, and a band between the bars of `bars_of`."""
    axis.plot(along, mean, color=color, **style)
    if beyond is not None:
        axis.fill_between(along, mean - beyond[0], mean + beyond[1], color=color, alpha=0.2, lw=0)


def draw_baselines(axes: Sequence[Axes], cells: Cells, points: Sequence[Point], along: str = "") -> None:
    """Draw the constant predictor and the machines that train alone, unless far outside the vertical axis's limits.

    They are lines, or a curve if the mean of the machines depends on the horizontal axis.

    Args:
        points: point of each panel.
        along: name of the horizontal axis.
    """
    if cells.floor is not None:
        level = xr.DataArray(cells.floor)
        _draw_level(axes, [level] * len(axes), along, CONSTANT, color=colours.CONSTANT, ls=":")
    for grey, (words, (mean, _)) in zip(colours.ALONE * len(cells.runs), cells.alone.items(), strict=False):
        parts = [at(mean, {name: value for name, value in point.items() if name != along}) for point in points]
        parts = [part.isel({name: 0 for name in part.dims if name != along}) for part in parts]
        _draw_level(axes, parts, along, words, color=grey, ls="--")


def _draw_level(axes: Sequence[Axes], parts: Sequence[xr.DataArray], along: str, label: str, **style: Any) -> None:
    low, high = axes[0].get_ylim()
    least, most = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    if 2 * low - high > least or most > 2 * high - low:  # off the axis by more than its length
        return
    for axis, part in zip(axes, parts, strict=True):
        if along in part.dims:
            axis.plot(part[along], part, lw=1.5, label=label, **style)
        else:
            axis.axhline(float(part), lw=1.5, label=label, **style)


def point_title(point: Point, fixed: Mapping[str, str] = {}) -> str:
    """Return a panel's title: the panel's own point, and the values that are `fixed` in all panels.

    >>> point_title({"per_round": 5}, {"mu": "2"})
    'm = 5, μ = 2'
    """
    texts = {**{name: f"{value:g}" for name, value in point.items()}, **fixed}
    return ", ".join(f"{SYMBOLS.get(name, name)} = {text}" for name, text in texts.items())
