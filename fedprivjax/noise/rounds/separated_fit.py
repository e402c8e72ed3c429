"""Factor over rounds with the least noise in prefix sums, if machines move orthogonal columns of F.

With X = FᵀF, the noise tr(AᵀA·X⁻¹) is convex, and so is the largest exposure, max_i Σ_{t∈i} X(t, t), if X is 0 at two
rounds of the same machine. Without these zeros no X has less noise than `lower_bound`.
"""

from collections.abc import Sequence

import numpy as np
import scipy

POWERS = (16, 256, 4096)  # norms over machines that approximate the largest exposure, one after another
WORK = 5e11  # multiplications in all: 25 seconds at 1000 rounds
ITERATIONS = 150  # largest number for each norm
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


def separated_fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a factor with nearly the least noise at equal largest exposure, among those with orthogonal columns.

    Args:
        start: initial factor, for which `is_separated` holds.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    rounds = len(start)
    free = ~together(patterns, rounds)
    gram = np.where(free, start.T @ start, 0.0)
    used = np.zeros((sum(len(pattern) for pattern in patterns), rounds))
    row = 0
    for pattern in patterns:
        used[row + np.arange(len(pattern))[:, None], pattern] = 1.0
        row += len(pattern)
    iterations = int(min(ITERATIONS, max(WORK / (len(POWERS) * 3 * rounds**3), 5)))
    for power in POWERS:
        gram = _descended(gram, free, used, power, iterations)
    lower = scipy.linalg.cholesky(gram[::-1, ::-1], lower=True)
    return np.ascontiguousarray(lower[::-1, ::-1].T)


def _loss(gram: np.ndarray, used: np.ndarray, power: int) -> tuple[float, np.ndarray]:
    """Return the logarithm of the noise times the exposure, and its gradient; inf unless X is positive definite."""
    lower, info = scipy.linalg.lapack.dpotrf(gram, lower=1)
    if info:
        return np.inf, gram
    inverse = scipy.linalg.lapack.dpotri(lower, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    sums = np.cumsum(inverse, axis=0)  # A·X⁻¹
    noise = float(np.trace(np.cumsum(sums, axis=1)))
    squares = used @ np.diag(gram)
    most = float(squares.max())
    powers = (squares / most) ** power
    total = float(powers.sum())
    slope = -(sums.T @ sums) / noise
    slope[np.diag_indices_from(slope)] += used.T @ (powers / squares) / total
    return float(np.log(noise) + np.log(most) + np.log(total) / power), slope


def _descended(gram: np.ndarray, free: np.ndarray, used: np.ndarray, power: int, iterations: int) -> np.ndarray:
    """Return X after L-BFGS on its free entries. Steps are halved until X is positive definite and the loss falls."""
    value, slope = _loss(gram, used, power)
    slope = np.where(free, slope, 0.0)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(iterations):
        direction = -_preconditioned(slope, steps)
        fall = float(np.vdot(direction, slope))
        if not fall < 0:
            break
        size = 1.0 if steps else 0.1 * float(gram[0, 0] / np.abs(slope).max())
        while True:
            after, next_slope = _loss(gram + size * direction, used, power)
            if after <= value + 1e-4 * size * fall or size < 1e-8:
                break
            size /= 2
        if size < 1e-8:
            break
        next_slope = np.where(free, next_slope, 0.0)
        steps = [*steps[1 - MEMORY :], (size * direction, next_slope - slope)]
        gram, value, slope = gram + size * direction, after, next_slope
    return gram


def _preconditioned(slope: np.ndarray, steps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the product of the approximate inverse curvature and the gradient (two-loop recursion)."""
    found, shares = slope.copy(), []
    kept = [(step, change) for step, change in steps if np.vdot(step, change) > 0]
    for step, change in reversed(kept):
        shares.append(float(np.vdot(step, found) / np.vdot(step, change)))
        found -= shares[-1] * change
    if kept:
        step, change = kept[-1]
        found *= float(np.vdot(step, change) / np.vdot(change, change))
    for (step, change), share in zip(kept, reversed(shares), strict=True):
        found += (share - float(np.vdot(change, found) / np.vdot(step, change))) * step
    return found
