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
from fedprivjax.report.cells import Cells, Point, at, best_cell
from fedprivjax.report.summary import PANELS, Summary
from fedprivjax.report.wording import points_of
from fedprivjax.sweeps.results import mean_interval

LEAST = 3  # smallest number of values of an axis
WRITTEN = 8  # largest number of values along an axis of a map with numbers
ACROSS = 2  # panels per row, since a phone's page is narrow
COLOURS = "cividis"  # monotone in lightness, also for colour-blind readers


def grid_axes(this: Summary) -> list[str]:
    """Return the two largest swept settings of the methods, the larger one first, or no names if there are not two."""
    sizes = {name: max(data.sizes.get(name, 1) for data in this.best.values()) for name in this.tunable}
    found = sorted((name for name in sizes if sizes[name] >= LEAST), key=lambda name: -sizes[name])[:2]
    return found if len(found) == 2 and _having(this, found) else []


def _having(this: Summary, names: list[str]) -> list[str]:
    """Return the labels of the protocols with all of these axes."""
    return [label for label, data in this.best.items() if set(names) <= set(data["diverged"].dims)]


def metric_over_grid(this: Summary, metric: str | Metric = "test_accuracy") -> Figure:
    """Plot a metric over the two largest swept settings, one panel for each protocol, ε and participation.

    The best cell, by the rule of `select`, has a frame. The title has its value, and the settings at the edge of the
    grid. Further settings have their best values. The choice uses the results, so no guarantee covers it.

    Raises:
        Refusal: if the methods have no two settings of at least `LEAST` values.
    """
    cells, axes = this.cells(metric), grid_axes(this)
    if not axes:
        raise Refusal(f"results must have two swept settings of at least {LEAST} values to be drawn as a grid")
    but = (*axes, *LEVELS, *PANELS)
    fixed = this.settled(cells, but)
    panels = [
        (label, {**point, **fixed})
        for label in _having(this, axes)
        if label in cells.runs
        for point in points_of(_levels(this.best[label]))
    ]
    means = [mean_interval(at(cells.runs[label], point))[0].transpose(*reversed(axes)) for label, point in panels]
    limits = min(float(mean.min()) for mean in means), max(float(mean.max()) for mean in means)
    figure, drawn = drawing.panelled(len(panels), 4.4, 3.6, across=ACROSS)
    for axis, (label, point), mean in zip(drawn, panels, means, strict=True):
        _draw(axis, mean, cells, limits)
        best = best_cell(replace(cells, runs={label: cells.runs[label]}), axes, point)
        name = [this.labels[label]] * (len(_having(this, axes)) > 1)
        title = ", ".join(filter(None, (*name, drawing.point_title(point), f"best {_mark(axis, mean, best, cells)}")))
        axis.set_title(title, fontsize="medium")
    bar = figure.colorbar(drawn[0].collections[0], ax=drawn, label=f"{cells.words}, mean over {this.over}")
    if cells.metric.unit == "%":
        drawing.percent_ticks(bar.ax.yaxis)
    return figure


def _levels(data: xr.Dataset) -> dict[str, list[float]]:
    return {name: data[name].values.tolist() for name in (*PANELS, *LEVELS) if name in data.dims}


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


def _mark(axis: Axes, mean: xr.DataArray, best: Point, cells: Cells) -> str:
    """Frame the best cell, and return it as text."""
    down, across = (str(name) for name in mean.dims)
    row, column = (int(np.flatnonzero(mean[name].values == best[name])[0]) for name in (down, across))
    axis.add_patch(Rectangle((column + 0.05, row + 0.05), 0.9, 0.9, fill=False, ec="#d1242f", lw=2.5))
    ends = [name for name, place in ((across, column), (down, row)) if place in (0, mean.sizes[name] - 1)]
    edge = f"\n({' and '.join(ends)} at the grid's edge)" if ends else ""
    return cells.metric.text(float(mean.sel(best))) + cells.metric.unit + edge
