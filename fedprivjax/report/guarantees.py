"""Tables of an experiment's guarantees before it runs, and of each theorem's ε next to an accountant's."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from fedprivjax.experiment import TRIAL
from fedprivjax.experiment.jobs import Job
from fedprivjax.privacy.cross_check import entry
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.number_format import epsilon_text, points_of
from fedprivjax.report.text_table import Sheet
from fedprivjax.sweeps.prepare import ReadySweep


def guarantee_tables(jobs: Iterable[Job], delta: float) -> list[Sheet]:
    """Return the guarantees of an experiment on the schedule of its first seed, one table per kind of guarantee.

    Settings that change neither a target nor the values of an event share a row.
    """
    title = f"guarantees at δ = {delta:g}, on the first seed's schedule"
    tables: dict[tuple[str, ...], Sheet] = {}
    for job in jobs:
        for row in _rows(job.prepare(), delta):
            names = tuple(row.summary)
            if names not in tables:
                tables[names] = Sheet(title)
                tables[names].add_columns("protocol", justify="left")
                tables[names].add_columns("setting", "noise_std", *names, "sensitivity")
            values = [epsilon_text(value) if "ε" in name else f"{value:.4g}" for name, value in row.summary.items()]
            values = values if row.noise_std[0] else ["non-private", *[""] * (len(values) - 1)]
            setting = _in_common([_shared(job, row.points)])
            tables[names].add_row(job.label, setting, _range(row.noise_std), *values, _range(row.sensitivity))
    return list(tables.values())


def cross_check_table(jobs: Iterable[Job], delta: float) -> Group:
    """Return a table of each guarantee's ε from its theorem, or from a published claim, next to an accountant's ε.

    Both are for the same releases. Guarantees with equal values share a row.
    """
    title = f"two ways to each ε at δ = {delta:g}, for the worst machine on the first seed's schedule"
    table = Sheet(title)
    for name in ("protocol", "setting", "theorem's ε", "accountant", "its ε", "verdict", "smallest valid ε"):
        table.add_columns(name, justify="right" if "ε" in name else "left")
    rows: dict[tuple[str, ...], list[dict[str, float]]] = {}
    claims: dict[str, str] = {}
    for job in jobs:
        for row in (row for row in _rows(job.prepare(), delta) if row.noise_std[0]):
            line = entry(row.event, delta)
            if row.event.claim is not None:
                claims[job.label] = line.theorem
            accountant = (line.accountant, _or_dash(line.accountant_epsilon))
            cells = (job.label, _or_dash(line.epsilon), *accountant, line.verdict, _or_dash(line.valid))
            rows.setdefault(cells, []).append(_shared(job, row.points))
    for (label, *cells), settings in rows.items():
        table.add_row(label, _in_common(settings), *cells)
    return Group(table, *(Text(f"{label}: the claim is that of {theorem}") for label, theorem in claims.items()))


def _or_dash(epsilon: float) -> str:
    return epsilon_text(epsilon) if np.isfinite(epsilon) else "–"


class _Row(NamedTuple):
    """Configurations of a sweep with equal privacy: points, values, noise, sensitivity, and the first one's event."""

    points: list[dict[str, float]]
    summary: dict[str, float]
    noise_std: list[float]
    sensitivity: list[float]
    event: Event


def _shared(job: Job, points: list[dict[str, float]]) -> dict[str, float]:
    """Return the settings shared by all of these points, without the trial number."""
    shared = {n: value for n, value in points[0].items() if all(p[n] == value for p in points)}
    return {name: value for name, value in {**job.shape, **shared}.items() if name != TRIAL}


def _in_common(settings: list[dict[str, float]]) -> str:
    """Return the common settings as text."""
    first, *rest = settings
    return ", ".join(f"{name} {value:g}" for name, value in first.items() if all(o.get(name) == value for o in rest))


def _rows(start: ReadySweep, delta: float) -> list[_Row]:
    rows: dict[tuple, _Row] = {}
    points = points_of({name: values.tolist() for name, values in start.axes.items()})
    noise_stds = start.configurations.noise_std.tolist()
    for point, noise_std, event in zip(points, noise_stds, _first_events(start), strict=True):
        summary = event.summary(delta)
        equal = (*(point.get(name) for name in LEVELS), *(f"{name} {value:.6g}" for name, value in summary.items()))
        row = rows.setdefault(equal, _Row([], summary, [], [], event))
        row.points.append(point)
        row.noise_std.append(noise_std)
        row.sensitivity.append(event.sensitivity)
    return list(rows.values())


def _first_events(start: ReadySweep) -> list[Event]:
    """Return each configuration's event on the first sampled schedule, even if a swept axis resamples the schedule."""
    if len(start.index) == 1:
        return [events[0] for events in start.configurations.events]
    members = zip(start.configurations.protocols, start.grid, strict=True)
    return [protocol.event(member.problem, start.first.plan) for protocol, member in members]


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
