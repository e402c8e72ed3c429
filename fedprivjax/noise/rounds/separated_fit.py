"""Factor over rounds with the least noise in prefix sums, if machines move orthogonal columns of F.

With X = FᵀF, the noise tr(AᵀA·X⁻¹) is convex, and so is the largest exposure, max_i Σ_{t∈i} X(t, t), if X is 0 at two
rounds of the same machine. L-BFGS starts from the curvature of the noise, which the cosine transform nearly makes
diagonal. `excess.py` bounds the distance from the least noise.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy

POWERS = (16, 64)  # norms over machines that approximate the largest exposure, one after another
ITERATIONS = 40  # largest number for each norm
ENOUGH = 1e-5  # relative fall of the loss after which a norm is done
MEMORY = 20  # number of previous steps that approximate the curvature
ROUNDED = 1e-12  # entries of X that count as 0, relative to its largest


def is_separated(start: np.ndarray, patterns: Sequence[np.ndarray]) -> bool:
    """Return True if no machine moves two columns of the factor that are not orthogonal."""
    gram = np.abs(start.T @ start)
    np.fill_diagonal(gram, 0.0)
    return not (gram * together(patterns, len(start)) > ROUNDED * float(start[:, 0] @ start[:, 0])).any()


def together(patterns: Sequence[np.ndarray], rounds: int) -> np.ndarray:
    """Return True for two different rounds of one machine, bool [rounds, rounds]."""
    found = np.zeros((rounds, rounds), bool)
    for pattern in patterns:
        for column in range(1, pattern.shape[1]):
            found[pattern[:, :-column], pattern[:, column:]] = True
    return found | found.T


def indicators(patterns: Sequence[np.ndarray], rounds: int) -> np.ndarray:
    """Return 1 at the rounds of each pattern, float64 [patterns, rounds]."""
    found, row = np.zeros((sum(len(pattern) for pattern in patterns), rounds)), 0
    for pattern in patterns:
        found[row + np.arange(len(pattern))[:, None], pattern] = 1.0
        row += len(pattern)
    return found


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
        gram = _descended(gram, free, used, power)
    lower = scipy.linalg.cholesky(_levelled(gram, used)[::-1, ::-1], lower=True)
    return np.ascontiguousarray(lower[::-1, ::-1].T)


def _levelled(gram: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return X with its rounds rescaled, so that all largest exposures are 1."""
    most = (used * (used @ np.diag(gram))[:, None]).max(axis=0)
    scale = 1 / np.sqrt(np.where(most > 0, most, most.max()))
    return gram * scale[:, None] * scale


def inverse_sums(gram: np.ndarray) -> np.ndarray | None:
    """Return A·X⁻¹, or None unless X is positive definite."""
    lower, info = scipy.linalg.lapack.dpotrf(gram, lower=1)
    if info:
        return None
    inverse = scipy.linalg.lapack.dpotri(lower, lower=1)[0]
    return np.cumsum(np.tril(inverse) + np.tril(inverse, -1).T, axis=0)


def _loss(gram: np.ndarray, used: np.ndarray, power: int) -> tuple[float, np.ndarray]:
    """Return the logarithm of the noise times the exposure, and its gradient; inf unless X is positive definite."""
    sums = inverse_sums(gram)
    if sums is None:
        return np.inf, gram
    noise = float(np.trace(np.cumsum(sums, axis=1)))
    squares = used @ np.diag(gram)
    most = float(squares.max())
    powers = (squares / most) ** power
    total = float(powers.sum())
    slope = -(sums.T @ sums) / noise
    slope[np.diag_indices_from(slope)] += used.T @ (powers / squares) / total
    return float(np.log(noise) + np.log(most) + np.log(total) / power), slope


def _descended(gram: np.ndarray, free: np.ndarray, used: np.ndarray, power: int) -> np.ndarray:
    """Return X after L-BFGS on its free entries. Steps are halved until X is positive definite and the loss falls."""
    value, slope = _loss(gram, used, power)
    slope = np.where(free, slope, 0.0)
    curved = _inverse_curvature(gram, free)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(ITERATIONS):
        direction = -_preconditioned(slope, steps, curved)
        fall, size = float(np.vdot(direction, slope)), 1.0
        if not fall < 0:
            break
        while True:
            after, next_slope = _loss(gram + size * direction, used, power)
            if after <= value + 1e-4 * size * fall or size < 1e-8:
                break
            size /= 2
        if size < 1e-8:
            break
        next_slope = np.where(free, next_slope, 0.0)
        steps = [*steps[1 - MEMORY :], (size * direction, next_slope - slope)]
        fallen, gram, value, slope = value - after, gram + size * direction, after, next_slope
        if fallen < ENOUGH:
            break
    return gram


def _inverse_curvature(gram: np.ndarray, free: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the product of a matrix and the inverse curvature of the log noise, diagonal in the cosine transform."""

    def transformed(matrix: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.fft.dctn(matrix, type=4, norm="ortho"))

    sums = inverse_sums(gram)
    assert sums is not None
    own, slope = np.diag(transformed(gram)), np.diag(transformed(sums.T @ sums))
    noise = float(np.trace(np.cumsum(sums, axis=1)))
    scale = noise * np.outer(own, own) / (np.outer(own, slope) + np.outer(slope, own))
    return lambda matrix: np.where(free, transformed(scale * transformed(matrix)), 0.0)


def _preconditioned(
    slope: np.ndarray, steps: list[tuple[np.ndarray, np.ndarray]], curved: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the product of the approximate inverse curvature and the gradient (two-loop recursion)."""
    found, shares = slope.copy(), []
    kept = [(step, change) for step, change in steps if np.vdot(step, change) > 0]
    for step, change in reversed(kept):
        shares.append(float(np.vdot(step, found) / np.vdot(step, change)))
        found -= shares[-1] * change
    found = curved(found)
    if kept:
        step, change = kept[-1]
        found *= float(np.vdot(step, change) / np.vdot(change, curved(change)))
    for (step, change), share in zip(kept, reversed(shares), strict=True):
        found += (share - float(np.vdot(change, found) / np.vdot(step, change))) * step
    return found
