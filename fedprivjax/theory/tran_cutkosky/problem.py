"""Constants of a smooth problem that need not be convex, shared by the bounds."""

from dataclasses import dataclass
from typing import Any

from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, positive, validate


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemConstants:
    """Constants of a smooth Lipschitz problem. All but the dimension may be arrays.

    Attributes:
        records: N, also the rounds of an epoch.
        dimension: d, parameters of the model.
        lipschitz: G, bound on the gradient norm of one record's loss; for noise in general, half of a leaf's
            sensitivity.
        smoothness: L.

    Raises:
        Refusal: a number out of range.

    >>> ProblemConstants(records=0, dimension=10, lipschitz=1.0, smoothness=1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: records must be at least 1 and finite, got 0.0
    """

    records: Any
    dimension: int
    lipschitz: Any
    smoothness: Any

    def __post_init__(self):
        counts(dimension=self.dimension)
        validate(self, records=at_least_one, lipschitz=positive, smoothness=nonnegative)
