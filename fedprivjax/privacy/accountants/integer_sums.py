"""Rényi divergence of integer sums with Skellam noise, or with discrete Gaussian noise of every machine.

A machine's message is a vector z of D integers with ‖z‖₂ ≤ Δ₂ and ‖z‖₁ ≤ Δ₁. The noise of a message has variance v in
every coordinate, and n machines send. α is the order, an integer above 1.

**Skellam noise** (Agarwal, Kairouz & Liu, NeurIPS 2021), the difference of two Poisson(v/2): the sum's noise is Skellam
noise of variance w = n·v, and Theorem 3.5 bounds the divergence by

    α·Δ₂²/(2w) + min(((2α − 1)·Δ₂² + 6·Δ₁)/(4w²), 3·Δ₁/(2w))

**Discrete Gaussian noise** (Kairouz, Liu & Steinke, ICML 2021): the sum's noise is not discrete Gaussian. Its
probabilities are those of N_Z(0, n·v) up to factors e^±(τ/2), and Proposition 14 bounds the divergence by

    min(α·Δ₂²/(2w) + τ·D, α/2·(Δ₂²/w + 2τ·Δ₁/√w + τ²·D)),  τ = 10·Σ_{k=1}^{n−1} exp(−2π²·v·k/(k + 1))

for v ≥ 1/4. Its third form, α/2·(Δ₂/√w + τ·√D)², is never smaller. The noise of one message alone gives α·Δ₂²/(2v), by
post-processing, for every v.

Orders of releases add up. The order with the smallest ε is taken (Canonne, Kamath & Steinke 2020, Proposition 12).
"""

from collections.abc import Callable
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.noise.integer_noise import distance_from_discrete_gaussian

BETA = exp(-0.5)  # the authors' probability with which one rounding may exceed its bound
ORDERS = np.unique(np.concatenate([np.arange(2, 257), np.geomspace(257, 2**17, 200).round()]))
LEAST_VARIANCE = 0.25  # of discrete Gaussian noise, from which τ holds


class Norms(NamedTuple):
    """Bounds on the norms by which the protected unit moves one integer sum, and D, the number of its integers."""

    l2: float
    l1: float
    numbers: int


def rounded_norm(norm: Any, beta: float, dimension: int) -> Any:
    """Return a bound on the L2 norm of a vector after each coordinate was randomly rounded to an integer.

    Each coordinate is rounded up or down at random, such that its mean does not change. For a vector of D coordinates
    and norm at most c, the bound is

        min(c + √D, √(c² + D/4 + √(2·ln(1/β))·(c + √D/2)))

    The norm exceeds this bound with probability at most β (Kairouz, Liu & Steinke 2021, Theorem 1).

    Args:
        norm: c, bound on the L2 norm before rounding.
        beta: β in [0, 1). If it is 0, the bound is c + √D, which is never exceeded.
        dimension: D, number of coordinates.

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
    Norms(l2=6.0, l1=12.0, numbers=4)
    """
    return Norms(vectors * l2, vectors * min(sqrt(dimension) * l2, l2**2), dimension)


def skellam_rdp(orders: np.ndarray, norms: Norms, variance: float, senders: int) -> np.ndarray:
    """Return the Rényi divergence of one sum with Skellam noise at integer orders, in the shape of `orders`.

    Args:
        variance: v, of the noise of one message.
        senders: n, number of messages in the sum.

    >>> skellam_rdp(np.array([2.0]), Norms(1.0, 1.0, 1), 10.0, 10).round(6)
    array([0.010225])
    """
    square, total = norms.l2**2, variance * senders
    small = ((2 * orders - 1) * square + 6 * norms.l1) / (4 * total**2)
    return orders * square / (2 * total) + np.minimum(small, 1.5 * norms.l1 / total)


def discrete_gaussian_rdp(orders: np.ndarray, norms: Norms, variance: float, senders: int) -> np.ndarray:
    """Return the Rényi divergence of one sum with discrete Gaussian noise in every message, in the shape of `orders`.

    Args:
        variance: v, of the noise of one message.
        senders: n, number of messages in the sum.

    >>> discrete_gaussian_rdp(np.array([2.0]), Norms(1.0, 1.0, 1), 10.0, 10).round(6)
    array([0.01])
    """
    alone = orders * norms.l2**2 / (2 * variance)
    if variance < LEAST_VARIANCE:
        return alone
    total, tau = variance * senders, distance_from_discrete_gaussian(variance, senders)
    one = orders * norms.l2**2 / (2 * total) + tau * norms.numbers
    square = norms.l2**2 / total + 2 * tau * norms.l1 / sqrt(total) + tau**2 * norms.numbers
    return np.minimum(alone, np.minimum(one, orders / 2 * square))


def epsilon_of_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Return the smallest ε at δ over the orders, `ρ + ln(1 − 1/α) − ln(δ·α)/(α − 1)`, and at least 0.

    >>> orders = np.arange(2.0, 100.0)
    >>> round(epsilon_of_rdp(orders, orders / 2, 1e-5), 2)
    4.75
    """
    found = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(np.min(found)))


class IntegerDistribution(NamedTuple):
    """Distribution of the noise of integer messages, for the accountant and for printed guarantees.

    Attributes:
        rdp: Rényi divergence of a sum from orders, norms, variance of a message's noise, and number of messages.
        theorem: theorem of a round's sum.
        summed: fact about the sum of independent noises.
        sampled: distribution from which noise is sampled.
    """

    rdp: Callable[[np.ndarray, Norms, float, int], np.ndarray]
    theorem: str
    summed: str
    sampled: str


DISTRIBUTIONS = {
    "skellam": IntegerDistribution(
        skellam_rdp,
        "Agarwal, Kairouz & Liu 2021, Theorem 3.5: rotated, rounded updates with Skellam noise, modulo 2^b",
        "the sum of independent Skellam noises is Skellam noise",
        "Poisson",
    ),
    "discrete-gaussian": IntegerDistribution(
        discrete_gaussian_rdp,
        "Kairouz, Liu & Steinke 2021, Proposition 14: rotated, rounded updates with discrete Gaussian noise, mod 2^b",
        "the sum of independent discrete Gaussian noises is nearly discrete Gaussian, with its distance counted",
        "discrete Gaussian",
    ),
}


def integer_epsilon(
    distribution: str, norms: Norms, variance: float, senders: int, releases: int, delta: float
) -> float:
    """Return ε at δ of several released sums of noisy integer messages, or inf if there is no noise.

    Each sender adds independent noise to its message, and only sums of messages are seen.

    Args:
        distribution: distribution of a message's noise, "skellam" or "discrete-gaussian".
        norms: `Norms(l2, l1, numbers)`: bounds on the L2 and L1 norm of the change of a sum by the protected unit, and
            the number of coordinates.
        variance: noise variance of one coordinate of a message.
        senders: number of messages in a sum.
        releases: number of sums.
        delta: δ in (0, 1).

    >>> [round(integer_epsilon(name, Norms(10.0, 100.0, 16), 40.0, 10, 10, 1e-5), 2) for name in DISTRIBUTIONS]
    [8.11, 8.09]
    """
    if not variance * senders > 0:
        return inf
    rdp = DISTRIBUTIONS[distribution].rdp(ORDERS, norms, variance, senders)
    return epsilon_of_rdp(ORDERS, releases * rdp, delta)
