"""Rates of the theorems, with constant 1, the exponents of Table 1, and the orders of the paper's settings.

Orders (of batch sizes and of the smoothness of envelopes) are real numbers with constant 1, for comparison. To choose
settings, use the scans of the explicit bounds.

With `trust="pan-private"`, `√ln(1/δ)` replaces the logarithm `ln(d/δ)`, and the rates are those of Theorem C.3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, plain, positive, probability, validate


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a Lipschitz problem with one record per user. Each may be an array.

    Attributes:
        users: n.
        dimension: d, parameters of the model.
        diameter: D, of the constraint set.
        lipschitz: L, bound on the gradient norm of one record's loss.

    Raises:
        Refusal: a number out of range.

    >>> ProblemConstants(users=10**4, dimension=16, diameter=-1.0, lipschitz=1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: diameter must be positive and finite, got -1.0
    """

    users: Any
    dimension: Any
    diameter: Any
    lipschitz: Any

    def __post_init__(self):
        validate(self, users=at_least_one, dimension=at_least_one, diameter=positive, lipschitz=positive)


class Exponents(NamedTuple):
    """Exponents of a privacy term in the dimension, ε and the number of users."""

    dimension: float
    epsilon: float
    users: float


TABLE_1 = {
    ("convex", "sequential"): Exponents(1 / 3, -2 / 3, -2 / 3),
    ("convex", "full"): Exponents(1 / 2, -1.0, -1.0),
    ("smooth", "sequential"): Exponents(2 / 5, -4 / 5, -4 / 5),
    ("smooth", "full"): Exponents(1 / 2, -1.0, -1.0),
    ("strong", "sequential"): Exponents(2 / 3, -4 / 3, -4 / 3),
    ("strong", "full"): Exponents(1.0, -2.0, -2.0),
    ("strong-smooth", "sequential"): Exponents(1.0, -2.0, -2.0),
    ("strong-smooth", "full"): Exponents(1.0, -2.0, -2.0),
}
"""Table 1 by loss and interaction: exponents of the terms that are due to privacy, without logarithms."""


def sgd_rate(problem: ProblemConstants, *, epsilon: ArrayLike, delta: float) -> Any:
    """Rate of P_SGD for convex losses: `d^{1/4}·DL·√(ln(d/δ)/(εn))`.

    Source: Cheu et al. 2022, Theorem 4.1.

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(sgd_rate(problem, epsilon=1.0, delta=1e-6), 4)
    0.0815
    """
    noise = private_size("shuffler", problem.dimension, epsilon, delta) / problem.users
    return plain(problem.diameter * problem.lipschitz * np.sqrt(noise))


def convex_rate(
    problem: ProblemConstants, *, epsilon: ArrayLike, delta: float, trust: str = "shuffler", sampling: bool = True
) -> Any:
    """Rate of one pass for convex losses, on Moreau envelopes: `DL·[1/√n + (√d·ln(d/δ)/(εn))^{2/3}]`.

    Args:
        sampling: False omits the first term, as for the other rates.

    Source: Cheu et al. 2022, Theorems 4.7 and C.3 (1).

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(convex_rate(problem, epsilon=1.0, delta=1e-6), 4)
    0.0453
    """
    n, noise = problem.users, private_size(trust, problem.dimension, epsilon, delta)
    scale = problem.diameter * problem.lipschitz
    return plain(scale * (_fresh(sampling) / np.sqrt(n) + (noise / n) ** (2 / 3)))


def smooth_rate(
    problem: ProblemConstants,
    *,
    epsilon: ArrayLike,
    delta: float,
    smoothness: ArrayLike,
    trust: str = "shuffler",
    sampling: bool = True,
) -> Any:
    """Rate of one pass for smooth convex losses: `DL/√n + β^{1/5}D^{6/5}·(L·√d·ln(d/δ)/(εn))^{4/5}`.

    Source: Cheu et al. 2022, Theorems 4.3 and C.3 (2).

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(smooth_rate(problem, epsilon=1.0, delta=1e-6, smoothness=1.0), 4)
    0.0281
    """
    n, noise = problem.users, private_size(trust, problem.dimension, epsilon, delta)
    private = positive("smoothness", smoothness) ** 0.2 * problem.diameter**1.2 * (problem.lipschitz * noise / n) ** 0.8
    return plain(_fresh(sampling) * problem.diameter * problem.lipschitz / np.sqrt(n) + private)


def strong_rate(
    problem: ProblemConstants,
    *,
    epsilon: ArrayLike,
    delta: float,
    strong_convexity: ArrayLike,
    trust: str = "shuffler",
    sampling: bool = True,
) -> Any:
    """Rate of one pass for strongly convex losses: `(L²/λ)·[1/n + (√d·ln(d/δ)/(εn))^{4/3}]`.

    Source: Cheu et al. 2022, Theorems 4.8 and C.3 (3).

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(strong_rate(problem, epsilon=1.0, delta=1e-6, strong_convexity=1.0), 6)
    0.001347
    """
    n, noise = problem.users, private_size(trust, problem.dimension, epsilon, delta)
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale * (_fresh(sampling) / n + (noise / n) ** (4 / 3)))


def strong_smooth_rate(
    problem: ProblemConstants,
    *,
    epsilon: ArrayLike,
    delta: float,
    smoothness: ArrayLike,
    strong_convexity: ArrayLike,
    trust: str = "shuffler",
    sampling: bool = True,
) -> Any:
    """Rate of one pass for smooth strongly convex losses: `(L²/λ)·[1/n + √(β/λ)·d·(ln(d/δ)/(εn))²]`.

    Source: Cheu et al. 2022, Theorems 4.8 and C.3 (4), with the missing powers of λ restored from the proof.

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(strong_smooth_rate(problem, epsilon=1.0, delta=1e-6, smoothness=4.0, strong_convexity=1.0), 6)
    0.000188
    """
    n, noise = problem.users, private_size(trust, problem.dimension, epsilon, delta)
    modulus = positive("strong_convexity", strong_convexity)
    root = np.sqrt(positive("smoothness", smoothness) / modulus)
    scale = problem.lipschitz**2 / modulus
    return plain(scale * (_fresh(sampling) / n + root * (noise / n) ** 2))


