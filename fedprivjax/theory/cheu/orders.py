"""Orders of the paper's batch sizes and of the smoothness of its envelopes: real numbers, with constant 1.

They are for comparison. To choose settings, use the scans of the explicit bounds. With `trust="pan-private"`,
`√ln(1/δ)` replaces `ln(d/δ)`.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import plain, positive
from fedprivjax.theory.cheu.problem import ProblemConstants
from fedprivjax.theory.cheu.rates import private_size


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
