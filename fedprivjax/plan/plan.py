"""Which examples are used: every example once, dealt in order of use or from a machine's own share."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.minibatches import Sampling, draw_minibatches
from fedprivjax.plan.participation import Given, Participation, Schedule, Size, Varying
from fedprivjax.problem.problem import Problem

ORDERS = {"shuffled": "a random order, from the seed", "stored": "as the problem holds them"}


class Seeds(NamedTuple):
    """Seeds of the three independent streams of a run: who takes part, which examples, which noise.

    Each is a stream of its own, so that any of them can be shared by, or varied over, the members of a sweep.
    """

    participation: int
    samples: int
    noise: int

    def anew(self, which: int) -> "Seeds":
        """Independent streams of their own for each `which`, from these.

        >>> Seeds(1, 1, 1).anew(0) != Seeds(1, 1, 1).anew(1)
        True
        """
        words = (np.random.SeedSequence(seed, spawn_key=(2**20, which)).generate_state(1)[0] for seed in self)
        return Seeds(*map(int, words))


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

    @property
    def public(self) -> "Plan":
        """What others know of it: without samples (of width 0) where they are secret."""
        if not self.secret or self.weights is None:
            return self
        return replace(self, samples=self.samples[..., :0], weights=self.weights[..., :0])

    @property
    def size(self) -> Size:
        return self.schedule.size

    @property
    def width(self) -> int:
        """Examples of a message, the largest number."""
        return 1 if self.weights is None else self.samples.shape[2]


def as_seeds(seed: "int | Seeds") -> Seeds:
    """One integer seeds all three streams (which stay independent).

    >>> as_seeds(3)
    Seeds(participation=3, samples=3, noise=3)
    """
    seeds = seed if isinstance(seed, Seeds) else Seeds(seed, seed, seed)
    for one in seeds:
        require_at_least("seed", one, 0)
        if one >= 2**32:
            raise Refusal(f"seed must be below 2³², got {one}")
    return seeds


def draw_plan(
    problem: Problem,
    participation: Participation,
    rounds: int | None = None,
    seed: int | Seeds = 0,
    *,
    order: str = "shuffled",
    sampling: Sampling | None = None,
) -> Plan:
    """Draw a run's schedule and the order of its samples, on the host.

    Args:
        rounds: None takes as many as the samples, and a given schedule, allow.
        order: "shuffled", or "stored": samples that are used once are in the order in which the problem holds them.
        sampling: how machines draw minibatches of their own records; None is one fresh example a message.

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
    rounds = most_rounds(problem, participation, sampling) if rounds is None else rounds
    require_at_least("rounds", rounds, 1)
    if sampling is not None and problem.table is None:
        raise Refusal("table must be given: machines draw minibatches from records of their own")
    if sampling is None and isinstance(participation, Varying):
        raise Refusal("participation must have a fixed number of machines a round, but for minibatch protocols")
    if problem.table is not None and problem.table.rows.shape[0] != participation.machines:
        raise Refusal(
            f"machines must be {problem.table.rows.shape[0]}, as the data are split, got {participation.machines}"
        )
    if sampling is None and rounds * participation.per_round > problem.examples:
        raise Refusal(
            f"per_round · rounds must be at most the {problem.examples} examples, "
            f"got {participation.per_round} · {rounds} = {participation.per_round * rounds}"
        )
    schedule = participation.draw(rounds, _stream(seeds.participation, 1))
    if sampling is not None:
        assert problem.table is not None
        rng = _stream(seeds.samples, 2)
        batches = draw_minibatches(sampling, problem.table.rows, schedule, rng, stored=order == "stored")
        return Plan(schedule, *batches, secret=sampling.sampler.secret)
    rng = None if order == "stored" else _stream(seeds.samples, 2)
    if not problem.stored:
        return Plan(schedule, schedule.counts - 1)
    deal = _deal_pool if problem.table is None else _deal_shares
    return Plan(schedule, deal(problem, schedule, rng))


def _stream(seed: int, which: int) -> np.random.Generator:
    """One of a seed's independent streams; stream 0 is left to `default_rng(seed)`, which others may use."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2**20 + which,)))


def most_rounds(problem: Problem, participation: Participation, sampling: Sampling | None = None) -> int:
    """Rounds of a given schedule that use each example at most once; with a fixed partition, those that the smallest
    share allows. Where examples are computed or used again, a given schedule alone sets an end.

    Raises:
        ValueError: there is no end.
    """
    given = len(participation.rows) if isinstance(participation, Given) else None
    again = sampling is not None and not sampling.sampler.one_pass
    if again or not problem.stored:
        if given is None:
            why = "records are used again and again" if again else "examples are computed: they have no end"
            raise Refusal(f"rounds must be given where {why}")
        return given
    if problem.table is not None:
        batches = 1 if sampling is None else sampling.sampler.batches(problem.table.sizes)
        most = int((problem.table.sizes // batches).min())
    else:
        most = int(problem.examples // participation.per_round)
    return max(1, most if given is None else min(most, given))


def _deal_pool(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """Slot (t, j) takes the next example of one permutation of the pool."""
    order = np.arange(problem.examples) if rng is None else rng.permutation(problem.examples)
    return order[: schedule.participants.size].astype(np.int32).reshape(schedule.participants.shape)


def _deal_shares(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """A machine's k-th participation takes the k-th example of a permutation of its own share."""
    assert problem.table is not None
    rows, sizes = problem.table.rows, problem.table.sizes
    short = np.flatnonzero(schedule.total > sizes)
    if short.size:
        needs, has = schedule.total[short[0]], sizes[short[0]]
        raise Refusal(f"machine {short[0]} must have at least {needs} examples for this schedule, got {has}")
    if rng is not None:
        keys = np.where(rows >= 0, rng.random(rows.shape), 2.0)  # padding stays last
        rows = np.take_along_axis(rows, np.argsort(keys, axis=1), axis=1)
    return rows[schedule.participants, schedule.counts - 1]
