"""Rates of the theorems, with constant 1, the exponents of Table 1, and the orders of the paper's settings.

Orders (of batch sizes and of the smoothness of envelopes) are real numbers with constant 1, for comparison. To choose
settings, use the scans of the explicit bounds.

With `trust="pan-private"`, `√ln(1/δ)` replaces the logarithm `ln(d/δ)`, and the rates are those of Theorem C.3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, plain, positive, probability, validate


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a Lipschitz problem with one record per user, and the privacy budget.

    Each number may be an array.

    Attributes:
        users: n, number of users.
        dimension: d, number of parameters.
        diameter: D, diameter of the constraint set.
        lipschitz: L, bound on the gradient norm of one record's loss.
        epsilon: ε of the whole run.
        delta: δ of the whole run.
        trust: "shuffler" for a trusted shuffler, or "pan-private" for a trusted server whose state must stay private.
            Rates for "pan-private" have √ln(1/δ) in place of ln(d/δ).
        sampling: True if rates include the statistical error, the term in 1/√n or 1/n. `sgd_rate` never has this term.

    Raises:
        Refusal: if a number is out of range.

    >>> ProblemConstants(users=10**4, dimension=16, diameter=-1.0, lipschitz=1.0, epsilon=1.0, delta=1e-6)
    Traceback (most recent call last):
    fedprivjax.Refusal: diameter must be positive and finite, got -1.0
    """

    users: Any
    dimension: Any
    diameter: Any
    lipschitz: Any
    epsilon: Any
    delta: Any
    trust: str = "shuffler"
    sampling: bool = True

    def __post_init__(self):
        validate(self, users=at_least_one, dimension=at_least_one, diameter=positive, lipschitz=positive)
        validate(self, epsilon=positive, delta=probability)
        require_choice("trust", self.trust, ("shuffler", "pan-private"))
        require_flag("sampling", self.sampling)

    @property
    def noise(self) -> np.ndarray:
        """The number `√d·ln(d/δ)/(εn)`, through which most rates depend on privacy.

        Here d is the number of parameters, n the number of users, and (ε, δ) the privacy budget. For trust
        "pan-private", the number is `√(d·ln(1/δ))/(εn)`.
        """
        shuffled = self.trust == "shuffler"
        log = np.log(self.dimension / self.delta) if shuffled else np.sqrt(np.log(1 / self.delta))
        return np.sqrt(self.dimension) * log / (self.epsilon * self.users)

    @property
    def full_noise(self) -> np.ndarray:
        """The number `√d·ln(d/δ)^{3/2}/(εn)`, through which rates with all users depend on privacy.

        Here d is the number of parameters, n the number of users behind a shuffler, and (ε, δ) the privacy budget.
        """
        if self.trust != "shuffler":
            raise Refusal(f"trust must be 'shuffler' for all users in every round, got {self.trust!r}")
        return self.noise * np.sqrt(np.log(self.dimension / self.delta))


class Exponents(NamedTuple):
    """Exponents a, b and c of a term `d^a·ε^b·n^c` in a bound, for d parameters, privacy budget ε and n users.

    * `dimension`: exponent a of d;
    * `epsilon`: exponent b of ε;
    * `users`: exponent c of n.
    """

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
"""Table 1 of the paper: exponents of the privacy term in its bounds, without logarithms.

The keys are a kind of loss, and "sequential" (every user takes part once) or "full" (all users in every round).
"""


def sgd_rate(problem: ProblemConstants) -> Any:
    """Excess loss of one-pass SGD for convex losses, up to a constant.

    Args:
        problem: constants d (parameters), D (diameter), L (Lipschitz constant), n (users), and ε and δ (privacy
            budget).

    Returns:
        `d^{1/4}·DL·√(ln(d/δ)/(εn))`.

    Source: Cheu et al. 2022, Theorem 4.1.

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(sgd_rate(problem), 4)
    0.0815
    """
    return plain(problem.diameter * problem.lipschitz * np.sqrt(problem.noise))


