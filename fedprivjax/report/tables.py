"""Tables of results: means with intervals, realised ε and costs, with footnotes."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known
from fedprivjax.engine.simulate import STEPS
from fedprivjax.privacy.guarantee import LARGE_EPSILON
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report import remarks
from fedprivjax.report.costs import EXPECTED, costs_table, with_costs
from fedprivjax.report.plots import TOLERANCE, misses_target
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import (
    Layout,
    epsilon_text,
    grouped,
    hide_sizes,
    mixed,
    of_axes,
    points_of,
    private_terms,
    rounds_title,
    target_epsilon,
    terms_of,
    title_of,
)
from fedprivjax.sweeps.results import INTERVAL, figure, has, mean_interval, preferred, rounds_to
from fedprivjax.sweeps.selection import UNACCOUNTED

Point = Mapping[str, float]
Cells = dict[str, tuple[Collection[Hashable], Callable[[Point], str]]]  # axes of a column, and text at their values
SAME = "″"  # the protocol does not depend on the settings that changed since the row above


def results_tables(layout: Layout, best: Mapping[str, xr.Dataset]) -> list[Sheet]:
    """Return every table of results: one per tabulated metric, then the realised ε, then the cost of a run.

    The realised ε has a table only if it differs from the target ε in the other tables' rows.
    """
    found = [results_table(layout, best, metric) for metric in _shown_metrics(layout, best)]
    found += [rounds_table(layout, best, *each) for each in layout.evaluation.rounds_to.items() if _any(best, each[0])]
    realised = [realised_table(layout, best)] if layout.targeted and realised_differs(layout, best) else []
    costed = with_costs(best)
    return [*found, *realised, *([costs_table(layout, costed, _runs(best))] if costed else [])]


def results_table(layout: Layout, best: Mapping[str, xr.Dataset], metric: str | Metric) -> Sheet:
    """Return a table of a metric's mean ± 95% interval, one row per swept cell, one column per protocol.

    The metric is taken at the last evaluation, or as the mean over evaluations if the layout averages it. It is that of
    the layout's iterate if the protocol has it, else of the output. With fewer than three seeds there are no intervals.
    """
    metric = known(metric)
    runs, floor = metric_runs(layout, best, metric), metric_floor(layout, best, metric)
    interval = min(values.sizes["seed"] for values in runs.values()) >= INTERVAL
    cells: Cells = {
        remarks.marked(label, best[label]): (
            values.dims,
            partial(_cell, *mean_interval(values), metric, interval, floor),
        )
        for label, values in runs.items()
    }
    if floor is not None:
        cells[remarks.CONSTANT] = (), lambda _: metric.text(floor)
    for words, (mean, half) in remarks.alone_of(best, metric).items():
        cells[words] = mean.dims, partial(_cell, mean, half, metric, bool(half.notnull().all()), None)
    title = title_of(metric, layout.evaluation.iterate, layout.rounds(metric.name))
    what = f"mean{' ± 95% interval' * interval} over {_runs(best)}"
    return _grid_table(f"{title}, {what}; {_stated(layout, best)}", layout, layout.varied, ["mu"], cells)


def rounds_table(layout: Layout, best: Mapping[str, xr.Dataset], name: str, value: float) -> Sheet:
    """Return a table of the first evaluated round at which a metric reaches a value: the mean ± 95% interval.

    If some runs do not reach it, the cell is a lower bound of the mean, in which they count with the rounds that they
    were run for, and the number of runs that reach it.
    """
    metric = next((own for own in layout.evaluation.custom_metrics.values() if own.name == name), known(name))
    cells: Cells = {}
    for label, data in best.items():
        if has(data, name):
            reached = _varied(rounds_to(data, name, value, preferred(data, name, layout.evaluation.iterate)))
            cells[remarks.marked(label, data)] = (
                reached.dims,
                partial(_rounds_cell, reached, float(data["round"].max())),
            )
    title = rounds_title(metric, value, layout.evaluation.iterate)
    interval = next(iter(best.values())).sizes["seed"] >= INTERVAL
    what = f"mean{' ± 95% interval' * interval} over {_runs(best)}; {_stated(layout, best)}"
    return _grid_table(f"{title}, first evaluated round, {what}", layout, layout.varied, ["mu"], cells)


def _rounds_cell(runs: xr.DataArray, last: float, own: Point) -> str:
    """Return the mean of numbers of rounds with its interval, or a lower bound if some are NaN."""
    runs = runs.sel(own)
    count, reached = runs.sizes["seed"], int(runs.notnull().sum())
    mean, half = (float(each) for each in mean_interval(runs.fillna(last)))
    if reached < count:
        return f"> {mean:.1f} ({reached} of {count})"
    return f"{mean:.1f} ± {half:.1f}" if count >= INTERVAL else f"{mean:.1f}"


def _any(best: Mapping[str, xr.Dataset], name: str) -> bool:
    return any(has(data, name) for data in best.values())


def metric_runs(layout: Layout, best: Mapping[str, xr.Dataset], metric: Metric) -> dict[str, xr.DataArray]:
    """Return the metric's value for each run of the protocols that recorded it, by label; shape [..., seed]."""
    rounds = layout.rounds(metric.name)
    return {
        label: _varied(figure(data, metric.name, preferred(data, metric.name, layout.evaluation.iterate), rounds))
        for label, data in best.items()
        if has(data, metric.name)
    }


