"""Smallest numbers of rounds, for loads that may depend on the number of rounds."""

from collections.abc import Callable

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import nonnegative

Load = float | Callable[[int], float]  # a number, or a function from the number of rounds to it

_MAX_ROUNDS = 2**53


def min_rounds(need: Callable[[int], float]) -> int:
    """Return the smallest R with `R ≥ need(R)`, for a function `need` that does not increase with R."""
    high = 1
    while high < need(high):
        high *= 2
        if high > _MAX_ROUNDS:
            raise Refusal(f"load must be positive enough for a finite number of rounds, got {need(high):.6g} rounds")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle >= need(middle) else (middle, high)
    return high


def load_at(load: Load, rounds: int) -> float:
    """Return the load of a run with this number of rounds."""
    return float(nonnegative("load", load(rounds) if callable(load) else load))
