"""Coefficients of a banded Toeplitz factor with the least noise in prefix sums, if no machine returns within the band.

The columns of F that one machine moves are then orthogonal, so its exposure is ‖c‖·√(number of rounds), and the noise
of prefix sum t is Σ_{i≤t} a_i² with the series a(x) = 1/((1 − x)·c(x)).
"""

import numpy as np
import scipy

MOST = 2 * 10**7  # largest product of rounds and bandwidth that is optimised: some seconds
ITERATIONS = 200


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
