"""Rényi divergence of Skellam noise in integer sums (Agarwal, Kairouz & Liu, NeurIPS 2021).

A machine's message is a vector z of D integers with ‖z‖₂ ≤ Δ₂ and ‖z‖₁ ≤ Δ₁. The sum of messages has Skellam noise,
of variance v in every coordinate: the difference of two Poisson(v/2). Theorem 3.5 bounds the divergence of order
α, an integer above 1, by

    α·Δ₂²/(2v) + min(((2α − 1)·Δ₂² + 6·Δ₁)/(4v²), 3·Δ₁/(2v))

Orders of releases add up. The order with the smallest ε is taken (Canonne, Kamath & Steinke 2020, Proposition 12).
"""

from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

BETA = exp(-0.5)  # the authors' probability with which one rounding may exceed its bound
ORDERS = np.unique(np.concatenate([np.arange(2, 257), np.geomspace(257, 2**17, 200).round()]))


class Norms(NamedTuple):
    """Bounds on the norms by which the protected unit moves one integer sum."""

    l2: float
    l1: float


def rounded_norm(norm: Any, beta: float, dimension: int) -> Any:
    """Return Δ₂: the bound on the L2 norm of a rounded vector, within which one rounding is with probability 1 − β.

    `min(c + √D, √(c² + D/4 + √(2·ln(1/β))·(c + √D/2)))`, Theorem 1 of Kairouz, Liu & Steinke 2021.

    Args:
        norm: c, bound on the norm of the vector in units of the integers; may be traced.
        beta: β in [0, 1). 0 gives the bound of every rounding.
        dimension: D.

    >>> rounded_norm(10.0, 0.0, 16), round(rounded_norm(10.0, BETA, 16), 3)
    (14.0, 10.77)
    """
    always = norm + dimension**0.5
    if beta == 0:
        return always
    spread = sqrt(2 * log(1 / beta))
    likely = (norm**2 + dimension / 4 + spread * (norm + dimension**0.5 / 2)) ** 0.5
    return (always + likely - abs(always - likely)) / 2  # the smaller one, also of traced numbers


def norms_of(l2: float, dimension: int, vectors: int) -> Norms:
    """Return the norms of a change of `vectors` integer vectors of L2 norm Δ₂, with Δ₁ = min(√D·Δ₂, Δ₂²) of each.

    >>> norms_of(3.0, 4, 2)
    Norms(l2=6.0, l1=12.0)
    """
    return Norms(vectors * l2, vectors * min(sqrt(dimension) * l2, l2**2))


def skellam_rdp(orders: np.ndarray, norms: Norms, variance: float) -> np.ndarray:
    """Return the Rényi divergence of one sum at integer orders, in the shape of `orders`.

    >>> skellam_rdp(np.array([2.0]), Norms(1.0, 1.0), 100.0).round(6)
    array([0.010225])
    """
    square = norms.l2**2
    small = ((2 * orders - 1) * square + 6 * norms.l1) / (4 * variance**2)
    return orders * square / (2 * variance) + np.minimum(small, 1.5 * norms.l1 / variance)


def epsilon_of_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Return the smallest ε at δ over the orders, `ρ + ln(1 − 1/α) − ln(δ·α)/(α − 1)`, and at least 0.

    >>> orders = np.arange(2.0, 100.0)
    >>> round(epsilon_of_rdp(orders, orders / 2, 1e-5), 2)
    4.75
    """
    found = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(np.min(found)))


def skellam_epsilon(norms: Norms, variance: float, releases: int, delta: float) -> float:
    """Return ε at δ of a number of sums, or inf without noise.

    >>> round(skellam_epsilon(Norms(10.0, 100.0), 400.0, 10, 1e-5), 2)
    8.11
    """
    if not variance > 0:
        return inf
    return epsilon_of_rdp(ORDERS, releases * skellam_rdp(ORDERS, norms, variance), delta)
