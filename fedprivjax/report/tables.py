"""What a run says on the screen: tables with intervals, guarantees, verdicts."""

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np
import xarray as xr
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, shown
from fedprivjax.experiment import TRIAL, Experiment
from fedprivjax.experiment.run import Job
from fedprivjax.experiment.verdict import Verdict, describe
from fedprivjax.privacy import gdp
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.guarantee import LARGE_EPSILON, PrivacyGuarantee
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.results import figure, has, mean_interval, preferred, rounds_of
from fedprivjax.sweeps.sweep import ReadySweep

VERDICTS = {None: "–", True: "ok", False: "MISS"}


def results_tables(experiment: Experiment, best: dict[str, xr.Dataset]) -> list[Table]:
    """Every table of an experiment's results: one for each metric that is shown so, then the realised ε."""
    names = [name for name in shown("table") if any(has(data, name) for data in best.values())]
    over = {name: rounds_of(name, experiment.record.averaged) for name in names}
    found = [results_table(experiment, best, name, experiment.record.iterate, over[name]) for name in names]
    private = any(np.isfinite(data["realised_epsilon"]).any() for data in best.values())
    realised = [realised_table(experiment, best)] if private and _has_target(experiment) else []
    many = {label: data for label, data in best.items() if (data.get("sent_messages", xr.DataArray(1.0)) > 1).any()}
    return [*found, *realised, *([costs_table(experiment, many)] if many else [])]


def results_table(
    experiment: Experiment,
    best: dict[str, xr.Dataset],
    metric: str | Metric,
    iterate: str = OUTPUT,
    rounds: str = "last",
) -> Table:
    """Mean ± 95% interval of a metric's last record, or of its mean over `rounds`: a row per swept cell, a column per
    protocol; of the iterate, where a protocol has it, else of its output."""
    metric = known(metric)
    title = f"{_title(metric, iterate, rounds)}, mean ± 95% interval over {_runs(best)}"
    table = Table(title=f"{title}; ε at δ = {experiment.record.delta:g}", title_justify="left")
    axes = {name: values for name, values in experiment.sweep.over.items() if len(values) > 1}
    for name in axes:
        table.add_column(name, justify="right")
        if name == "mu":
            table.add_column("target ε", justify="right", no_wrap=True)
    columns = {
        label: _varied(figure(data, metric.name, preferred(data, metric.name, iterate), rounds))
        for label, data in best.items()
        if has(data, metric.name)
    }
    for label in columns:
        table.add_column(label, justify="right")
    summaries = [mean_interval(runs) for runs in columns.values()]
    points, previous = _points(axes), {}
    for point in points:
        if previous and point[next(iter(axes))] != previous[next(iter(axes))] and len(axes) > 1:
            table.add_section()
        cells = [_cell(*summary, point, previous, metric) for summary in summaries]
        table.add_row(*_coordinates(point, experiment.record.delta), *cells)
        previous = point
    return table


def realised_table(experiment: Experiment, best: dict[str, xr.Dataset]) -> Table:
    """The ε that each private protocol's noise gives its worst run, beside the target's ε."""
    delta = experiment.record.delta
    worst = {
        label: _varied(data["realised_epsilon"]).max("seed", skipna=False)
        for label, data in best.items()
        if np.isfinite(data["realised_epsilon"]).any()
    }
    table = Table(title=f"realised ε at δ = {delta:g}, the worst of {_runs(best)}", title_justify="left")
    axes = {name: values for name, values in experiment.sweep.over.items() if len(values) > 1 or name in LEVELS}
    swept = [name for name in axes if name in LEVELS]
    for name in (*axes, *["target ε"] * len(swept), *(f"{label}{_own(experiment, label)}" for label in worst)):
        table.add_column(name, justify="right")
    for point in _points(axes):
        targets = [_epsilon(_target(name, point[name], delta)) for name in swept]
        cells = [values.sel({name: point[name] for name in point if name in values.dims}) for values in worst.values()]
        table.add_row(*(f"{v:g}" for v in point.values()), *targets, *(_epsilon(float(cell)) for cell in cells))
    return table


def costs_table(experiment: Experiment, best: dict[str, xr.Dataset]) -> Table:
    """What one machine sends in a round, messages and bits: a row per swept cell, a column per protocol."""
    table = Table(title="what a machine sends in a round: messages (bits)", title_justify="left")
    sent = {label: [_varied(data[name]) for name in ("sent_messages", "sent_bits")] for label, data in best.items()}
    axes = {name: values for name, values in experiment.sweep.over.items() if len(values) > 1}
    for name in (*axes, *sent):
        table.add_column(name, justify="right")
    for point in _points(axes):
        pairs = [[float(v.sel({n: point[n] for n in point if n in v.dims})) for v in pair] for pair in sent.values()]
        table.add_row(*(f"{v:g}" for v in point.values()), *(f"{number:.3g} ({bits:.3g})" for number, bits in pairs))
    return table


