"""Deterministic participation: the machines in turn, and given schedules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation.interface import Participation, check_sizes
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True)
class Cyclic(Participation):
    """Cyclic participation: `per_round` machines per round in the stored order, restarting after the last machine.

    Round r (from 0) has the machines (r·m, …, r·m + m − 1) mod N; m need not divide N.

    >>> Cyclic(5, 2).draw(4, np.random.default_rng(0)).participants.tolist()
    [[0, 1], [2, 3], [4, 0], [1, 2]]
    """

    machines: int
    per_round: int

    def __post_init__(self):
        check_sizes(self.machines, self.per_round)

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """As in the base class. Machine i has ⌈(r·m − i)/N⌉ turns in r rounds."""
        return int(((shares * self.machines + np.arange(self.machines)) // self.per_round).min())

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        turns = np.arange(rounds * self.per_round).reshape(rounds, self.per_round)
        return Schedule(self.machines, (turns % self.machines).astype(np.int32))


@dataclass(frozen=True)
class Given(Participation):
    """A given schedule: the machines of each round.

    Args:
        participants: indices of each round's machines, distinct within a round, int [rounds, per_round].

    >>> Given(3, [[0, 1], [1, 2]]).per_round
    2
    """

    machines: int
    participants: Sequence[Sequence[int]] | np.ndarray = field(repr=False)

    def __post_init__(self):
        rows = _as_rows(self.participants)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise Refusal(f"participants must be integers [rounds, per_round], got {rows.dtype} {rows.shape}")
        check_sizes(self.machines, rows.shape[1])
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


def _as_rows(participants) -> np.ndarray:
    try:
        return np.asarray(participants)
    except ValueError:
        raise Refusal("participants must be [rounds, per_round], got rows of different lengths") from None
