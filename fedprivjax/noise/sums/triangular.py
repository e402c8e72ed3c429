"""Noise that is correlated over all rounds, by the dense factor of its covariance: `z = B·ξ`."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals
from fedprivjax.plan.seeds import round_keys

STRIPS = 6  # of rows: as many products, of which none reads more columns than its last row has

AT_ONCE = 64  # rounds whose normals are drawn together


@struct.dataclass
class Triangular(Mechanism):
    """All rounds' noise in one product before the first round, from which every block takes its rows.

    inputs: B, lower triangular, float32 [rounds, rounds].
    """

    method: ClassVar[str] = "covariance"
    inputs: Any

    @property
    def name(self) -> str:
        return self.method

    def init(self, dimension: int, key):
        """The noise of all rounds, [rounds, d], and how many of them have been drawn."""
        keys = round_keys(key, jnp.arange(1, len(self.inputs) + 1))
        fresh = jax.lax.map(lambda key: normals(key, (dimension,)), keys, batch_size=AT_ONCE)
        return _lower_product(jnp.asarray(self.inputs), fresh), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        noise, done = state
        return (noise, done + keys.shape[0]), jax.lax.dynamic_slice_in_dim(noise, done, keys.shape[0])


def _lower_product(rows, vectors):
    """B·ξ in ξ's place: the last rows first, for no row above needs what they write over."""
    rounds = len(rows)
    for strip in reversed(range(STRIPS)):
        first, end = rounds * strip // STRIPS, rounds * (strip + 1) // STRIPS
        made = jnp.matmul(rows[first:end, :end], vectors[:end], precision="highest")
        vectors = vectors.at[first:end].set(made)
    return vectors
