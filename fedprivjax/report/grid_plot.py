"""Heat maps of a grid: a metric over the two largest swept settings of the methods."""

from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report import drawing
from fedprivjax.report.remarks import CHOSEN_NOTE
from fedprivjax.report.summary import CHOSEN, PANELS, Cells, Summary, at, tunable
from fedprivjax.report.wording import points_of
from fedprivjax.sweeps.intervals import mean_interval
from fedprivjax.sweeps.selection import POINT, best_point

LEAST = 3  # smallest number of values of an axis
WRITTEN = 8  # largest number of values along an axis of a map with numbers
MAPS = 12  # largest number of maps with one for each privacy level; otherwise there is one for the middle level
ACROSS = 2  # panels per row, since a phone's page is narrow
FRAME = "#d1242f"
COLOURS = "cividis"  # monotone in lightness, also for colour-blind readers


def grid_axes(this: Summary) -> list[str]:
    """Return the two largest swept settings of the methods, the larger one first, or no names if there are not two."""
    sizes: dict[str, int] = {}
    for data in this.whole.values():
        for name in tunable(data["diverged"], LEAST):
            sizes[name] = max(sizes.get(name, 0), data.sizes[name])
    found = sorted(sizes, key=lambda name: -sizes[name])[:2]
    held = any(set(found) <= set(data["diverged"].dims) for data in this.whole.values())
    return found if len(found) == 2 and held else []


def metric_over_grid(this: Summary, metric: str | Metric = "test_accuracy") -> Figure:
    """Plot a metric over the two largest swept settings, one panel for each protocol, ε and participation.

    Grids of a protocol are drawn whole. More than `MAPS` panels have the middle ε only. The best cell, by the rule of
    `select`, has a frame, and cells whose interval reaches its mean have a dotted one. The title has its value, and the
    settings at the edge of the grid. Further settings have their best values in every cell. The choice uses the
    results, so no guarantee covers it.

    Raises:
        Refusal: if the methods have no two settings of at least `LEAST` values.
    """
    axes, whole = grid_axes(this), replace(this, best=this.whole)
    if not axes:
        wanted = f"two swept settings of methods of at least {LEAST} values"
        raise Refusal(f"results must have {wanted} to be drawn as a grid")
    drawn = whole.drawn(metric, (*axes, *LEVELS, *PANELS))
    if len(_panels(drawn, metric, axes)) > MAPS:
        drawn = whole.drawn(metric, (*axes, *PANELS))
    cells, panels = drawn.cells(metric), _panels(drawn, metric, axes)
    runs = [at(cells.runs[label], point).transpose(*reversed(axes), "seed") for label, point in panels]
    means = [mean_interval(each)[0] for each in runs]
    limits = min(float(mean.min()) for mean in means), max(float(mean.max()) for mean in means)
    several = len({label for label, _ in panels}) > 1
    figure, maps = drawing.panelled(len(panels), 4.4, 3.6, across=ACROSS)
    for axis, (label, point), mean, each in zip(maps, panels, means, runs, strict=True):
        _draw(axis, mean, cells, limits)
        best = f"best {_mark(axis, each, cells.metric)}"
        words = [label if several else "", drawing.point_title(point, drawn.fixed), best]
        axis.set_title(", ".join(filter(None, words)), fontsize="medium")
    bar = figure.colorbar(maps[0].collections[0], ax=maps, label=f"{cells.words}, mean over {this.over}")
    figure.supxlabel(f"{CHOSEN_NOTE};\ndotted: interval reaches the best mean", fontsize="small")
    if cells.metric.unit == "%":
        drawing.percent_ticks(bar.ax.yaxis)
    return figure


def _panels(this: Summary, metric: str | Metric, axes: list[str]) -> list[tuple[str, dict[str, float]]]:
    """Return the label and the point of each map."""
    levels = (*PANELS, *LEVELS)
    return [
        (label, point)
        for label, runs in this.cells(metric).runs.items()
        if set(axes) <= set(runs.dims)
        for point in points_of({name: runs[name].values.tolist() for name in levels if name in runs.dims})
    ]


def _draw(axis: Axes, mean: xr.DataArray, cells: Cells, limits: tuple[float, float]) -> None:
    """Draw a map, with the values of the settings as ticks, and the means as text if there are few."""
    name = COLOURS + "_r" * (cells.metric.better != "higher")
    image = axis.pcolormesh(
        np.ma.masked_invalid(mean.values), cmap=name, ec="face", lw=0.2, vmin=limits[0], vmax=limits[1]
    )
    down, across = (str(name) for name in mean.dims)
    axis.set_xticks(np.arange(mean.sizes[across]) + 0.5, [f"{value:g}" for value in mean[across].values])
    axis.set_yticks(np.arange(mean.sizes[down]) + 0.5, [f"{value:g}" for value in mean[down].values])
    axis.set(xlabel=across, ylabel=down)
    if max(mean.shape) > WRITTEN:
        return
    for (row, column), value in np.ndenumerate(mean.values):
        dark = np.isfinite(value) and np.dot(image.to_rgba(np.array([value]))[0, :3], (0.3, 0.59, 0.11)) < 0.5
        text = cells.metric.text(float(value)) if np.isfinite(value) else "–"
        axis.text(column + 0.5, row + 0.5, text, color="#fdfdfd" if dark else "#111111", ha="center", va="center")


def _mark(axis: Axes, runs: xr.DataArray, metric: Metric) -> str:
    """Frame the best cell, and those whose interval reaches its mean. Return its value as text.

    Args:
        runs: value of each run, shape [down, across, seed].
    """
    mean, half = (each.values for each in mean_interval(runs))
    best = divmod(int(best_point(runs.stack({POINT: runs.dims[:2]}), ["seed"], metric.better)), mean.shape[1])
    for (row, column), gap in np.ndenumerate(abs(mean - mean[best])):
        if (row, column) == best or gap <= half[row, column]:
            line = {"ls": "-", "lw": 2.5} if (row, column) == best else {"ls": ":", "lw": 1.5}
            axis.add_patch(Rectangle((column + 0.05, row + 0.05), 0.9, 0.9, fill=False, ec=FRAME, **line))
    down, across, _ = (str(name) for name in runs.dims)
    ends = [name for name, dim in ((across, 1), (down, 0)) if best[dim] in (0, mean.shape[dim] - 1)]
    edge = f"\n({' and '.join(ends)} at the grid's edge)" if ends else ""
    return metric.text(float(mean[best])) + metric.unit + CHOSEN + edge