def convex_rate(problem: ProblemConstants) -> Any:
    """Excess loss of one pass of accelerated SGD for convex losses that need not be smooth, up to a constant.

    Accelerated SGD descends on Moreau envelopes, smooth lower approximations of the loss.

    Args:
        problem: constants D (diameter), L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy
            budget).

    Returns:
        `DL·[1/√n + (√d·ln(d/δ)/(εn))^{2/3}]`.

    Source: Cheu et al. 2022, Theorems 4.7 and C.3 (1).

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(convex_rate(problem), 4)
    0.0453
    """
    scale = problem.diameter * problem.lipschitz
    return plain(scale * (problem.sampling / np.sqrt(problem.users) + problem.noise ** (2 / 3)))


def smooth_rate(problem: ProblemConstants, *, smoothness: ArrayLike) -> Any:
    """Excess loss of one pass of accelerated SGD for smooth convex losses, up to a constant.

    Args:
        problem: constants D (diameter), L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy
            budget).
        smoothness: β, smoothness of the loss.

    Returns:
        `DL/√n + β^{1/5}D^{6/5}·(L·√d·ln(d/δ)/(εn))^{4/5}`.

    Source: Cheu et al. 2022, Theorems 4.3 and C.3 (2).

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(smooth_rate(problem, smoothness=1.0), 4)
    0.0281
    """
    curved = positive("smoothness", smoothness) ** 0.2 * problem.diameter**1.2
    sampled = problem.sampling * problem.diameter * problem.lipschitz / np.sqrt(problem.users)
    return plain(sampled + curved * (problem.lipschitz * problem.noise) ** 0.8)


def strong_rate(problem: ProblemConstants, *, strong_convexity: ArrayLike) -> Any:
    """Excess loss of accelerated SGD in phases (`strong_phases`) for strongly convex losses, up to a constant.

    Args:
        problem: constants L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy budget).
        strong_convexity: λ, strong convexity of the loss.

    Returns:
        `(L²/λ)·[1/n + (√d·ln(d/δ)/(εn))^{4/3}]`.

    Source: Cheu et al. 2022, Theorems 4.8 and C.3 (3).

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(strong_rate(problem, strong_convexity=1.0), 6)
    0.001347
    """
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale * (problem.sampling / problem.users + problem.noise ** (4 / 3)))


def strong_smooth_rate(problem: ProblemConstants, *, smoothness: ArrayLike, strong_convexity: ArrayLike) -> Any:
    """Excess loss of accelerated SGD in phases (`strong_phases`) for smooth strongly convex losses, up to a constant.

    Args:
        problem: constants L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy budget).
        smoothness: β, smoothness of the loss.
        strong_convexity: λ, strong convexity of the loss.

    Returns:
        `(L²/λ)·[1/n + √(β/λ)·d·(ln(d/δ)/(εn))²]`.

    Source: Cheu et al. 2022, Theorems 4.8 and C.3 (4), with the missing powers of λ restored from the proof.

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(strong_smooth_rate(problem, smoothness=4.0, strong_convexity=1.0), 6)
    0.000188
    """
    modulus = positive("strong_convexity", strong_convexity)
    root = np.sqrt(positive("smoothness", smoothness) / modulus)
    scale = problem.lipschitz**2 / modulus
    return plain(scale * (problem.sampling / problem.users + root * problem.noise**2))


def full_rate(problem: ProblemConstants) -> Any:
    """Excess loss of gradient descent with all users in every round, for convex losses, up to a constant.

    Args:
        problem: constants D (diameter), L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy
            budget). The theorem requires δ ≤ 1/n, which is not checked.

    Returns:
        `DL·[1/√n + √d·ln(d/δ)^{3/2}/(εn)]`.

    Raises:
        Refusal: if the problem's trust is "pan-private".

    Source: Cheu et al. 2022, Theorem 4.9.

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(full_rate(problem), 4)
    0.037
    """
    scale = problem.diameter * problem.lipschitz
    return plain(scale * (problem.sampling / np.sqrt(problem.users) + problem.full_noise))


