"""Distance of a factor over rounds from the least noise in prefix sums at equal largest exposure.

Let w_i ≥ 0 be weights of machines and V ⪰ 0 with abs(V(t, s)) ≤ Σ w_i over the machines in both rounds. For every
X = FᵀF,

    Σ_i w_i · max_i Σ_{t,s∈i} abs(X(t, s))  ≥  tr(VX),        tr(AᵀA·X⁻¹)·tr(VX)  ≥  (tr (A·V·Aᵀ)^½)²

so no factor has less noise than the last number divided by Σ w_i. At the optimum V is the slope X⁻¹AᵀA·X⁻¹ at pairs of
rounds of one machine, and its bound where X > 0. Here V is the slope, cut to its bounds.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import scipy

from fedprivjax.noise.factors.exposures import indicators, largest
from fedprivjax.noise.factors.fit import inverse_sums, loss_of

MACHINES = 1000  # patterns with weights
POWER = 64  # of the exposure, for the first weights
SMALLEST = 1e-3  # first weight of a machine
REPEATS = 10  # of the weights' update
REPAIRS = 3  # of eigenvalues of V below 0
FLOOR = 1e-3  # eigenvalue of V, relative to its mean diagonal
MIXED = (0.0, *(2.0**k for k in range(-10, 1)))  # parts of the diagonal in V, so that it is positive definite


def excess(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a bound on the relative excess of a factor's noise over the least noise of all factors.

    The result is inf if no bound is found.

    A trusted server releases F·x + σξ, where x_t is the sum of messages in round t, and ξ are independent standard
    normals. The noise of the factor F is the variance of one coordinate of the noise in the running sums x_1 + … + x_t,
    summed over rounds t. Here σ is such that no machine, with messages of norm at most 1, loses more than a fixed μ of
    Gaussian differential privacy.

    Args:
        factor: F, lower triangular, shape [rounds, rounds].
        patterns: sets of rounds, counted from 0, such that each machine takes part in the rounds of one of these sets.
            A list of arrays, int [sets, k]: each array has all sets of k rounds, one set per row.
    """
    least = least_noise(factor, largest(factor.T @ factor, patterns, MACHINES))
    return loss_of(factor, patterns) / least - 1 if least > 0 else inf


def least_noise(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return a lower bound on `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|` of all factors, or 0 if none is found.

    Args:
        factor: F, near which the bound is good.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    gram = factor.T @ factor
    sums = inverse_sums(gram)
    if sums is None:
        return 0.0
    slope = sums.T @ sums
    used = indicators(patterns, len(factor))
    weights = _weights(used, gram, slope)
    return _nuclear(_admitted(slope, used, weights)) ** 2 / float(weights.sum())


def _weights(used: np.ndarray, gram: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return weights of machines whose sums over the machines of two rounds are near the slope where X is large."""
    size = np.abs(gram)
    squares = np.sum(used @ size * used, axis=1)
    weights = (squares / squares.max()) ** POWER
    some = weights > SMALLEST
    found, weights, squares = used[some], weights[some], squares[some]
    for _ in range(REPEATS):
        ratio = size * np.maximum(slope, 0) / np.maximum(_allowed(found, weights), 1e-300)
        weights = weights * np.sum(found @ ratio * found, axis=1) / squares
    spread = np.zeros(len(used))
    spread[some] = weights
    return spread


def _allowed(used: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the bounds of V: the sums of weights over the machines in two rounds, float64 [rounds, rounds]."""
    weighted = used * np.sqrt(weights)[:, None]
    return weighted.T @ weighted


def _admitted(slope: np.ndarray, used: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return V: the slope, with its diagonal rescaled to its bounds, cut to them, and positive semidefinite."""
    allowed = _allowed(used, weights)
    busy = np.flatnonzero(np.diag(allowed))
    found, place = np.zeros_like(slope), np.ix_(busy, busy)
    own, bounds = np.diag(allowed)[busy], allowed[place]
    scale = np.sqrt(own / np.diag(slope)[busy])
    cut = np.clip(slope[place] * scale[:, None] * scale, -bounds, bounds)
    floor = FLOOR * float(own.mean())
    for _ in range(REPAIRS):
        if not _is_positive(cut):
            values, vectors = scipy.linalg.eigh(cut, subset_by_value=(-np.inf, floor))
            cut = np.clip(cut - (vectors * (values - 2 * floor)) @ vectors.T, -bounds, bounds)
    mixed = ((1 - part) * cut + part * np.diag(own) for part in MIXED)
    found[place] = next(dual for dual in mixed if _is_positive(dual))
    return found


def _is_positive(matrix: np.ndarray) -> bool:
    """Return True if a symmetric matrix is positive definite."""
    return not scipy.linalg.lapack.dpotrf(matrix, lower=1)[1]


def _nuclear(dual: np.ndarray) -> float:
    """Return tr (A·V·Aᵀ)^½."""
    squares = np.linalg.eigvalsh(np.cumsum(np.cumsum(dual, axis=0), axis=1))
    return float(np.sqrt(squares.clip(0)).sum())