def _has_target(experiment: Experiment) -> bool:
    return any(set(LEVELS) & {*experiment.real_axes, *p.settings, *p.grid} for p in experiment.protocol)


def _target(name: str, value: float, delta: float) -> float:
    """The ε of a privacy target."""
    return value if name == "epsilon" else float(gdp.epsilon(value, delta))


def _own(experiment: Experiment, label: str) -> str:
    """A protocol's own target in words; nothing where its target is swept, or it has none."""
    settings = next(p.settings for p in experiment.protocol if p.label == label)
    own = [_target(name, settings[name], experiment.record.delta) for name in LEVELS if name in settings]
    return "".join(f" (target {_epsilon(epsilon)})" for epsilon in own)


def footnotes(experiment: Experiment, best: dict[str, xr.Dataset]) -> Group:
    """What the tables do not say by themselves: guarantees, selection, divergence, metrics outside the guarantee."""
    lines = []
    for label, data in best.items():
        private = not np.isinf(data["realised_mu"]).all()
        lines += [f"{label}: {words}" for words in (_covered(data) if private else ["non-private"])]
        if "selected" in data.attrs:
            lines.append(f"  {data.attrs['selected']}")
        if data["diverged"].any():
            lines.append(f"  {int(data['diverged'].sum())} of {data['diverged'].size} runs diverged (NaN)")
    if any(data.attrs["non_private_metrics"] for data in best.values()):
        names = next(data.attrs["non_private_metrics"] for data in best.values() if data.attrs["non_private_metrics"])
        lines.append(f"non-private metric: {names}")
    if any((data["realised_epsilon"] > LARGE_EPSILON).any() for data in best.values()):
        lines.append(f"! marks ε > {LARGE_EPSILON:g}: little protection by itself")
    lines.append("simulation randomness: not for deployment")
    return Group(
        *[Text(line) for line in lines], *([Text(" ".join(experiment.notes.split()))] if experiment.notes else [])
    )


def _covered(data: xr.Dataset) -> list[str]:
    """What is protected, against whom and by which theorem, for each that the dataset's guarantees name."""
    texts = {str(text) for text in data["guarantee"].values.ravel() if isinstance(text, str)}
    terms = {PrivacyGuarantee.from_json(text).terms for text in sorted(texts)}
    return sorted({f"{one.unit}, {one.relation}, trust: {one.trust}; {one.theorem}" for one in terms})


def verdict_tables(found: Iterable[Verdict]) -> list[Table]:
    """Ours beside the expected numbers with the verdict on each: a table for each `[[expected]]` entry."""
    return [_verdict_table(list(cells)) for _, cells in groupby(found, key=lambda v: id(v.expected))]


