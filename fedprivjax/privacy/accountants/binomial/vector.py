r"""Accounting of d coordinates by Rényi differential privacy: ε from a user's noise, with three bounds on rounding.

A replaced record moves a user's vector by Δ, in levels, with ‖Δ‖₂ ≤ g, before rounding. If both records are rounded
with one uniform U_j per coordinate, `⌈u_j − U_j⌉` and `⌈u'_j − U_j⌉` have the records' distributions, and differ by

    k_j = ⌊Δ_j⌋ or ⌈Δ_j⌉,  the latter with probability frac(Δ_j).

Both releases are mixtures over U of shifted binomials, P = E P_U and Q = E Q_U. Because `∫ p^α·q^{1−α}` is jointly
convex,

    e^{(α−1)·D_α(P ‖ Q)} ≤ E_U e^{(α−1)·D_α(P_U ‖ Q_U)} ≤ Π_j E e^{s·k_j²},   s = (α−1)·c_α,

where c_α is the largest ratio of one coordinate's divergence to its squared shift (`renyi.per_squared_shift`), over all
shifts up to g ≥ |k_j| and both directions. The bounds below are therefore never below the exact mixture:

    averaged      log Π_j E e^{s·k_j²} = Σ_j h(|Δ_j|),   h(n+f) = s·n² + log(1 − f + f·e^{s(2n+1)}),
                  and, for any λ ≥ 0, Σ_j h(|Δ_j|) ≤ λ·g² + d·max_{0≤t≤g} (h(t) − λ·t²)     (weak duality)
    coupled       s·K², because ‖k‖ ≤ K = g + √d always
    independent   s·K² with K = g + 2√d, because roundings without a common U differ from Δ by less than 2

In each n ≤ t ≤ n+1, h(t) − λ·t² is concave, and its maximum is the root of a quadratic. For small s and λ = s(1 + s/2)
the averaged bound is about s·(g² + d/4). Divergences add up over releases, also adaptive ones, and

    ε(δ) = min_α [ T·rdp_α + log(1 − 1/α) − log(δα)/(α−1) ].

This conversion compares densities point by point, so it also holds on the window of `renyi` alone. The probability of a
release outside the window, at most d·T·τ, is added to δ. If `2·d·T·τ·e^ε > δ/1000`, no ε is stated.

Source: derived for this implementation; the last step is from Canonne, Kamath & Steinke 2020.
"""

from functools import lru_cache
from math import exp, inf, log, sqrt

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice
from fedprivjax.privacy.accountants.binomial.parameters import Bits
from fedprivjax.privacy.accountants.binomial.renyi import mass_outside, per_squared_shift, shift_divergences

ROUNDINGS = ("averaged", "coupled", "independent")
SPARE = 1000  # the probability outside the window may cost at most δ/SPARE
SEARCHED = np.geomspace(0.1, 2.0, 60)  # α − 1 tried at the largest shift, divided by the Gaussian's best α − 1
REFINED = np.array([0.97, 1.0, 1.03])  # α − 1 evaluated at every shift, divided by the best of those
PRICES = np.array([0.0, 0.125, 0.25, 0.5, 1.0, 2.0])  # values of (λ/s − 1)/s


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


def vector_epsilon(
    message: Bits, users: int, dimension: int, releases: int, delta: float, rounding: str = "averaged"
) -> float:
    """Return an upper bound on ε at δ of sums over n users in d coordinates, for replacing one user's record.

    Args:
        message: a user's bits for one coordinate.
        users: number of users in a sum who follow the protocol, n.
        dimension: d.
        releases: number of sums in which the same user takes part, T.
        delta: δ in (0, 1).
        rounding: "averaged", "coupled" or "independent"; see the module.

    Raises:
        ValueError: if a setting is out of range, or the noise's finite support is too small: `2·d·T·τ·e^ε > δ/1000`.

    >>> from fedprivjax.privacy.accountants.binomial.parameters import bits
    >>> round(vector_epsilon(bits(0.145, 64), users=1000, dimension=10, releases=1, delta=1e-6), 2)
    0.99
    """
    found = possible_epsilon(message, users, dimension, releases, delta, rounding)
    if found == inf:
        total = users * message.trials
        raise Refusal(
            f"trials must be more, for {message.levels} levels stand out from Binomial({total}, "
            f"{message.probability:.3g}) too often at delta {delta} with {dimension} coordinates, releases {releases}"
        )
    return found


@lru_cache(maxsize=65536)
def possible_epsilon(
    message: Bits, users: int, dimension: int, releases: int, delta: float, rounding: str = "averaged"
) -> float:
    """Return `vector_epsilon`, or inf if the noise's finite support is too small."""
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
