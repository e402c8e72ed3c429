"""Gradients as vectors: sums, scaling and norms without materialising them.

A linear predictor's gradient stays factored (`Outer`) until the cohort's sum, which is one matrix product. The gradient
of any other model is a pytree (`Dense`). A method's machine code uses only these operations, and works for both.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class Vector:
    """Arithmetic shared by both classes. `_map` applies a function to the component on which operations act."""

    __array_ufunc__ = None  # NumPy scalars defer to the vector's __rmul__

    def _map(self, function, *others) -> Any:
        raise TypeError("a gradient must define _map")

    def norm(self) -> Any:
        raise TypeError("a gradient must define norm")

    def __add__(self, other):
        return self._map(jnp.add, other)

    def __sub__(self, other):
        return self._map(jnp.subtract, other)

    def __mul__(self, scalar):
        return self._map(lambda leaf: scalar * leaf)

    __rmul__ = __mul__


@struct.dataclass
class Outer(Vector):
    """Factored gradient `residual ⊗ features`: residual [outputs] or [], features [features], feature_norm []."""

    residual: jax.Array
    features: jax.Array
    feature_norm: jax.Array

    def _map(self, function, *others):
        return replace(self, residual=function(self.residual, *(other.residual for other in others)))

    def norm(self):
        return length(self.residual) * self.feature_norm

    def written_out(self):
        return jnp.multiply.outer(self.residual, self.features)

    def total(self):
        """Return the sum over a leading axis of vectors, with the parameters' shape: one matrix product."""
        return jnp.tensordot(self.residual, self.features, axes=(0, 0))


@struct.dataclass
class Dense(Vector):
    """Dense gradient, a pytree with the parameters' structure."""

    value: Any

    def _map(self, function, *others):
        return Dense(jax.tree.map(function, self.value, *(other.value for other in others)))

    def norm(self):
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(self.value)))

    def written_out(self):
        return self.value

    def total(self):
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), self.value)


def length(vector):
    """Return the Euclidean norm of an array, accurate also if squares underflow or overflow float32.

    >>> [round(float(length(jnp.array(one))), 3) for one in ([3.0, 4.0], -2.0, [0.0, 0.0])]
    [5.0, 2.0, 0.0]
    >>> bool(4.9e-30 < length(jnp.array([3e-30, 4e-30])) < 5.1e-30)
    True
    """
    largest = jnp.max(jnp.abs(vector))
    return largest * jnp.linalg.norm(jnp.ravel(vector) / jnp.where(largest > 0, largest, 1.0))


def scaled(vector, weight):
    """Return `weight · vector`, exactly 0 for weight 0 even if the vector is infinite or NaN.

    >>> scaled(Dense(jnp.array([jnp.inf, 4.0])), 0.0).value.tolist()
    [0.0, 0.0]
    """
    return vector._map(lambda leaf: jnp.where(weight != 0, weight * leaf, 0.0))