def _verdict_table(found: list[Verdict]) -> Table:
    expected = found[0].expected
    metric = known(expected.metric)
    source = f", {expected.source}" if expected.source else ""
    what, text = f"{_title(metric, expected.iterate, expected.rounds)} (mean ± 95% interval)", metric.text
    if expected.axis is not None:
        words = _title(metric, expected.iterate, expected.rounds)
        what, text = f"exponent of {words} in {expected.axis} (least squares of logarithms ± 95% interval)", _exponent
    table = Table(title=f"{expected.protocol}: {what}{source}; {describe(expected)}", title_justify="left")
    spread = "standard error" if expected.rule in ("within_se", "slope") else "sd"
    for name in ("cell", "ours", spread, "expected", "difference", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for v in found:
        where = ", ".join(f"{name} {value:g}" for name, value in v.at.items())
        value, difference = "", ""
        if v.value is not None:
            value = text(v.value)
            difference = "" if np.isnan(v.mean) else text(v.mean - v.value, sign=True)
        table.add_row(where, f"{text(v.mean)} ± {text(v.half)}", text(v.sd), value, difference, VERDICTS[v.holds])
    return table


def _exponent(value: float, *, sign: bool = False) -> str:
    return "–" if np.isnan(value) else f"{value:{'+' * sign}.3f}"


def verdict_line(found: Iterable[Verdict]) -> tuple[str, bool]:
    """How many of how many judged cells hold, and whether enough do: all, but for entries that ask for a share."""
    judged = [v for v in found if v.holds is not None]
    if not judged:
        return "nothing to judge", True
    line = f"{sum(bool(v.holds) for v in judged)} of {len(judged)} cells within their tolerance"
    shares = sorted({v.expected.share for v in judged})
    enough = [np.mean([bool(v.holds) for v in judged if v.expected.share == share]) >= share for share in shares]
    far = [_errors(v) for v in judged if v.expected.rule == "within_se"]
    within = all(_errors(v) <= v.expected.limit for v in judged if v.expected.limit is not None)
    if shares[0] < 1:
        line += f" ({' and '.join(f'{share:.0%}' for share in shares)} asked for)"
    if far:
        line += f", the furthest at {max(far):.2g} standard errors"
    return line, all(enough) and within


def _errors(v: Verdict) -> float:
    """How many standard errors ours is from the expected value."""
    difference = abs(v.mean - (v.value or 0.0))
    return difference / v.sd if v.sd else np.inf if difference else 0.0


def guarantee_tables(jobs: Iterable[Job], delta: float) -> list[Table]:
    """The guarantees of an experiment on the schedule of its first seed, a table for each kind of guarantee.

    Settings that change neither a target nor what an event's figures say share a row.
    """
    title = f"guarantees at δ = {delta:g}, on the first seed's schedule"
    tables: dict[tuple[str, ...], Table] = {}
    for job in jobs:
        for row in _rows(job.prepare(), delta):
            table = tables.setdefault(tuple(row.figures), _guarantees(title, list(row.figures)))
            shared = {n: value for n, value in row.points[0].items() if all(p[n] == value for p in row.points)}
            setting = ", ".join(f"{name} {value:g}" for name, value in {**job.shape, **shared}.items() if name != TRIAL)
            figures = [_figure(name, value) for name, value in row.figures.items()]
            figures = figures if row.noise_std[0] else ["non-private", *[""] * (len(figures) - 1)]
            table.add_row(job.label, setting, _range(row.noise_std), *figures, _range(row.sensitivity))
    return list(tables.values())


class _Row(NamedTuple):
    """Members of a sweep that are alike in privacy: their points, figures, noise and sensitivity."""

    points: list[dict[str, float]]
    figures: dict[str, float]
    noise_std: list[float]
    sensitivity: list[float]


def _rows(start: ReadySweep, delta: float) -> list[_Row]:
    rows: dict[tuple, _Row] = {}
    points = _points({name: values.tolist() for name, values in start.axes.items()})
    for point, noise_std, event in zip(points, start.members.noise_std.tolist(), _first_events(start), strict=True):
        figures = event.figures(delta)
        alike = (*(point.get(name) for name in LEVELS), *(f"{name} {value:.6g}" for name, value in figures.items()))
        row = rows.setdefault(alike, _Row([], figures, [], []))
        row.points.append(point)
        row.noise_std.append(noise_std)
        row.sensitivity.append(event.sensitivity)
    return list(rows.values())


def _first_events(start: ReadySweep) -> list[Event]:
    """What each member does to privacy on the first draw's schedule, though resampled axes give it another."""
    if len(start.index) == 1:
        return [events[0] for events in start.members.events]
    members = zip(start.members.protocols, start.grid, strict=True)
    return [protocol.event(member.problem, start.first.plan) for protocol, member in members]


def _guarantees(title: str, figures: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("protocol")
    for name in ("setting", "noise_std", *figures, "sensitivity"):
        table.add_column(name, justify="right")
    return table


def _figure(name: str, value: float) -> str:
    return _epsilon(value) if "ε" in name else f"{value:.4g}"


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _runs(best: dict[str, xr.Dataset]) -> str:
    """What means are over, in words."""
    data = next(iter(best.values()))
    return f"{data.sizes['seed']} {data['seed'].attrs.get('unit', 'seeds')}"


def _points(axes: dict[str, list[float]]) -> list[dict[str, float]]:
    points: list[dict[str, float]] = [{}]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def _coordinates(point: dict[str, float], delta: float) -> list[str]:
    cells = []
    for name, value in point.items():
        cells.append(f"{value:g}")
        if name == "mu":
            cells.append(_epsilon(float(gdp.epsilon(value, delta))))
    return cells


def _varied(runs: xr.DataArray) -> xr.DataArray:
    """Without the dimensions of a single value."""
    return runs.squeeze([name for name in runs.dims if runs.sizes[name] == 1 and name != "seed"], drop=True)


def _cell(mean: xr.DataArray, half: xr.DataArray, point: dict, previous: dict, metric: Metric) -> str:
    own = {name: value for name, value in point.items() if name in mean.dims}
    if previous and own == {name: previous[name] for name in own}:
        return "〃"  # the protocol does not depend on what changed since the row above
    return f"{metric.text(float(mean.sel(own)))} ± {metric.text(float(half.sel(own)))}"


def _epsilon(value: float) -> str:
    return f"{value:.3g}" + (" !" if value > LARGE_EPSILON else "")


def _title(metric: Metric, iterate: str, rounds: str = "last") -> str:
    of = "" if iterate == OUTPUT else f" of the iterate '{iterate}'"
    return metric.title + of + (" averaged over rounds" if rounds == "mean" else "")
