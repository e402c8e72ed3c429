"""Participation schemes that treat all machines alike, by the size of a cohort: fixed or random.

A cohort of fixed size has all machines, random ones, machines in turn, or those of a given schedule. A random size has
any distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import (
    known_keywords,
    require_at_least,
    require_between,
    require_positive,
)
from fedprivjax.plan.participation.interface import Participation, as_integers, binomial_pmf, check_sizes
from fedprivjax.plan.schedule import Schedule

TAIL = 4.0  # standard deviations above the mean beyond which a binomial cohort size is sampled again


@dataclass(frozen=True)
class Full(Participation):
    """Participation of every machine in every round.

    Raises:
        Refusal: if `machines` is below 1.

    >>> Full(3).draw(2, np.random.default_rng(0)).participants.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """

    machines: int
    exchangeable = True

    @property
    def per_round(self) -> int:
        return self.machines

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        return Schedule(self.machines, np.tile(np.arange(self.machines, dtype=np.int32), (rounds, 1)))


@dataclass(frozen=True)
class Uniform(Participation):
    """Participation of a uniformly random subset of `per_round` machines, sampled again in each round.

    Raises:
        Refusal: if `per_round` is not from 1 to `machines`.

    >>> Uniform(100, 120)
    Traceback (most recent call last):
    fedprivjax.Refusal: per_round must be at most machines (100), got 120
    """

    machines: int
    per_round: int
    exchangeable = True

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if self.per_round == self.machines:
            return Full(self.machines).draw(rounds, rng)
        rows = [rng.choice(self.machines, self.per_round, replace=False, shuffle=False) for _ in range(rounds)]
        return Schedule(self.machines, np.array(rows, np.int32))


@dataclass(frozen=True)
class Balanced(Participation):
    """Participation of all machines in turn, in a random order, with `per_round` machines in each round.

    A permutation of all machines is cut into cohorts (the machines of one round). Every machine therefore takes part
    once before any machine takes part again.

    Args:
        machines: total number of machines.
        per_round: number of machines in a round.
        reshuffle: True to sample a new permutation when all machines have taken part, False to repeat the first
            permutation.

    Raises:
        Refusal: if `per_round` is not from 1 to `machines`, or does not divide `machines`.

    >>> Balanced(4, 2).draw(4, np.random.default_rng(0)).participants.tolist()
    [[3, 2], [1, 0], [1, 3], [0, 2]]
    """

    machines: int
    per_round: int
    reshuffle: bool = True
    exchangeable = True

    def __post_init__(self):
        super().__post_init__()
        if self.machines % self.per_round:
            raise Refusal(f"per_round must divide machines ({self.machines}), got {self.per_round}")

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        passes = -(-rounds * self.per_round // self.machines)
        once = rng.permutation(self.machines)
        rows = [rng.permutation(self.machines) if self.reshuffle else once for _ in range(passes)]
        cohorts = np.concatenate(rows).astype(np.int32).reshape(-1, self.per_round)
        return Schedule(self.machines, cohorts[:rounds])


@dataclass(frozen=True)
class Cyclic(Participation):
    """Participation of all machines in turn, in their stored order, with `per_round` machines in each round.

    Round r, counted from 0, has the machines (r·m, …, r·m + m − 1) mod N, for m = `per_round` and N = `machines`. The
    first machine follows the last machine, also within a round. Therefore N need not be a multiple of m.

    >>> Cyclic(5, 2).draw(4, np.random.default_rng(0)).participants.tolist()
    [[0, 1], [2, 3], [4, 0], [1, 2]]
    """

    machines: int
    per_round: int

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """Return the largest number of rounds in which no machine runs out of unused examples.

        In r rounds, machine i takes part ⌈(r·m − i)/N⌉ times, with m = `per_round` and N = `machines`.

        Args:
            shares: number of messages that each machine can send before its examples run out, int [machines].
        """
        return int(((shares * self.machines + np.arange(self.machines)) // self.per_round).min())

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        turns = np.arange(rounds * self.per_round).reshape(rounds, self.per_round)
        return Schedule(self.machines, (turns % self.machines).astype(np.int32))


@dataclass(frozen=True)
class Given(Participation):
    """Participation by a given schedule, which lists the machines of each round.

    Args:
        machines: total number of machines.
        schedule: indices of each round's machines, distinct within a round; int [rounds, per_round].

    >>> Given(3, [[0, 1], [1, 2]]).per_round
    2
    """

    machines: int
    schedule: Sequence[Sequence[int]] | np.ndarray = field(repr=False)

    def __post_init__(self):
        rows = _as_rows(self.schedule)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise Refusal(f"schedule must be integers [rounds, per_round], got {rows.dtype} {rows.shape}")
        check_sizes(self.machines, rows.shape[1])
        as_integers(self, "machines")
        if not rows.size:
            raise Refusal("schedule must have at least one round, got none")
        if rows.min() < 0 or rows.max() >= self.machines:
            raise Refusal(f"schedule must have machines in 0..{self.machines - 1}, got {rows.min()}..{rows.max()}")
        if (np.diff(np.sort(rows, axis=1), axis=1) == 0).any():
            raise Refusal("schedule must have distinct machines in a round, got a machine twice")

    @property
    def rows(self) -> np.ndarray:
        """Indices of each round's machines, as an array; int32 [rounds, per_round]."""
        return np.asarray(self.schedule, np.int32)

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


