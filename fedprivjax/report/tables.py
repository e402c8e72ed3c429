"""Tables of results: means with intervals, rounds to a value, realised ε and costs."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import Metric
from fedprivjax.experiment import Experiment, tuning_experiment
from fedprivjax.experiment.tuning import Choice, formatted
from fedprivjax.layout import wording
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import Point
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.summary import Summary, has_point, varied
from fedprivjax.sweeps.intervals import INTERVAL, mean_interval
from fedprivjax.sweeps.results import has, preferred, rounds_to
from fedprivjax.sweeps.selection import SELECTED_BY

CONSTANT = "constant predictor"
COUNTED = {
    "rounds_taken": "rounds",
    "gradients_per_record": "gradients a record",
    "messages": "messages a machine sends",
    "sent_bytes": "bytes a machine sends",
}
ALIKE = 0.005  # relative difference up to which costs share a row
AXES = {
    "rounds_taken": "rounds",
    "sent_bytes": "sent by a machine",
    "gradients_per_record": "gradients a record",
    "hours": "simulated hours",
}
WORSE = " †"  # mark of a mean that is worse than the constant predictor's value
Columns = dict[str, xr.DataArray]  # text of each column, on its own axes
BEST = "best_"  # beginning of the names of chosen settings (see `select`)
SAME = "″"  # the protocol does not depend on the settings that changed since the row above
NONE = "–"  # the protocol was not run with these settings


def results_tables(this: Summary) -> list[Sheet]:
    """Return every table of results: one per tabulated metric, the realised ε, the cost of a run, chosen settings.

    The realised ε has a table only if the other tables do not show it, see `realised_differs`.
    """
    found = [results_table(this, cells.metric) for cells in this.tabulated]
    found += [rounds_table(this, *each) for each in this.evaluation.rounds_to.items() if this.recorded(each[0])]
    found += [realised_table(this)] if realised_differs(this) else []
    found += [costs_table(this)] if with_costs(this.best) else []
    return [*found, *([] if this.tuned is None else [this.tuned]), *chosen_tables(this)]


def results_table(this: Summary, metric: str | Metric) -> Sheet:
    """Return a table of a metric's mean ± 95% interval, one row per swept cell, one column per protocol.

    With fewer than three seeds there are no intervals.
    """
    cells = this.cells(metric)
    text = partial(_interval_text, cells.metric.text)
    columns: Columns = {}
    for label, (mean, half) in cells.intervals.items():
        marks = xr.where(cells.worse(mean), WORSE, "")
        columns[this.labels[label]] = _texts(text, mean, half.where(cells.seeded)) + marks
    if cells.floor is not None:
        columns[CONSTANT] = xr.DataArray(cells.metric.text(cells.floor))
    columns |= {words: _texts(text, *interval) for words, interval in cells.alone.items()}
    what = f"mean{' ± 95% interval' * cells.seeded} over {this.over}"
    return _grid_table(f"{cells.title}, {what}; {_stated(this)}", this, this.varied, ["mu"], columns)


def rounds_table(this: Summary, name: str, value: float) -> Sheet:
    """Return a table of the first evaluated round at which a metric reaches a value: the mean ± 95% interval.

    If some runs do not reach it, the cell is a lower bound of the mean, in which they count with the rounds that they
    were run for, and the number of runs that reach it.
    """
    columns: Columns = {}
    for label, data in this.best.items():
        if has(data, name):
            runs = varied(rounds_to(data, name, value, preferred(data, name, this.evaluation.iterate)))
            mean, half = mean_interval(runs.fillna(float(data["round"].max())))
            count, seeded = runs.sizes["seed"], runs.sizes["seed"] >= INTERVAL
            columns[this.labels[label]] = _texts(_rounds_text, mean, half.where(seeded), runs.count("seed"), count)
    title = wording.title_of(this.metric(name), this.evaluation.iterate, rounds_to=value)
    interval = this.fewest >= INTERVAL
    what = f"mean{' ± 95% interval' * interval} over {this.over}; {_stated(this)}"
    return _grid_table(f"{title}, first evaluated round, {what}", this, this.varied, ["mu"], columns)


def _rounds_text(mean: float, half: float, reached: int, count: int) -> str:
    """Return the mean of numbers of rounds with its interval, or a lower bound if some runs do not reach the value."""
    return _interval_text("{:.1f}".format, mean, half) if reached == count else f"> {mean:.1f} ({reached} of {count})"


def _interval_text(text: Callable[[float], str], mean: float, half: float) -> str:
    """Return a mean with the half-width of its interval, unless that is NaN."""
    return text(mean) if np.isnan(half) else f"{text(mean)} ± {text(half)}"


def _texts(text: Callable[..., str], *values: xr.DataArray | float) -> xr.DataArray:
    """Return the text of values at every point of their axes."""
    return xr.apply_ufunc(text, *values, vectorize=True, output_dtypes=[object])


def realised_differs(this: Summary) -> bool:
    """Return True if tables of a metric do not state the realised ε of every private protocol, or up to 1% more.

    They state targets: in their rows, if all protocols have the same swept level, or in their titles, if there is only
    one. The noise may be given instead.
    """
    swept = [name for name in LEVELS if name in this.varied]
    rows = any(all(name in this.best[label].dims for label in this.private) for name in swept)
    return this.misses_target or not (rows or this.common_target or not this.private)


def realised_table(this: Summary) -> Sheet:
    """Return a table of the realised ε of each worst run, next to the target ε.

    There is a column for each protocol that is private or has a finite target.
    """
    axes = {name: values for name, values in this.axes.items() if len(values) > 1 or name in LEVELS}
    targeted = [label for label, target in this.target_epsilon.items() if np.isfinite(target).any()]
    shown = [label for label in this.epsilon if label in this.private or label in targeted]
    columns = {f"{name}{_own(this, name)}": _texts(wording.epsilon_text, varied(this.epsilon[name])) for name in shown}
    title = f"realised ε at δ = {this.evaluation.delta:g}, the worst of {this.over}{wording.mixed(this.terms)}"
    return _grid_table(title, this, axes, LEVELS, columns)


def _own(this: Summary, label: str) -> str:
    """Return a protocol's fixed target as text, or an empty string if the target is swept or missing."""
    first, *others = np.unique(this.target_epsilon[label])
    swept = others or any(name in this.best[label].dims for name in LEVELS)
    return "" if swept or np.isnan(first) else f" (target {wording.epsilon_text(first)})"