def full_rate(problem: ProblemConstants, *, epsilon: ArrayLike, delta: float, sampling: bool = True) -> Any:
    """Rate of P_GD for convex losses: `DL·[1/√n + √d·ln(d/δ)^{3/2}/(εn)]`, for δ ≤ 1/n.

    Source: Cheu et al. 2022, Theorem 4.9.

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(full_rate(problem, epsilon=1.0, delta=1e-6), 4)
    0.037
    """
    n, noise = problem.users, _full_noise(problem.dimension, epsilon, delta)
    scale = problem.diameter * problem.lipschitz
    return plain(scale * (_fresh(sampling) / np.sqrt(n) + noise / n))


def full_strong_rate(
    problem: ProblemConstants,
    *,
    epsilon: ArrayLike,
    delta: float,
    strong_convexity: ArrayLike,
    sampling: bool = True,
) -> Any:
    """Rate of P_GD in groups for strongly convex losses: `(L²/λ)·[1/n + d·ln(d/δ)³/(εn)²]`.

    Source: Cheu et al. 2022, Theorem 4.9.

    >>> problem = ProblemConstants(users=10**4, dimension=16, diameter=1.0, lipschitz=1.0)
    >>> round(full_strong_rate(problem, epsilon=1.0, delta=1e-6, strong_convexity=1.0), 6)
    0.00083
    """
    n, noise = problem.users, _full_noise(problem.dimension, epsilon, delta)
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale * (_fresh(sampling) / n + (noise / n) ** 2))


def sgd_per_round_order(*, dimension: ArrayLike, epsilon: ArrayLike, delta: float) -> Any:
    """Order of the batch size of P_SGD: `b = √d·ln(d/δ)/ε`.

    Source: Cheu et al. 2022, Theorem 4.1.

    >>> round(sgd_per_round_order(dimension=10, epsilon=1.0, delta=1e-6), 1)
    51.0
    """
    return plain(private_size("shuffler", dimension, epsilon, delta))


def agd_per_round_order(
    problem: ProblemConstants, *, epsilon: ArrayLike, delta: float, smoothness: ArrayLike, trust: str = "shuffler"
) -> Any:
    """Order of the batch size of P_AGD: `b = n^{3/5}·(√d·ln(d/δ)·L/(εβD))^{2/5}`.

    Source: Cheu et al. 2022, Theorem 4.3.

    >>> problem = ProblemConstants(users=10**5, dimension=10, diameter=1.0, lipschitz=1.0)
    >>> round(agd_per_round_order(problem, epsilon=1.0, delta=1e-6, smoothness=1.0))
    4819
    """
    noise = private_size(trust, problem.dimension, epsilon, delta) * problem.lipschitz
    curved = positive("smoothness", smoothness) * problem.diameter
    return plain(problem.users**0.6 * (noise / curved) ** 0.4)


def smoothed_smoothness_order(
    problem: ProblemConstants, *, epsilon: ArrayLike, delta: float, trust: str = "shuffler"
) -> Any:
    """Order of the smoothness of the envelopes of P_AGD: `β = (L/D)·(εn/(√d·ln(d/δ)))^{2/3}`.

    The β that minimises the order of the bound is 2.15 times as large.

    Source: Cheu et al. 2022, Theorem 4.7.

    >>> problem = ProblemConstants(users=10**5, dimension=10, diameter=1.0, lipschitz=1.0)
    >>> round(smoothed_smoothness_order(problem, epsilon=1.0, delta=1e-6))
    157
    """
    relative = problem.users / private_size(trust, problem.dimension, epsilon, delta)
    return plain(problem.lipschitz / problem.diameter * relative ** (2 / 3))


def smoothed_per_round_order(
    problem: ProblemConstants, *, epsilon: ArrayLike, delta: float, trust: str = "shuffler"
) -> Any:
    """Order of the batch size of P_AGD on these envelopes: `b = n^{1/3}·(√d·ln(d/δ)/ε)^{2/3}`.

    Source: Cheu et al. 2022, Theorem 4.7.

    >>> problem = ProblemConstants(users=10**5, dimension=10, diameter=1.0, lipschitz=1.0)
    >>> round(smoothed_per_round_order(problem, epsilon=1.0, delta=1e-6))
    638
    """
    noise = private_size(trust, problem.dimension, epsilon, delta)
    return plain(np.cbrt(problem.users * noise**2))


def private_size(trust: str, dimension: ArrayLike, epsilon: ArrayLike, delta: float) -> np.ndarray:
    """Return `√d·ln(d/δ)/ε`, or `√(d·ln(1/δ))/ε` for the pan-private method."""
    require_choice("trust", trust, ("shuffler", "pan-private"))
    d, small = at_least_one("dimension", dimension), probability("delta", delta)
    log = np.log(d / small) if trust == "shuffler" else np.sqrt(np.log(1 / small))
    return np.sqrt(d) * log / positive("epsilon", epsilon)


def _full_noise(dimension: np.ndarray, epsilon: ArrayLike, delta: float) -> np.ndarray:
    log = np.log(dimension / probability("delta", delta))
    return private_size("shuffler", dimension, epsilon, delta) * np.sqrt(log)


def _fresh(sampling: bool) -> float:
    require_flag("sampling", sampling)
    return 1.0 if sampling else 0.0
