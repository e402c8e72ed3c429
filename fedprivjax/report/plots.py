"""Plots of results, as matplotlib figures."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import known
from fedprivjax.privacy import gdp
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report import drawing
from fedprivjax.report.client_plot import client_histogram, client_metrics
from fedprivjax.report.colours import looks
from fedprivjax.report.costs import differ_in_costs, metric_against_costs, with_costs
from fedprivjax.report.remarks import constant_of, draw_alone, draw_constant, with_marks
from fedprivjax.report.wording import Layout, power_text, private_terms, relations
from fedprivjax.sweeps.results import figure as figure_of
from fedprivjax.sweeps.results import has, of_iterate, preferred

TOLERANCE = 0.01  # largest relative deviation of a realised ε from its target for which the target is drawn
LONGER = 3  # ratio of the longest to the shortest run above which the axis of rounds is logarithmic
CURVE = 3  # smallest number of values of a swept setting for a curve
SIZES = {"machines": "machines", "records": "records of a machine", "rounds": "rounds", "per_round": "machines a round"}


def metric_against_epsilon(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_accuracy",
    *,
    bars: str = "interval",
    realised: bool | None = None,
    iterate: str = OUTPUT,
    rounds: str = "last",
    constant: bool = True,
    bands: bool = False,
) -> Figure:
    """Plot a metric against ε, one line per protocol, one panel per participation.

    The metric is that of the last evaluation, or with `rounds="mean"` its mean over rounds. Bars need three seeds. They
    are 95% intervals of the mean, or with `bars="percentiles"` half the distance of the 5th and 95th percentiles, and
    end at the metric's limits. With `bands` they are drawn as bands. With `constant`, a dotted line is the constant
    predictor. A dashed line is each machine alone, if it was computed.

    With `realised`, ε is the realised ε of the worst run instead of the swept target. The default is to do so if the
    two differ. Non-private protocols are horizontal lines. Private protocols with a fixed target are a point at the
    worst run's ε. At least one protocol must sweep `mu` or `epsilon`. Other swept settings have their middle value.
    """
    metric, best = known(metric), with_marks(best)
    missed = misses_target(best)
    realised = missed if realised is None else realised
    epsilon = "realised ε, worst run" if realised else "target ε" if missed else "ε"
    chosen = {name: value for name, value in drawing.middle_of(best).items() if name not in LEVELS}
    panels, limits = drawing.panels_of(best), drawing.limits_of(best, metric)
    figure, axes = drawing.panelled(len(panels))
    delta = next(iter(best.values())).attrs["delta"]
    terms = f"(δ = {power_text(delta)}, {relations(private_terms(best))})"
    for axis, panel in zip(axes, panels, strict=True):
        levels: set[float] = set()
        for index, (label, look) in enumerate(looks(best).items()):
            part = drawing.at(best[label], {**chosen, **panel})
            summary = drawing.bars_of(_figure(part, metric, iterate, rounds), bars, limits)
            values, drawn = _draw_curve(axis, part, *summary, realised, {"label": label, "ms": 4, **look}, bands=bands)
            levels |= set(values)
            if drawn is not None:
                drawing.aside(axis, figure, drawn, index, len(best))
        axis.set(xlabel=f"{epsilon}  {terms}", title=drawing.point_title({**panel, **chosen}))
        drawing.epsilon_axis(axis, levels)
    draw_constant(axes, constant_of(best, metric) if constant else None)
    draw_alone(axes, [{**chosen, **panel} for panel in panels], best, metric)
    return drawing.finish(figure, axes, metric, _words(metric, rounds, best, bars))


def metric_over_rounds(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_loss",
    point: Mapping[str, float] | None = None,
    *,
    iterate: str = OUTPUT,
) -> Figure:
    """Plot a metric over rounds at one value of every swept setting (default: the middle), one panel per participation.

    Bands need three seeds. They are 95% intervals of the mean, cut at the metric's limits. The axis of rounds is
    logarithmic if the longest run has more than three times the rounds of the shortest.
    """
    metric, best, panels = known(metric), with_marks(best), drawing.panels_of(best)
    chosen = drawing.placed(best, {**drawing.middle_of(best), **(point or {})})
    limits = drawing.limits_of(best, metric)
    figure, axes = drawing.panelled(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for label, look in looks(best).items():
            part = drawing.at(best[label], {**chosen, **panel})
            if metric.name in part:
                values = of_iterate(part[metric.name], preferred(part, metric.name, iterate))
                drawing.draw_path(axis, label, values, limits, color=look["color"], ls=look["ls"])
        axis.set(xlabel="round", title=drawing.point_title({**panel, **chosen}))
        _scale_rounds(axis)
    return drawing.finish(figure, axes, metric, _words(metric, "last", best))


def _scale_rounds(axis: Axes) -> None:
    """Make the axis of rounds logarithmic if the lengths of runs differ by more than a factor `LONGER`."""
    rounds = [np.asarray(line.get_xdata()) for line in axis.lines]
    ends = [each.max() for each in rounds if each.size]
    if ends and max(ends) > LONGER * min(ends) and min(each.min() for each in rounds if each.size) > 0:
        axis.set_xscale("log")
        drawing.plain_ticks(axis.xaxis, *axis.get_xlim())


def metric_against(
    best: Mapping[str, xr.Dataset],
    axis: str = "machines",
    metric: str | Metric = "excess_risk",
    *,
    bars: str = "interval",
    iterate: str = OUTPUT,
    rounds: str = "last",
    constant: bool = True,
    bands: bool = False,
) -> Figure:
    """Plot a metric against any swept setting, such as "machines" or "clip", one line per protocol.

    The metric and bars are as in `metric_against_epsilon`. An axis is logarithmic if all its values are positive and,
    for the metric, unbounded above, which an accuracy is not. The first other swept setting has a panel per value. The
    remaining ones have their middle value.
    """
    metric, best = known(metric), with_marks(best)
    panels, chosen = _beside(best, axis)
    limits = drawing.limits_of(best, metric)
    figure, axes = drawing.panelled(len(panels), 4.6, 4.2)
    positive = _positive(best, metric, iterate, rounds) and np.isinf(limits[1])
    for place, panel in zip(axes, panels, strict=True):
        for index, (label, look) in enumerate(looks(best).items()):
            part, line = drawing.at(best[label], {**chosen, **panel}), {"label": label, "ms": 4, **look}
            mean, beyond = drawing.bars_of(_figure(part, metric, iterate, rounds), bars, limits)
            if beyond is not None and positive:  # a logarithmic axis has no zero
                beyond = beyond.where(beyond["side"] == "above", np.minimum(beyond, 0.9 * mean))
            if axis not in part.dims:
                place.axhline(float(mean), **{**line, "marker": ""})
            elif bands:
                drawing.draw_band(place, part[axis], mean, beyond, **line)
            else:
                drawn = place.errorbar(part[axis], mean, beyond, capsize=3, **line)
                drawing.aside(place, figure, drawn, index, len(best))
        place.set(xlabel=SIZES.get(axis, axis), title=drawing.point_title({**panel, **chosen}))
        if positive:
            place.set_yscale("log")
            drawing.plain_ticks(place.yaxis, *place.get_ylim())
        values = np.unique(np.concatenate([data[axis].values for data in best.values() if axis in data.dims]))
        if (values > 0).all():
            place.set_xscale("log")
            drawing.plain_ticks(place.xaxis, *place.get_xlim())
        drawing.name_few(place, [f"{value:g}" for value in values])
    draw_constant(axes, constant_of(best, metric) if constant else None)
    draw_alone(axes, [{**chosen, **panel} for panel in panels], best, metric, axis)
    return drawing.finish(figure, axes, metric, _words(metric, rounds, best, bars))


def all_plots(best: Mapping[str, xr.Dataset], layout: Layout) -> dict[str, Figure]:
    """Return every plot with more than one value on its horizontal axis, by name."""
    made: dict[str, Figure] = {}
    constant = "constant" in layout.evaluation.baselines
    of: dict[str, Any] = {"bars": layout.evaluation.bars, "iterate": layout.evaluation.iterate, "constant": constant}
    shown = layout.shown_in("against_epsilon")
    metrics = [metric for metric in shown if all(has(data, metric.name) for data in best.values())]
    over = [(metric, layout.rounds(metric.name)) for metric in metrics]
    if _sweeps_epsilon(best):
        for metric, rounds in over:
            made[f"{metric.name}_against_epsilon"] = metric_against_epsilon(best, metric, **of, rounds=rounds)
            if misses_target(best):
                figure = metric_against_epsilon(best, metric, **of, rounds=rounds, realised=False)
                made[f"{metric.name}_against_target_epsilon"] = figure
    for axis in curves(best):
        for metric, rounds in over:
            if not _sweeps_epsilon(best) or _positive(best, metric, layout.evaluation.iterate, rounds):
                made[f"{metric.name}_against_{axis}"] = metric_against(best, axis, metric, **of, rounds=rounds)
    of = {"point": layout.evaluation.at, "iterate": layout.evaluation.iterate}
    for metric in layout.shown_in("over_rounds"):
        if all(metric.name in data and _has_path(data[metric.name]) for data in best.values()):
            made[f"{metric.name}_over_rounds"] = metric_over_rounds(best, metric, **of)
    for metric in layout.shown_in("against_costs") if differ_in_costs(best) else ():
        if sum(metric.name in data and _has_path(data[metric.name]) for data in with_costs(best).values()) > 1:
            made[f"{metric.name}_against_costs"] = metric_against_costs(best, metric, **of, constant=constant)
    return made | {f"{name}_of_clients": client_histogram(best, name, **of) for name in client_metrics(best)}


def curves(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the swept settings that are drawn as horizontal axes: those with at least `CURVE` values.

    If ε is swept too, only machines, records and rounds are drawn.
    """
    first = [str(name) for name in next(iter(best.values()))["diverged"].dims if name not in ("seed", *LEVELS)]
    long = [name for name in first if all(data.sizes.get(name, 1) >= CURVE for data in best.values())]
    return [name for name in long if not _sweeps_epsilon(best) or name in ("machines", "records", "rounds")]


