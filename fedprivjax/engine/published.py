"""Decides what a run may report about its plan and its data, besides metrics, parameters and its guarantee.

Everything that results, pages and files tell about a plan or about numbers of records comes from `published`:

* of secret samples and cohorts expected values, never the realised ones;
* nothing that tells a number of records if neighbouring datasets differ in it, see `Terms.hides_sizes`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedprivjax.method.known_work import KnownWork
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.plan.uses import data_used
from fedprivjax.privacy.event_on_plan import not_covered
from fedprivjax.privacy.paragraph import large_delta, large_delta_of_machines
from fedprivjax.privacy.terms import MACHINE, RECORD

if TYPE_CHECKING:  # its module imports this one
    from fedprivjax.engine.prepare import ReadyRun

IDLE = "idle_steps"
HIDDEN, COMPUTED = "not stated: the guarantee hides numbers of records", "examples are computed"
TELLS_SIZE = (
    "No guarantee covers this warning: it tells a private number of records, and no output of the run repeats it"
)
NOT_PUBLIC = "\n  not to be published: this text tells numbers of records, which the guarantee hides"


class Published(NamedTuple):
    """Reported facts of a run's plan and data.

    Attributes:
        data_used: number and percentage of the stored examples that messages use, as text, or "".
        rounds: number of rounds.
        messages: rounds in which a machine sends, mean over all machines.
        uses: uses of a record by messages, mean over all records, or NaN if records are computed or their number is
            private and sets it.
        run_costs: `Costs.run_costs`, and the `hours` of a schedule with delays.
        expected: names of costs that are expected values.
        weights: description of the machines' influence, or "".
        delta_warning: warning of a δ that is too large, or "".
        not_covered: texts on what follows from private records and the guarantee does not cover.
    """

    data_used: str
    rounds: int
    messages: float
    uses: float
    run_costs: dict[str, float]
    expected: tuple[str, ...]
    weights: str
    delta_warning: str
    not_covered: tuple[str, ...]


def published(start: "ReadyRun") -> Published:
    """Return what a prepared run may report about its plan and data. No other code decides it."""
    terms, schedule = start.event.terms, start.plan.schedule
    found, further = data_used(start.problem, start.plan), costs_of(start.protocol).run_costs(start.problem, start.plan)
    if schedule.hours is not None:
        further = further | {"hours": float(schedule.hours[-1])}
    hidden = terms.hides_sizes
    if hidden and IDLE in further:  # local epochs take as many steps as a machine has records
        further = further | {IDLE: nan}
    return Published(
        data_used="" if hidden else str(found),
        rounds=start.plan.size.rounds,
        messages=found.messages,
        uses=found.constant_uses if hidden else found.uses,
        run_costs=further,
        expected=("gradients_per_record",) * found.expected + ("sent_bytes",) * (schedule.secret is not None),
        weights="" if hidden else influence(start),
        delta_warning="" if hidden and terms.unit != MACHINE else delta_warning(start),
        not_covered=not_covered(start.problem, terms),
    )


def published_plan(start: "ReadyRun") -> Plan:
    """Return the public part of a run's plan, without the samples if they tell numbers of records that are private."""
    return plan_of_run(start).public


def plan_of_run(start: "ReadyRun") -> Plan:
    """Return a run's plan, whose public part has no samples if they tell numbers of records that are private."""
    hidden = start.event.terms.hides_sizes and not start.plan.secret
    return replace(start.plan, hides_sizes=True) if hidden else start.plan


def protocol_of_run(start: "ReadyRun") -> Protocol:
    """Return a run's calibrated protocol, without its classes of local steps if numbers of records are private."""
    protocol, known = start.protocol, start.protocol.known
    if not (start.event.terms.hides_sizes and isinstance(known, KnownWork)):
        return protocol
    return replace(protocol, known=replace(known, slot_classes=None, all_records=None))


def delta_warning(start: "ReadyRun") -> str:
    """Return a warning if δ exceeds 1/n for a machine of n records, or an empty text; see `large_delta`.

    If the guarantee is for one machine, n is the number of machines. Empty for other units than a record or a machine,
    or if the run has no noise.
    """
    unit, problem, schedule = start.event.terms.unit, start.problem, start.plan.schedule
    if start.protocol.noise_std != 0 and unit == MACHINE:
        return large_delta_of_machines(start.delta, start.plan.size.machines)
    if start.protocol.noise_std == 0 or unit != RECORD:
        return ""
    sizes: Any = (
        (schedule.total if schedule.secret is None else np.full(schedule.machines, schedule.size.rounds))
        * start.plan.width
        if problem.partition_table is None
        else problem.partition_table.sizes
    )
    return large_delta(start.delta, sizes, problem.machine_name)


def batch_warning(start: "ReadyRun") -> str:
    """Return a warning if the batch of local epochs exceeds every machine's number of records, or an empty text."""
    sampler, table = start.plan.sampler, start.problem.partition_table
    if not isinstance(sampler, LocalEpochs) or sampler.batch is None or table is None:
        return ""
    if int(sampler.batch) <= table.sizes.max():  # type: ignore[arg-type]
        return ""
    known = f"batch = {sampler.batch} is above all machines' numbers of records"
    return f"{known}: a local step takes all records of a machine"


def influence(start: "ReadyRun") -> str:
    """Return a description of the machines' influence if dataset sizes differ but weights do not, otherwise ""."""
    problem, schedule = start.problem, start.plan.schedule
    table, equal = problem.partition_table, schedule.secret is not None or np.ptp(schedule.total) == 0
    if table is None or problem.machine_weights is not None or np.ptp(table.sizes) == 0 or not equal:
        return ""
    least, most = int(np.argmin(table.sizes)), int(np.argmax(table.sizes))
    private = start.event.terms.unit == RECORD and start.protocol.noise_std and np.ndim(start.target.epsilon) == 0
    small, large = map(problem.machine_name, (least, most))
    louder = f", and {small} has the largest noise" if private else ""
    sized = f"{small} ({table.sizes[least]:,} of {table.sizes.sum():,} records)"
    return f"every machine counts equally: {sized} as much as {large} ({table.sizes[most]:,}){louder}"


def totals(costs: Mapping[str, Any], messages: Any, uses: Any) -> dict[str, Any]:
    """Return `gradients_per_record` and `sent_bytes` of a whole run.

    Args:
        costs: values of `Costs.costs`, numbers or arrays.
        messages: number of rounds in which a machine sends, a number or an array that broadcasts with the costs.
        uses: number of uses of a record by messages, likewise.

    >>> totals({"sent_bits": 320.0, "gradients_per_use": 2.0}, messages=5.0, uses=0.5)
    {'gradients_per_record': 1.0, 'sent_bytes': 200.0}
    """
    return {
        "gradients_per_record": uses * costs["gradients_per_use"],
        "sent_bytes": messages * costs["sent_bits"] / 8,
    }
