"""Gaussian differential privacy (GDP): conversions of the parameter μ.

A mechanism is μ-GDP if distinguishing two neighbouring datasets from its output is at least as hard as distinguishing
N(0, 1) from N(μ, 1) (Dong, Roth & Su 2022). All functions are exact for that pair, broadcast, and compute in float64.
They return scalars for scalars. μ = 0 reveals nothing, μ = inf is non-private.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal

_HALVINGS = 120  # more than enough to shrink a bracket below the spacing of float64


def delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """Return the smallest δ at which Gaussian differential privacy with parameter μ (μ-GDP) gives (ε, δ)-DP.

    `δ = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)`, with the standard normal distribution function Φ.

    Args:
        epsilon: ε, at least 0. It broadcasts against `mu`.
        mu: μ, at least 0. The result is 0 for μ = 0, and 1 for μ = inf and finite ε.

    Raises:
        ValueError: if an argument is negative or NaN.

    Source: Dong, Roth & Su 2022, Corollary 2.13; Balle & Wang 2018, Theorem 8.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    return _plain(_delta(_nonnegative("epsilon", epsilon), _nonnegative("mu", mu)))


def epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    """Return the smallest ε at which Gaussian differential privacy with parameter μ (μ-GDP) gives (ε, δ)-DP.

    Args:
        mu: μ, at least 0. The result is 0 for μ = 0, and inf for μ = inf.
        delta: δ in (0, 1). It broadcasts against `mu`.

    Raises:
        ValueError: if mu is negative or NaN, or delta is outside (0, 1).

    >>> [round(epsilon(mu, 1e-5), 1) for mu in (0.5, 1.0, 8.0)]
    [2.0, 4.4, 65.3]
    """
    mu, delta = np.broadcast_arrays(_nonnegative("mu", mu), _probability("delta", delta))
    finite = np.where(np.isfinite(mu), mu, 0.0)
    # e^ε·Φ(·) only lowers δ, so the whole meets δ if the first term alone does
    most = finite * np.maximum(finite / 2 - scipy.special.ndtri(delta), 0.0)
    private = _bisect(lambda value: _delta(value, finite) <= delta, np.zeros_like(most), most)
    result = np.where(_delta(np.zeros_like(finite), finite) <= delta, 0.0, private)
    return _plain(np.where(np.isfinite(mu), result, np.inf))


def mu(epsilon: ArrayLike, delta: ArrayLike | None = None) -> Any:
    """Return the largest μ for which Gaussian differential privacy with parameter μ (μ-GDP) gives (ε, δ)-DP.

    This function is the inverse of `epsilon`.

    Args:
        epsilon: ε, at least 0. The result is inf for ε = inf.
        delta: δ in (0, 1). It is required, and broadcasts against `epsilon`.

    Raises:
        ValueError: if epsilon is negative or NaN, or delta is missing or outside (0, 1).

    >>> round(mu(epsilon(2.0, 1e-5), 1e-5), 12)
    2.0
    """
    if delta is None:
        raise Refusal("delta must be given, as in gdp.mu(2.0, 1e-5), got none")
    epsilon, delta = np.broadcast_arrays(_nonnegative("epsilon", epsilon), _probability("delta", delta))
    finite = np.where(np.isfinite(epsilon), epsilon, 0.0)

    def leaks(value):
        return _delta(finite, value) > delta

    low, high = np.zeros_like(finite), np.sqrt(2 * finite) + 1.0
    while not (enough := leaks(high)).all():
        low, high = np.where(enough, low, high), np.where(enough, high, 2 * high)
    result = _bisect(leaks, low, high)
    return _plain(np.where(np.isfinite(epsilon), result, np.inf))


