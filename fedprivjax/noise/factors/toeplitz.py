"""The Toeplitz factor over rounds with the least noise in prefix sums on a schedule, among several bands.

If no machine returns within the band, the columns of F that one machine moves are orthogonal. Its exposure is then
‖c‖·√(number of rounds), and the noise of prefix sum t is Σ_{i≤t} a_i² with the series a(x) = 1/((1 − x)·c(x)).
"""

import numpy as np
import scipy

from fedprivjax.noise.factors.exposures import exposures, separation
from fedprivjax.noise.factors.matrices import coefficients, toeplitz
from fedprivjax.plan.schedule import Schedule

MOST = 2 * 10**7  # largest product of rounds and bandwidth that is optimised: some seconds
ITERATIONS = 200


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
