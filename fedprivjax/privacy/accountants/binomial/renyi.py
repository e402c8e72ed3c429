"""Rényi divergences of one coordinate: a binomial and itself shifted by 1, …, g, in both directions.

With Z ~ Binomial(m, p), pmf f, and `L_k(z) = log f(z) − log f(z−k)`,

    e^{(α−1)·D_α(Z ‖ Z+k)} = Σ_z f(z)·e^{(α−1)·L_k(z)},

and the other direction is the same divergence for m − Z, with probability 1 − p. The sum is over the window

    mp − (14 + tilt)·sd ≤ z ≤ mp + 14·sd,   k ≤ z,   tilt = (α−1)·g/sd,

which contains the peak of every term. The probability outside the window is added to δ (`mass_outside`).

For sd ≥ 48 and a window far from 0 and m, the terms are smooth and are summed at steps of sd/2 only. For a Gaussian
term, sums over a lattice of step h and over the integers differ from the integral by a relative
2·e^{−2π²·(sd/h)²} = 2·e^{−79} (Poisson summation). L_k is then the integral of the log-ratio of neighbours, by Gauss's
rule with 4 points. It keeps its relative accuracy if shift and order are tiny compared with the noise. Differences of
log-gammas lose it.

Source: derived for this implementation, for the mechanism of Theorem 3.2.
"""

from math import ceil, floor, sqrt

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

REACH = 14.0  # half-width of the window around the mean or a tilted peak, in standard deviations
SMOOTH = 48.0  # smallest standard deviation for which terms are summed at steps of `STEP`
STEP = 0.5  # step in standard deviations
NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)
LARGEST = 600.0  # largest exponent without overflow
TINY = 1e-300  # keeps a logarithm finite if all mass is outside
PATCH = 2_000_000  # largest number of terms in memory at once


def shift_divergences(total: int, probability: float, shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return the larger of D_α(Z ‖ Z+k) and D_α(Z+k ‖ Z) on the window, shape [orders, shifts].

    Args:
        total, probability: parameters of Z ~ Binomial(m, p), p in (0, 1).
        shifts: shifts k, integers of at least 1.
        orders: orders α, above 1.

    >>> m, k, order = 10**6, 100, 4.0
    >>> found = shift_divergences(m, 0.5, np.array([k]), np.array([order]))
    >>> bool(abs(found[0, 0] / (order * k**2 / (2 * m / 4)) - 1) < 1e-4)
    True
    """
    there = _divergences(total, probability, shifts, orders)
    if probability == 0.5:
        return there
    return np.maximum(there, _divergences(total, 1 - probability, shifts, orders))


def per_squared_shift(total: int, probability: float, levels: int, orders: np.ndarray) -> np.ndarray:
    """Return `c_α = max_{1≤k≤g} D_α(k)/k²` over all shifts and both directions, shape [orders]."""
    shifts = np.arange(1, levels + 1)
    return np.max(shift_divergences(total, probability, shifts, orders) / shifts**2, axis=1)


def mass_outside(total: int, probability: float, levels: int) -> float:
    """Return an upper bound on the probability outside the window, for any shift, order and direction."""
    mean = total * probability
    wide = REACH * sqrt(mean * (1 - probability))
    below = scipy.stats.binom.cdf([levels - 1, ceil(mean - wide) - 1], total, probability)
    above = scipy.stats.binom.sf([total - levels, floor(mean + wide)], total, probability)
    return float(np.sum(below) + np.sum(above))


def _divergences(total: int, probability: float, shifts: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return D_α(Z ‖ Z+k) on the window, shape [orders, shifts]."""
    ones, zeros = total * probability, total * (1 - probability)
    sd = sqrt(ones * (1 - probability))
    most = int(shifts.max())
    left, right = REACH * sd + float(orders.max() - 1) * most, REACH * sd
    far = left <= 0.8 * ones and right <= 0.8 * zeros and min(ones - left, zeros - right) >= 2 * most
    smooth = far and sd >= SMOOTH
    terms = _smooth_terms if smooth else _integer_terms
    places = (left + right) / (STEP * sd if smooth else 1)
    rows = max(1, int(PATCH / (places + 1)))
    parts = [shifts[i : i + rows] for i in range(0, shifts.size, rows)]
    return np.concatenate([_of_terms(*terms(total, probability, part, left), orders) for part in parts], axis=1)


def _of_terms(logs: np.ndarray, gains: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return `log(Σ f·e^{(α−1)L})/(α−1)`, [orders, shifts], from log f [places] and L [shifts, places]."""
    return np.array([_log_moment(logs, (order - 1) * gains) / (order - 1) for order in orders])


def _log_moment(logs: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return `log Σ f·e^x` from Σ f·(e^x − 1), accurate for tiny values. Logarithms are used if e^x overflows."""
    if exponents.max() < LARGEST:
        return np.log1p(np.maximum(np.expm1(exponents) @ np.exp(logs), -1 + TINY))
    return np.asarray(scipy.special.logsumexp(logs + exponents, axis=1))


def _smooth_terms(total: int, probability: float, shifts: np.ndarray, left: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log f [places] and L [shifts, places] at the real places `mean + y`, with a step of sd/2."""
    ones, zeros = total * probability, total * (1 - probability)
    step = STEP * sqrt(ones * (1 - probability))
    y = step * np.arange(-ceil(left / step), ceil(REACH / STEP) + 1)
    logs = -ones * _bregman(y / ones) - zeros * _bregman(-y / zeros) - (np.log1p(y / ones) + np.log1p(-y / zeros)) / 2
    logs -= (1 / (ones + y) + 1 / (zeros - y)) / 12 - (1 / (ones + y) ** 3 + 1 / (zeros - y) ** 3) / 360
    logs -= np.asarray(scipy.special.logsumexp(logs))
    k = shifts[:, None].astype(float)
    gains = -k / 24 * (1 / ones**2 - 1 / zeros**2)  # the sum over places minus the integral
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        t = y - (k - 1) / 2 + k / 2 * node
        gains = gains + k * weight / 2 * np.log1p(((1 - t) / zeros - t / ones) / (1 + t / ones))
    return logs, gains


def _bregman(x: np.ndarray) -> np.ndarray:
    """Return `(1+x)·ln(1+x) − x = x·∫₀¹ ln(1 + xs) ds` without cancellation, for |x| ≤ 0.9."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return x * (np.log1p(x[:, None] * (nodes + 1) / 2) @ weights) / 2


def _integer_terms(total: int, probability: float, shifts: np.ndarray, left: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log f [places] and L [shifts, places] at the integers of the window. L is −inf for k > z."""
    mean, sd = total * probability, sqrt(total * probability * (1 - probability))
    low, high = max(0, floor(mean - left)), min(total, ceil(mean + REACH * sd))
    most = int(shifts.max())
    base = np.arange(max(0, low - most), high + 1, dtype=float)
    rises = np.log((total - base[1:] + 1) * probability / (base[1:] * (1 - probability)))
    logs = np.append(0.0, np.cumsum(rises))
    logs -= np.asarray(scipy.special.logsumexp(logs))
    padded = np.concatenate([np.full(most - (low - int(base[0])), np.inf), logs])
    behind = sliding_window_view(padded, high - low + 1)[most - shifts]
    here = logs[low - int(base[0]) :]
    return here, here - behind