def rdp(mu: ArrayLike, order: ArrayLike) -> Any:
    """Return the largest Rényi divergence under Gaussian differential privacy with parameter μ: `α·μ²/2`.

    Here α > 1 is the `order` of the divergence. Theorems of Reshef & Levy have this form, with ρ for μ.

    Source: Mironov 2017, Corollary 3.

    >>> rdp(2.0, 3.0)
    6.0
    """
    order = np.asarray(order, float)
    if not (order > 1).all():
        raise Refusal(f"order must be above 1, got {order[~(order > 1)].flat[0]}")
    return _plain(order * _nonnegative("mu", mu) ** 2 / 2)


def zcdp(mu: ArrayLike) -> Any:
    """Return the parameter of zero-concentrated DP (zCDP) that Gaussian differential privacy with μ implies: `μ²/2`.

    Source: Bun & Steinke 2016, Proposition 1.6.

    >>> zcdp(2.0)
    2.0
    """
    return _plain(_nonnegative("mu", mu) ** 2 / 2)


def paper_epsilon(mu: ArrayLike, delta: ArrayLike) -> Any:
    """Convert μ of Gaussian differential privacy to ε at δ by a common formula: `ε = μ²/2 + μ·√(2·ln(1/δ))`.

    Many papers use this formula, which follows from Rényi divergences. Its result is never below the exact `epsilon`.

    Source: Reshef & Levy 2024 and 2025, section 2.

    >>> round(paper_epsilon(1.0, 1e-5), 2)
    5.3
    """
    mu = _nonnegative("mu", mu)
    return _plain(mu**2 / 2 + mu * np.sqrt(-2 * np.log(_probability("delta", delta))))


def compose(mus: ArrayLike) -> float:
    """Return μ of the composition of several Gaussian mechanisms: `√(Σ μ_k²)`, or 0 if there are none.

    Mechanism k has Gaussian differential privacy with μ_k, and may depend on the results of earlier mechanisms.

    Source: Dong, Roth & Su 2022, Corollary 3.3.

    >>> compose([3.0, 4.0])
    5.0
    """
    mus = _nonnegative("mus", mus)
    largest = float(np.max(mus, initial=0.0))
    if largest in (0.0, np.inf):
        return largest
    return largest * float(np.sqrt(np.sum((mus / largest) ** 2)))  # scaled to avoid under- and overflow


def _delta(epsilon: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Return `delta` without checks. e^ε·Φ(−y) = exp(−x²/2)·erfcx(y/√2)/2 avoids the overflow of e^ε."""
    ordinary = (mu > 0) & np.isfinite(mu) & np.isfinite(epsilon)
    safe = np.where(ordinary, mu, 1.0)
    with np.errstate(over="ignore"):
        x = np.clip(np.where(ordinary, epsilon, 0.0) / safe - safe / 2, -1e150, 1e150)
    first = scipy.special.log_ndtr(-x)
    second = np.log(scipy.special.erfcx((x + safe) / np.sqrt(2)) / 2) - x**2 / 2
    value = -np.exp(first) * np.expm1(np.minimum(second - first, 0.0))
    return np.where(ordinary, value, np.where(np.isinf(mu) & np.isfinite(epsilon), 1.0, 0.0))


def _bisect(holds: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the point at which a monotone condition, false at `low` and true at `high`, becomes true.

    It is the middle of the last bracket.
    """
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        true = holds(middle)
        low, high = np.where(true, low, middle), np.where(true, middle, high)
    return low + (high - low) / 2


def _plain(value: Any) -> Any:
    return np.asarray(value).item() if np.ndim(value) == 0 else value


def _nonnegative(name: str, value: ArrayLike) -> np.ndarray:
    value = np.asarray(value, float)
    if not (value >= 0).all():
        raise Refusal(f"{name} must be at least 0, got {value[~(value >= 0)].flat[0]}")
    return value


def _probability(name: str, value: ArrayLike) -> np.ndarray:
    value = np.asarray(value, float)
    inside = (value > 0) & (value < 1)
    if not inside.all():
        raise Refusal(f"{name} must be inside (0, 1), got {value[~inside].flat[0]}")
    return value
