"""Constraint sets: a projection and a diameter."""

from math import inf
from typing import Any

import jax
import numpy as np
import optax
from flax import struct

from fedprivjax.checks.values import require_positive


@struct.dataclass
class Ball:
    """The Euclidean ball of a radius about zero, over all parameters together; its diameter is twice the radius.

    >>> Ball(0.05).diameter
    0.1
    """

    radius: Any

    def __post_init__(self):
        require_positive("radius", self.radius)

    @property
    def diameter(self):
        return 2 * self.radius

    def project(self, params):
        """The nearest point of the ball, of the same pytree structure as `params`."""
        return optax.projections.projection_l2_ball(params, self.radius)

    def contains(self, params) -> bool:
        """Whether concrete `params` lie in the ball, up to float32 rounding."""
        norm = np.sqrt(sum(float(np.sum(np.square(np.asarray(p, np.float64)))) for p in jax.tree.leaves(params)))
        return bool(norm <= float(self.radius) * (1 + 1e-6))


@struct.dataclass
class WholeSpace:
    """No constraint: the projection is the identity and the diameter infinite."""

    @property
    def radius(self) -> float:
        return inf

    @property
    def diameter(self) -> float:
        return inf

    def project(self, params):
        return params

    def contains(self, params) -> bool:
        return True
