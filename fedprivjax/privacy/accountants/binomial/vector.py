r"""Accounting of d coordinates by Rényi differential privacy: ε from a user's noise, with three bounds on rounding.

A replaced record moves a user's vector by Δ, in levels, with ‖Δ‖₂ ≤ g, before rounding. If both records are rounded
with one uniform U_j per coordinate, `⌈u_j − U_j⌉` and `⌈u'_j − U_j⌉` have the records' distributions, and differ by

    k_j = ⌊Δ_j⌋ or ⌈Δ_j⌉,  the latter with probability frac(Δ_j).

Both releases are mixtures over U of shifted binomials, P = E P_U and Q = E Q_U. Because `∫ p^α·q^{1−α}` is jointly
convex,

    e^{(α−1)·D_α(P ‖ Q)} ≤ E_U e^{(α−1)·D_α(P_U ‖ Q_U)} ≤ Π_j E e^{s·k_j²},   s = (α−1)·c_α,

where c_α is the largest ratio of one coordinate's divergence to its squared shift (`per_squared_shift`), over all
shifts up to g ≥ |k_j| and both directions. The bounds below are therefore never below the exact mixture:

    averaged      log Π_j E e^{s·k_j²} = Σ_j h(|Δ_j|),   h(n+f) = s·n² + log(1 − f + f·e^{s(2n+1)}),
                  and, for any λ ≥ 0, Σ_j h(|Δ_j|) ≤ λ·g² + d·max_{0≤t≤g} (h(t) − λ·t²)     (weak duality)
    coupled       s·K², because ‖k‖ ≤ K = g + √d always
    independent   s·K² with K = g + 2√d, because roundings without a common U differ from Δ by less than 2

In each n ≤ t ≤ n+1, h(t) − λ·t² is concave, and its maximum is the root of a quadratic. For small s and λ = s(1 + s/2)
the averaged bound is about s·(g² + d/4). Divergences add up over releases, also adaptive ones, and

    ε(δ) = min_α [ T·rdp_α + log(1 − 1/α) − log(δα)/(α−1) ].

This conversion compares densities point by point, so it also holds on the window below alone. The probability of a
release outside the window, at most d·T·τ, is added to δ. If `2·d·T·τ·e^ε > δ/1000`, no ε is stated.

Divergences of one coordinate are those of a binomial and itself shifted by 1, …, g, in both directions.
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

Source: derived for this implementation; the last step is from Canonne, Kamath & Steinke 2020.
"""

from functools import lru_cache
from math import ceil, exp, floor, inf, log, sqrt

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from fedprivjax.checks.values import require_at_least, require_between, require_choice
from fedprivjax.privacy.accountants.binomial.paper import Bits

REACH = 14.0  # half-width of the window around the mean or a tilted peak, in standard deviations
SMOOTH = 48.0  # smallest standard deviation for which terms are summed at steps of `STEP`
STEP = 0.5  # step in standard deviations
NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)
LARGEST = 600.0  # largest exponent without overflow
TINY = 1e-300  # keeps a logarithm finite if all mass is outside
PATCH = 2_000_000  # largest number of terms in memory at once
ROUNDINGS = ("averaged", "coupled", "independent")
SPARE = 1000  # the probability outside the window may cost at most δ/SPARE
SEARCHED = np.geomspace(0.1, 2.0, 60)  # α − 1 tried at the largest shift, divided by the Gaussian's best α − 1
REFINED = np.array([0.97, 1.0, 1.03])  # α − 1 evaluated at every shift, divided by the best of those
PRICES = np.array([0.0, 0.125, 0.25, 0.5, 1.0, 2.0])  # values of (λ/s − 1)/s


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


def gaussian_norm(levels: int, dimension: int, rounding: str = "averaged") -> float:
    """Return K, the shift's norm in levels in each bound, in the Gaussian limit of the binomial.

    >>> [round(gaussian_norm(64, 10, rounding), 2) for rounding in ("averaged", "coupled", "independent")]
    [64.02, 67.16, 70.32]
    """
    require_choice("rounding", rounding, ROUNDINGS)
    widths = {"coupled": sqrt(dimension), "independent": 2 * sqrt(dimension)}
    if rounding in widths:
        return levels + widths[rounding]
    # with more than 4g² coordinates the worst shift is spread over all of them, by less than half a level each
    return sqrt(levels**2 + dimension / 4 if dimension <= 4 * levels**2 else levels * sqrt(dimension))