def misses_target(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if the worst run's realised ε deviates from a swept target by more than `TOLERANCE` anywhere."""
    return any(_off_target(data) > TOLERANCE for data in best.values())


def _sweeps_epsilon(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if a protocol has several privacy levels."""
    return any(data.sizes.get(name, 1) > 1 for data in best.values() for name in LEVELS)


def _figure(data: xr.Dataset, metric: Metric, iterate: str, rounds: str) -> xr.DataArray:
    """Return the metric's value for each run, of the iterate if the protocol has it, else of the output."""
    return figure_of(data, metric.name, preferred(data, metric.name, iterate), rounds)


def _positive(best: Mapping[str, xr.Dataset], metric: Metric, iterate: str, rounds: str) -> bool:
    """Return True if all means are positive."""
    return all(bool((_figure(data, metric, iterate, rounds).mean("seed") > 0).all()) for data in best.values())


def _draw_curve(
    axis: Axes,
    data: xr.Dataset,
    mean: xr.DataArray,
    beyond: xr.DataArray | None,
    realised: bool,
    line: dict[str, Any],
    *,
    bands: bool,
) -> tuple[list[float], ErrorbarContainer | None]:
    """Draw a line over the swept ε, a point at a fixed target, or a horizontal line for a non-private protocol.

    Returns:
        values of ε, and the bars if there are any to move aside.
    """
    swept = next((name for name in LEVELS if name in mean.dims), None)
    worst = data["realised_epsilon"].max("seed", skipna=False)
    if swept is None and not np.isfinite(worst):
        axis.axhline(float(mean), **{**line, "marker": ""})
        return [], None
    epsilon = worst if realised or swept is None else _target_epsilon(data, swept)
    values = np.atleast_1d(epsilon.values)
    if bands and swept is not None:
        drawing.draw_band(axis, epsilon, mean, beyond, **line)
        return values.tolist(), None
    bars = None if beyond is None else np.reshape(beyond.values, (2, -1))
    return values.tolist(), axis.errorbar(values, np.atleast_1d(mean), bars, capsize=3, **line)


def _has_path(values: xr.DataArray) -> bool:
    """Return True if any run has more than one evaluation."""
    return bool((values.notnull().sum("round") > 1).any())


def _beside(best: Mapping[str, xr.Dataset], axis: str) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return a panel for each value of the first swept setting except the axis, and the middle value of the others."""
    dims = next(iter(best.values()))["diverged"].dims
    name = next((str(n) for n in dims if n not in (axis, "seed")), None)
    values = [] if name is None else next(iter(best.values()))[name].values.tolist()
    return [{str(name): value} for value in values] or [{}], drawing.middle_of(best, but=(axis, str(name)))


def _target_epsilon(data: xr.Dataset, swept: str) -> xr.DataArray:
    """Return the ε of every value of a swept target."""
    values = data[swept]
    return values if swept == "epsilon" else values.copy(data=gdp.epsilon(values.values, data.attrs["delta"]))


def _off_target(data: xr.Dataset) -> float:
    """Return the largest relative deviation of the worst run's ε from its target, or 0 if no target is swept."""
    swept = next((name for name in LEVELS if name in data.dims), None)
    if swept is None:
        return 0.0
    off = abs(data["realised_epsilon"].max("seed", skipna=False) / _target_epsilon(data, swept) - 1)
    return float(off.fillna(0.0).max())  # ∞ divided by ∞ is NaN, and on target


def _words(metric: Metric, rounds: str, best: Mapping[str, xr.Dataset], bars: str = "interval") -> str:
    over = ", mean over rounds" if rounds == "mean" else ""
    return f"{metric.words}{over}\n({drawing.over_seeds(best, bars)})"
