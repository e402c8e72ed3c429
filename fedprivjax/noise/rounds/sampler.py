"""Samplers of noise that is correlated over rounds: each is a recursion over rounds from independent normals."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.covariance import padded
from fedprivjax.noise.factors.tree import Tree
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals


@struct.dataclass
class TreeOfRounds(Mechanism):
    """Differences of the noise of a binary tree's prefix sums. It stores log₂ R vectors.

    Attributes:
        rounds: R.
    """

    label: ClassVar[str] = "tree over rounds"
    correlated: ClassVar[bool] = True
    rounds: int = struct.field(pytree_node=False)
    inputs: Any = ()

    def init(self, dimension: int, key):
        """Return the tree's path before the first round."""
        return Tree().init(dimension, self.rounds)

    def draw(self, state, inputs, keys, dimension: int):
        def one(path, key):
            after = Tree().step(path, normals(key, (dimension,)), jnp.float32(0))
            return after, after.last - path.last

        return jax.lax.scan(one, state, keys)


@struct.dataclass
class Recursive(Mechanism):
    """Noise z = F⁻¹ξ of a banded factor F, by forward substitution. It stores the last `bandwidth` vectors z.

    The substitution is backward stable: rounding is equivalent to a relative change of F's entries.

    inputs: F, float32 [rounds, bandwidth + 1]; row t holds F(t, t − bandwidth) … F(t, t).
    """

    label: ClassVar[str] = "correlated over rounds"
    correlated: ClassVar[bool] = True
    inputs: Any

    @property
    def bandwidth(self) -> int:
        return self.inputs.shape[-1] - 1

    def init(self, dimension: int, key):
        """Return the last vectors, [bandwidth, d], with round s in row s mod bandwidth, and the next round, from 0."""
        return jnp.zeros((self.bandwidth, dimension)), jnp.zeros((), jnp.int32)

    def draw(self, state, inputs, keys, dimension: int):
        width = self.bandwidth
        places = jnp.arange(width)

        def one(state, step):
            (last, t), (row, key) = state, step
            # round s is in place s mod width, and row[width − (t − s)] = F(t, s)
            of_place = row[width - 1 - jnp.mod(t - 1 - places, width)]
            z = (normals(key, (dimension,)) - jnp.matmul(of_place, last, precision="highest")) / row[width]
            return (jax.lax.dynamic_update_index_in_dim(last, z, jnp.mod(t, width), 0), t + 1), z

        return jax.lax.scan(one, state, (inputs, keys))

    def align(self, others: Sequence[Any]) -> list[Any]:
        width = max(other.bandwidth for other in others)
        return [Recursive(padded(np.asarray(other.inputs), width)) for other in others]


def banded(factor: np.ndarray) -> np.ndarray:
    """Return F's rows in the layout of `Recursive.inputs`, float64 [rounds, bandwidth + 1], smallest bandwidth."""
    below, left = np.nonzero(factor)
    width, rounds = int((below - left).max()), np.arange(len(factor))
    column = rounds[:, None] + np.arange(-width, 1)
    return np.where(column >= 0, factor[rounds[:, None], np.maximum(column, 0)], 0.0)
