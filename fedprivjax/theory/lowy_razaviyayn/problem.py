"""Constants of a federated problem, shared by the theorems."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import at_least_one, counts, ordered, positive, validate


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a Lipschitz problem on machines with equally many records.

    All but the dimension may be arrays.

    Attributes:
        records: n, records of one machine; the fewest if machines differ.
        per_round: machines in a round, a number or a mean: M̃ by `average_or_max` for Algorithm 1 and the empirical
            rates, else M. Both are equal if machines are identical and their number is fixed.
        dimension: d, parameters of the model.
        diameter: D, bound on the distance from the start to the optimum.
        lipschitz: L, bound on the gradient norm of one record's loss; the largest if machines differ.

    Raises:
        Refusal: a number out of range.

    >>> ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=0.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: lipschitz must be positive and finite, got 0.0
    """

    records: Any
    per_round: Any
    dimension: int
    diameter: Any
    lipschitz: Any

    def __post_init__(self):
        counts(dimension=self.dimension)
        validate(self, records=at_least_one, per_round=at_least_one, diameter=positive, lipschitz=positive)


def curvatures(strong_convexity: ArrayLike, smoothness: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return μ and β as float64 arrays. Raise Refusal unless 0 < μ ≤ β."""
    mu, beta = positive("strong_convexity", strong_convexity), positive("smoothness", smoothness)
    ordered("strong_convexity", mu, "smoothness", beta)
    return mu, beta
