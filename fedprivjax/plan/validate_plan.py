"""Checks that a plan agrees with its sampler, and its sampler with the one that the accountant assumes."""

from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.plan.minibatches import machine_values
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalWork, Sampler
from fedprivjax.problem.problem import Problem

ROUNDING = 1e-6  # relative rounding error of a float32 weight


def require_same_sampler(plan: Plan, assumed: Sampler | None, name: str) -> None:
    """Raise Refusal unless the plan's records were sampled as the protocol `name` and its accountant assume.

    For example, a plan sampled with replacement is rejected if the accountant assumes sampling without replacement.
    """
    if plan.sampler != assumed:
        drawn, needed = (sampler or "one sample per message" for sampler in (plan.sampler, assumed))
        raise Refusal(f"plan must be drawn by the sampler of {name}, {needed}, got a plan drawn by {drawn}")


def require_valid_plan(plan: Plan, problem: Problem) -> None:
    """Raise Refusal if a record of a sampled or user-supplied plan has more influence than its sampler allows.

    * Each record must exist and belong to its machine.
    * Its weight is at most that of one record of a batch, and 0 in empty slots.
    * It occurs at most once in a message, unless the sampler may repeat records or the accountant counts every use.
    * It is in one message of a round, which counts as one use.

    The result is cached per plan. Secret samples that are not drawn yet are checked when they are drawn, or here if the
    plan has other records or weights than the problem. The message names the first round with an invalid record.
    """
    if plan.will_be_of(problem):
        return
    plan.once(
        ("valid", problem.partition_table, problem.examples, problem.machine_weights), lambda: _check(plan, problem)
    )


def _check(plan: Plan, problem: Problem) -> bool:
    samples = plan.samples.reshape(*plan.schedule.participants.shape, plan.width)
    weights = np.ones(samples.shape, np.float32) if plan.weights is None else plan.weights
    used = weights != 0
    _refuse_first(used & ~plan.schedule.present[:, :, None], "weights must be 0 in empty slots", weights)
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
        _refuse_first(used & ~own, "samples must be the machine's own records", samples)
    steps = _steps_of_distinct_records(plan)
    if steps:
        where = "message" if steps == 1 else "local step"
        _refuse_first(_again(samples, used, steps), f"samples must occur once in a {where}", samples)
    if problem.stored and (plan.sampler is None or plan.sampler.pooled):
        again = _again(samples.reshape(len(samples), 1, -1), used.reshape(len(samples), 1, -1), 1)
        _refuse_first(again, "samples must occur once in a round", samples)
    return True


def _most(plan: Plan, problem: Problem) -> np.ndarray:
    """Return the largest weight that a record may have in each slot, [rounds, per_round, 1], or one for all."""
    sampler = plan.sampler
    if sampler is None:
        return np.ones(())
    if not plan.width:  # the public part of a secret plan
        return np.ones(())
    if problem.partition_table is None:
        return np.asarray(1 / np.asarray(sampler.batch, float))
    sizes = problem.partition_table.sizes
    each = machine_values("machine_weights", problem.message_factors, sizes.size) / sampler.batches(sizes)
    return each[plan.schedule.participants][:, :, None]


def _owners(problem: Problem) -> np.ndarray:
    """Return the machine that owns each example, or −1 if no machine does, int [examples]."""
    assert problem.partition_table is not None
    rows = problem.partition_table.rows
    owner = np.full(int(problem.examples), -1)
    machine, place = np.nonzero(rows >= 0)
    owner[rows[machine, place]] = machine
    return owner


def _steps_of_distinct_records(plan: Plan) -> int:
    """Return the number of parts of a message in which a record occurs at most once, or 0 if it may be repeated."""
    sampler = plan.sampler
    if isinstance(sampler, LocalWork):
        custom = not (of_package(type(sampler.of_step)) or sampler.of_step.repeats)
        return sampler.cut(plan.width) if custom and plan.width else 0
    return int(sampler is not None and not sampler.repeats and (plan.secret or sampler.settled))


def _again(samples: np.ndarray, used: np.ndarray, steps: int) -> np.ndarray:
    """Return the slots in which two used places of a step have the same record, [rounds, per_round, 1]."""
    named = np.where(used, samples, -1 - np.arange(samples.shape[2]))
    named = np.sort(named.reshape(*samples.shape[:2], steps, -1), axis=3)
    return (named[..., 1:] == named[..., :-1]).any(axis=(2, 3))[..., None]


def _refuse_first(wrong: np.ndarray, message: str | Callable[[tuple], str], values: np.ndarray) -> None:
    if not wrong.any():
        return
    at = tuple(int(place) for place in np.unravel_index(np.argmax(wrong), wrong.shape))
    text = message if isinstance(message, str) else message(at)
    raise Refusal(f"{text}, got {values[at]:g} in round {at[0] + 1}, slot {at[1] + 1}")
