"""The participation schedule, and quantities that depend on it alone."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedprivjax.problem.memoize import Once

if TYPE_CHECKING:
    from fedprivjax.plan.participation.interface import Participation


class Size(NamedTuple):
    """Integers that fix a run's program: total machines, machines per round, and rounds."""

    machines: int
    per_round: int
    rounds: int


@dataclass(frozen=True)
class Schedule(Once):
    """A participation schedule: the machines of each round. It is public unless `secret` is set.

    If the number of machines is fixed, `mean` and `expected` are not used, and a round divides by its number of slots.

    Attributes:
        machines: N, the total number of machines.
        participants: machine in each slot, int32 [rounds, per_round].
        filled: number of filled slots of each round, from the left, int [rounds], or None if all are filled.
        mean: M, the harmonic mean of the cohort-size distribution.
        announced: True if users know the cohort size before their round.
        dropped: slots whose machine is scheduled but sends nothing, bool [rounds, per_round], or None if there are no
            dropouts. Guarantees count dropouts as if they had sent: no party may know them in advance.
        expected: E[M_r], the mean number of machines that send, or None if it is fixed.
        secret: participation scheme if only a trusted server knows who takes part, or None if the schedule is public.
            Rounds of a secret schedule may be empty.
    """

    machines: int
    participants: np.ndarray
    filled: np.ndarray | None = None
    mean: float | None = None
    announced: bool = False
    dropped: np.ndarray | None = None
    expected: float | None = None
    secret: "Participation | None" = None

    def __str__(self) -> str:
        if self.secret is not None:
            many = f"{self.divisor:.4g} of {self.machines} machines on average"
            return f"Schedule: {self.size.rounds} rounds of {many}, participation secret"
        total = self.total
        often = f"each takes part {total.min()} to {total.max()} times"
        return f"Schedule: {self.size.rounds} rounds of {self.cohort:.4g} of {self.machines} machines, {often}"

    __repr__ = __str__

    @property
    def cohort(self) -> float:
        """M, the number of machines in a round, or the harmonic mean of its distribution if it varies.

        It is the mean if participation is secret.
        """
        if self.secret is not None:
            return self.divisor
        return self.mean if self.varies and self.mean is not None else self.participants.shape[1]

    @property
    def divisor(self) -> float:
        """Divisor of a sum over participants that does not depend on their number: E[M_r]."""
        if self.secret is not None:
            return float(self.secret.mean_size if self.expected is None else self.expected)
        return self.expected if self.varies and self.expected is not None else float(self.participants.shape[1])

    @property
    def public(self) -> "Schedule":
        """The public part of the schedule: if participation is secret, participants of width 0."""
        if self.secret is None:
            return self
        nobody = np.zeros((self.size.rounds, 0), np.int32)
        known = {"mean": self.cohort, "expected": self.divisor}
        return replace(self, participants=nobody, filled=None, dropped=None, **known)

    @property
    def varies(self) -> bool:
        """True if some slots may be empty."""
        return self.filled is not None or self.dropped is not None

    @cached_property
    def scheduled(self) -> np.ndarray:
        """Slots with a scheduled machine, bool [rounds, per_round]."""
        slots = np.arange(self.participants.shape[1])
        most = self.participants.shape[1] if self.filled is None else self.filled[:, None]
        return np.broadcast_to(slots < most, self.participants.shape)

    @cached_property
    def present(self) -> np.ndarray:
        """Filled slots, whose machine is scheduled and does not drop out, bool [rounds, per_round]."""
        return self.scheduled if self.dropped is None else self.scheduled & ~self.dropped

    @cached_property
    def planned(self) -> "Schedule":
        """The schedule without dropouts. Its sums have the same divisor."""
        return self if self.dropped is None else replace(self, dropped=None)

    @property
    def size(self) -> Size:
        rounds, per_round = self.participants.shape
        return Size(self.machines, per_round, rounds)

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Entries sorted by machine then round, and for each entry the first position of its machine."""
        flat = self.participants.ravel()
        order = np.argsort(flat, kind="stable")
        first = np.searchsorted(flat[order], flat[order], side="left")
        return order, first

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of participations of each slot's machine up to this round, from 1, int32 [rounds, per_round].

        >>> Schedule(2, np.array([[0], [1], [0]])).counts.ravel().tolist()
        [1, 1, 2]
        """
        if self.total.max(initial=0) <= 1:  # avoids sorting, which takes sixteen bytes per slot
            return self.present.astype(np.int32)
        order, first = self._order
        ones = self.present.ravel()[order]
        so_far = np.cumsum(ones)
        counts = np.empty(order.size, np.int32)
        counts[order] = so_far - so_far[first] + ones[first]
        return counts.reshape(self.participants.shape)

    @cached_property
    def _filled_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Filled slots sorted by machine then round, and a mask of each machine's first."""
        order, _ = self._order
        if self.varies:
            order = order[self.present.ravel()[order]]
        machine = self.participants.ravel()[order]
        return order, np.append(True, machine[1:] != machine[:-1])[: order.size]

    def previous(self, values: np.ndarray) -> np.ndarray:
        """Return the entry of `values` [rounds, per_round] at each machine's previous participation.

        It is zero at a machine's first participation and in empty slots.

        >>> Schedule(2, np.array([[0], [1], [0]])).previous(np.array([[5.0], [6.0], [7.0]])).ravel().tolist()
        [0.0, 0.0, 5.0]
        """
        order, first = self._filled_order
        result = np.zeros(values.size)
        result[order] = np.where(first, 0.0, np.roll(values.ravel()[order], 1))
        return result.reshape(values.shape)

    @cached_property
    def total(self) -> np.ndarray:
        """Number of rounds in which each machine is scheduled, n_i, int [machines]."""
        return np.bincount(self.participants[self.scheduled], minlength=self.machines)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Rounds from each participation to the machine's next one, or to the end, int32 [rounds, per_round].

        It is 0 in empty slots.

        >>> Schedule(2, np.array([[0], [1], [0]])).gaps.ravel().tolist()
        [2, 2, 1]
        """
        order, first = self._filled_order
        rounds, per_round = self.participants.shape
        when = order // per_round
        following, last = np.append(when[1:], rounds)[: when.size], np.append(first[1:], True)[: when.size]
        gaps = np.zeros(self.participants.size, np.int32)
        gaps[order] = np.where(last, rounds, following) - when
        return gaps.reshape(self.participants.shape)
