"""Which examples are used: each once or in several epochs, dealt in order of use or from a machine's own share."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.checks.user_warnings import warn
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.arguments import require_problem
from fedprivjax.plan.minibatches import Minibatches, draw_minibatches
from fedprivjax.plan.participation import Participation, check_participation, draw_schedule
from fedprivjax.plan.participation.capped_sampling import rounds_filled
from fedprivjax.plan.record_assignment import deal_computed, deal_epochs, deal_pool, deal_shares, epoch_uses
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.plan.seeds import Seeds, as_seeds, participation_rng, samples_rng
from fedprivjax.plan.size_limits import require_counted, require_room
from fedprivjax.problem.memoize import Once
from fedprivjax.problem.problem import Problem

ORDERS = {
    "shuffled": "one pass in a random order, from the seed",
    "stored": "one pass, as the problem holds them",
    "cyclic": "several epochs over a machine's own records, in one random order again and again",
    "reshuffled": "several epochs over a machine's own records, in a fresh random order each time",
}
EPOCHS = ("cyclic", "reshuffled")
DRAWN = ("samples", "weights")  # fields that a secret plan draws at their first use
HALF = 50  # percent of the data, below which a run that ends with the smallest share is warned of


@dataclass(frozen=True)
class Plan(Once):
    """What is drawn before a run: the public schedule, and each participant's example, int32 [rounds, per_round].

    Samples index the problem's pool; where examples are computed, the machine's own examples, from 0. Minibatches have
    samples [rounds, per_round, width] with weights of the same shape. Those drawn anew each time are `secret`, which
    amplifies privacy; with `replace(plan, secret=False)`, the guarantee is that against one who knows them.

    Attributes:
        examples: how many the pool has; None where they are computed, or nobody is to know which are used.
        of_shares: whether the schedule follows from how many examples machines have, which is then public.
        planned_uses: `uses` of the schedule that is planned, where machines may drop out of it; None is no such plan.
    """

    schedule: Schedule
    samples: np.ndarray
    weights: np.ndarray | None = None
    secret: bool = False
    order: str = "shuffled"
    sampler: Sampler | None = None
    stored: bool = True
    examples: int | None = None
    of_shares: bool = False
    planned_uses: np.ndarray | None = None

    def __str__(self) -> str:
        which = f"{'at most ' if self.weights is not None else ''}{self.width}, {'secret' if self.secret else 'public'}"
        data = f"\n  data: {self.data_used}" if self.data_used else ""
        return f"Plan: {self.schedule}\n  records of a message: {which}{data}"

    __repr__ = __str__

    @property
    def public(self) -> "Plan":
        """What others know of it: without samples (of width 0) where they are secret."""
        if not self.secret:
            return self
        nothing = np.zeros((*self.schedule.participants.shape, 0))
        facts = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in DRAWN}
        known = {**facts, "samples": nothing.astype(np.int32), "weights": nothing.astype(np.float32), "examples": None}
        return Plan(**known)

    @property
    def size(self) -> Size:
        return self.schedule.size

    @cached_property
    def repeats(self) -> bool:
        """Whether a sample, of those that are fresh in every message, is used twice."""
        fresh = self.sampler is None or self.sampler.pooled or self.sampler.one_pass
        if self.order in EPOCHS or not fresh:
            return self.order in EPOCHS
        sent = self.samples if self.weights is None else self.samples[self.weights != 0]
        return bool(np.bincount(sent.ravel()).max(initial=0) > 1) if self.stored else self._computed_again

    @property
    def _computed_again(self) -> bool:
        """Whether a machine computes one of its examples twice."""
        samples = self.samples.reshape(*self.schedule.participants.shape, self.width)
        if np.array_equal(samples, deal_computed(self.schedule, self.width)):
            return False
        used = np.ones(samples.shape, bool) if self.weights is None else self.weights != 0
        machine = np.broadcast_to(self.schedule.participants[:, :, None], samples.shape)
        return len(np.unique(np.stack([machine[used], samples[used]]).T, axis=0)) < int(np.count_nonzero(used))

    @cached_property
    def uses(self) -> np.ndarray:
        """Rounds that use a machine's most used record, of one example a message, int [machines]; at least as many as
        if nobody dropped out."""
        total = self.schedule.total
        if not self.repeats:
            return np.minimum(total, 1)
        filled = self.schedule.asked if self.planned_uses is None else self.schedule.present
        sample = self.samples.reshape(filled.shape)[filled]
        uses = np.zeros(total.size, int)
        np.maximum.at(uses, self.schedule.participants[filled], np.bincount(sample)[sample])
        return uses if self.planned_uses is None else np.maximum(uses, self.planned_uses)

    @cached_property
    def used(self) -> int:
        """Examples that at least one message uses."""
        samples = self.samples if self.weights is None else self.samples[self.weights != 0]
        return int(np.count_nonzero(np.bincount(samples.ravel(), minlength=1)))

    @cached_property
    def times_used(self) -> int:
        """Uses of examples by all messages together."""
        return self.samples.size if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def part_used(self) -> float:
        """The part of a pool's examples that at least one message uses, in percent; NaN where its size is not known."""
        return 100 * self.used / self.examples if self.examples else np.nan

    @property
    def data_used(self) -> str:
        """`used` in words; nothing where the pool's size is not known."""
        return f"{self.used} of {self.examples} examples ({self.part_used:.3g}%)" if self.examples else ""

    @property
    def width(self) -> int:
        """Examples of a message, the largest number."""
        return 1 if self.weights is None else self.samples.shape[2]

    @property
    def drawn(self) -> bool:
        """True if the samples are drawn already."""
        return all(name in self.__dict__ for name in DRAWN)

    def will_be_of(self, problem: Problem) -> bool:
        """True if the samples are not drawn yet and will have this problem's records and weights."""
        return False


