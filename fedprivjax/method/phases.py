"""Phases of a run, recovered from the sizes of its cohorts."""

from collections.abc import Sequence
from typing import NamedTuple

from fedprivjax.checks.refusal import Refusal


class Stage(NamedTuple):
    """One phase of a run: size of its cohorts, and number of rounds."""

    per_round: int
    rounds: int


def stages(sizes: Sequence[int], each: int, count: int) -> list[Stage]:
    """Return the phases of a run with these cohorts. A phase ends if the size changes or its users are used up.

    Args:
        sizes: number of users in each round.
        each: largest number of users in a phase.
        count: largest number of phases; a run that is cut short has fewer.

    >>> stages([2, 2, 5, 5], each=5, count=3)
    [Stage(per_round=2, rounds=2), Stage(per_round=5, rounds=1), Stage(per_round=5, rounds=1)]
    """
    found: list[Stage] = []
    for size in map(int, sizes):
        last = found[-1] if found else Stage(0, 0)
        if size == last.per_round and size * (last.rounds + 1) <= each:
            found[-1] = Stage(size, last.rounds + 1)
        else:
            found.append(Stage(size, 1))
    if len(found) > count or max(sizes) > each:
        raise Refusal(f"cohorts must be those of {count} phases of {each} users each, got {len(found)} phases")
    return found
