"""Sampling of a run plan: the participation schedule, then the records of every message."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import clients_named
from fedprivjax.plan.arguments import require_problem
from fedprivjax.plan.feasibility import require_possible
from fedprivjax.plan.minibatches import Minibatches, draw_minibatches
from fedprivjax.plan.participation import Participation, draw_schedule
from fedprivjax.plan.plan import EPOCHS, Plan
from fedprivjax.plan.record_assignment import assign_computed, assign_epochs, assign_pool, assign_shares, epoch_uses
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.secret_plan import SecretPlan
from fedprivjax.plan.seeds import Seeds, as_seeds, participation_rng, samples_rng
from fedprivjax.plan.unused_data import warn_of_unused_data
from fedprivjax.problem.problem import Problem


def draw_plan(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    *,
    order: str = "shuffled",
    sampler: Sampler | None = None,
) -> Plan:
    """Sample a run's participation schedule and the records of its messages, on the host.

    Args:
        rounds: number of rounds, or None for as many as the records (and the schedule, if one is given) allow.
        order: order of the examples if each message uses one example, see `ORDERS`. With a `sampler`, only "shuffled"
            and "stored" are allowed, and epochs are samplers ("cyclic", "reshuffled").
        sampler: sampler of minibatches of a machine's own records, or None for one example per message, by `order`.

    Raises:
        ValueError: if the schedule needs more examples than the pool or a machine's dataset has.

    >>> import numpy as np
    >>> from fedprivjax import Full, Softmax, linear_problem
    >>> problem = linear_problem(np.eye(4), [0, 1, 1, 0], Softmax(2))
    >>> draw_plan(problem, Full(2)).samples.shape
    (2, 2)
    """
    require_problem(problem)
    seeds = as_seeds(seed)
    with clients_named(problem.client_names):
        chosen = rounds is None
        given = participation
        participation, rounds, shares = require_possible(problem, given, rounds, order=order, sampler=sampler)
        schedule = draw_schedule(participation, rounds, participation_rng(seeds))
        fitted = participation is not given or (chosen and shares is not None)
        depends_on_sizes = participation.depends_on_sizes or fitted
        facts = {"examples": int(problem.examples) if problem.stored else None, "depends_on_sizes": depends_on_sizes}
        if sampler is not None and sampler.secret and problem.partition_table is not None:
            return _secret(problem, schedule, order, sampler, seeds, facts)
        plan = replace(_with_samples(problem, schedule, order, sampler, seeds), **facts)
        if chosen and shares is not None and not participation.at_most_once:
            warn_of_unused_data(problem, plan, participation, shares)
        return plan


def _secret(
    problem: Problem, schedule: Schedule, order: str, sampler: Sampler, seeds: Seeds, facts: dict[str, Any]
) -> Plan:
    """Return a plan of secret minibatches of the machines' own records. The sampler's checks run immediately."""
    assert problem.partition_table is not None
    sizes = problem.partition_table.sizes
    width = sampler.width(sizes, sampler.batches(sizes), schedule.participants.size)
    draw = partial(_minibatches, problem, schedule, order, sampler, seeds)
    return SecretPlan.of(draw, width, problem, schedule=schedule, order=order, sampler=sampler, **facts)


def _minibatches(problem: Problem, schedule: Schedule, order: str, sampler: Sampler, seeds: Seeds) -> Minibatches:
    """Sample minibatches of the machines' own records."""
    assert problem.partition_table is not None
    rows, factors = problem.partition_table.rows, problem.message_factors
    return draw_minibatches(sampler, rows, schedule, samples_rng(seeds), order == "stored", factors)


def _with_samples(problem: Problem, schedule: Schedule, order: str, sampler: Sampler | None, seeds: Seeds) -> Plan:
    """Return the plan of this schedule, with the examples that its messages use."""
    if sampler is not None and problem.partition_table is not None:
        return Plan(schedule, *_minibatches(problem, schedule, order, sampler, seeds), order=order, sampler=sampler)
    rng = None if order == "stored" else samples_rng(seeds)
    if sampler is not None:
        batch = int(sampler.batch)  # type: ignore[arg-type]
        samples = assign_pool(problem, schedule, rng, batch) if problem.stored else assign_computed(schedule, batch)
        weights = np.where(schedule.present[..., None], np.float32(1 / batch), np.zeros(batch, np.float32))
        return Plan(schedule, samples, weights, order=order, sampler=sampler, stored=problem.stored)
    if order in EPOCHS:
        plan = Plan(schedule, assign_epochs(problem, schedule, samples_rng(seeds), order), order=order)
        plan = plan if schedule.dropped is None else replace(plan, planned_uses=epoch_uses(problem, schedule))
    elif not problem.stored:
        plan = Plan(schedule, assign_computed(schedule)[..., 0], stored=False)
    else:
        samples = (
            assign_pool(problem, schedule, rng)[..., 0]
            if problem.partition_table is None
            else assign_shares(problem, schedule, rng)
        )
        plan = Plan(schedule, samples, order=order)
    return _with_absent_slots(plan) if schedule.varies else plan


def _with_absent_slots(plan: Plan) -> Plan:
    """Return the plan in the form of minibatches of one example, with weight 0 in empty slots."""
    weights = plan.schedule.present[..., None].astype(np.float32)
    return replace(plan, samples=plan.samples[..., None], weights=weights)