def chosen_tables(this: Summary) -> list[Sheet]:
    """Return a table of the settings that these results chose, or no table."""
    columns: Columns = {}
    metrics: list[str] = []
    for label, data in this.best.items():
        for name, (low, high) in chosen_settings(this, data).items():
            columns[f"{label}: {name}"] = _texts(wording.range_text, low, high)
            metrics.append(data.attrs.get(SELECTED_BY, this.evaluation.select))
    title = f"settings chosen by the best mean {', '.join(dict.fromkeys(metrics))}, not covered by the guarantee"
    return [_grid_table(title, this, this.varied, ["mu"], columns)] if columns else []


def chosen_settings(this: Summary, data: xr.Dataset) -> dict[str, tuple[xr.DataArray, xr.DataArray]]:
    """Return the smallest and the largest value over trials of each setting that these results chose, by name."""
    found = {}
    for name in (str(each) for each in data.data_vars if str(each).startswith(BEST)):
        trials = [dim for dim in data[name].dims if dim not in this.varied]
        found[name.removeprefix(BEST)] = data[name].min(trials), data[name].max(trials)
    return found


def with_costs(best: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets with recorded costs. Datasets of versions that did not record them are dropped."""
    return {label: data for label, data in best.items() if "sent_bytes" in data}


def run_costs(data: xr.Dataset) -> xr.Dataset:
    """Return the cost of a run, averaged over seeds, at every point of a dataset.

    The variables are the keys of `COUNTED`, `hours` (NaN without delays) and `seconds`.
    """
    messages = 8 * data["sent_bytes"] / data["sent_bits"] * data["sent_messages"]
    found = data.assign(messages=messages, hours=data.get("hours", np.nan))
    return found[[*COUNTED, "hours", "seconds"]].mean("seed")


def costs_table(this: Summary) -> Sheet:
    """Return a table of the cost of a run, one row per protocol, and per swept cell only if costs differ."""
    runs = {label: run_costs(data) for label, data in with_costs(this.best).items()}
    own = {label: [name for name in this.varied if _differs(costs, name)] for label, costs in runs.items()}
    axes = [name for name in this.varied if any(name in names for names in own.values())]
    table = Sheet(f"what a run costs, mean over {this.over}; seconds include compilation", keys=1 + len(axes))
    table.add_columns("protocol", justify="left")
    timed = any(costs["hours"].notnull().any() for costs in runs.values())
    table.add_columns(*axes, *COUNTED.values(), *[AXES["hours"]] * timed, "seconds")
    for label, costs in runs.items():
        for point in wording.points_of({name: costs[name].values.tolist() for name in own[label]}):
            at = [f"{point[name]:g}" if name in point else "" for name in axes]
            table.add_row(label, *at, *_cells(costs.sel(point), timed))
    return table


def _differs(costs: xr.Dataset, axis: str) -> bool:
    """Return True if a run's cost changes along an axis by more than `ALIKE`. Seconds always vary and are ignored."""
    counted = [costs[name] for name in (*COUNTED, "hours") if axis in costs[name].dims]
    return any(_apart(each.min(axis), each.max(axis)) for each in counted)


def _cells(costs: xr.Dataset, timed: bool) -> list[str]:
    """Return the numbers of a row, each the mean of the cells that share the row."""
    value = {str(name): float(each.mean()) for name, each in costs.items()}
    sent = wording.count_text(value["messages"]), wording.count_text(value["sent_bytes"])
    counted = [f"{value['rounds_taken']:.0f}", wording.number_text(value["gradients_per_record"], "–"), *sent]
    hours = [wording.number_text(value["hours"], "–")] * timed
    return [*counted, *hours, wording.number_text(value["seconds"], "–")]


def differ_in_costs(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if there are several protocols and their rounds, bytes or hours differ at some point."""
    runs = [run_costs(data) for data in with_costs(best).values()]
    return any(_apart(one[name], runs[0][name]) for one in runs[1:] for name in ("rounds_taken", "sent_bytes", "hours"))


def _apart(one: xr.DataArray, other: xr.DataArray) -> bool:
    """Return True if a cost differs from another at some point by more than `ALIKE` of the other."""
    return bool((abs(one - other) > ALIKE * abs(other)).any())


def choice_table(experiment: Experiment, choices: Mapping[str, Choice]) -> Sheet:
    """Return the tuned points, one row per method, with the mean of the metric and the number of points tried."""
    other = tuning_experiment(experiment)
    metric = other.evaluation.known(other.evaluation.select)
    given = other.sweep.seeds
    seeds = given if isinstance(given, int) else len(given)
    over = f"all cells and {seeds} seed{'s' * (seeds > 1)}"
    table = Sheet(f"chosen on {other.problem.dataset}, by the best mean over {over}")
    table.add_columns("method", "chosen", justify="left")
    table.add_columns(metric.title, "of points", "diverged")
    for label, one in choices.items():
        table.add_row(label, formatted(one.values), metric.text(one.score), str(one.points), str(one.diverged))
    return table


def _stated(this: Summary) -> str:
    """Return the δ of a table's ε, ε if there is only one target, and units and relations if they differ."""
    only = f" = {this.common_target}" if this.common_target else ""
    return f"ε{only} at δ = {this.evaluation.delta:g}{wording.mixed(this.terms)}"


def _grid_table(
    title: str, this: Summary, axes: Mapping[str, list[float]], beside: Collection[str], columns: Columns
) -> Sheet:
    """Return a table with a row per point of a grid. A target ε follows each axis in `beside`.

    There is a line between rows if the first of several varied axes changes.
    """
    table = Sheet(title)
    for name in axes:
        table.add_columns(name, *["target ε"] * (name in beside))
    table.keys = len(table.columns)
    table.add_columns(*columns)
    first = next(iter(this.varied), "")
    previous: dict[str, float] = {}
    for point in wording.points_of(axes):
        if len(this.varied) > 1 and previous and point[first] != previous[first]:
            table.add_section()
        coordinates = []
        for name, value in point.items():
            coordinates.append(f"{value:g}")
            if name in beside:
                coordinates.append(wording.epsilon_text(wording.target_epsilon(name, value, this.evaluation.delta)))
        table.add_row(*coordinates, *(_text(texts, point, previous) for texts in columns.values()))
        previous = point
    return table


def _text(texts: xr.DataArray, point: Point, previous: Point) -> str:
    """Return the text at a point, `SAME` if no value of its axes differs from the row above, or `NONE`."""
    own = wording.of_axes(texts, point)
    if previous and own == wording.of_axes(texts, previous):
        return SAME
    return texts.sel(own).item() if has_point(texts, point) else NONE
