"""Heat maps of a grid: a metric over two swept settings of the methods, or over one and the privacy level."""

from dataclasses import replace

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import Normal, Stroke

from fedprivjax.engine.metric import Metric
from fedprivjax.layout import drawing
from fedprivjax.layout.colours import letter_width
from fedprivjax.layout.wording import CHOSEN, CHOSEN_NOTE, points_of, target_epsilon
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.summary import PANELS, Cells, Summary, as_good, at, tunable
from fedprivjax.sweeps.intervals import mean_interval
from fedprivjax.sweeps.selection import POINT, best_point

LEAST = 3  # smallest number of values of an axis
WRITTEN = 8  # largest number of values along an axis of a map with numbers
TICKS = 10  # largest number of values along an axis that all have a label
TURNED = 28  # number of characters of all labels along an axis above which they are written upwards
MAPS = 12  # largest number of maps with one for each privacy level; otherwise there is one for the middle level
ACROSS = 2  # panels per row, since a phone's page is narrow
FRAME, UNDER = "#d1242f", "#fdfdfd"  # colours of a frame and of the wider line below it, on light and dark cells
TITLE = 0.85  # part of a panel's width that its title takes
EDGE = "(edge)"
COLOURS = "cividis"  # monotone in lightness, also for colour-blind readers


def grid_axes(this: Summary) -> list[str]:
    """Return the horizontal and the vertical axis of heat maps, or no names if there are none.

    They are the two largest swept settings of the methods, the larger one first. If only one has `LEAST` values, the
    vertical axis is the privacy level of several values.
    """
    sizes: dict[str, int] = {}
    levels: dict[str, int] = {}
    for data in this.whole.values():
        for name in tunable(data["diverged"], LEAST):
            sizes[name] = max(sizes.get(name, 0), data.sizes[name])
        for name in LEVELS:
            if data.sizes.get(name, 1) > 1:
                levels[name] = max(levels.get(name, 0), data.sizes[name])
    found = [*_largest_first(sizes), *_largest_first(levels)][:2] if sizes else []
    held = any(set(found) <= set(data["diverged"].dims) for data in this.whole.values())
    return found if len(found) == 2 and held else []


def _largest_first(sizes: dict[str, int]) -> list[str]:
    return sorted(sizes, key=lambda name: -sizes[name])


def metric_over_grid(this: Summary, metric: str | Metric = "test_accuracy") -> Figure:
    """Plot a metric over the axes of `grid_axes`, one panel for each protocol, ε and participation.

    Grids of a protocol are drawn whole. More than `MAPS` panels have the middle ε only. The best cell, by the rule of
    `select`, has a frame, and cells with a mean within its interval have a dotted one, by the rule of bold means in
    `Frame.to_latex`. The title has the best cell's value, its settings ("edge" marks the smallest and the largest of
    the grid) and its realised ε, unless ε is swept. Further settings have their best values in every cell. The choice
    uses the results, so no guarantee covers it.

    With one swept setting and several privacy levels, each level is a row of one map. The best cell of each row has the
    frame, and its value and setting follow the row.
    """
    axes, whole = grid_axes(this), replace(this, best=this.whole)
    drawn = whole.drawn(metric, (*axes, *LEVELS, *PANELS))
    if len(_panels(drawn, metric, axes)) > MAPS:
        drawn = whole.drawn(metric, (*axes, *PANELS))
    cells, panels = drawn.cells(metric), _panels(drawn, metric, axes)
    runs = [at(cells.runs[label], point).transpose(*reversed(axes), "seed") for label, point in panels]
    means = [mean_interval(each)[0] for each in runs]
    limits = min(float(mean.min()) for mean in means), max(float(mean.max()) for mean in means)
    alike = all(  # maps of other values have a vertical axis of their own
        np.array_equal(mean[axes[1]], means[0][axes[1]]) for mean in means
    )
    by_level = axes[1] in LEVELS
    figure, maps = drawing.panelled(len(panels), 5.4 if by_level else 4.4, 3.6, across=ACROSS, sharey=alike)
    width = TITLE * figure.get_figwidth() / min(len(panels), ACROSS)
    size = float(matplotlib.rcParams["font.size"])
    fitting = width / (letter_width() * size / drawing.FONT)  # letters in a line of this size
    for axis, (label, point), mean, each in zip(maps, panels, means, runs, strict=True):
        _draw(axis, mean, cells, limits, drawn.best[label].attrs["delta"])
        title = [label, drawing.point_title(point, drawn.fixed, drawn.chosen)]
        if by_level:
            _mark_rows(axis, mean, each, cells.metric)
            best = f"best {axes[0]}{CHOSEN} of each row at its right"
        else:
            cell = _mark(axis, each, cells.metric)
            epsilon = float(at(drawn.epsilon[label], {**point, **_values_at(mean, cell)}).max())
            if np.isfinite(epsilon) and "ε" not in title[1]:
                title.append(f"ε = {up(epsilon, 4)}")
            best = _best_text(mean, cell, cells.metric)
        lines = ", ".join(filter(None, title)), best
        axis.set_title("\n".join(lines), fontsize=size * min(1, fitting / max(map(len, lines))))
    words, place = f"{cells.words}, mean over {this.over}", {"location": "bottom", "aspect": 7 * figure.get_figwidth()}
    bar = figure.colorbar(maps[0].collections[0], ax=maps, label=words, **place)
    figure.set_figheight(figure.get_figheight() + 0.5)
    marks = f"dotted: mean within the interval of the best; {EDGE}: end of the grid"
    figure.supxlabel(f"{CHOSEN_NOTE};\n{marks}", fontsize="small")
    if cells.metric.unit == "%":
        drawing.percent_ticks(bar.ax.xaxis)
    return figure


