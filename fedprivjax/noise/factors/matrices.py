"""Matrices of factors: checks, user-supplied rows, Toeplitz matrices, and the cache of fits.

`best_toeplitz` is the Toeplitz factor over rounds with the least noise in prefix sums on a schedule, among several
bands. If no machine returns within the band, the columns of F that one machine moves are orthogonal. Its exposure is
then ‖c‖·√(number of rounds), and the noise of prefix sum t is Σ_{i≤t} a_i² with the series a(x) = 1/((1 − x)·c(x)).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import cached, code_digest
from fedprivjax.noise.factors.exposures import exposures, separation
from fedprivjax.plan.schedule import Schedule

HALF_UNIT = 2.0**-24  # relative rounding error of float32
MAX_ROUNDED = 1e-3  # largest relative increase of the sensitivity by float32 rounding
CODE = (Path(__file__).parent,)  # folders that a cached factor depends on
PACKAGES = ("numpy", "scipy")
MOST = 2 * 10**7  # largest product of rounds and bandwidth that is optimised: some seconds
ITERATIONS = 200


def entries(over: Any) -> int:
    """Return the number of entries of a factor, over a schedule's rounds or a number of messages."""
    return over if isinstance(over, int) else over.size.rounds


def rows_of(matrix: Any) -> tuple[tuple[float, ...], ...]:
    """Return a matrix as a tuple of rows."""
    return tuple(tuple(float(value) for value in row) for row in matrix)


def inverse_of(factor: np.ndarray) -> np.ndarray:
    """Return F⁻¹, which maps independent normals to the noise of each entry."""
    return scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)


def coefficients(count: int, band: int | None = None, power: float = 0.5) -> np.ndarray:
    """Return the first column of A^p, the coefficients of (1 − z)^(−p), with 0 beyond a bandwidth; float64 [count].

    >>> coefficients(4, 2).tolist()
    [1.0, 0.5, 0.375, 0.0]
    """
    k = np.arange(1.0, count)
    column = np.append(1.0, np.cumprod((k - 1 + power) / k))
    return column if band is None else np.where(np.arange(count) <= band, column, 0.0)


