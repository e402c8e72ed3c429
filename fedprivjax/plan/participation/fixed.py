"""Participation schemes with a fixed number of machines per round, uniformly random among all."""

from dataclasses import dataclass

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.participation.interface import Participation, check_sizes
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True)
class Full(Participation):
    """Every machine in every round.

    >>> Full(3).draw(2, np.random.default_rng(0)).participants.tolist()
    [[0, 1, 2], [0, 1, 2]]
    """

    machines: int
    exchangeable = True

    def __post_init__(self):
        require_at_least("machines", self.machines, 1)

    @property
    def per_round(self) -> int:
        return self.machines

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        return Schedule(self.machines, np.tile(np.arange(self.machines, dtype=np.int32), (rounds, 1)))


@dataclass(frozen=True)
class Uniform(Participation):
    """Uniformly random subset of `per_round` machines, fresh each round.

    >>> Uniform(100, 120)
    Traceback (most recent call last):
    fedprivjax.Refusal: per_round must be at most machines (100), got 120
    """

    machines: int
    per_round: int
    exchangeable = True

    def __post_init__(self):
        check_sizes(self.machines, self.per_round)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if self.per_round == self.machines:
            return Full(self.machines).draw(rounds, rng)
        rows = [rng.choice(self.machines, self.per_round, replace=False, shuffle=False) for _ in range(rounds)]
        return Schedule(self.machines, np.array(rows, np.int32))


@dataclass(frozen=True)
class Balanced(Participation):
    """Permutations of the machines cut into cohorts of `per_round`, with nearly equal gaps.

    Args:
        reshuffle: True samples a permutation for every pass; False repeats the first.
    """

    machines: int
    per_round: int
    reshuffle: bool = True
    exchangeable = True

    def __post_init__(self):
        check_sizes(self.machines, self.per_round)
        if self.machines % self.per_round:
            raise Refusal(f"per_round must divide machines ({self.machines}), got {self.per_round}")

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        passes = -(-rounds * self.per_round // self.machines)
        once = rng.permutation(self.machines)
        rows = [rng.permutation(self.machines) if self.reshuffle else once for _ in range(passes)]
        cohorts = np.concatenate(rows).astype(np.int32).reshape(-1, self.per_round)
        return Schedule(self.machines, cohorts[:rounds])
