"""Which examples are used: each once or in several epochs, dealt in order of use or from a machine's own share."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.minibatches import draw_minibatches
from fedprivjax.plan.participation import Participation, Schedule, Size
from fedprivjax.plan.samplers import Sampler, epoch_places, places_in_order
from fedprivjax.plan.seeds import Seeds, as_seeds, participation_rng, samples_rng
from fedprivjax.problem.problem import Problem

ORDERS = {
    "shuffled": "one pass in a random order, from the seed",
    "stored": "one pass, as the problem holds them",
    "cyclic": "several epochs over a machine's own records, in one random order again and again",
    "reshuffled": "several epochs over a machine's own records, in a fresh random order each time",
}
EPOCHS = ("cyclic", "reshuffled")


@dataclass(frozen=True)
class Plan:
    """What is drawn before a run: the public schedule, and each participant's example, int32 [rounds, per_round].

    Samples index the problem's pool; where examples are computed, the machine's own examples, from 0. Minibatches have
    samples [rounds, per_round, width] with weights of the same shape. Those drawn anew each time are `secret`, which
    amplifies privacy; with `replace(plan, secret=False)`, the guarantee is that against one who knows them.
    """

    schedule: Schedule
    samples: np.ndarray
    weights: np.ndarray | None = None
    secret: bool = False
    order: str = "shuffled"
    sampler: Sampler | None = None
    stored: bool = True

    def __str__(self) -> str:
        which = f"{'at most ' if self.weights is not None else ''}{self.width}, {'secret' if self.secret else 'public'}"
        return f"Plan: {self.schedule}\n  records of a message: {which}"

    __repr__ = __str__

    @property
    def public(self) -> "Plan":
        """What others know of it: without samples (of width 0) where they are secret."""
        if not self.secret or self.weights is None:
            return self
        return replace(self, samples=self.samples[..., :0], weights=self.weights[..., :0])

    @property
    def size(self) -> Size:
        return self.schedule.size

    @cached_property
    def repeats(self) -> bool:
        """Whether a sample of a stored pool is used in several rounds."""
        stored = self.samples if self.weights is None and self.stored else self.samples[:0]
        return self.order in EPOCHS or np.bincount(stored.ravel()).max(initial=0) > 1

    @cached_property
    def uses(self) -> np.ndarray:
        """Rounds that use a machine's most used record, of one example a message, int [machines]."""
        total = self.schedule.total
        if not self.repeats:
            return np.minimum(total, 1)
        present = self.schedule.present
        sample = self.samples.reshape(present.shape)[present]
        uses = np.zeros(total.size, int)
        np.maximum.at(uses, self.schedule.participants[present], np.bincount(sample)[sample])
        return uses

    @property
    def width(self) -> int:
        """Examples of a message, the largest number."""
        return 1 if self.weights is None else self.samples.shape[2]


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
    seeds = as_seeds(seed)
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
    rounds = most_rounds(problem, participation, sampler, order) if rounds is None else rounds
    require_at_least("rounds", rounds, 1)
    if sampler is not None and problem.table is None:
        raise Refusal("table must be given: machines draw minibatches from records of their own")
    if problem.table is not None and problem.table.rows.shape[0] != participation.machines:
        raise Refusal(
            f"machines must be {problem.table.rows.shape[0]}, as the data are split, got {participation.machines}"
        )
    if sampler is None and order not in EPOCHS and participation.examples(rounds) > problem.examples:
        raise Refusal(
            f"per_round · rounds must be at most the {problem.examples} examples, "
            f"got {participation.per_round} · {rounds} = {participation.per_round * rounds}"
        )
    if participation.at_most_once and problem.table is None and participation.machines > problem.examples:
        raise Refusal(f"machines must be at most the {problem.examples} examples, got {participation.machines}")
    schedule = participation.draw(rounds, participation_rng(seeds))
    if sampler is not None:
        assert problem.table is not None
        settings = {"stored": order == "stored", "factors": problem.message_factors}
        batches = draw_minibatches(sampler, problem.table.rows, schedule, samples_rng(seeds), **settings)
        return Plan(schedule, *batches, secret=sampler.secret, order=order, sampler=sampler)
    rng = None if order == "stored" else samples_rng(seeds)
    if not problem.stored:
        plan = Plan(schedule, np.maximum(schedule.counts - 1, 0), stored=False)
    elif order in EPOCHS:
        plan = Plan(schedule, _deal_epochs(problem, schedule, samples_rng(seeds), order), order=order)
    else:
        deal = _deal_pool if problem.table is None else _deal_shares
        plan = Plan(schedule, deal(problem, schedule, rng), order=order)
    return plan if schedule.filled is None else _with_absent_slots(plan)


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
    again = order in EPOCHS or (sampler is not None and not sampler.one_pass)
    if again or not problem.stored:
        if given is None:
            why = "records are used again and again" if again else "examples are computed: they have no end"
            raise Refusal(f"rounds must be given where {why}")
        return given
    if problem.table is not None:
        batches = 1 if sampler is None else sampler.batches(problem.table.sizes)
        most = int((problem.table.sizes // batches).min())
        if participation.at_most_once and most and given is not None:
            return given
    else:
        most = int(participation.most_rounds(int(problem.examples)))
    return max(1, most if given is None else min(most, given))


def _deal_pool(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """Slot (t, j) takes the next example of one permutation of the pool; so does an empty one, if not announced."""
    order = np.arange(problem.examples) if rng is None else rng.permutation(problem.examples)
    if not schedule.announced:
        return order[: schedule.participants.size].astype(np.int32).reshape(schedule.participants.shape)
    samples = np.zeros(schedule.participants.shape, np.int32)
    samples[schedule.present] = order[: schedule.present.sum()]
    return samples


def _deal_epochs(problem: Problem, schedule: Schedule, rng: np.random.Generator, order: str) -> np.ndarray:
    """A machine of n records takes, at its k-th participation, place (k − 1) mod n of the epoch's permutation."""
    assert problem.table is not None
    rows, sizes = problem.table.rows, problem.table.sizes
    if not sizes.all():
        raise Refusal(f"machines must have at least one record each, got none for machine {sizes.argmin()}")
    ones = np.ones(sizes.size, int)
    places, _ = epoch_places(rows, schedule, ones, rng, reshuffle=order == "reshuffled")
    return rows[schedule.participants, places[:, :, 0]]


def _deal_shares(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """A machine's k-th participation takes the k-th example of a permutation of its own share."""
    assert problem.table is not None
    rows, sizes = problem.table.rows, problem.table.sizes
    short = np.flatnonzero(schedule.total > sizes)
    if short.size:
        needs, has = schedule.total[short[0]], sizes[short[0]]
        raise Refusal(f"machine {short[0]} must have at least {needs} examples for this schedule, got {has}")
    return np.take_along_axis(rows, places_in_order(rows, rng), axis=1)[schedule.participants, schedule.counts - 1]
