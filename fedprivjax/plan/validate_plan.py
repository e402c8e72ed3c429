"""Checks that a plan agrees with its sampler, and that with the sampler which the accountant assumes."""

from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.minibatches import machine_values
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.problem.problem import Problem

ROUNDING = 1e-6  # of a weight, in float32


def require_same_sampler(plan: Plan, assumed: Sampler | None, name: str) -> None:
    """Raise Refusal unless the plan's records were sampled as the protocol `name` and its accountant assume.

    A plan sampled with replacement is rejected by a protocol whose accountant assumes sampling without.
    """
    if plan.sampler != assumed:
        drawn, needed = plan.sampler or "one sample a message", assumed or "one sample a message"
        raise Refusal(f"plan must be drawn by {name}'s own sampler, {needed}, got one drawn by {drawn}")


def require_as_said(plan: Plan, problem: Problem) -> None:
    """Refuse a plan, drawn or made by hand, of which a record counts for more than its sampler allows.

    Each record must exist and be its machine's own, weigh no more than one of a batch does, and nothing where nobody
    sends; and occur once in a message, of a sampler that repeats none and whose uses are not counted one by one.
    Looked at once for a plan. Secret samples that are not drawn yet are looked at once they are, or here if the plan
    is of other records or weights than the problem.

    Raises:
        Refusal: with the round of the first that is not so.
    """
    if plan.will_be_of(problem):
        return
    plan.once(
        ("as said", problem.partition_table, problem.examples, problem.machine_weights), lambda: _look(plan, problem)
    )


def _look(plan: Plan, problem: Problem) -> bool:
    samples = plan.samples.reshape(*plan.schedule.participants.shape, plan.width)
    weights = np.ones(samples.shape, np.float32) if plan.weights is None else plan.weights
    used = weights != 0
    _refuse_first(used & ~plan.schedule.present[:, :, None], "weights must be 0 in slots that nobody fills", weights)
    most = _most(plan, problem)
    beyond = ~((weights >= 0) & (weights <= most * (1 + ROUNDING)))
    _refuse_first(beyond, lambda at: f"weights must be from 0 to {np.broadcast_to(most, beyond.shape)[at]:g}", weights)
    if problem.stored:
        _refuse_first(
            used & ~((samples >= 0) & (samples < problem.examples)),
            f"samples must be among the {problem.examples} examples",
            samples,
        )
    if problem.partition_table is not None and problem.stored:
        own = _owners(problem)[np.where(used, samples, 0)] == plan.schedule.participants[:, :, None]
        _refuse_first(used & ~own, "samples must be of the machine's own records", samples)
    if _once_a_message(plan):
        _refuse_first(_again(samples, used), "samples must occur once in a message", samples)
    return True


def _most(plan: Plan, problem: Problem) -> np.ndarray:
    """The largest weight that a record may have in each slot, [rounds, per_round, 1], or one for all."""
    sampler = plan.sampler
    if sampler is None:
        return np.ones(())
    if not plan.width:  # nobody is to know which records are used
        return np.ones(())
    if sampler.pooled or problem.partition_table is None:
        return np.asarray(1 / np.asarray(sampler.batch, float))
    sizes = problem.partition_table.sizes
    each = machine_values("machine_weights", problem.message_factors, sizes.size) / sampler.batches(sizes)
    return each[plan.schedule.participants][:, :, None]


def _owners(problem: Problem) -> np.ndarray:
    """Whose each example is, int [examples]; −1 of nobody's."""
    assert problem.partition_table is not None
    rows = problem.partition_table.rows
    owner = np.full(int(problem.examples), -1)
    machine, place = np.nonzero(rows >= 0)
    owner[rows[machine, place]] = machine
    return owner


def _once_a_message(plan: Plan) -> bool:
    sampler = plan.sampler
    return sampler is not None and not sampler.repeats and (plan.secret or sampler.settled)


def _again(samples: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Slots of which two places that count name one record, [rounds, per_round, 1]."""
    width = samples.shape[2]
    named = np.sort(np.where(used, samples, -1 - np.arange(width)), axis=2)
    return (named[:, :, 1:] == named[:, :, :-1]).any(axis=2, keepdims=True)


def _refuse_first(wrong: np.ndarray, words: str | Callable[[tuple], str], values: np.ndarray) -> None:
    if not wrong.any():
        return
    at = tuple(int(place) for place in np.unravel_index(np.argmax(wrong), wrong.shape))
    said = words if isinstance(words, str) else words(at)
    raise Refusal(f"{said}, got {values[at]:g} in round {at[0] + 1}, slot {at[1] + 1}")
