"""Shared parts of the theorems: validation of the rounds and α, powers of the discount, logarithms to base 2."""

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, positive


def checked_rounds(records: ArrayLike, rounds: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return N and T. Raise Refusal if T < N."""
    n, t = np.broadcast_arrays(at_least_one("records", records), at_least_one("rounds", rounds))
    short = t < n
    if short.any():
        raise Refusal(f"rounds must be at least records ({n[short][0]:.15g}), got {t[short][0]:.15g}")
    return n, t


def checked_alpha(records: ArrayLike, alpha: ArrayLike) -> np.ndarray:
    """Return α. Raise Refusal if it is outside [1/N, 1], apart from a relative rounding error of 1e-9."""
    n, value = np.broadcast_arrays(at_least_one("records", records), positive("alpha", alpha))
    wrong = (value > 1) | (value * n < 1 - 1e-9)
    if wrong.any():
        raise Refusal(f"alpha must be between 1/records ({1 / n[wrong][0]:.6g}) and 1, got {value[wrong][0]:.6g}")
    return value


def decay(alpha: ArrayLike, steps: ArrayLike) -> np.ndarray:
    """Return `(1 − α)^steps` for steps of at least 1."""
    with np.errstate(divide="ignore"):
        return np.exp(np.asarray(steps, float) * np.log1p(-np.asarray(alpha, float)))


def recurrences(alpha: ArrayLike, records: ArrayLike, count: ArrayLike) -> np.ndarray:
    """Return `Σ_{j<count} (1 − α)^{jN}`, or the whole series for a count of inf."""
    count, epoch = np.asarray(count, float), decay(alpha, records)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(count == 0, 1.0, epoch**count)
    return (1 - left) / (1 - epoch)


def floor_log2(value: ArrayLike) -> np.ndarray:
    """Return `⌊log₂ value⌋` exactly."""
    return np.frexp(np.asarray(value, float))[1] - 1


def ceil_log2(value: ArrayLike) -> np.ndarray:
    """Return `⌈log₂ value⌉` exactly."""
    mantissa, exponent = np.frexp(np.asarray(value, float))
    return exponent - (mantissa == 0.5)


def whole_epochs(records: int, rounds: float) -> int:
    """Return T rounded up to a multiple of N."""
    return int(np.ceil(rounds / records * (1 - 1e-12))) * records