class SecretPlan(Plan):
    """A plan whose secret samples are drawn at their first use. A guarantee needs none of them."""

    @classmethod
    def of(cls, draw: Callable[[], Minibatches], width: int, problem: Problem, **facts: Any) -> "SecretPlan":
        """Return a plan whose samples are drawn by `draw`.

        Args:
            draw: returns samples and weights, always the same.
            width: largest number of examples of a message.
            problem: owner of the records.
            facts: the other fields.
        """
        plan = cls(samples=None, weights=None, secret=True, **facts)  # type: ignore[arg-type]
        for name in DRAWN:
            del plan.__dict__[name]
        plan.__dict__.update(_draw=draw, _width=width, _of=(problem.table, problem.weights))
        return plan

    def will_be_of(self, problem: Problem) -> bool:
        return not self.drawn and self.__dict__["_of"] == (problem.table, problem.weights)

    @cached_property
    def samples(self) -> np.ndarray:  # type: ignore[override]
        return self._both.samples

    @cached_property
    def weights(self) -> np.ndarray:  # type: ignore[override]
        return self._both.weights

    @property
    def _both(self) -> Minibatches:
        both = self.__dict__["_draw"]()
        self.__dict__.update(zip(DRAWN, both, strict=True))
        return both

    @property
    def width(self) -> int:
        return self.samples.shape[2] if self.drawn else self.__dict__["_width"]


def draw_plan(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    *,
    order: str = "shuffled",
    sampler: Sampler | None = None,
) -> Plan:
    """Draw a run's schedule and the order of its samples, on the host.

    Args:
        rounds: None takes as many as the samples, and a given schedule, allow.
        order: of samples that no sampler draws, one a message, see `ORDERS`. A protocol with a `sampler` has its epochs
            by that ("cyclic", "reshuffled"); "stored" is for both.
        sampler: how machines draw minibatches of their own records; None is one example a message, by `order`.

    Raises:
        ValueError: more samples asked for than there are, in the pool or in a machine's share.

    >>> import numpy as np
    >>> from fedprivjax import Full, Softmax, linear_problem
    >>> problem = linear_problem(np.eye(4), [0, 1, 1, 0], Softmax(2))
    >>> draw_plan(problem, Full(2)).samples.shape
    (2, 2)
    """
    require_problem(problem)
    with clients_named(problem.client_names):
        return _drawn(problem, participation, rounds, as_seeds(seed), order, sampler)


def _drawn(
    problem: Problem,
    participation: Participation,
    rounds: int | None,
    seeds: Seeds,
    order: str,
    sampler: Sampler | None,
) -> Plan:
    chosen = rounds is None
    participation, rounds, shares = require_possible(problem, participation, rounds, order=order, sampler=sampler)
    schedule = draw_schedule(participation, rounds, participation_rng(seeds))
    of_shares = participation.of_shares or (chosen and shares is not None)
    facts = {"examples": int(problem.examples) if problem.stored else None, "of_shares": of_shares}
    if sampler is not None and sampler.secret and problem.table is not None:
        return _secret(problem, schedule, order, sampler, seeds, facts)
    plan = replace(_with_samples(problem, schedule, order, sampler, seeds), **facts)
    if chosen and shares is not None and not participation.at_most_once:
        _warn_of_waste(plan, participation, shares)
    return plan