def metric_floor(layout: Layout, best: Mapping[str, xr.Dataset], metric: Metric) -> float | None:
    """Return the constant predictor's value, or None if it is not shown."""
    return remarks.constant_of(best, metric) if "constant" in layout.evaluation.baselines else None


def realised_differs(layout: Layout, best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if the realised ε of a private protocol is not the target ε of the tables' rows, up to 1%.

    This includes every private protocol whose target is fixed, since the rows do not show it.
    """
    private = {label: data for label, data in best.items() if np.isfinite(data["realised_epsilon"]).any()}
    swept = all(any(name in data.dims and name in layout.varied for name in LEVELS) for data in private.values())
    return not swept or misses_target(private)


def realised_table(layout: Layout, best: Mapping[str, xr.Dataset]) -> Sheet:
    """Return a table of the realised ε of each private protocol's worst run, next to the target ε."""
    worst = {
        label: _varied(data["realised_epsilon"]).max("seed", skipna=False)
        for label, data in best.items()
        if np.isfinite(data["realised_epsilon"]).any()
    }
    axes = {name: values for name, values in layout.axes.items() if len(values) > 1 or name in LEVELS}
    cells: Cells = {f"{label}{_own(layout, label)}": (axes, partial(_realised, one)) for label, one in worst.items()}
    title = f"realised ε at δ = {layout.evaluation.delta:g}, the worst of {_runs(best)}{mixed(private_terms(best))}"
    return _grid_table(title, layout, axes, LEVELS, cells)


def footnotes(layout: Layout, best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the footnotes of the tables: guarantees, selection, divergence, data used, limits of the guarantees."""
    lines = []
    for label, data in best.items():
        private = not np.isinf(data["realised_mu"]).all()
        lines += [f"{label}: {words}" for words in (_covered(data) if private else ["non-private"])]
        if "selected" in data.attrs:
            lines.append(f"  {data.attrs['selected']}")
        if data["diverged"].any():
            lines.append(f"  {int(data['diverged'].sum())} of {data['diverged'].size} runs diverged (NaN)")
    if any(UNACCOUNTED in data.attrs for data in best.values()):
        lines += [remarks.CHOSEN_NOTE, *[remarks.NAIVE_NOTE] * remarks.chosen_by_these_runs(best)]
    if any(_any(best, name) for name in layout.evaluation.rounds_to):
        lines.append("rounds to a value: > x (k of n) means that k of n runs reach it, and that the mean is above x")
    told = {} if hide_sizes(best) else best
    lines += [*_swept(layout, best), *_unequal(best), *_used(told), *_expected(best), *_baselines(layout, best)]
    lines += _weights(told)
    names = non_private_metrics(best)
    if names:
        lines.append(f"non-private metric: {', '.join(names)}")
    for text in dict.fromkeys(data.attrs.get("non_private_data", "") for data in best.values()):
        lines += [f"NON-PRIVATE preparation of the data, which no guarantee covers: {text}"] if text else []
    realised = [data["realised_epsilon"] for data in best.values()]
    if any(np.isfinite(each).any() for each in realised) and layout.targeted and not realised_differs(layout, best):
        lines.append(f"realised ε of the worst run: within {TOLERANCE:.0%} of its target")
    if any(exceeds(each, LARGE_EPSILON) for each in realised):
        lines.append(f"! marks ε > {LARGE_EPSILON:g}: little protection by itself")
    lines.append("simulation randomness: not for deployment")
    return [*lines, *([layout.notes] if layout.notes else [])]


def _baselines(layout: Layout, best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return definitions of the baselines that are shown, and comparisons of protocols with them."""
    metrics = _shown_metrics(layout, best)
    of = {metric.name: metric_runs(layout, best, metric) for metric in metrics}
    floors = {metric.name: metric_floor(layout, best, metric) for metric in metrics}
    lines = []
    if any(floor is not None for floor in floors.values()):
        lines.append(
            f"{remarks.CONSTANT}: always the most frequent class, or the mean label, of the training data; not private"
        )
    if any(_any_worse(of[m.name], floor, m) for m in metrics if (floor := floors[m.name]) is not None):
        lines.append(f"{remarks.WORSE.strip()} marks a mean that is worse than the {remarks.CONSTANT}'s")
    lines += _alone(best, metrics)
    lines += [line for metric in metrics for line in remarks.below_alone(best, of[metric.name], metric)]
    return [*lines, *(line for metric in metrics for line in remarks.above_non_private(best, of[metric.name], metric))]


def _alone(best: Mapping[str, xr.Dataset], metrics: Iterable[Metric]) -> list[str]:
    """Return the definition of the baseline of machines that train alone, if there is one."""
    machines = " / ".join(dict.fromkeys(data.attrs["alone"] for data in best.values() if "alone" in data.attrs))
    if not machines or not any(remarks.alone_of(best, metric) for metric in metrics):
        return []
    learner = f"{STEPS} full-batch gradient steps on its own records, with a line search, no clip and no noise"
    return [f"{remarks.ALONE}: mean ± 95% interval over {machines}, each after {learner}; nothing is sent; non-private"]


def _any_worse(runs: Mapping[str, xr.DataArray], floor: float, metric: Metric) -> bool:
    means = [mean_interval(values)[0].values.ravel() for values in runs.values()]
    return any(remarks.is_better(floor, float(mean), metric) for each in means for mean in each)


def _shown_metrics(layout: Layout, best: Mapping[str, xr.Dataset]) -> list[Metric]:
    """Return the metrics that have a table."""
    metrics = layout.shown_in("table")
    return [metric for metric in metrics if any(has(data, metric.name) for data in best.values())]


def exceeds(values: xr.DataArray, level: float) -> bool:
    """Return True if any finite value is above the level."""
    return bool(((values > level) & np.isfinite(values)).any())


def non_private_metrics(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the recorded metrics that are computed on private data, which no guarantee covers."""
    listed = [data.attrs["non_private_metrics"].split(", ") for data in best.values()]
    return list(dict.fromkeys(name for each in listed for name in each if name))


def _swept(layout: Layout, best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the remarks on swept settings, by the first tabulated metric."""
    metrics = _shown_metrics(layout, best)
    return remarks.sweep_notes(best, metric_runs(layout, best, metrics[0]), metrics[0]) if metrics else []


def _unequal(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return a line with the numbers of points that protocols were tuned over, if these differ."""
    sizes = {label: int(data.attrs["grid_points"]) for label, data in best.items() if "grid_points" in data.attrs}
    text = ", ".join(f"{label} {points}" for label, points in sizes.items())
    return [f"chosen from grids of unequal size: {text}"] if len(set(sizes.values())) > 1 else []


def _weights(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the sentences on weights of machines of unequal size, each once and in its longest form."""
    said = list(dict.fromkeys(data.attrs.get("weights", "") for data in best.values()))
    return [text for text in said if text and not any(other != text and other.startswith(text) for other in said)]


def _expected(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return a line that names costs of secret samples or cohorts, which are expected values."""
    names = dict.fromkeys(name for data in best.values() for name in data.attrs.get("expected", "").split(", ") if name)
    costs = " and ".join(EXPECTED[name] for name in names)
    return [f"{costs}: expected values where samples or participation are secret"] if names else []


def _used(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the fraction of the data that a run uses, one line for all protocols with the same, if it is known."""
    alike = grouped((data.attrs.get("data_used", ""), label) for label, data in best.items())
    whose = {text: "" if len(alike) == 1 else f"{'; '.join(labels)}: " for text, labels in alike.items() if text}
    return [f"{who}a run uses {text}" for text, who in whose.items()]


def _own(layout: Layout, label: str) -> str:
    """Return a protocol's fixed target as text, or an empty string if the target is swept or missing."""
    own = [
        target_epsilon(name, value, layout.evaluation.delta) for name, value in layout.targets.get(label, {}).items()
    ]
    return "".join(f" (target {epsilon_text(epsilon)})" for epsilon in own)


def _covered(data: xr.Dataset) -> list[str]:
    """Return the distinct terms of the dataset's guarantees: unit, relation, trust model and theorem."""
    return sorted({f"{one.unit}, {one.stated_relation}, trust: {one.against}; {one.theorem}" for one in terms_of(data)})


def _stated(layout: Layout, best: Mapping[str, xr.Dataset]) -> str:
    """Return the δ of a table's ε, and the units and relations if they differ between protocols."""
    return f"ε at δ = {layout.evaluation.delta:g}{mixed(private_terms(best))}"


def _runs(best: Mapping[str, xr.Dataset]) -> str:
    """Return the number of runs that means are taken over as text, such as "3 seeds"."""
    data = next(iter(best.values()))
    count, unit = data.sizes["seed"], str(data["seed"].attrs.get("unit", "seeds"))
    return f"{count} {unit if count > 1 else unit.removesuffix('s')}"


def _grid_table(
    title: str, layout: Layout, axes: Mapping[str, list[float]], beside: Collection[str], cells: Cells
) -> Sheet:
    """Return a table with a row per point of a grid. A target ε follows each axis in `beside`.

    There is a line between rows if the first of several varied axes changes.
    """
    table = Sheet(title)
    for name in axes:
        table.add_columns(name, *["target ε"] * (name in beside))
    table.keys = len(table.columns)
    table.add_columns(*cells)
    first = next(iter(layout.varied), "")
    previous: dict[str, float] = {}
    for point in points_of(axes):
        if len(layout.varied) > 1 and previous and point[first] != previous[first]:
            table.add_section()
        coordinates = []
        for name, value in point.items():
            target = [epsilon_text(target_epsilon(name, value, layout.evaluation.delta))] if name in beside else []
            coordinates += [f"{value:g}", *target]
        table.add_row(*coordinates, *(_text(*cell, point, previous) for cell in cells.values()))
        previous = point
    return table


def _text(axes: Collection[Hashable], cell: Callable[[Point], str], point: Point, previous: Point) -> str:
    """Return the text of a cell, or `SAME` if no value of its axes differs from the row above."""
    own = {name: value for name, value in point.items() if name in axes}
    return SAME if previous and own == {name: previous[name] for name in own} else cell(own)


def _varied(runs: xr.DataArray) -> xr.DataArray:
    """Return the runs without dimensions of size one, except seeds."""
    return runs.squeeze([name for name in runs.dims if runs.sizes[name] == 1 and name != "seed"], drop=True)


def _realised(values: xr.DataArray, point: Point) -> str:
    """Return the realised ε at a point."""
    return epsilon_text(float(values.sel(of_axes(values, point))))


def _cell(
    mean: xr.DataArray, half: xr.DataArray, metric: Metric, interval: bool, floor: float | None, own: Point
) -> str:
    """Return a mean with its interval, and a mark if it is worse than `floor`."""
    value = float(mean.sel(own))
    text = metric.text(value)
    mark = remarks.WORSE if floor is not None and remarks.is_better(floor, value, metric) else ""
    return (f"{text} ± {metric.text(float(half.sel(own)))}" if interval else text) + mark
