"""A public schedule: who takes part in which round, and what follows from it alone."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedprivjax.problem.memoize import Once


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
    Where it is fixed, `mean` and `expected` say nothing: a round divides by the number of its slots.

    Attributes:
        dropped: slots whose machine was asked and sends nothing, bool [rounds, per_round]; None is nobody. Guarantees
            count them as if they had sent: who drops out may be known beforehand to nobody.
        expected: E[M_r], the mean of the law of those who send; None where their number is fixed.
    """

    machines: int
    participants: np.ndarray
    filled: np.ndarray | None = None
    mean: float | None = None
    announced: bool = False
    dropped: np.ndarray | None = None
    expected: float | None = None

    def __str__(self) -> str:
        total = self.total
        often = f"each takes part {total.min()} to {total.max()} times"
        return f"Schedule: {self.size.rounds} rounds of {self.cohort:.4g} of {self.machines} machines, {often}"

    __repr__ = __str__

    @property
    def cohort(self) -> float:
        """M: machines in a round, the harmonic mean of their law where their number varies."""
        return self.mean if self.varies and self.mean is not None else self.participants.shape[1]

    @property
    def divisor(self) -> float:
        """What a sum over the participants is divided by where the divisor must not follow their number: E[M_r]."""
        return self.expected if self.varies and self.expected is not None else float(self.participants.shape[1])

    @property
    def varies(self) -> bool:
        """Whether some slots may be empty."""
        return self.filled is not None or self.dropped is not None

    @cached_property
    def asked(self) -> np.ndarray:
        """Which slots are planned to be filled, bool [rounds, per_round]."""
        slots = np.arange(self.participants.shape[1])
        most = self.participants.shape[1] if self.filled is None else self.filled[:, None]
        return np.broadcast_to(slots < most, self.participants.shape)

    @cached_property
    def present(self) -> np.ndarray:
        """Which slots are filled: asked and not dropped out, bool [rounds, per_round]."""
        return self.asked if self.dropped is None else self.asked & ~self.dropped

    @cached_property
    def planned(self) -> "Schedule":
        """The schedule as if nobody dropped out; sums are divided by the same."""
        return self if self.dropped is None else replace(self, dropped=None)

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

    @cached_property
    def _filled_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Filled slots sorted by machine then round, and which of them are a machine's first."""
        order, _ = self._order
        if self.varies:
            order = order[self.present.ravel()[order]]
        machine = self.participants.ravel()[order]
        return order, np.append(True, machine[1:] != machine[:-1])[: order.size]

    def previous(self, values: np.ndarray) -> np.ndarray:
        """The entry of `values` [rounds, per_round] at the machine's previous participation; zero at its first, and
        in slots that nobody fills.

        >>> Schedule(2, np.array([[0], [1], [0]])).previous(np.array([[5.0], [6.0], [7.0]])).ravel().tolist()
        [0.0, 0.0, 5.0]
        """
        order, first = self._filled_order
        result = np.zeros(values.size)
        result[order] = np.where(first, 0.0, np.roll(values.ravel()[order], 1))
        return result.reshape(values.shape)

    @cached_property
    def total(self) -> np.ndarray:
        """How often each machine is asked in all, n_i: int [machines]."""
        return np.bincount(self.participants[self.asked], minlength=self.machines)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Rounds from each participation to the machine's next one, or to the end: int32 [rounds, per_round], 0 in
        slots that nobody fills.

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