def require_possible(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    *,
    order: str = "shuffled",
    sampler: Sampler | None = None,
    draws: int = 1,
) -> tuple[Participation, int, np.ndarray | None]:
    """Check a plan's sizes by arithmetic alone: nothing is drawn.

    Args:
        draws: plans that are kept at once, one for each seed.

    Returns:
        The participation scheme for these dataset sizes, the rounds, and `fresh_messages`.

    Raises:
        Refusal: sizes that the data, int32 or this computer's memory do not allow.
    """
    require_problem(problem)
    with clients_named(problem.client_names):
        check_participation(participation)
        machines, per_round = int(participation.machines), int(participation.per_round)
        require_counted(machines=machines, per_round=per_round)
        if rounds is not None:
            require_at_least("rounds", rounds, 1)
            require_counted(rounds=rounds)
        _check_fits(problem, participation, sampler, order)
        shares = fresh_messages(problem, sampler, order)
        participation = participation.fitted(shares)
        rounds = most_rounds(problem, participation, sampler, order) if rounds is None else rounds
        batch, most = (
            _dealt_batch(problem, sampler, order),
            partial(most_rounds, problem, participation, sampler, order),
        )
        _check_enough(problem, participation, rounds, batch, most)
        require_room(machines, per_round, rounds, _records_of_message(problem, sampler), draws)
        return participation, rounds, shares


def _records_of_message(problem: Problem, sampler: Sampler | None) -> int:
    """The most records of a message, of a sampler's batch."""
    if sampler is None:
        return 1
    if problem.table is None:
        return int(sampler.batch)  # type: ignore[arg-type]
    return int(sampler.batches(problem.table.sizes).max())


def _check_fits(problem: Problem, participation: Participation, sampler: Sampler | None, order: str) -> None:
    """Refuse an order, a sampler or a number of machines that the data do not allow."""
    require_choice("order", order, ORDERS)
    if order in EPOCHS and sampler is not None:
        raise Refusal(
            f"order must be 'shuffled' or 'stored' for a protocol with a sampler, which itself may be 'cyclic' or "
            f"'reshuffled' where its method allows it, got {order!r}"
        )
    if order in EPOCHS and problem.table is None:
        raise Refusal(
            f"order {order!r} must go with machines of their own records ([machines, records, features]), one a message"
        )
    if sampler is not None and problem.table is None and not sampler.pooled:
        raise Refusal("table must be given: machines draw minibatches from records of their own")
    if problem.table is not None and problem.table.rows.shape[0] != participation.machines:
        raise Refusal(
            f"machines must be {problem.table.rows.shape[0]}, as the data are split, got {participation.machines}"
        )


def _dealt_batch(problem: Problem, sampler: Sampler | None, order: str) -> int:
    """Examples of a message that are dealt from what all machines have; 0 where records are used again, or a machine's
    own in batches."""
    if sampler is None:
        return int(order not in EPOCHS)
    return int(sampler.batch) if sampler.pooled and problem.table is None else 0  # type: ignore[arg-type]


def _check_enough(
    problem: Problem, participation: Participation, rounds: int, batch: int, most: Callable[[], int]
) -> None:
    """Raise Refusal if rounds of `batch` fresh examples a message need more examples than there are.

    Args:
        most: returns the largest number of rounds.
    """
    if batch * participation.examples(rounds) > problem.examples:
        factors, names = [participation.per_round, rounds], "per_round · rounds"
        if batch > 1:
            factors, names = [batch, *factors], f"batch · {names}"
        one = batch * participation.examples(1) <= problem.examples
        remedy = f"Use at most {most()} rounds" if one else "Use fewer machines a round"
        raise Refusal(
            f"{names} must be at most the {problem.examples} examples, "
            f"got {' · '.join(map(str, factors))} = {np.prod(factors, dtype=object)}. {remedy}"
        )
    if participation.at_most_once and problem.table is None and participation.machines > problem.examples:
        raise Refusal(f"machines must be at most the {problem.examples} examples, got {participation.machines}")


def _secret(
    problem: Problem, schedule: Schedule, order: str, sampler: Sampler, seeds: Seeds, facts: dict[str, Any]
) -> Plan:
    """The schedule with secret minibatches of machines' own records. The sampler's checks are made at once."""
    assert problem.table is not None
    sizes = problem.table.sizes
    width = sampler.width(sizes, sampler.batches(sizes), schedule.participants.size)
    draw = partial(_minibatches, problem, schedule, order, sampler, seeds)
    return SecretPlan.of(draw, width, problem, schedule=schedule, order=order, sampler=sampler, **facts)


def _minibatches(problem: Problem, schedule: Schedule, order: str, sampler: Sampler, seeds: Seeds) -> Minibatches:
    """Sample minibatches of machines' own records."""
    assert problem.table is not None
    factors = 1.0 if sampler.pooled else problem.message_factors
    return draw_minibatches(sampler, problem.table.rows, schedule, samples_rng(seeds), order == "stored", factors)


