"""Split of a cohort of unequal machines into a few classes of similar numbers of local steps.

Slots are computed together, so that a class takes as many steps as its longest machine. Slots are sorted by their
steps in every round, the longest first, and the classes are consecutive parts of this order.
"""

from itertools import pairwise

import numpy as np

MOST_CLASSES, SMALL = 4, 0.2  # a further class is used while more than this share of the steps is idle


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
        before = best
        best = [
            min(
                [before[k]]
                + [
                    (before[j - 1][0] + heights[j] * (ends[k] - firsts[j]), [*before[j - 1][1], firsts[j]])
                    for j in range(1, k + 1)
                ],
                key=lambda found: found[0],
            )
            for k in range(ends.size)
        ]
    return best[-1][1], best[-1][0]


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
        for start in range(first, last, together):
            computed += int(ordered[:, start].sum()) * (min(start + together, last) - start)
    return float(1 - int(steps.sum()) / computed) if computed else 0.0
