"""Gradients as vectors: sums, scaling and norms without materialising them.

A linear predictor's gradient stays factored (`Outer`) until the cohort's sum, where it is one matrix product; any other
model's is a pytree (`Dense`). A machine is written once, against these operations.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class Vector:
    """Arithmetic shared by both kinds; `_map` applies a function to the part that operations act on."""

    __array_ufunc__ = None  # a NumPy scalar times a vector is the vector's business

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
    """`residual ⊗ features`: residual [outputs] or [], features [features], feature_norm []."""

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
        """Sum over a leading axis of vectors, of the parameters' shape: one matrix product."""
        return jnp.tensordot(self.residual, self.features, axes=(0, 0))


@struct.dataclass
class Dense(Vector):
    """A gradient written out, a pytree of the parameters' structure."""

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
    """The Euclidean norm of an array, of numbers too whose squares float32 takes for 0 or for infinity.

    >>> [round(float(length(jnp.array(one))), 3) for one in ([3.0, 4.0], -2.0, [0.0, 0.0])]
    [5.0, 2.0, 0.0]
    >>> bool(4.9e-30 < length(jnp.array([3e-30, 4e-30])) < 5.1e-30)
    True
    """
    largest = jnp.max(jnp.abs(vector))
    return largest * jnp.linalg.norm(jnp.ravel(vector) / jnp.where(largest > 0, largest, 1.0))


def scaled(vector, weight):
    """`weight · vector`, and exactly 0 for weight 0 whatever comes in: what is not used may be infinite.

    >>> scaled(Dense(jnp.array([jnp.inf, 4.0])), 0.0).value.tolist()
    [0.0, 0.0]
    """
    return vector._map(lambda leaf: jnp.where(weight != 0, weight * leaf, 0.0))