def toeplitz(column: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrix with the same coefficients in every column."""
    return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def require_factor(factor: np.ndarray) -> None:
    """Raise Refusal unless the factor is a finite lower triangular matrix without a 0 on its diagonal.

    >>> require_factor(np.array([[1.0, 0.5], [0.0, 1.0]]))
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_schedule must be a lower triangular matrix, got 0.5 in row 1, column 2
    """
    if factor.ndim != 2 or factor.shape[0] != factor.shape[1]:
        raise Refusal(f"noise_schedule must be a square matrix, got shape {factor.shape}")
    if not np.isfinite(factor).all():
        raise Refusal("noise_schedule must be finite, got a matrix with entries that are not")
    row, column = np.unravel_index(np.argmax(np.abs(np.triu(factor, 1))), factor.shape)
    if factor[row, column] != 0 and column > row:
        found = f"{factor[row, column]:g} in row {row + 1}, column {column + 1}"
        raise Refusal(f"noise_schedule must be a lower triangular matrix, got {found}")
    diagonal = np.abs(np.diag(factor))
    if (diagonal == 0).any():
        raise Refusal(f"noise_schedule must have no 0 on its diagonal, got one in row {np.argmin(diagonal) + 1}")


def cached_fit(
    kind: str, key: tuple, start: np.ndarray, fit: Callable[[], np.ndarray], valid: Callable[[np.ndarray], Any]
) -> np.ndarray:
    """Return a fitted factor, cached on disk.

    Args:
        kind: name of the cache.
        key: everything that the fit depends on, besides the start and the code.
        start: initial factor, of the same shape.
        fit: function that computes the factor.
        valid: further condition on a cached factor.
    """

    def is_valid(found: np.ndarray) -> bool:
        if found.shape != start.shape or found.dtype != float:
            return False
        try:
            require_factor(found)
        except Refusal:
            return False
        return bool(valid(found))

    return cached(kind, (start, *key, code_digest(*CODE, packages=PACKAGES)), fit, is_valid)


def best_toeplitz(schedule: Schedule) -> np.ndarray:
    """Return the Toeplitz factor with the least noise at equal largest exposure, float64 [rounds, rounds].

    Candidates are A^½ with the bands of `bands`, with the smallest separation of a machine's rounds less one, and
    optimised coefficients for the latter.
    """
    rounds, widest = schedule.size.rounds, separation(schedule) - 1
    columns = [coefficients(rounds, band) for band in sorted({*bands(rounds), widest})]
    columns.append(optimised(coefficients(rounds, widest)[: widest + 1], rounds))
    return toeplitz(min(columns, key=lambda column: _noise(column, schedule)))


def bands(rounds: int) -> list[int]:
    """Return the candidate bandwidths: 0, 1, 3, 7, … and rounds − 1."""
    return [(1 << k) - 1 for k in range((rounds - 1).bit_length())] + [rounds - 1]


def optimised(start: np.ndarray, rounds: int) -> np.ndarray:
    """Return coefficients c, c_0 = 1, that minimise ‖c‖²·Σ_t Σ_{i≤t} a_i²; float64 [rounds], 0 beyond the band.

    Args:
        start: initial coefficients, [bandwidth + 1]. They are returned if the product of sizes is above `MOST`.

    >>> optimised(np.array([1.0, 0.5]), 3).round(3).tolist()
    [1.0, 0.376, 0.0]
    """
    found = start
    if start.size > 1 and start.size * rounds <= MOST:
        options = {"maxiter": ITERATIONS}
        loss = _loss_of(rounds)
        with np.errstate(all="ignore"):
            rest = scipy.optimize.minimize(loss, start[1:], jac=True, method="L-BFGS-B", options=options).x
        found = np.append(1.0, rest) if np.isfinite(rest).all() else start
    return np.append(found, np.zeros(rounds - found.size))


def _loss_of(rounds: int):
    """Return the logarithm of the loss and its gradient, as a function of c_1, c_2, …"""
    weights = np.arange(rounds, 0, -1.0)

    def loss(rest: np.ndarray) -> tuple[float, np.ndarray]:
        column = np.append(1.0, rest)
        sums = scipy.signal.lfilter([1.0], column, np.ones(rounds))
        noise = float(weights @ sums**2)
        if not np.isfinite(noise):
            return 1e300, np.zeros(rest.size)
        again = scipy.signal.lfilter([1.0], column, sums)
        slope = scipy.signal.correlate(weights * sums, again, method="fft")[rounds : rounds + rest.size]
        square = float(column @ column)
        return float(np.log(noise) + np.log(square)), 2 * (rest / square - slope / noise)

    return loss


def _noise(column: np.ndarray, schedule: Schedule) -> float:
    """Return the variance of all prefix sums with a Toeplitz factor at exposure 1."""
    rounds = len(column)
    inverse = scipy.signal.lfilter([1.0], column[: np.flatnonzero(column)[-1] + 1], np.eye(1, rounds)[0])
    squares = np.cumsum(inverse) ** 2 @ np.arange(rounds, 0, -1.0)
    return float(squares * exposures(_gram(column), schedule).max() ** 2)


def _gram(column: np.ndarray) -> np.ndarray:
    """Return FᵀF of a lower triangular Toeplitz matrix, by diagonals."""
    rounds = len(column)
    gram = np.zeros((rounds, rounds))
    for lag in range(int(np.flatnonzero(column)[-1]) + 1):
        sums = np.cumsum(column[lag:] * column[: rounds - lag])[::-1]
        place = np.arange(rounds - lag)
        gram[place, place + lag] = gram[place + lag, place] = sums
    return gram
