"""Factor over rounds with the least noise in prefix sums, if machines move orthogonal columns of F.

With X = FᵀF, the noise tr(AᵀA·X⁻¹) is convex, and so is the largest exposure, max_i Σ_{t∈i} X(t, t), if X is 0 at two
rounds of the same machine. `excess.py` bounds the distance from the least noise.
"""

from collections.abc import Sequence

import numpy as np

from fedprivjax.noise.rounds.descent import Limits, descended, inverse_sums, noise_of
from fedprivjax.noise.rounds.patterns import factor_of, indicators, together

POWERS = (16, 64)  # norms over machines that approximate the largest exposure, one after another
LIMITS = Limits(evaluations=41, enough=1e-5, averaged=1, memory=20)  # for each norm
ROUNDED = 1e-12  # entries of X that count as 0, relative to its largest


def is_separated(start: np.ndarray, patterns: Sequence[np.ndarray]) -> bool:
    """Return True if no machine moves two columns of the factor that are not orthogonal."""
    gram = np.abs(start.T @ start)
    np.fill_diagonal(gram, 0.0)
    return not (gram * together(patterns, len(start)) > ROUNDED * float(start[:, 0] @ start[:, 0])).any()


def separated_fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor with nearly the least noise at equal largest exposure, among those with orthogonal columns.

    Args:
        start: initial factor, for which `is_separated` holds.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    rounds = len(start)
    free = ~together(patterns, rounds)
    gram = np.where(free, start.T @ start, 0.0)
    used = indicators(patterns, rounds)
    for power in POWERS:
        gram = descended(gram, lambda one: _loss(one, used, power), lambda *_: free, lambda one: one, LIMITS)  # noqa: B023
    return factor_of(_levelled(gram, used))


def _levelled(gram: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return X with its rounds rescaled, so that all largest exposures are 1."""
    most = (used * (used @ np.diag(gram))[:, None]).max(axis=0)
    scale = 1 / np.sqrt(np.where(most > 0, most, most.max()))
    return gram * scale[:, None] * scale


def _loss(gram: np.ndarray, used: np.ndarray, power: int) -> tuple[float, np.ndarray]:
    """Return the logarithm of the noise times the exposure, and its gradient; inf unless X is positive definite."""
    sums = inverse_sums(gram)
    if sums is None:
        return np.inf, gram
    noise = noise_of(sums)
    squares = used @ np.diag(gram)
    most = float(squares.max())
    powers = (squares / most) ** power
    total = float(powers.sum())
    slope = sums.T @ sums
    slope *= -1 / noise
    slope[np.diag_indices_from(slope)] += used.T @ (powers / squares) / total
    return float(np.log(noise) + np.log(most) + np.log(total) / power), slope
