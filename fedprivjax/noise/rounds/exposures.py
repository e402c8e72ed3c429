"""Exposures of machines on a schedule: how far they move F·x in units of C, see `factor.py`."""

from typing import NamedTuple

import numpy as np

from fedprivjax.noise.rounds.patterns import pattern_sums
from fedprivjax.plan.schedule import Schedule


class Group(NamedTuple):
    """Machines that are scheduled equally often: int [machines], their patterns, and each machine's pattern.

    Patterns are distinct sets of rounds, from 0: int [patterns, times].
    """

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


def groups(schedule: Schedule) -> list[Group]:
    """Return the machines that are scheduled at least once, by number of times."""

    def compute() -> list[Group]:
        machine, when = scheduled(schedule)
        machines, first, times = np.unique(machine, return_index=True, return_counts=True)
        found = []
        for many in np.unique(times):
            alike = times == many
            rows = when[first[alike][:, None] + np.arange(many)]
            patterns, pattern = np.unique(rows, axis=0, return_inverse=True)
            found.append(Group(machines[alike], patterns, pattern.ravel()))
        return found

    return schedule.once("groups of equal participation", compute)


def scheduled(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return all scheduled participations by machine and then round: machine and round, from 0."""
    when, slot = np.nonzero(schedule.scheduled)
    machine = schedule.participants[when, slot]
    order = np.argsort(machine, kind="stable")
    return machine[order], when[order]


def separation(schedule: Schedule) -> int:
    """Return the smallest number of rounds between two participations of one machine, or R if there are none."""
    machine, when = scheduled(schedule)
    between = np.diff(when)[machine[1:] == machine[:-1]]
    return int(np.min(between, initial=schedule.size.rounds))


def rounds_of(schedule: Schedule, machine: int) -> np.ndarray:
    """Return the rounds in which a machine is scheduled, from 0."""
    return np.flatnonzero(((schedule.participants == machine) & schedule.scheduled).any(axis=1))
