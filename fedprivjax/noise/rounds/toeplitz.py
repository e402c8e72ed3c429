"""Toeplitz factor over rounds: the same coefficients in every column, cut to a band."""

from dataclasses import dataclass

import numpy as np
import scipy

from fedprivjax.noise.rounds.exposures import exposures, separation
from fedprivjax.noise.rounds.factor import RoundFactor
from fedprivjax.noise.rounds.toeplitz_fit import optimised
from fedprivjax.plan.schedule import Schedule

POWER = 0.5  # of the prefix sums


@dataclass(frozen=True)
class ToeplitzFactor(RoundFactor):
    """F = A^½ (the same coefficients in every column), cut to a band: entries further below the diagonal are 0.

    The bandwidth is 2^k − 1 or R − 1, or the smallest separation of a machine's rounds less one, with coefficients that
    are optimised for it. The choice with the least noise in prefix sums at equal μ on the schedule is used.
    With 100 of 1000 machines in each of 100 rounds, they have 0.39 times the variance of independent noise
    if cohorts are uniform, 0.17 times if they are cyclic.

    Source: Fichtenberger, Henzinger & Upadhyay 2023; banded: Choquette-Choo et al. 2023.
    """

    def matrix(self, schedule: Schedule) -> np.ndarray:
        rounds, widest = schedule.size.rounds, separation(schedule) - 1
        columns = [coefficients(rounds, band) for band in sorted({*bands(rounds), widest})]
        columns.append(optimised(coefficients(rounds, widest)[: widest + 1], rounds))
        return _of_column(min(columns, key=lambda column: _noise(column, schedule)))


def coefficients(rounds: int, band: int) -> np.ndarray:
    """Return the first column of A^½ with 0 beyond a bandwidth, float64 [rounds].

    >>> coefficients(4, 2).tolist()
    [1.0, 0.5, 0.375, 0.0]
    """
    k = np.arange(1.0, rounds)
    column = np.append(1.0, np.cumprod((k - 1 + POWER) / k))
    return np.where(np.arange(rounds) <= band, column, 0.0)


def bands(rounds: int) -> list[int]:
    """Return the candidate bandwidths: 0, 1, 3, 7, … and rounds − 1."""
    return [(1 << k) - 1 for k in range((rounds - 1).bit_length())] + [rounds - 1]


def _of_column(column: np.ndarray) -> np.ndarray:
    return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def _noise(column: np.ndarray, schedule: Schedule) -> float:
    """Return the variance of all prefix sums with a Toeplitz factor at exposure 1."""
    rounds = len(column)
    inverse = scipy.signal.lfilter([1.0], column[: np.flatnonzero(column)[-1] + 1], np.eye(1, rounds)[0])
    squares = np.cumsum(inverse) ** 2 @ np.arange(rounds, 0, -1.0)
    return float(squares * exposures(_toeplitz_gram(column), schedule).max() ** 2)


def _toeplitz_gram(column: np.ndarray) -> np.ndarray:
    """Return FᵀF of a lower triangular Toeplitz matrix, by diagonals."""
    rounds = len(column)
    gram = np.zeros((rounds, rounds))
    for lag in range(int(np.flatnonzero(column)[-1]) + 1):
        sums = np.cumsum(column[lag:] * column[: rounds - lag])[::-1]
        place = np.arange(rounds - lag)
        gram[place, place + lag] = gram[place + lag, place] = sums
    return gram