@lru_cache(maxsize=65536)
def possible_epsilon(
    message: Bits, users: int, dimension: int, releases: int, delta: float, rounding: str = "averaged"
) -> float:
    """Return an upper bound on ε at δ of sums over n users in d coordinates, for replacing one user's record.

    It is inf if the noise's finite support is too small: `2·d·T·τ·e^ε > δ/1000`.

    Args:
        message: a user's bits for one coordinate.
        users: number of users in a sum who follow the protocol, n.
        dimension: d.
        releases: number of sums in which the same user takes part, T.
        delta: δ in (0, 1).
        rounding: "averaged", "coupled" or "independent"; see the module.

    Raises:
        ValueError: if a setting is out of range.

    >>> from fedprivjax.privacy.accountants.binomial.paper import bits
    >>> round(possible_epsilon(bits(0.145, 64), users=1000, dimension=10, releases=1, delta=1e-6), 2)
    0.99
    """
    for name, value in (("users", users), ("dimension", dimension), ("releases", releases)):
        require_at_least(name, value, 1)
    require_between("delta", delta, 0, 1)
    require_choice("rounding", rounding, ROUNDINGS)
    total, probability = users * message.trials, message.probability
    spill = dimension * releases * mass_outside(total, probability, message.levels)
    if spill >= delta / SPARE:
        return inf
    left = delta - spill
    orders = _orders(message, users, dimension, releases, left, rounding)
    unit = per_squared_shift(total, probability, message.levels, orders)
    divergences = releases * _moments((orders - 1) * unit, message.levels, dimension, rounding) / (orders - 1)
    epsilon = float(np.min(_converted(divergences, orders, left)))
    spilt = 2 * spill * exp(epsilon) if epsilon < 700 else inf
    return max(epsilon, 0.0) if spill == 0 or spilt <= delta / SPARE else inf


def _orders(message: Bits, users: int, dimension: int, releases: int, delta: float, rounding: str) -> np.ndarray:
    """Return orders near the best one for the largest shift. Any orders give a valid bound."""
    norm = gaussian_norm(message.levels, dimension, rounding)
    budget = releases * norm**2 / (2 * users * message.std**2)
    guess = sqrt(log(1 / delta) / budget)
    orders = 1 + guess * SEARCHED
    largest = shift_divergences(users * message.trials, message.probability, np.array([message.levels]), orders)[:, 0]
    converted = _converted(releases * largest * (norm / message.levels) ** 2, orders, delta)
    return 1 + guess * SEARCHED[int(np.argmin(converted))] * REFINED


def _converted(divergences: np.ndarray, orders: np.ndarray, delta: float) -> np.ndarray:
    """Return ε at δ from the divergence of each order, shape [orders]."""
    return divergences + np.log1p(-1 / orders) - (log(delta) + np.log(orders)) / (orders - 1)


def _moments(scales: np.ndarray, levels: int, dimension: int, rounding: str) -> np.ndarray:
    """Return an upper bound on `max_Δ log Π_j E e^{s·k_j²}`, ‖Δ‖ ≤ g, for each s."""
    norm = levels + (2 if rounding == "independent" else 1) * sqrt(dimension)
    always = scales * norm**2
    return np.minimum(always, _averaged(scales, levels, dimension)) if rounding == "averaged" else always


def _averaged(scales: np.ndarray, levels: int, dimension: int) -> np.ndarray:
    """Return the dual bound at the best of a few λ, shape [orders]."""
    s = scales[:, None, None]
    spread = max(1.0, sqrt(dimension) / (2 * levels))  # for shifts below one level h(t) is about s·t
    prices = s * np.array(sorted({1.0, spread}))[None, :, None] * (1 + s * PRICES)
    prices = prices.reshape(scales.size, -1, 1)
    n = np.arange(levels, dtype=float)
    with np.errstate(over="ignore"):
        growth = np.expm1(s * (2 * n + 1))  # e^{s(2n+1)} − 1
        inverse = 1 / growth
        root = inverse + n + np.sqrt((inverse - n) ** 2 + 2 / prices)
        fraction = np.clip((1 / prices - 2 * n * inverse) / root, 0, 1)
        gained = s * n**2 + np.log1p(fraction * growth) - prices * (n + fraction) ** 2
    bounds = prices[..., 0] * levels**2 + dimension * np.maximum(gained.max(axis=-1), 0)
    return bounds.min(axis=1)
