"""Plots of results, as matplotlib figures."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.client_metrics import CLIENT
from fedprivjax.engine.metric import Metric
from fedprivjax.layout import colours, drawing
from fedprivjax.layout.colours import looks
from fedprivjax.layout.drawing import Panel
from fedprivjax.layout.wording import Point, grouped, points_of, power_text, relations
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.grid_plot import grid_axes, metric_over_grid
from fedprivjax.report.summary import PANELS, Cells, Summary, at, axes_of, has_point, target_of
from fedprivjax.report.tables import AXES, CONSTANT, COUNTED, differ_in_costs, run_costs, with_costs
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.sweeps.results import has, preferred

CURVE = 3  # smallest number of values of a swept setting for a curve
SIZES = {"machines": "machines", "records": "records of a machine", "rounds": "rounds", "per_round": "machines a round"}
BINS = 20
EPSILON, ROUND, COSTS, GRID = "epsilon", "round", "costs", "grid"  # horizontal axes
NAMES = {ROUND: "over_rounds", GRID: "over_grid"}  # ends of the names of plots; of other axes, `against_` and the axis
COST = {"bytes": "sent_bytes", "gradients": "gradients_per_record", "hours": "hours"}  # single costs that are axes


def metric_against_epsilon(this: Summary, metric: str | Metric = "test_accuracy") -> Figure:
    """Plot a metric against ε, one line per protocol, one panel per participation.

    The metric is that of the summary's cells. Bands need three seeds. They are 95% intervals of the mean, cut at the
    metric's limits. A dotted line is the constant predictor, a dashed line each machine alone, if it was computed.

    ε is the swept target, or if the two differ, the realised ε of the worst run. Non-private protocols are horizontal
    lines. Private protocols with a fixed target are a point at the worst run's ε. At least one protocol must sweep `mu`
    or `epsilon`. Other swept settings are as in `Summary.drawn`.
    """
    realised = this.misses_target
    epsilon = "realised ε, worst run" if realised else "ε"
    this, cells, figure, panels = _panelled(this, metric, LEVELS)
    delta = next(iter(this.best.values())).attrs["delta"]
    for axis, point in panels:
        along = {}
        for label, data, _ in _parts(this, cells, point):
            worst, target = at(this.epsilon[label], point), target_of(data)
            if target is not None or np.isfinite(worst):
                along[label] = worst if realised or target is None else target
        _draw_curves(axis, this, cells, point, along)
        axis.set_xlabel(f"{epsilon}  (δ = {power_text(delta)}, {relations(this.terms)})")
        drawing.epsilon_axis(axis, {float(level) for each in along.values() for level in np.atleast_1d(each)})
    _draw_baselines(panels, cells)
    return drawing.finish(figure, panels, cells.metric, drawing.over_seeds(cells.words, this.best))


def metric_over_rounds(this: Summary, metric: str | Metric = "test_loss") -> Figure:
    """Plot a metric over rounds at one value of every swept setting, one panel per participation.

    Bands are as in `metric_against_epsilon`.
    """
    this, cells, figure, panels = _panelled(this, metric)
    for axis, point in panels:
        for _, data, style in _parts(this, cells, point):
            if cells.metric.name in data:
                _draw_path(axis, this, data, cells, **{**style, "marker": ""})
        axis.set_xlabel("round")
    return drawing.finish(figure, panels, cells.metric, drawing.over_seeds(cells.metric.words, this.best))


def metric_against(this: Summary, axis: str = "machines", metric: str | Metric = "excess_risk") -> Figure:
    """Plot a metric against any swept setting, such as "machines" or "clip", one line per protocol.

    The metric and bands are as in `metric_against_epsilon`. An axis is logarithmic if all its values are positive and,
    for the metric, unbounded above, which an accuracy is not. The first other swept setting has a panel per value. The
    remaining ones are as in `Summary.drawn`.
    """
    first = next(iter(this.best.values()))
    others = [name for name in axes_of(first) if name != axis]
    this, cells, figure, panels = _panelled(this, metric, (axis,), others[:1])
    positive = np.isinf(cells.limits[1]) and all((values.mean("seed") > 0).all() for values in cells.runs.values())
    along = {label: data[axis] for label, data in this.best.items() if axis in data.dims}
    for place, point in panels:
        place.set_yscale("log" if positive else "linear")
        _draw_curves(place, this, cells, point, along)
        place.set_xlabel(SIZES.get(axis, axis))
        if positive:
            drawing.plain_ticks(place.yaxis, *place.get_ylim())
        values = np.unique(np.concatenate([each.values for each in along.values()]))
        if (values > 0).all():
            place.set_xscale("log")
            drawing.plain_ticks(place.xaxis, *place.get_xlim())
        drawing.name_few(place, [f"{value:g}" for value in values])
    _draw_baselines(panels, cells, axis)
    return drawing.finish(figure, panels, cells.metric, drawing.over_seeds(cells.words, this.best))


def metric_against_costs(
    this: Summary,
    metric: str | Metric = "test_accuracy",
    *,
    costs: Collection[str] = tuple(AXES),
) -> Figure:
    """Plot a metric during runs against rounds, bytes sent by a machine, gradients per record, and simulated hours.

    Each of `costs`, names of a dataset ("hours" for participation with delays), has a panel with a logarithmic axis,
    and each participation a row of panels. Every swept setting has one value, as in `Summary.drawn`. A marker is at a
    run's end. Bands are as in `metric_against_epsilon`. A run's bytes, gradients and hours are spread evenly over its
    rounds, which is exact for bytes and gradients of cohorts of equal size. Gradients per record are not drawn for data
    whose examples are computed on demand.
    """
    name = this.metric(metric).name
    spent = {label: run_costs(data) for label, data in with_costs(this.best).items() if name in data}
    shown = [cost for cost in costs if any(one[cost].notnull().any() for one in spent.values())]
    if not shown:
        wanted = " or ".join(COUNTED.get(cost, AXES[cost]) for cost in costs)
        raise Refusal(f"results must have {wanted} to be drawn against, got none")
    this, cells, figure, panels = _panelled(this, metric, across=len(shown))
    for (axis, point), cost in zip(panels, cycle(shown), strict=False):
        for label, data, style in _parts(this, cells, point):
            if label in spent:
                whole = run_costs(data)
                scale = float(whole[cost] / whole["rounds_taken"])
                if np.isfinite(scale):
                    _draw_path(axis, this, data, cells, scale, **style, markevery=[-1])
        _label(axis, cost)
    _draw_baselines(panels, cells)
    words = drawing.over_seeds(cells.metric.words, this.best)
    return drawing.finish(figure, panels, cells.metric, words, across=len(shown) if len(shown) > 1 else None)


def client_histogram(this: Summary, metric: str | Metric) -> Figure:
    """Plot how many clients have which value of a metric at the last evaluation, one panel per participation.

    A client's value is its mean over seeds. Swept settings have one value each, as in `Summary.drawn`.
    """
    this, cells, figure, panels = _panelled(this, metric)
    for axis, point in panels:
        parts = list(_parts(this, cells, point))
        values = [_of_clients(at(cells.runs[label], point)) * cells.metric.scale for label, _, _ in parts]
        edges = np.histogram_bin_edges(np.concatenate(values), BINS).tolist()
        for each, (_, _, style) in zip(values, parts, strict=True):
            axis.hist(each, edges, histtype="step", **{name: style[name] for name in ("label", "color", "ls")})
        axis.set_xlabel(cells.title)
    return drawing.finish(figure, panels, replace(cells.metric, unit=""), "clients")


def _of_clients(runs: xr.DataArray) -> np.ndarray:
    """Return the mean over seeds of every client, shape [clients], or no values if a run diverged."""
    found = runs.mean("seed", skipna=False).values.ravel()
    return found[np.isfinite(found)]


def client_metrics(this: Summary) -> list[str]:
    """Return the names of the recorded metrics that have a value for every client."""
    return [name for name, axes in this.recorded_axes.items() if axes == [CLIENT]]


def all_plots(this: Summary) -> dict[str, Figure]:
    """Return every plot with more than one value on its horizontal axis, by name."""
    everyone = [m for m in this.shown_in("against_epsilon") if all(has(data, m.name) for data in this.best.values())]
    metrics = dict.fromkeys((EPSILON, GRID, *curves(this)), everyone)
    metrics[ROUND] = [m for m in this.shown_in("over_rounds") if _paths(this.best, m) == len(this.best)]
    if differ_in_costs(this.best):
        metrics[COSTS] = [m for m in this.shown_in("against_costs") if _paths(with_costs(this.best), m) > 1]
    made: dict[str, Figure] = {}
    drawn = drawn_against(this)
    for axis in (axis for axis in metrics if axis in drawn):
        for metric in metrics[axis]:
            made[f"{metric.name}_{NAMES.get(axis, f'against_{axis}')}"] = drawn[axis](metric)
    return made | {f"{name}_of_clients": client_histogram(this, name) for name in client_metrics(this)}


def drawn_against(this: Summary) -> dict[str, Callable[[str | Metric], Figure]]:
    """Return the function that draws a metric against each available axis: ε, swept settings, rounds, costs, a grid."""
    pairs = [(name, data.sizes[name]) for data in this.best.values() for name in axes_of(data) if name not in LEVELS]
    swept = list(dict.fromkeys(name for name, size in pairs if size > 1))
    found: dict[str, Callable[[str | Metric], Figure]] = {}
    if _sweeps_epsilon(this):
        found[EPSILON] = partial(metric_against_epsilon, this)
    found |= {name: partial(metric_against, this, name) for name in swept}
    if any(data.sizes.get(ROUND, 0) > 1 for data in this.best.values()):
        found[ROUND] = partial(metric_over_rounds, this)
        if with_costs(this.best):
            found[COSTS] = partial(metric_against_costs, this)
            found |= {axis: partial(metric_against_costs, this, costs=[cost]) for axis, cost in COST.items()}
    return found | ({GRID: partial(metric_over_grid, this)} if grid_axes(this) else {})


def curves(this: Summary) -> list[str]:
    """Return the swept settings that are drawn as horizontal axes: those with at least `CURVE` values.

    If ε is swept too, only machines, records and rounds are drawn.
    """
    first = [name for name in axes_of(next(iter(this.best.values()))) if name not in LEVELS]
    long = [name for name in first if all(data.sizes.get(name, 1) >= CURVE for data in this.best.values())]
    return [name for name in long if not _sweeps_epsilon(this) or name in ("machines", "records", "rounds")]


def _panelled(
    this: Summary, metric: str | Metric, axes: Sequence[str] = (), panels: Sequence[str] = PANELS, across: int = 1
) -> tuple[Summary, Cells, Figure, list[Panel]]:
    """Return what is drawn along `axes`: a summary (see `Summary.drawn`), its cells, a figure, and titled panels.

    Args:
        panels: axes with a panel for each combination of their values.
        across: number of panels at each of these points, in a row.
    """
    this = this.drawn(metric, (*axes, *panels))
    own = ((name, data[name].values.tolist()) for data in this.best.values() for name in panels if name in data.dims)
    points = points_of({name: sorted(set().union(*values)) for name, values in grouped(own).items()})
    points = [point for point in points for _ in range(across)]
    figure, places = drawing.panelled(len(points), across=across if across > 1 else None)
    panelled: list[Panel] = list(zip(places, points, strict=True))
    for axis, point in panelled[::across]:
        axis.set_title(drawing.point_title(point, this.fixed, this.chosen))
    return this, this.cells(metric), figure, panelled


def _parts(this: Summary, cells: Cells, point: Point) -> Iterator[tuple[str, xr.Dataset, dict[str, Any]]]:
    """Yield label, dataset at a point, and style of each protocol that recorded a metric."""
    for label, look in looks(this.best).items():
        if label in cells.runs and has_point(cells.runs[label], point):
            yield label, at(this.best[label], point), {"label": this.labels[label], "ms": 4, **look}


def _draw_path(axis: Axes, this: Summary, data: xr.Dataset, cells: Cells, scale: float = 1.0, **style: Any) -> None:
    """Draw a recorded metric during runs against rounds, each of which costs `scale`.

    It is that of the summary's iterate if the protocol has it, else of the output.
    """
    name = cells.metric.name
    values = of_iterate(data[name], preferred(data, name, this.evaluation.iterate)).dropna("round", how="all")
    drawing.draw_curve(axis, scale * values["round"], *drawing.seen_interval(values), cells.limits, **style)


def _draw_curves(axis: Axes, this: Summary, cells: Cells, point: Point, along: Mapping[str, xr.DataArray]) -> None:
    """Draw each protocol's means against its values `along` the axis, or as a horizontal line if it has none."""
    for label, _, style in _parts(this, cells, point):
        mean, half = drawing.seen_interval(at(cells.runs[label], point))
        if label in along:
            drawing.draw_curve(axis, along[label], mean, half, cells.limits, **style)
        else:
            axis.axhline(float(mean), **{**style, "marker": ""})


