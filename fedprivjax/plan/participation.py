"""Who takes part in which round: public, independent of the data, drawn before the run."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.stats import binom

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between
from fedprivjax.problem.once import Once

UNSEEN = 1e-12  # a number of machines that a million rounds do not see


class Size(NamedTuple):
    """The integers that fix a run's program: machines in all, machines in a round, rounds."""

    machines: int
    per_round: int
    rounds: int


@dataclass(frozen=True)
class Schedule(Once):
    """A public schedule: which machines take part in each round, int32 [rounds, per_round].

    Where their number varies, `filled` tells how many of a row's slots are filled, from the left: int [rounds], and
    `mean` is M, the harmonic mean of that number's law. Where it is `announced`, users know it before their round.
    """

    machines: int
    participants: np.ndarray
    filled: np.ndarray | None = None
    mean: float | None = None
    announced: bool = False

    def __str__(self) -> str:
        total = self.total
        often = f"each takes part {total.min()} to {total.max()} times"
        return f"Schedule: {self.size.rounds} rounds of {self.cohort:.4g} of {self.machines} machines, {often}"

    __repr__ = __str__

    @property
    def cohort(self) -> float:
        """M: machines in a round, the harmonic mean of their law where their number varies."""
        return self.participants.shape[1] if self.mean is None else self.mean

    @cached_property
    def present(self) -> np.ndarray:
        """Which slots are filled, bool [rounds, per_round]."""
        slots = np.arange(self.participants.shape[1])
        most = self.participants.shape[1] if self.filled is None else self.filled[:, None]
        return np.broadcast_to(slots < most, self.participants.shape)

    @property
    def size(self) -> Size:
        rounds, per_round = self.participants.shape
        return Size(self.machines, per_round, rounds)

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Entries sorted by machine then round, and where each machine's run of entries starts, per entry."""
        flat = self.participants.ravel()
        order = np.argsort(flat, kind="stable")
        first = np.searchsorted(flat[order], flat[order], side="left")
        return order, first

    @cached_property
    def counts(self) -> np.ndarray:
        """How often the participant has taken part, this round included: int32 [rounds, per_round], from 1.

        >>> Schedule(2, np.array([[0], [1], [0]])).counts.ravel().tolist()
        [1, 1, 2]
        """
        if self.total.max(initial=0) <= 1:  # no order is needed, which takes sixteen bytes a slot
            return self.present.astype(np.int32)
        order, first = self._order
        ones = self.present.ravel()[order]
        so_far = np.cumsum(ones)
        counts = np.empty(order.size, np.int32)
        counts[order] = so_far - so_far[first] + ones[first]
        return counts.reshape(self.participants.shape)

    def previous(self, values: np.ndarray) -> np.ndarray:
        """The entry of `values` [rounds, per_round] at the machine's previous participation; zero at its first.

        >>> Schedule(2, np.array([[0], [1], [0]])).previous(np.array([[5.0], [6.0], [7.0]])).ravel().tolist()
        [0.0, 0.0, 5.0]
        """
        order, first = self._order
        ordered = values.ravel()[order]
        earlier = np.where(np.arange(order.size) > first, np.roll(ordered, 1), 0.0)
        result = np.empty(order.size)
        result[order] = earlier
        return result.reshape(values.shape)

    @cached_property
    def total(self) -> np.ndarray:
        """How often each machine takes part in all, n_i: int [machines]."""
        return np.bincount(self.participants[self.present], minlength=self.machines)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Rounds from each participation to the machine's next one, or to the end: int32 [rounds, per_round].

        >>> Schedule(2, np.array([[0], [1], [0]])).gaps.ravel().tolist()
        [2, 2, 1]
        """
        order, _ = self._order
        rounds, per_round = self.participants.shape
        when = order // per_round
        following = np.append(when[1:], rounds)
        last = np.append(np.diff(self.participants.ravel()[order]) != 0, True)
        gaps = np.empty(order.size, np.int32)
        gaps[order] = np.where(last, rounds, following) - when
        return gaps.reshape(self.participants.shape)


class Kind:
    """What every participation answers."""

    at_most_once: ClassVar[bool] = False  # whether no machine takes part twice

    @property
    def varies(self) -> bool:
        """Whether the number of machines differs from round to round."""
        return False

    @property
    def rounds_given(self) -> int | None:
        """Rounds of a schedule that has an end of its own; None where any number can be drawn."""
        return None

    def examples(self, rounds: int) -> int:
        """Examples that so many rounds take from a pool, one a machine."""
        return rounds * self.per_round  # pyright: ignore[reportAttributeAccessIssue]

    def most_rounds(self, examples: int) -> int:
        """Rounds for which a pool of so many is enough."""
        return examples // self.per_round  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class Full(Kind):
    """Every machine in every round.

    >>> Full(3).draw(2, np.random.default_rng(0)).participants.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """

    machines: int

    def __post_init__(self):
        require_at_least("machines", self.machines, 1)

    @property
    def per_round(self) -> int:
        return self.machines

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        return Schedule(self.machines, np.tile(np.arange(self.machines, dtype=np.int32), (rounds, 1)))


@dataclass(frozen=True)
class Uniform(Kind):
    """A uniformly random subset of `per_round` machines, fresh each round.

    >>> Uniform(100, 120)
    Traceback (most recent call last):
    fedprivjax.Refusal: per_round must be at most machines (100), got 120
    """

    machines: int
    per_round: int

    def __post_init__(self):
        _check_sizes(self.machines, self.per_round)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if self.per_round == self.machines:
            return Full(self.machines).draw(rounds, rng)
        rows = [rng.choice(self.machines, self.per_round, replace=False, shuffle=False) for _ in range(rounds)]
        return Schedule(self.machines, np.array(rows, np.int32))


@dataclass(frozen=True)
class Varying(Kind):
    """A random number of machines in each round, then a uniformly random subset of that size.

    Args:
        sizes: probability of each number of machines, from 1 up; its length is the largest.

    >>> Varying.binomial(100, 0.1).per_round
    36
    """

    machines: int
    sizes: tuple[float, ...] = field(repr=False)

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(map(float, self.sizes)))
        _check_sizes(self.machines, len(self.sizes))
        if min(self.sizes) < 0 or abs(sum(self.sizes) - 1) > 1e-6:
            raise Refusal(f"sizes must be probabilities that add up to 1, got a sum of {sum(self.sizes):g}")

    @classmethod
    def between(cls, machines: int, least: int, most: int) -> "Varying":
        """Every number from `least` to `most` alike."""
        require_at_least("least", least, 1)
        require_at_least("most", most, least)
        return cls(machines, tuple(float(least <= m) / (most - least + 1) for m in range(1, most + 1)))

    @classmethod
    def binomial(cls, machines: int, rate: float) -> "Varying":
        """Each machine by itself with probability `rate`; a round without any is drawn again."""
        require_between("rate", rate, 0, 1)
        weights = binom.pmf(np.arange(1, machines + 1), machines, rate)
        weights = weights[: int(np.flatnonzero(weights > UNSEEN)[-1]) + 1]
        return cls(machines, tuple(weights / weights.sum()))

    @property
    def per_round(self) -> int:
        return len(self.sizes)

    @property
    def varies(self) -> bool:
        return True

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        weights = np.array(self.sizes)
        filled = rng.choice(np.arange(1, self.per_round + 1), rounds, p=weights / weights.sum())
        drawn = Uniform(self.machines, self.per_round).draw(rounds, rng).participants
        mean = float(1 / (weights / np.arange(1, weights.size + 1)).sum())
        return Schedule(self.machines, rng.permuted(drawn, axis=1), filled, mean)  # a random subset in a random order


@dataclass(frozen=True)
class Balanced(Kind):
    """The machines permuted and cut into cohorts of `per_round`, again and again: nearly equal gaps.

    With `reshuffle` every pass takes a fresh permutation, without it the first is repeated.
    """

    machines: int
    per_round: int
    reshuffle: bool = True

    def __post_init__(self):
        _check_sizes(self.machines, self.per_round)
        if self.machines % self.per_round:
            raise Refusal(f"per_round must divide machines ({self.machines}), got {self.per_round}")

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        passes = -(-rounds * self.per_round // self.machines)
        once = rng.permutation(self.machines)
        rows = [rng.permutation(self.machines) if self.reshuffle else once for _ in range(passes)]
        cohorts = np.concatenate(rows).astype(np.int32).reshape(-1, self.per_round)
        return Schedule(self.machines, cohorts[:rounds])


@dataclass(frozen=True)
class OnePass(Kind):
    """Every machine once at most: the machines permuted and cut into cohorts of `per_round`, the remainder dropped.

    Each machine of a cohort fails to take part with probability `dropouts`, by itself; a cohort keeps at least one.

    >>> OnePass(10, 3).draw(3, np.random.default_rng(0)).participants.shape
    (3, 3)
    """

    machines: int
    per_round: int
    dropouts: float = 0.0

    at_most_once = True

    def __post_init__(self):
        _check_sizes(self.machines, self.per_round)
        if not 0 <= self.dropouts < 1:
            raise Refusal(f"dropouts must be at least 0 and below 1, got {self.dropouts}")

    @property
    def varies(self) -> bool:
        return self.dropouts > 0

    @property
    def rounds_given(self) -> int | None:
        return self.machines // self.per_round

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        most = self.machines // self.per_round
        if rounds > most:
            raise Refusal(f"rounds must be at most {most} for one pass over the machines, got {rounds}")
        cohorts = rng.permutation(self.machines)[: rounds * self.per_round].astype(np.int32)
        cohorts = cohorts.reshape(rounds, self.per_round)
        if not self.varies:
            return Schedule(self.machines, cohorts)
        law = binom.pmf(np.arange(self.per_round + 1), self.per_round, 1 - self.dropouts)
        law = np.append(law[0] + law[1], law[2:])
        sizes = np.arange(1, self.per_round + 1)
        filled = rng.choice(sizes, rounds, p=law / law.sum())
        return Schedule(self.machines, cohorts, filled, float(law.sum() / (law / sizes).sum()))


@dataclass(frozen=True)
class Cohorts(Kind):
    """Every machine once at most: the machines permuted and cut into cohorts of these sizes, which are announced.

    Args:
        sizes: machines of each round.

    >>> Cohorts(10, (2, 2, 5)).draw(3, np.random.default_rng(0)).present.sum(axis=1).tolist()
    [2, 2, 5]
    """

    machines: int
    sizes: tuple[int, ...] = field(repr=False)

    at_most_once = True

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))
        require_at_least("machines", self.machines, 1)
        if not self.sizes or min(self.sizes) < 1 or sum(self.sizes) > self.machines:
            raise Refusal(
                f"sizes must be at least 1 each and at most {self.machines} together, as there are machines, "
                f"got {len(self.sizes)} that add up to {sum(self.sizes)}"
            )

    @property
    def per_round(self) -> int:
        return max(self.sizes)

    @property
    def varies(self) -> bool:
        return True

    @property
    def rounds_given(self) -> int | None:
        return len(self.sizes)

    def examples(self, rounds: int) -> int:
        return sum(self.sizes[:rounds])

    def most_rounds(self, examples: int) -> int:
        return int(np.searchsorted(np.cumsum(self.sizes), examples, side="right"))

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if rounds > len(self.sizes):
            raise Refusal(f"rounds must be at most the cohorts ({len(self.sizes)}), got {rounds}")
        sizes = np.array(self.sizes[:rounds])
        rows = np.zeros((rounds, sizes.max()), np.int32)
        rows[np.arange(rows.shape[1]) < sizes[:, None]] = rng.permutation(self.machines)[: sizes.sum()]
        return Schedule(self.machines, rows, sizes, float(1 / (1 / sizes).mean()), announced=True)


@dataclass(frozen=True)
class Given(Kind):
    """A schedule of one's own: participants [rounds, per_round], each round's machines distinct.

    >>> Given(3, [[0, 1], [1, 2]]).per_round
    2
    """

    machines: int
    participants: object = field(repr=False)

    def __post_init__(self):
        rows = _as_rows(self.participants)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise Refusal(f"participants must be integers [rounds, per_round], got {rows.dtype} {rows.shape}")
        _check_sizes(self.machines, rows.shape[1])
        if not rows.size:
            raise Refusal("participants must have at least one round, got none")
        if rows.min() < 0 or rows.max() >= self.machines:
            raise Refusal(f"participants must lie in 0..{self.machines - 1}, got {rows.min()}..{rows.max()}")
        if (np.diff(np.sort(rows, axis=1), axis=1) == 0).any():
            raise Refusal("participants must be distinct within a round, got a machine twice")

    @property
    def rows(self) -> np.ndarray:
        """The schedule as an array, int32 [rounds, per_round]."""
        return np.asarray(self.participants, np.int32)

    @property
    def per_round(self) -> int:
        return self.rows.shape[1]

    @property
    def rounds_given(self) -> int | None:
        return len(self.rows)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        rows = self.rows
        if rounds > rows.shape[0]:
            raise Refusal(f"rounds must be at most the schedule's ({rows.shape[0]}), got {rounds}")
        return Schedule(self.machines, rows[:rounds])


Participation = Full | Uniform | Varying | Balanced | OnePass | Cohorts | Given


def _as_rows(participants) -> np.ndarray:
    try:
        return np.asarray(participants)
    except ValueError:
        raise Refusal("participants must be [rounds, per_round], got rows of different lengths") from None


def _check_sizes(machines: int, per_round: int) -> None:
    require_at_least("machines", machines, 1)
    require_at_least("per_round", per_round, 1)
    if per_round > machines:
        raise Refusal(f"per_round must be at most machines ({machines}), got {per_round}")