def _values_at(mean: xr.DataArray, cell: dict[str, int]) -> dict[str, float]:
    """Return the values of the settings at a cell, by name."""
    return {name: float(mean[name][place]) for name, place in cell.items()}


def _value_text(mean: xr.DataArray, name: str, place: int) -> str:
    """Return a value of a setting, with a mark if it is the smallest or the largest."""
    edge = f" {EDGE}" if place in (0, mean.sizes[name] - 1) else ""
    return _short(float(mean[name][place])) + edge


def _best_text(mean: xr.DataArray, cell: dict[str, int], metric: Metric) -> str:
    """Return the part of a title that names the best cell's value and its settings."""
    across_first = reversed(cell.items())
    settings = ", ".join(f"{name} = {_value_text(mean, name, place)}" for name, place in across_first)
    return f"best {metric.text(float(mean[cell]))}{metric.unit}{CHOSEN} at {settings}"


def _panels(this: Summary, metric: str | Metric, axes: list[str]) -> list[tuple[str, dict[str, float]]]:
    """Return the label and the point of each map."""
    levels = (*PANELS, *LEVELS)
    return [
        (label, point)
        for label, runs in this.cells(metric).runs.items()
        if set(axes) <= set(runs.dims)
        for point in points_of(
            {name: runs[name].values.tolist() for name in levels if name in runs.dims and name not in axes}
        )
    ]


def _draw(axis: Axes, mean: xr.DataArray, cells: Cells, limits: tuple[float, float], delta: float) -> None:
    """Draw a map, with the values of the settings as ticks, and the means as text if there are few.

    A level μ is followed by its ε at this δ.
    """
    name = COLOURS + "_r" * (cells.metric.better != "higher")
    image = axis.pcolormesh(
        np.ma.masked_invalid(mean.values), cmap=name, ec="face", lw=0.2, vmin=limits[0], vmax=limits[1]
    )
    down, across = (str(name) for name in mean.dims)
    for ticks, name in ((axis.xaxis, across), (axis.yaxis, down)):
        step = -(-mean.sizes[name] // TICKS)
        values = mean[name].values[::step].tolist()
        texts = list(map(_short, values))
        if name == "mu":
            epsilons = [up(target_epsilon(name, value, delta), 4) for value in values]
            texts = [f"{text}\n(ε = {epsilon})" for text, epsilon in zip(texts, epsilons, strict=True)]
        ticks.set_ticks(np.arange(0.5, mean.sizes[name], step), texts)
    if sum(len(label.get_text()) + 1 for label in axis.get_xticklabels()) > TURNED:
        axis.tick_params("x", rotation=90)
    axis.set(xlabel=across, ylabel=drawing.SYMBOLS.get(down, down) if down in LEVELS else down)
    if max(mean.shape) > WRITTEN:
        return
    for (row, column), value in np.ndenumerate(mean.values):
        dark = np.isfinite(value) and np.dot(image.to_rgba(np.array([value]))[0, :3], (0.3, 0.59, 0.11)) < 0.5
        text = cells.metric.text(float(value)) if np.isfinite(value) else "–"
        axis.text(column + 0.5, row + 0.5, text, color="#fdfdfd" if dark else "#111111", ha="center", va="center")


def _short(value: float) -> str:
    """Return a number as text, rounded to three digits if it has more than six characters.

    >>> _short(16384.0), _short(1.0625), _short(0.000316228)
    ('16384', '1.0625', '0.000316')
    """
    text = f"{value:g}"
    return text if len(text) <= 6 else f"{value:.3g}"


def _mark(axis: Axes, runs: xr.DataArray, metric: Metric, first: int = 0) -> dict[str, int]:
    """Frame the best cell, and those with a mean within its interval. Return the best cell's place on each axis.

    Args:
        runs: value of each run, shape [down, across, seed].
        first: row of the map in which the runs begin.
    """
    mean, half = (each.values for each in mean_interval(runs))
    best = divmod(int(best_point(runs.stack({POINT: runs.dims[:2]}), ["seed"], metric.better)), mean.shape[1])
    for (row, column), good in np.ndenumerate(as_good(mean, mean[best], half[best], metric)):
        if (row, column) == best or good:
            line = {"ls": "-", "lw": 2.5} if (row, column) == best else {"ls": ":", "lw": 1.5}
            frame = Rectangle((column + 0.05, first + row + 0.05), 0.9, 0.9, fill=False, ec=FRAME, **line)
            solid = {"dash_offset": 0, "dash_list": None}
            frame.set_path_effects([Stroke(linewidth=line["lw"] + 1.5, foreground=UNDER, dashes=solid), Normal()])
            axis.add_patch(frame)
    return {str(name): place for name, place in zip(runs.dims[:2], best, strict=True)}


def _mark_rows(axis: Axes, mean: xr.DataArray, runs: xr.DataArray, metric: Metric) -> None:
    """Mark the best cell of each row as in `_mark`, and write its value and setting at the row's right end.

    Args:
        mean: means of the map, shape [down, across].
        runs: value of each run, shape [down, across, seed].
    """
    down, across = (str(name) for name in mean.dims)
    step = -(-mean.sizes[down] // TICKS)
    for row in range(mean.sizes[down]):
        best = _mark(axis, runs.isel({down: [row]}), metric, row)[across]
        if row % step == 0:
            value = metric.text(float(mean[row, best])) + metric.unit
            setting = _value_text(mean, across, best)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            axis.annotate(f"{value} at {setting}", (1.0, row + 0.5), (4, 0), va="center", **place)
