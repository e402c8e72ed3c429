"""Constants of a convex problem, shared by the rates and orders."""

from dataclasses import dataclass
from typing import Any

from fedprivjax.theory._numbers import at_least_one, positive, validate


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
