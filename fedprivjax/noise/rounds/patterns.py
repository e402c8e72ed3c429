"""Patterns: the sets of rounds in which machines take part, int [patterns, times], from 0, for each number of times."""

from collections.abc import Sequence

import numpy as np
import scipy

AT_ONCE = 2**22  # largest number of entries in memory


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
        present = indicators([t], rounds)
        sums.append(np.sum(present @ gram * present, axis=1))
    return np.concatenate(sums)


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


def largest(gram: np.ndarray, patterns: Sequence[np.ndarray], most: int) -> list[np.ndarray]:
    """Return the patterns with the largest sums of |X| over pairs of rounds: `most` of all, and one of each round.

    Args:
        gram: X, shape [rounds, rounds].
        patterns: sets of rounds of machines, int [some, times] each.
        most: number of patterns; more if they are equal.
    """
    size, of_round = np.abs(gram), np.zeros(len(gram))
    squares = [pattern_sums(size, one) for one in patterns]
    for one, sums in zip(patterns, squares, strict=True):
        np.maximum.at(of_round, one, np.broadcast_to(sums[:, None], one.shape))
    each = np.sort(np.concatenate(squares))
    least = each[-min(most, each.size)]
    chosen = []
    for one, sums in zip(patterns, squares, strict=True):
        chosen.append(one[(sums >= least) | (sums[:, None] >= of_round[one]).any(axis=1)])
    return [one for one in chosen if len(one)]


def loss_of(factor: np.ndarray, patterns: Sequence[np.ndarray]) -> float:
    """Return `‖A·F⁻¹‖²·max_i Σ_{j,l} |(FᵀF)(t_j, t_l)|`."""
    gram = np.abs(factor.T @ factor)
    return prefix_noise(factor) * float(max(pattern_sums(gram, t).max() for t in patterns))


def prefix_noise(factor: np.ndarray) -> float:
    """Return ‖A·F⁻¹‖²: the variance of one coordinate of B·Ξ, summed over rounds."""
    return float(np.sum(np.cumsum(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True), axis=0) ** 2))


def factor_of(gram: np.ndarray) -> np.ndarray:
    """Return the lower triangular F with FᵀF = X, if X is positive definite."""
    lower = scipy.linalg.cholesky(gram[::-1, ::-1], lower=True)
    return np.ascontiguousarray(lower[::-1, ::-1].T)