def _label(axis: Axes, name: str) -> None:
    axis.set(xlabel=AXES[name], xscale="log")
    drawing.plain_ticks(axis.xaxis, *axis.get_xlim())
    if name == "sent_bytes":
        low, high = axis.get_xlim()
        if high > 30 * low:  # fewer ticks, since "100 kB" is longer than a number
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)) if high < 300 * low else LogLocator(numticks=6))
        axis.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _sweeps_epsilon(this: Summary) -> bool:
    """Return True if a protocol has several privacy levels."""
    return any(data.sizes.get(name, 1) > 1 for data in this.best.values() for name in LEVELS)


def _paths(best: Mapping[str, xr.Dataset], metric: Metric) -> int:
    """Return the number of protocols with more than one evaluation of the metric in some run."""
    evaluated = [data[metric.name].notnull().sum("round") for data in best.values() if metric.name in data]
    return sum(bool((count > 1).any()) for count in evaluated)


def _draw_baselines(panels: list[Panel], cells: Cells, along: str = "") -> None:
    """Draw the constant predictor and the machines that train alone, unless far outside the vertical axis's limits.

    They are lines, or a curve if the mean of the machines depends on the horizontal axis, which is called `along`.
    """
    baselines = [] if cells.floor is None else [(CONSTANT, xr.DataArray(cells.floor), colours.CONSTANT, ":")]
    greys = zip(cells.alone.items(), cycle(colours.ALONE), strict=False)
    baselines += [(words, mean, grey, "--") for (words, (mean, _)), grey in greys]
    low, high = panels[0][0].get_ylim()
    for label, mean, color, ls in baselines:
        parts = [at(mean, {name: value for name, value in point.items() if name != along}) for _, point in panels]
        parts = [part.isel({name: 0 for name in part.dims if name != along}) for part in parts]
        if min(map(np.min, parts)) < 2 * low - high or max(map(np.max, parts)) > 2 * high - low:
            continue  # off the axis by more than its length
        for (axis, _), part in zip(panels, parts, strict=True):
            if along in part.dims:
                axis.plot(part[along], part, lw=1.5, label=label, color=color, ls=ls)
            else:
                axis.axhline(float(part), lw=1.5, label=label, color=color, ls=ls)
