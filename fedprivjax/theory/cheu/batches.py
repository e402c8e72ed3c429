"""Candidate batch sizes for scans, few enough that a scan over n = 10⁹ users takes milliseconds."""

from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import counts

_MAX_USERS = 10**12


def batches(users: int) -> np.ndarray:
    """Candidate batch sizes b of one pass over n users, ascending: b ≤ √n, and ⌊n/T⌋ for T ≤ √n rounds.

    Of the batch sizes with equally many rounds `T = ⌊n/b⌋`, the largest is always a candidate. The candidates therefore
    include the optimum of any function that decreases in b at fixed T.

    >>> batches(10)
    array([ 1,  2,  3,  5, 10])
    """
    counts(users=users)
    if users > _MAX_USERS:
        raise Refusal(f"users must be at most 10¹² for a scan, got {users}")
    few = np.arange(1, int(users**0.5) + 1)
    return np.unique(np.concatenate([few, users // few]))


def best_batch(bound: Callable[[np.ndarray], np.ndarray], users: int) -> int:
    """Return the batch size b of one pass over n users with the smallest bound.

    The bound must decrease in b at fixed ⌊n/b⌋.

    >>> best_batch(lambda b: 100 / b**2 + b / 1000, 1000)
    58
    """
    tried = batches(users)
    return int(tried[np.argmin(bound(tried))])


def candidates(users: int, per_round: int | None) -> np.ndarray:
    """Return the candidate batch sizes, or the given one. Raise Refusal if it exceeds the number of users."""
    if per_round is None:
        return batches(users)
    counts(per_round=per_round)
    if per_round > users:
        raise Refusal(f"per_round must be at most the users of a phase ({users}), got {per_round}")
    return np.array([per_round])


def geometric_counts(largest: int, ratio: float = 2**0.25) -> np.ndarray:
    """Integers from 1 to `largest`, each about `ratio` times the previous one; int64, ascending.

    >>> geometric_counts(10, ratio=2)
    array([ 1,  2,  4,  8, 10])
    """
    counts(largest=largest)
    steps = np.arange(int(np.log(largest) / np.log(ratio)) + 1)
    return np.unique(np.append(np.rint(ratio**steps), largest).clip(1, largest).astype(np.int64))
