"""Exposures of machines to a factor over rounds: how far they move F·x, if their updates have norm at most 1.

A pattern is the set of rounds in which a machine takes part. Patterns are int [patterns, times], from 0, for each
number of times.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedprivjax.plan.schedule import Schedule

AT_ONCE = 2**22  # largest number of entries in memory


class Group(NamedTuple):
    """Machines that are scheduled equally often: int [machines], their patterns, and each machine's pattern."""

    machines: np.ndarray
    patterns: np.ndarray
    pattern: np.ndarray


def exposures(gram: np.ndarray, schedule: Schedule) -> np.ndarray:
    """Return `√(Σ_{j,l} |G(t_j, t_l)|)` over the scheduled rounds of every machine, float64 [machines].

    Args:
        gram: G = FᵀF, shape [rounds, rounds].
    """
    size, found = np.abs(gram), np.zeros(schedule.machines)
    for group in groups(schedule):
        found[group.machines] = pattern_sums(size, group.patterns)[group.pattern]
    return np.sqrt(found)


def pattern_sums(gram: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """Return the sums of a matrix's entries over all pairs of rounds of each pattern, float64 [patterns].

    Args:
        gram: shape [rounds, rounds].
        patterns: rounds, from 0; int [patterns, times].
    """
    rounds, times = len(gram), patterns.shape[1]
    dense = 10 * times > rounds  # products with indicators are faster than indices then
    parts = np.array_split(patterns, -(-len(patterns) * (rounds if dense else times**2) // AT_ONCE))
    if not dense:
        return np.concatenate([gram[t[:, :, None], t[:, None, :]].sum(axis=(1, 2)) for t in parts])
    sums = []
    for t in parts:
        present = indicators([t], rounds)
        sums.append(np.sum(present @ gram * present, axis=1))
    return np.concatenate(sums)


def indicators(patterns: Sequence[np.ndarray], rounds: int) -> np.ndarray:
    """Return 1 at the rounds of each pattern, float64 [patterns, rounds]."""
    found, row = np.zeros((sum(len(pattern) for pattern in patterns), rounds)), 0
    for pattern in patterns:
        found[row + np.arange(len(pattern))[:, None], pattern] = 1.0
        row += len(pattern)
    return found


def together(patterns: Sequence[np.ndarray], rounds: int) -> np.ndarray:
    """Return True for two different rounds of one machine, bool [rounds, rounds]."""
    found = np.zeros((rounds, rounds), bool)
    for pattern in patterns:
        for column in range(1, pattern.shape[1]):
            found[pattern[:, :-column], pattern[:, column:]] = True
    return found | found.T


def largest(gram: np.ndarray, patterns: Sequence[np.ndarray], most: int) -> list[np.ndarray]:
    """Return the patterns with the largest sums of |X| over pairs of rounds: `most` of all, and one of each round.

    Args:
        gram: X, shape [rounds, rounds].
        patterns: sets of rounds of machines, int [some, times] each.
        most: number of patterns; more if they are equal.
    """
    size, of_round = np.abs(gram), np.zeros(len(gram))
    squares = [pattern_sums(size, one) for one in patterns]
    for one, sums in zip(patterns, squares, strict=True):
        np.maximum.at(of_round, one, np.broadcast_to(sums[:, None], one.shape))
    each = np.sort(np.concatenate(squares))
    least = each[-min(most, each.size)]
    chosen = []
    for one, sums in zip(patterns, squares, strict=True):
        chosen.append(one[(sums >= least) | (sums[:, None] >= of_round[one]).any(axis=1)])
    return [one for one in chosen if len(one)]


def groups(schedule: Schedule) -> list[Group]:
    """Return groups of machines that are scheduled in equally many rounds, without those never scheduled.

    Each `Group` has three parts: the indices of its machines; the distinct sets of rounds in which they are scheduled,
    int [sets, times], counted from 0; and the index of each machine's set.
    """

    def compute() -> list[Group]:
        found = []
        for machines, rows in by_count(*participations(schedule, schedule.scheduled)):
            patterns, pattern = np.unique(rows, axis=0, return_inverse=True)
            found.append(Group(machines, patterns, pattern.ravel()))
        return found

    return schedule.once("groups of equal participation", compute)


def participations(schedule: Schedule, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the participations in slots, by machine and then round: machine and round, from 0.

    Args:
        slots: mask of the slots, such as `schedule.scheduled` or `schedule.present`.
    """
    when, slot = np.nonzero(slots)
    machine = schedule.participants[when, slot]
    order = np.argsort(machine, kind="stable")
    return machine[order], when[order]


def by_count(machine: np.ndarray, when: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield machines with equal numbers of participations, [some], and their rounds, from 0, [some, times].

    Args:
        machine, when: as from `participations`.
    """
    machines, first, times = np.unique(machine, return_index=True, return_counts=True)
    for many in np.unique(times):
        alike = np.flatnonzero(times == many)
        yield machines[alike], when[first[alike][:, None] + np.arange(many)]


def sent_rounds(schedule: Schedule) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield groups of machines with equal numbers of messages, and their rounds, from 0.

    Yields:
        Machines [some] and rounds [some, messages]. Every machine that sends is in one group.
    """
    for machines, rounds in by_count(*participations(schedule, schedule.present)):
        parts = -(-machines.size * rounds.shape[1] ** 2 // AT_ONCE)
        yield from zip(np.array_split(machines, parts), np.array_split(rounds, parts), strict=True)


def separation(schedule: Schedule) -> int:
    """Return the smallest number of rounds between two participations of one machine, or R if there are none."""
    machine, when = participations(schedule, schedule.scheduled)
    between = np.diff(when)[machine[1:] == machine[:-1]]
    return int(np.min(between, initial=schedule.size.rounds))


def rounds_of(schedule: Schedule, machine: int) -> np.ndarray:
    """Return the rounds in which a machine is scheduled, from 0."""
    return np.flatnonzero(((schedule.participants == machine) & schedule.scheduled).any(axis=1))
