"""Properties with a varying number of participants: empty slots, and machines that drop out."""

from dataclasses import replace

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.plan.participation import Varying
from fedprivjax.testing.noise import aggregated
from fedprivjax.testing.trial import Trial, first_rounds


def absent_machines_leave_no_trace(trial: Trial) -> None:
    """Check that the machine and records of an empty slot change neither the run nor its noise nor its guarantee.

    A protocol that rejects cohorts of varying size passes. Without noise, only the run is checked.
    """
    start = _varying(trial)
    if start is None:
        return
    other = replace(start.plan, **_with_other_absent_machines(start))
    for t, (one, two) in enumerate(zip(first_rounds(start), first_rounds(start, plan=other), strict=True)):
        same = jax.tree.map(lambda left, right: np.array_equal(left, right, equal_nan=True), one[2], two[2])
        assert all(jax.tree.leaves(same)), (
            f"empty slots must not change the state, and did in round {t + 1}. Multiply messages by inputs.filled, "
            f"update no state of slots where it is 0, and divide by inputs.cohort or inputs.divisor"
        )
    if not trial.private:
        return
    mechanisms = [start.protocol.mechanism(start.problem, plan, trial.method) for plan in (start.plan, other)]
    one, two = (aggregated(start, mechanism, 1) for mechanism in mechanisms)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    one, two = (start.protocol.event(start.problem, plan).guarantee(start.delta) for plan in (start.plan, other))
    np.testing.assert_array_equal(one.per_machine, two.per_machine)


def dropouts_count_as_planned(trial: Trial) -> None:
    """Check that dropouts improve no machine's guarantee, including those of the machines that drop out.

    A protocol that rejects dropouts passes.
    """
    start = _varying(trial)
    if start is None:
        return
    schedule = start.plan.schedule
    dropped = schedule.present & (np.arange(schedule.size.per_round) > 0)
    plan = replace(start.plan, schedule=replace(schedule, dropped=dropped))
    assert plan.weights is not None  # set for cohorts of varying size
    plan = replace(plan, weights=np.where(dropped[..., None], 0.0, plan.weights).astype(np.float32))
    try:
        start.protocol.check(start.problem, plan)
        sent = start.protocol.event(start.problem, plan).guarantee(start.delta)
    except Refusal:
        return
    planned = start.protocol.event(start.problem, start.plan).guarantee(start.delta)
    assert dropped.any()
    assert (sent.per_machine >= planned.per_machine * (1 - 1e-9)).all(), "a guarantee must not count on dropouts"


def _varying(trial: Trial) -> ReadyRun | None:
    """Return the prepared run with cohorts of any size up to the trial's, or None if rejected or `per_round` is 1."""
    machines, per_round, _ = trial.start.plan.size
    if per_round == 1:
        return None
    varying = replace(trial, participation=Varying.between(machines, 1, per_round))
    try:
        return varying.ready(trial.protocol)
    except Refusal:
        return None


def _with_other_absent_machines(start: ReadyRun) -> dict:
    """Return the plan's schedule and samples with other machines and records in the empty slots."""
    schedule, samples = start.plan.schedule, start.plan.samples
    participants, everyone = schedule.participants.copy(), np.arange(schedule.machines)
    for row, present in zip(participants, schedule.present, strict=True):
        others = np.setdiff1d(everyone, row[present])[::-1]
        row[~present] = others[: (~present).sum()]
    absent = ~schedule.present.reshape(*schedule.present.shape, *[1] * (samples.ndim - 2))
    samples = np.where(absent, (samples + 1) % start.problem.examples, samples).astype(samples.dtype)
    return {"schedule": replace(schedule, participants=participants), "samples": samples}