def full_strong_rate(problem: ProblemConstants, *, strong_convexity: ArrayLike) -> Any:
    """Excess loss of gradient descent on groups of users (`gd_phases`) for strongly convex losses, up to a constant.

    Args:
        problem: constants L (Lipschitz constant), n (users), d (parameters), and ε and δ (privacy budget).
        strong_convexity: λ, strong convexity of the loss.

    Returns:
        `(L²/λ)·[1/n + d·ln(d/δ)³/(εn)²]`.

    Raises:
        Refusal: if the problem's trust is "pan-private".

    Source: Cheu et al. 2022, Theorem 4.9.

    >>> sizes = {"users": 10**4, "dimension": 16, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(full_strong_rate(problem, strong_convexity=1.0), 6)
    0.00083
    """
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale * (problem.sampling / problem.users + problem.full_noise**2))


def sgd_per_round_order(problem: ProblemConstants) -> Any:
    """Batch size of one-pass SGD in the paper, up to a constant.

    Args:
        problem: constants d (parameters), and ε and δ (privacy budget).

    Returns:
        `√d·ln(d/δ)/ε`.

    Source: Cheu et al. 2022, Theorem 4.1.

    >>> sizes = {"users": 10**5, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> round(sgd_per_round_order(ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)), 1)
    51.0
    """
    return plain(problem.users * problem.noise)


def agd_per_round_order(problem: ProblemConstants, *, smoothness: ArrayLike) -> Any:
    """Batch size of one pass of accelerated SGD in the paper, up to a constant.

    Args:
        problem: constants n (users), d (parameters), L (Lipschitz constant), D (diameter), and ε and δ (privacy
            budget).
        smoothness: β, smoothness of the loss.

    Returns:
        `n^{3/5}·(√d·ln(d/δ)·L/(εβD))^{2/5}`.

    Source: Cheu et al. 2022, Theorem 4.3.

    >>> sizes = {"users": 10**5, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(agd_per_round_order(problem, smoothness=1.0))
    4819
    """
    curved = positive("smoothness", smoothness) * problem.diameter
    return plain(problem.users * (problem.noise * problem.lipschitz / curved) ** 0.4)


def smoothed_smoothness_order(problem: ProblemConstants) -> Any:
    """Smoothness of the Moreau envelopes that the paper chooses for accelerated SGD, up to a constant.

    If the loss is not smooth, accelerated SGD descends on a Moreau envelope, a smooth lower approximation of the loss.

    Args:
        problem: constants L (Lipschitz constant), D (diameter), n (users), d (parameters), and ε and δ (privacy
            budget).

    Returns:
        `(L/D)·(εn/(√d·ln(d/δ)))^{2/3}`.

    Source: Cheu et al. 2022, Theorem 4.7.

    >>> sizes = {"users": 10**5, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(smoothed_smoothness_order(problem))
    157
    """
    return plain(problem.lipschitz / problem.diameter * problem.noise ** (-2 / 3))


def smoothed_per_round_order(problem: ProblemConstants) -> Any:
    """Batch size of one pass of accelerated SGD on Moreau envelopes in the paper, up to a constant.

    Moreau envelopes are smooth lower approximations of the loss. Their smoothness is `smoothed_smoothness_order`.

    Args:
        problem: constants n (users), d (parameters), and ε and δ (privacy budget).

    Returns:
        `n^{1/3}·(√d·ln(d/δ)/ε)^{2/3}`.

    Source: Cheu et al. 2022, Theorem 4.7.

    >>> sizes = {"users": 10**5, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = ProblemConstants(epsilon=1.0, delta=1e-6, **sizes)
    >>> round(smoothed_per_round_order(problem))
    638
    """
    return plain(problem.users * problem.noise ** (2 / 3))
