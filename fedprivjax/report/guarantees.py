"""Tables of an experiment's guarantees before it runs, and of each theorem's ε next to an accountant's."""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment import TRIAL
from fedprivjax.experiment.jobs import Job
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import epsilon_text, grouped, mixed, points_of, range_text
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.cross_check import entry
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.optional_members import with_relation
from fedprivjax.privacy.record_event import RecordEvent
from fedprivjax.privacy.relations import RELATIONS
from fedprivjax.privacy.rounding import down, up
from fedprivjax.privacy.target import LEVELS
from fedprivjax.problem.problem import Problem


def guarantee_tables(jobs: Iterable[Job], delta: float) -> list[Sheet]:
    """Return the guarantees of an experiment on the schedule of its first seed, one table per kind of guarantee.

    Settings that change neither a target nor the values of an event share a row. If the noise of any row has a
    guarantee under another neighbouring relation too, the table shows ε under each relation.
    """
    tables = grouped((tuple(row.summary), (job, row)) for job in jobs for row in _rows(job, delta))
    return [_guarantee_table(names, rows, delta) for names, rows in tables.items()]


def _guarantee_table(names: tuple[str, ...], rows: list[tuple[Job, "_Row"]], delta: float) -> Sheet:
    related = [row.related(delta) for _, row in rows]
    both = [relation for relation in RELATIONS if any(relation in each and len(each) > 1 for each in related)]
    terms = [row.event.terms for _, row in rows if row.private]
    title = f"guarantees at δ = {delta:g}, on the first seed's schedule{mixed(terms)}"
    table = Sheet(title, keys=2)
    table.add_columns("protocol", "setting", justify="left")
    table.add_columns("noise_std", *names, *(f"ε, {relation}" for relation in both), "sensitivity")
    for (job, row), each in zip(rows, related, strict=True):
        values = [_value(name, value) for name, value in row.summary.items()]
        values += [_or_dash(each.get(relation, np.nan)) for relation in both]
        values = values if row.private else ["non-private", *[""] * (len(values) - 1)]
        setting = _in_common(row.points)
        noise = range_text(*row.noise_std) + row.among_machines
        table.add_row(job.label, setting, noise, *values, range_text(*row.sensitivity))
    return table


def _value(name: str, value: float) -> str:
    """Return a value of a column: a privacy parameter rounded up, and a lower bound on one rounded down."""
    if "at least" in name:
        return down(value, 3)
    if "ε" in name:
        return epsilon_text(value)
    return up(value, 4) if "μ" in name else f"{value:.4g}"


def cross_check_table(jobs: Iterable[Job], delta: float) -> Group:
    """Return a table of each guarantee's ε from its theorem, or from a published claim, next to an accountant's ε.

    Both are for the same releases. Guarantees with equal values share a row.
    """
    listed = [(job, row) for job in jobs for row in _rows(job, delta) if row.private]
    title = f"two ways to each ε at δ = {delta:g}, for the worst machine on the first seed's schedule"
    table = Sheet(title + mixed(row.event.terms for _, row in listed), keys=2)
    for name in ("protocol", "setting", "theorem's ε", "accountant", "its ε", "verdict", "smallest valid ε"):
        table.add_columns(name, justify="right" if "ε" in name else "left")
    rows: dict[tuple[str, ...], list[dict[str, float]]] = {}
    claims: dict[str, str] = {}
    for job, row in listed:
        line = entry(row.event, delta)
        if row.event.claim is not None:
            claims[job.label] = line.theorem
        found = down(line.accountant_epsilon, 3) if line.only_lower else _or_dash(line.accountant_epsilon)
        cells = (job.label, _or_dash(line.epsilon), line.accountant, found, line.verdict, _or_dash(line.valid))
        rows.setdefault(cells, []).extend(row.points)
    for (label, *cells), points in rows.items():
        table.add_row(label, _in_common(points), *cells)
    return Group(table, *(Text(f"{label}: the claim is that of {theorem}") for label, theorem in claims.items()))


def _or_dash(epsilon: float) -> str:
    return epsilon_text(epsilon) if np.isfinite(epsilon) else "–"


class _Row(NamedTuple):
    """Configurations of a sweep with equal privacy: points, values, noise, sensitivity, and the first one's event.

    `under` are the first one's calibrated protocol, problem and plan, for its event under another relation.
    """

    points: list[dict[str, float]]
    summary: dict[str, float]
    noise_std: list[float]
    sensitivity: list[float]
    event: Event
    under: tuple[Protocol, Problem, Plan]

    @property
    def private(self) -> bool:
        """True if there is noise."""
        return bool(self.noise_std[0])

    @property
    def among_machines(self) -> str:
        """Whether `noise_std` is the largest or the smallest one of machines whose noises differ, as text, or ""."""
        protocol, problem, plan = self.under
        privacy = protocol.privacy
        if not self.private:
            return ""
        if len(set(getattr(privacy, "relative_privacy", None) or ())) > 1:
            return " (smallest)"
        if not isinstance(self.event, RecordEvent) or not hasattr(privacy, "records"):
            return ""
        relative = privacy.records(protocol.rounds.machine_epsilon).relative(problem, plan.size.rounds)
        return " (largest)" if relative.min() < relative.max() else ""

    def related(self, delta: float) -> dict[str, float]:
        """Return ε under each relation for which the noise has a guarantee, by relation."""
        found = {self.event.terms.relation: self.event.epsilon(delta)}
        for relation in RELATIONS if self.private else ():
            if relation not in found:
                with suppress(Refusal):
                    protocol, *others = self.under
                    found[relation] = event_of(with_relation(protocol, relation), *others).epsilon(delta)
        return found


def first_point(job: Job) -> str:
    """Return the settings of a job's first configuration as text, such as ", at epsilon 1", or "" without any."""
    points = points_of({name: values.tolist() for name, values in job.prepare().axes.items()})
    settings = _in_common([job.shape | points[0]])
    return f", at {settings}" if settings else ""


def _in_common(points: list[dict[str, float]]) -> str:
    """Return the settings that all points share as text, without the trial number."""
    first, *rest = points
    shared = [name for name, value in first.items() if all(point.get(name) == value for point in rest)]
    return ", ".join(f"{name} {first[name]:g}" for name in shared if name != TRIAL)


def _rows(job: Job, delta: float) -> list[_Row]:
    start = job.prepare()
    rows: dict[tuple, _Row] = {}
    points = [job.shape | point for point in points_of({name: v.tolist() for name, v in start.axes.items()})]
    configurations = start.configurations
    listed = zip(points, configurations.noise_std.tolist(), configurations.protocols, start.grid, strict=True)
    for point, noise_std, protocol, member in listed:
        event = protocol.event(member.problem, start.first.plan)
        summary = event.summary(delta)
        equal = (*(point.get(name) for name in LEVELS), *(f"{name} {value:.6g}" for name, value in summary.items()))
        under = protocol, member.problem, start.first.plan
        row = rows.setdefault(equal, _Row([], summary, [], [], event, under))
        row.points.append(point)
        row.noise_std.append(noise_std)
        row.sensitivity.append(event.sensitivity)
    return list(rows.values())
