"""The participation schedule, quantities that depend on it alone, and the split of a cohort of unequal machines.

A cohort of unequal machines is split into a few classes of similar numbers of local steps. Slots are computed together,
so that a class takes as many steps as its longest machine. Slots are sorted by their steps in every round, the longest
first, and the classes are consecutive parts of this order.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedprivjax.problem.program import Once

if TYPE_CHECKING:
    from fedprivjax.plan.participation.interface import Participation

MOST_CLASSES, SMALL = 4, 0.2  # a further class is used while more than this share of the steps is idle


class Size(NamedTuple):
    """Integers that fix a run's program: total machines, machines per round, and rounds."""

    machines: int
    per_round: int
    rounds: int


class Late(NamedTuple):
    """Staleness and weights of answers (machines' messages), for asynchronous participation.

    A machine computes its answer from an earlier version of the server's state. A machine may have several answers in a
    round.

    Attributes:
        staleness: number of steps that the server has taken since each answer's machine started, int32 [rounds,
            per_round].
        weights: factor of each answer in its round's sum, float64 [rounds, per_round].
        versions: number of versions of the server's state that are stored. It is more than the largest staleness.
    """

    staleness: np.ndarray
    weights: np.ndarray
    versions: int


@dataclass(frozen=True)
class Schedule(Once):
    """Participation schedule: the machines of each round. It is public unless `secret` is set.

    A round has `per_round` slots. Each slot holds one machine, or is empty.

    Attributes:
        machines: total number of machines.
        participants: index of the machine in each slot, int32 [rounds, per_round].
        filled: number of filled slots of each round, from the left, int [rounds], or None if all are filled.
        mean: harmonic mean of the number of machines in a round, for convergence bounds. None if the number of machines
            is fixed.
        announced: True if machines know before a round how many of them take part.
        dropped: True for slots whose machine is scheduled but sends nothing (drops out), bool [rounds, per_round]. None
            if there are no dropouts. Guarantees count machines that drop out as if they had sent.
        expected: arithmetic mean of the number of machines that send in a round. None if the number of these machines
            is fixed.
        secret: the participation scheme if only a trusted server knows who takes part, or None if the schedule is
            public.
        late: staleness and weights of late messages, or None if all machines of a round start at its beginning.
        hours: simulated time at the end of each round in hours, float64 [rounds], or None if delays are not simulated.
    """

    machines: int
    participants: np.ndarray
    filled: np.ndarray | None = None
    mean: float | None = None
    announced: bool = False
    dropped: np.ndarray | None = None
    expected: float | None = None
    secret: "Participation | None" = None
    late: Late | None = None
    hours: np.ndarray | None = None

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
        """Number of machines in a round, for bounds on the error.

        If the number varies, the result is its harmonic mean, because the mean squared error of a mean over M machines
        is proportional to 1/M. If participation is secret, the result is the expected number, because every round's sum
        is divided by this number.
        """
        if self.secret is not None:
            return self.divisor
        return self.mean if self.varies and self.mean is not None else self.participants.shape[1]

    @property
    def divisor(self) -> float:
        """Constant by which every round's sum is divided: the mean number of machines that send."""
        if self.secret is not None:
            return float(self.secret.mean_size if self.expected is None else self.expected)
        return self.expected if self.varies and self.expected is not None else float(self.participants.shape[1])

    @property
    def public(self) -> "Schedule":
        """Copy of the schedule with only its public part: secret participants are replaced by an empty array."""
        if self.secret is None:
            return self
        nobody = np.zeros((self.size.rounds, 0), np.int32)
        known = {"mean": self.cohort, "expected": self.divisor}
        return replace(self, participants=nobody, filled=None, dropped=None, **known)

    @property
    def varies(self) -> bool:
        """True if the number of machines that send may differ between rounds, so that some slots may be empty."""
        return self.filled is not None or self.dropped is not None

    @cached_property
    def scheduled(self) -> np.ndarray:
        """True for slots in which a machine is scheduled, bool [rounds, per_round]."""
        slots = np.arange(self.participants.shape[1])
        most = self.participants.shape[1] if self.filled is None else self.filled[:, None]
        return np.broadcast_to(slots < most, self.participants.shape)

    @cached_property
    def present(self) -> np.ndarray:
        """True for slots whose machine is scheduled and does not drop out, bool [rounds, per_round]."""
        return self.scheduled if self.dropped is None else self.scheduled & ~self.dropped

    @cached_property
    def planned(self) -> "Schedule":
        """The schedule as if no machine had dropped out. Sums over a round have the same divisor."""
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
        """Number of rounds that each slot's machine has taken part in so far, from 1; int32 [rounds, per_round].

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
        """Return the value of each slot's machine in its previous round; float64 [rounds, per_round].

        A slot is the place of one machine in a round. A machine's previous round is the last earlier round in which it
        took part. The result is 0 in a machine's first round, and in slots whose machine sends nothing.

        Args:
            values: value of each slot, [rounds, per_round].

        >>> Schedule(2, np.array([[0], [1], [0]])).previous(np.array([[5.0], [6.0], [7.0]])).ravel().tolist()
        [0.0, 0.0, 5.0]
        """
        order, first = self._filled_order
        result = np.zeros(values.size)
        result[order] = np.where(first, 0.0, np.roll(values.ravel()[order], 1))
        return result.reshape(values.shape)

    @cached_property
    def total(self) -> np.ndarray:
        """Number of rounds in which each machine is scheduled, int [machines]."""
        return np.bincount(self.participants[self.scheduled], minlength=self.machines)

    @cached_property
    def weights_by_machine(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays, with the machines that send in each round, in the order of rounds, and their weights.

        The weight is 1, or the weight of a late answer. If a machine has several answers in a round, it is the sum of
        their weights.

        >>> late = Late(np.zeros((1, 3), np.int32), np.array([[1.0, 0.5, 1.0]]), 1)
        >>> [each.tolist() for each in Schedule(2, np.array([[1, 0, 1]]), late=late).weights_by_machine]
        [[0, 1], [0.5, 2.0]]
        """
        rounds, slots = np.nonzero(self.scheduled)
        key = rounds * self.machines + self.participants[rounds, slots]
        key, place = np.unique(key, return_inverse=True)
        weights = None if self.late is None else self.late.weights[rounds, slots]
        return key % self.machines, np.bincount(place, weights).astype(float)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Number of rounds until each slot's machine takes part again, or until the end, int32 [rounds, per_round].

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