def _as_rows(schedule) -> np.ndarray:
    try:
        return np.asarray(schedule)
    except ValueError:
        raise Refusal("schedule must be [rounds, per_round], got rows of different lengths") from None


@dataclass(frozen=True)
class Varying(Participation):
    """Participation of a uniformly random subset of machines in each round. The subset's size is random.

    Args:
        machines: total number of machines.
        sizes: probabilities that 1, 2, … machines take part in a round. The length of `sizes` is the largest number of
            machines in a round.

    >>> Varying.binomial(100, 0.1).per_round
    22
    """

    machines: int
    sizes: tuple[float, ...] = field(repr=False)
    varies = True
    exchangeable = True

    def __post_init__(self):
        object.__setattr__(self, "sizes", _probabilities(self.sizes))
        check_sizes(self.machines, len(self.sizes))
        as_integers(self, "machines")
        if not min(self.sizes) >= 0 or not abs(sum(self.sizes) - 1) <= 1e-6:
            raise Refusal(f"sizes must be probabilities that add up to 1, got a sum of {sum(self.sizes):g}")

    @classmethod
    @known_keywords
    def between(cls, machines: int, min_machines: int, max_machines: int) -> "Varying":
        """Return the scheme in which every number of machines from `min_machines` to `max_machines` is equally likely.

        Args:
            min_machines: smallest number of machines in a round.
            max_machines: largest number of machines in a round.
        """
        require_at_least("min_machines", min_machines, 1)
        require_at_least("max_machines", max_machines, min_machines)
        count = max_machines - min_machines + 1
        return cls(machines, tuple(float(min_machines <= m) / count for m in range(1, max_machines + 1)))

    @classmethod
    def binomial(cls, machines: int, rate: float, tail: float = TAIL) -> "Varying":
        """Return the public scheme in which machines take part independently, each with probability `rate`.

        Rounds of unusual size are sampled again: those without a machine, and those with more than ⌈Np + `tail`·√(Np(1
        − p))⌉ machines, for N = `machines` and p = `rate`. The distribution of the number of machines
        (`cohort_size_pmf`), and all means computed from it, take this into account.

        Args:
            machines: total number of machines.
            rate: probability that a machine takes part in a round.
            tail: largest number of machines in a round, in standard deviations above the mean.
        """
        require_at_least("machines", machines, 1)
        require_between("rate", rate, 0, 1)
        require_positive("tail", tail)
        return cls(machines, tuple(binomial_pmf(machines, rate, tail)))

    @property
    def per_round(self) -> int:
        return len(self.sizes)

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        weights = np.array(self.sizes)
        return weights / weights.sum()

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        filled = rng.choice(np.arange(1, self.per_round + 1), rounds, p=self.cohort_size_pmf)
        drawn = Uniform(self.machines, self.per_round).draw(rounds, rng).participants
        rows = rng.permuted(drawn, axis=1)  # a random subset in a random order
        return Schedule(self.machines, rows, filled, 1 / self.inverse_moment(), expected=self.mean_size)


def _probabilities(sizes) -> tuple[float, ...]:
    try:
        return tuple(map(float, sizes))
    except (TypeError, ValueError):
        raise Refusal(f"sizes must be a list of probabilities, got {str(sizes)[:80]}") from None
