"""Properties where the number of participants varies: slots that nobody fills, and machines that drop out."""

from dataclasses import replace

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.prepare import ReadyRun, round_inputs
from fedprivjax.method.interface import as_leaves
from fedprivjax.plan.participation import Varying
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.testing.noise import aggregated
from fedprivjax.testing.trial import Trial

FEW = 3  # rounds that are run, without compiling them


def absent_machines_leave_no_trace(trial: Trial) -> None:
    """Neither whose a slot would be that nobody fills, nor which records it names, is in a run, its noise or its
    guarantee; a method that refuses such cohorts has nothing to show, one without noise a run alone."""
    start = _varying(trial)
    if start is None:
        return
    other = replace(start.plan, **_of_strangers(start))
    for t, (one, two) in enumerate(zip(_few_rounds(start, start.plan), _few_rounds(start, other), strict=True)):
        same = jax.tree.map(lambda left, right: np.array_equal(left, right, equal_nan=True), one, two)
        assert all(jax.tree.leaves(same)), (
            f"slots that nobody fills must change nothing, and did in round {t + 1}. Multiply what participants send "
            f"by inputs.filled, keep no state for slots where it is 0, and divide by inputs.cohort or inputs.divisor"
        )
    if not trial.private:
        return
    mechanisms = [start.protocol.mechanism(start.problem, plan, trial.method) for plan in (start.plan, other)]
    one, two = (aggregated(start, mechanism, 1) for mechanism in mechanisms)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    one, two = (start.protocol.event(start.problem, plan).guarantee(start.delta) for plan in (start.plan, other))
    np.testing.assert_array_equal(one.per_machine, two.per_machine)


def dropouts_count_as_planned(trial: Trial) -> None:
    """A machine that is asked and drops out has no better guarantee for it, nor has any other; a method that refuses
    dropouts has nothing to show."""
    start = _varying(trial)
    if start is None:
        return
    schedule = start.plan.schedule
    dropped = schedule.present & (np.arange(schedule.size.per_round) > 0)
    plan = replace(start.plan, schedule=replace(schedule, dropped=dropped))
    assert plan.weights is not None  # of cohorts whose number varies
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
    """The run with cohorts of any size up to the trial's, ready; None where that is refused, or they have one size."""
    machines, per_round, _ = trial.start.plan.size
    if per_round == 1:
        return None
    varying = replace(trial, participation=Varying.between(machines, 1, per_round))
    try:
        return varying.ready(trial.protocol)
    except Refusal:
        return None


def _of_strangers(start: ReadyRun) -> dict:
    """The plan's schedule and samples with others in the slots that nobody fills."""
    schedule, samples = start.plan.schedule, start.plan.samples
    participants, everyone = schedule.participants.copy(), np.arange(schedule.machines)
    for row, present in zip(participants, schedule.present, strict=True):
        others = np.setdiff1d(everyone, row[present])[::-1]
        row[~present] = others[: (~present).sum()]
    absent = ~schedule.present.reshape(*schedule.present.shape, *[1] * (samples.ndim - 2))
    samples = np.where(absent, (samples + 1) % start.problem.examples, samples).astype(samples.dtype)
    return {"schedule": replace(schedule, participants=participants), "samples": samples}


def _few_rounds(start: ReadyRun, plan: Plan):
    """The states after the first rounds without noise, one after the other."""
    protocol, problem, inputs = as_leaves(start.protocol.traced), start.problem.traced, round_inputs(plan)
    state = protocol.init(problem, plan.size, protocol_key(start.key))
    for t in range(min(FEW, plan.size.rounds)):
        of_round = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        state, _ = protocol.round(problem, state, of_round, None, protocol_key(start.key, of_round.round))
        yield state