def class_sizes(steps: np.ndarray, per_round: int) -> tuple[int, ...]:
    """Return the number of slots of every class, the longest machines first.

    The split minimises the steps of a typical cohort, whose machines are evenly spaced quantiles of all machines, with
    as few classes as leave few steps idle, and at most `MOST_CLASSES`.

    Args:
        steps: number of local steps of each machine, int [machines].

    >>> class_sizes(np.array([60] + 99 * [1]), 100)
    (1, 99)
    >>> class_sizes(np.full(20, 5), 10)
    (10,)
    """
    ordered = np.sort(steps)[::-1]
    typical = ordered[((np.arange(per_round) + 0.5) * ordered.size / per_round).astype(int)].astype(float)
    starts, least = [0], float(typical.sum())
    for classes in range(1, MOST_CLASSES + 1):
        starts, taken = _best_starts(typical, classes)
        if least >= (1 - SMALL) * taken:
            break
    return tuple(int(size) for size in np.diff([*starts, per_round]))


def _best_starts(steps: np.ndarray, classes: int) -> tuple[list[int], float]:
    """Return the first slots of at most `classes` classes with the fewest steps in all, and these steps."""
    firsts = np.flatnonzero(np.diff(steps, prepend=np.inf))  # a class that starts elsewhere can start earlier
    firsts = firsts[np.unique(np.linspace(0, firsts.size - 1, 128).astype(int))]
    heights, ends = steps[firsts], np.append(firsts[1:], steps.size)
    best = [(heights[0] * float(end), [0]) for end in ends]  # of the slots up to `end`, so far with one class
    for _ in range(classes - 1):
        before, best = best, []
        for k, end in enumerate(ends):
            # a last class from each first slot
            pairs = zip(before, heights[1 : k + 1], firsts[1 : k + 1], strict=False)
            more = [(steps + height * (end - first), [*starts, first]) for (steps, starts), height, first in pairs]
            best.append(min([before[k], *more], key=lambda found: found[0]))
    return best[-1][1], best[-1][0]


def computed_slots(slots: int, together: int) -> int:
    """Return the number of slots that are computed, a multiple of `together` if at most an eighth of them is added.

    Equal groups are one body of a compiled loop.

    >>> computed_slots(9, 2), computed_slots(9, 8), computed_slots(3, 8)
    (10, 9, 3)
    """
    whole = -(-slots // together) * together
    return whole if slots > together and 8 * (whole - slots) <= slots else slots


def idle_share(steps: np.ndarray, sizes: tuple[int, ...], together: int) -> float:
    """Return the share of all computed local steps that change nothing.

    Args:
        steps: number of local steps in each slot, 0 in empty slots, int [rounds, per_round].
        sizes: number of slots of every class.
        together: largest number of slots that are computed together.

    >>> idle_share(np.array([[1, 60, 1, 1]]), (1, 3), 8), round(idle_share(np.array([[1, 60, 1, 1]]), (4,), 8), 3)
    (0.0, 0.738)
    """
    ordered = np.sort(steps, axis=1)[:, ::-1]
    computed = 0
    for first, last in pairwise(np.cumsum((0, *sizes))):
        end = first + computed_slots(last - first, together)
        for start in range(first, last, together):
            computed += int(ordered[:, start].sum()) * (min(start + together, end) - start)
    return float(1 - int(steps.sum()) / computed) if computed else 0.0
