"""Noise that is correlated over all rounds, from the dense factor of its covariance: `z = B·ξ`."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals
from fedprivjax.plan.seeds import round_keys

STRIPS = 6  # strips of rows; each strip is one product over the columns of its last row

AT_ONCE = 64  # number of rounds whose normals are sampled together


@struct.dataclass
class Triangular(Mechanism):
    """Noise of all rounds from one product before the first round. Every block reads its rows of the result.

    inputs: B, lower triangular, float32 [rounds, rounds].
    """

    method: ClassVar[str] = "covariance"
    label: ClassVar[str] = "covariance"
    inputs: Any

    def init(self, dimension: int, key):
        """Return the noise of all rounds, [rounds, d], and the number of rounds sampled so far."""
        keys = round_keys(key, jnp.arange(1, len(self.inputs) + 1))
        fresh = jax.lax.map(lambda key: normals(key, (dimension,)), keys, batch_size=AT_ONCE)
        return _lower_product(jnp.asarray(self.inputs), fresh), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        noise, done = state
        return (noise, done + keys.shape[0]), jax.lax.dynamic_slice_in_dim(noise, done, keys.shape[0])


def _lower_product(rows, vectors):
    """Return B·ξ, computed in place of ξ from the last rows upwards: no row above needs the overwritten entries."""
    rounds = len(rows)
    for strip in reversed(range(STRIPS)):
        first, end = rounds * strip // STRIPS, rounds * (strip + 1) // STRIPS
        made = jnp.matmul(rows[first:end, :end], vectors[:end], precision="highest")
        vectors = vectors.at[first:end].set(made)
    return vectors
