"""Fit of a factor over rounds to a participation schedule."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy

from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.noise.rounds.separated_fit import is_separated, separated_fit

POWERS = (8, 32, 128)  # norms over machines that approximate the largest exposure, one after another
ITERATIONS = 30  # of each
MAX_PAIRS = 2**20  # pairs of rounds that the fit reads; the exposures of all machines are computed afterwards
PACKAGES = ("numpy", "scipy")

AT_ONCE = 2**22  # largest number of entries in memory


def fitted(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    """Return F that nearly minimises `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`, float64 [rounds, rounds].

    It is scaled to F(1, 1) = 1, and never worse than the start. Orthogonal columns of a machine remain so, see
    `separated_fit.py`.

    Args:
        start: initial factor.
        patterns: sets of rounds of machines, int [some, times] each.
    """
    key = start, *patterns, code_digest(Path(__file__).parent, packages=PACKAGES)
    return cached("round factors", key, lambda: _fit(start, patterns), lambda found: _is_factor(found, start))


def pattern_sums(gram: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    """Return the sums of a matrix's entries over all pairs of rounds of each pattern, float64 [patterns].

    Args:
        gram: shape [rounds, rounds].
        patterns: rounds, from 0; int [patterns, times].
    """
    rounds, times = len(gram), patterns.shape[1]
    dense = 10 * times > rounds  # products with indicators are faster than indices then
    parts = np.array_split(patterns, -(-len(patterns) * (rounds if dense else times**2) // AT_ONCE))
    if not dense:
        return np.concatenate([gram[t[:, :, None], t[:, None, :]].sum(axis=(1, 2)) for t in parts])
    sums = []
    for t in parts:
        present = np.zeros((len(t), rounds))
        np.put_along_axis(present, t, 1.0, axis=1)
        sums.append(np.sum(present @ gram * present, axis=1))
    return np.concatenate(sums)


def _is_factor(found: np.ndarray, start: np.ndarray) -> bool:
    """Return True if a cached array is lower triangular with a positive diagonal."""
    fits = found.shape == start.shape and found.dtype == float and bool(np.isfinite(found).all())
    return fits and not np.triu(found, 1).any() and bool((np.diag(found) > 0).all())


def _fit(start: np.ndarray, patterns: Sequence[np.ndarray]) -> np.ndarray:
    if is_separated(start, patterns):
        found = separated_fit(start, patterns)
        return min(found / found[0, 0], start / start[0, 0], key=lambda factor: loss_of(factor, patterns))
    some, best = busiest(patterns), start
    for power in POWERS:
        best = min(best, _descended(best, some, power), key=lambda factor: loss_of(factor, patterns))
    return best / best[0, 0]


def _descended(start: np.ndarray, patterns: list[np.ndarray], power: int) -> np.ndarray:
    """Return the factor after L-BFGS on the logarithm of the loss, with the norm of the exposures by `power`."""
    entries = np.tril_indices(len(start))

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        factor = np.zeros_like(start)
        factor[entries] = numbers
        noise, of_noise = _noise(factor)
        gram = factor.T @ factor
        squares = [pattern_sums(np.abs(gram), t) for t in patterns]
        most = max(one.max() for one in squares)
        powers = [(one / most) ** power for one in squares]
        total = sum(float(one.sum()) for one in powers)
        weights = np.zeros(gram.size)
        for t, one, raised in zip(patterns, squares, powers, strict=True):
            pairs = t[:, :, None] * len(gram) + t[:, None, :]
            each = np.broadcast_to((raised / one / total)[:, None, None], pairs.shape)
            weights += np.bincount(pairs.ravel(), each.ravel(), gram.size)
        of_exposure = 2 * factor @ (weights.reshape(gram.shape) * np.sign(gram))
        slope = of_noise / noise + of_exposure
        return float(np.log(noise) + np.log(most) + np.log(total) / power), slope[entries]

    with np.errstate(all="ignore"):
        options = {"maxiter": ITERATIONS}
        found = scipy.optimize.minimize(loss, start[entries], jac=True, method="L-BFGS-B", options=options).x
    factor = np.zeros_like(start)
    factor[entries] = found
    return factor if np.isfinite(found).all() and (np.diag(factor) > 0).all() else start


def _noise(factor: np.ndarray) -> tuple[float, np.ndarray]:
    """Return ‖A·F⁻¹‖² and its gradient."""
    inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    sums = np.cumsum(inverse, axis=0)
    back = np.cumsum(sums[::-1], axis=0)[::-1]  # Aᵀ·A·F⁻¹
    return float(np.sum(sums**2)), -2 * inverse.T @ back @ inverse.T


def loss_of(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`."""
    gram = np.abs(factor.T @ factor)
    most = max(pattern_sums(gram, t).max() for t in patterns)
    return _noise(factor)[0] * float(most)


def busiest(patterns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the patterns with the most rounds, up to `MAX_PAIRS` pairs of rounds."""
    chosen, left = [], MAX_PAIRS
    for rounds in sorted(patterns, key=lambda rounds: -rounds.shape[1]):
        many = min(len(rounds), max(left // rounds.shape[1] ** 2, 0 if chosen else 1))
        if many:
            chosen.append(rounds[:many])
            left -= many * rounds.shape[1] ** 2
    return chosen
