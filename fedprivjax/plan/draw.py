"""Sampling of a run plan: the participation schedule, then the records of every message.

Sizes are checked first by arithmetic, before anything is sampled: enough records, rounds and memory.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.arguments import require_problem
from fedprivjax.plan.participation import Participation, check_participation, draw_schedule
from fedprivjax.plan.plan import (
    EPOCHS,
    ORDERS,
    Minibatches,
    Plan,
    SecretPlan,
    assign_computed,
    assign_epochs,
    assign_pool,
    assign_shares,
    draw_minibatches,
)
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import Seeds, as_seeds, participation_rng, samples_rng
from fedprivjax.plan.uses import epoch_uses, warn_of_unused_data
from fedprivjax.problem.devices import require_counted, require_room
from fedprivjax.problem.problem import Problem


def require_possible(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    *,
    order: str = "shuffled",
    sampler: Sampler | None = None,
    draws: int = 1,
) -> tuple[Participation, int, np.ndarray | None]:
    """Check a plan's sizes by arithmetic alone, without sampling.

    Args:
        draws: number of plans held in memory at once, one per seed.

    Returns:
        The participation scheme for these dataset sizes, the number of rounds, and `fresh_messages`.

    Raises:
        Refusal: if the data, int32 or this computer's memory do not allow the sizes.
    """
    require_problem(problem)
    with clients_named(problem.client_names):
        check_participation(participation)
        machines, per_round = int(participation.machines), int(participation.per_round)
        require_counted(machines=machines, per_round=per_round)
        if rounds is not None:
            require_at_least("rounds", rounds, 1)
            require_counted(rounds=rounds)
            rounds = int(rounds)  # products of short NumPy integers overflow
        _check_fits(problem, participation, sampler, order)
        shares = fresh_messages(problem, sampler, order)
        if participation.secret and shares is not None:
            raise Refusal(
                f"participation must be public if a machine uses every record once, because its records then tell how "
                f"often it took part, got {participation}. Use a method or sampler that uses records again"
            )
        table = problem.partition_table
        participation = participation.fitted(shares).sized(None if table is None else table.sizes)
        rounds = most_rounds(problem, participation, sampler, order) if rounds is None else rounds
        _check_enough(problem, participation, rounds, sampler, order)
        require_room(machines, per_round, rounds, _records_of_message(problem, sampler), draws)
        return participation, rounds, shares


def _records_of_message(problem: Problem, sampler: Sampler | None) -> int:
    """Return the largest number of records in a message."""
    if sampler is None:
        return 1
    if problem.partition_table is None:
        return int(sampler.batch)  # type: ignore[arg-type]
    return int(sampler.batches(problem.partition_table.sizes).max())


def _check_fits(problem: Problem, participation: Participation, sampler: Sampler | None, order: str) -> None:
    """Raise Refusal if the data do not allow the order, the sampler or the number of machines."""
    require_choice("order", order, ORDERS)
    if order in EPOCHS and sampler is not None:
        raise Refusal(
            f"order must be 'shuffled' or 'stored' for a protocol with a sampler, got {order!r}. "
            f"Set sampler to 'cyclic' or 'reshuffled' if the method allows it"
        )
    if order in EPOCHS and problem.partition_table is None:
        raise Refusal(f"order {order!r} must have per-machine records ([machines, records, features]), one per message")
    if sampler is not None and problem.partition_table is None and not sampler.pooled:
        raise Refusal("partition_table must be given, because machines sample minibatches from their own records")
    if problem.partition_table is not None and problem.partition_table.rows.shape[0] != participation.machines:
        raise Refusal(
            f"machines must be {problem.partition_table.rows.shape[0]}, as the data are split, "
            f"got {participation.machines}"
        )


def _fresh_examples(problem: Problem, sampler: Sampler | None, order: str) -> int:
    """Return the number of fresh examples per message that come from the data of all machines.

    It is 0 if records are reused, or if a message uses a batch of the machine's own records.
    """
    if sampler is None:
        return int(order not in EPOCHS)
    return int(sampler.batch) if sampler.pooled and problem.partition_table is None else 0  # type: ignore[arg-type]


def _check_enough(
    problem: Problem, participation: Participation, rounds: int, sampler: Sampler | None, order: str
) -> None:
    """Raise Refusal if the fresh examples of `rounds` rounds are more than all examples."""
    batch = _fresh_examples(problem, sampler, order)
    if batch * participation.examples(rounds) > problem.examples:
        factors, names = [participation.per_round, rounds], "per_round · rounds"
        if batch > 1:
            factors, names = [batch, *factors], f"batch · {names}"
        remedy = "Use fewer machines per round"
        if batch * participation.examples(1) <= problem.examples:
            most = most_rounds(problem, participation, sampler, order)
            remedy = f"Use at most {most} rounds"
            if problem.partition_table is not None and most == problem.partition_table.sizes.min():
                remedy += f", because the smallest machine has {most} records"
        raise Refusal(
            f"{names} must be at most the {problem.examples} examples, "
            f"got {' · '.join(map(str, factors))} = {np.prod(factors, dtype=object)}. {remedy}"
        )
    if participation.at_most_once and problem.partition_table is None and participation.machines > problem.examples:
        raise Refusal(f"machines must be at most the {problem.examples} examples, got {participation.machines}")


def most_rounds(
    problem: Problem, participation: Participation, sampler: Sampler | None = None, order: str = "shuffled"
) -> int:
    """Return the largest number of rounds that use each example at most once.

    With a fixed partition, the smallest dataset sets the limit. If examples are computed or reused, only a given
    schedule sets a limit.

    Raises:
        ValueError: if there is no limit.
    """
    given = participation.rounds_given
    if order in EPOCHS or (sampler is not None and not sampler.one_pass) or not problem.stored:
        if given is None:
            computed = problem.stored or order in EPOCHS
            why = "records are reused" if computed else "examples are computed, without a limit"
            raise Refusal(f"rounds must be given if {why}")
        return given
    shares = fresh_messages(problem, sampler, order)
    if shares is None:
        most = int(participation.most_rounds(int(problem.examples) // max(1, _fresh_examples(problem, sampler, order))))
    elif participation.at_most_once and shares.min() and given is not None:
        return given
    else:
        most = participation.rounds_of_shares(shares)
    return max(1, most if given is None else min(most, given))


def fresh_messages(problem: Problem, sampler: Sampler | None, order: str) -> np.ndarray | None:
    """Return the number of messages that each machine can send if it uses every record once, int [machines].

    It is None if records are shared, reused or computed.
    """
    if problem.partition_table is None or order in EPOCHS:
        return None
    if sampler is None:
        return problem.partition_table.sizes
    return problem.partition_table.sizes // sampler.batches(problem.partition_table.sizes) if sampler.one_pass else None


def draw_plan(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    *,
    order: str = "shuffled",
    sampler: Sampler | None = None,
) -> Plan:
    """Sample a run plan: the machines of each round, and the records that each machine uses.

    Args:
        problem: problem with the records.
        participation: participation scheme, which samples the machines of each round.
        rounds: number of rounds. None takes as many rounds as the records and the participation scheme allow.
        seed: seed of participation, records and noise, or a separate seed for each (`Seeds`).
        order: order in which records are used:

            * "shuffled": one pass in a random order.
            * "stored": one pass in the stored order.
            * "cyclic": several epochs over each machine's records, with the same random order in all epochs.
            * "reshuffled": several epochs over each machine's records, with a new random order in each epoch.

            If a `sampler` is given, `order` is the order of the sampler's passes over the records, and must be
            "shuffled" or "stored".
        sampler: sampler of minibatches, for messages that use several records. None if every message uses one record.

    Raises:
        ValueError: if the schedule needs more examples than there are, in all or at a machine.

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
    try:
        return draw_minibatches(sampler, rows, schedule, samples_rng(seeds), order == "stored", factors)
    except MemoryError:
        wanted = "batch must be smaller, so that the records of all messages fit in memory"
        raise Refusal(f"{wanted}, got {sampler.batch}") from None


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
        shared = problem.partition_table is None
        samples = assign_pool(problem, schedule, rng)[..., 0] if shared else assign_shares(problem, schedule, rng)
        plan = Plan(schedule, samples, order=order)
    return _with_absent_slots(plan) if schedule.varies else plan


def _with_absent_slots(plan: Plan) -> Plan:
    """Return the plan in the form of minibatches of one example, with weight 0 in empty slots."""
    weights = plan.schedule.present[..., None].astype(np.float32)
    return replace(plan, samples=plan.samples[..., None], weights=weights)