def _with_samples(problem: Problem, schedule: Schedule, order: str, sampler: Sampler | None, seeds: Seeds) -> Plan:
    """The schedule with the examples that its messages use."""
    if sampler is not None and problem.table is not None:
        return Plan(schedule, *_minibatches(problem, schedule, order, sampler, seeds), order=order, sampler=sampler)
    rng = None if order == "stored" else samples_rng(seeds)
    if sampler is not None:
        return _pooled(problem, schedule, order, sampler, rng)
    if order in EPOCHS:
        plan = Plan(schedule, deal_epochs(problem, schedule, samples_rng(seeds), order), order=order)
        plan = plan if schedule.dropped is None else replace(plan, planned_uses=epoch_uses(problem, schedule))
    elif not problem.stored:
        plan = Plan(schedule, deal_computed(schedule)[..., 0], stored=False)
    else:
        dealt = (
            deal_pool(problem, schedule, rng)[..., 0] if problem.table is None else deal_shares(problem, schedule, rng)
        )
        plan = Plan(schedule, dealt, order=order)
    return _with_absent_slots(plan) if schedule.varies else plan


def _pooled(problem: Problem, schedule: Schedule, order: str, sampler: Sampler, rng) -> Plan:
    """The plan of minibatches that are dealt from a pool, or computed; of weight 0 in slots that nobody fills."""
    batch = int(sampler.batch)  # type: ignore[arg-type]
    samples = deal_pool(problem, schedule, rng, batch) if problem.stored else deal_computed(schedule, batch)
    weights = np.where(schedule.present[..., None], np.float32(1 / batch), np.zeros(batch, np.float32))
    return Plan(schedule, samples, weights, order=order, sampler=sampler, stored=problem.stored)


def _warn_of_waste(plan: Plan, participation: Participation, shares: np.ndarray) -> None:
    """Say so where most of the data lie idle because rounds end with a small share."""
    of_smallest = plan.size.rounds == participation.rounds_of_shares(shares) and 2 * shares.min() < shares.mean()
    if participation.of_shares or not of_smallest or plan.part_used >= HALF:
        return
    warn(f"a run uses {plan.data_used}: rounds end with the smallest share; {_remedy(participation, shares, plan)}")


def _remedy(participation: Participation, shares: np.ndarray, plan: Plan) -> str:
    """What uses more than half: as many machines a round by their shares, or down to half as many; else records used
    again."""
    asked = participation.per_round
    most = asked // 2
    less = bisect_left(range(asked), HALF, hi=most + 1, key=lambda less: _part_by_size(shares, asked - less))
    if less <= most:
        law = f"BySize({participation.machines}, {asked - less})"
        key = f", per_round = {asked - less}" if less else ""
        return f'{law}, in a file kind = "by_size"{key}, uses {_part_by_size(shares, asked - less):.3g}%'
    if plan.sampler is None or plan.sampler.pooled:
        return "methods of minibatches from a machine's own records, such as noisy_minibatch_sgd, do not end there"
    return 'samplers that use records again, such as sampler = "poisson", do not end there'


def _part_by_size(shares: np.ndarray, per_round: int) -> float:
    """The part of all messages, in percent, that cohorts of this size send where they are drawn by their shares."""
    return 100 * rounds_filled(shares, per_round) * per_round / shares.sum()


def _with_absent_slots(plan: Plan) -> Plan:
    """The plan as one of minibatches of one example, whose weight is 0 in slots that nobody fills."""
    weights = plan.schedule.present[..., None].astype(np.float32)
    return replace(plan, samples=plan.samples[..., None], weights=weights)


def most_rounds(
    problem: Problem, participation: Participation, sampler: Sampler | None = None, order: str = "shuffled"
) -> int:
    """Rounds of a given schedule that use each example at most once; with a fixed partition, those that the smallest
    share allows. Where examples are computed or used again, a given schedule alone sets an end.

    Raises:
        ValueError: there is no end.
    """
    given = participation.rounds_given
    if order in EPOCHS or (sampler is not None and not sampler.one_pass) or not problem.stored:
        if given is None:
            computed = problem.stored or order in EPOCHS
            why = "records are used again and again" if computed else "examples are computed: they have no end"
            raise Refusal(f"rounds must be given where {why}")
        return given
    shares = fresh_messages(problem, sampler, order)
    if shares is None:
        most = int(participation.most_rounds(int(problem.examples) // max(1, _dealt_batch(problem, sampler, order))))
    elif participation.at_most_once and shares.min() and given is not None:
        return given
    else:
        most = participation.rounds_of_shares(shares)
    return max(1, most if given is None else min(most, given))


def fresh_messages(problem: Problem, sampler: Sampler | None, order: str) -> np.ndarray | None:
    """Messages that each machine's own share allows, of records used once, int [machines]; None where records are
    shared, used again or computed."""
    if problem.table is None or order in EPOCHS:
        return None
    if sampler is None:
        return problem.table.sizes
    return problem.table.sizes // sampler.batches(problem.table.sizes) if sampler.one_pass else None
