"""Interface of noise mechanisms: the noise that is sampled once per seed, independently of a sweep's settings."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Undefined
from fedprivjax.problem.random_keys import random_key


class Mechanism(Decorated):
    """Base class of noise mechanisms: a pytree that samples a block of rounds at once.

    Subclass it as a `flax.struct.dataclass` for a custom distribution. It holds per-round `inputs`, leaves
    [rounds, ...], which follow from the public schedule, and no settings. The protocol's `noise` applies the settings
    of a configuration (a scale, a discount) to the sample. One sample therefore serves every privacy level, clip and
    step size of a sweep.
    """

    kind, decorator = "mechanism", PYTREE
    inputs: Any
    correlated: ClassVar[bool] = False  # True if the noise of a server's rounds is correlated
    inside: ClassVar[bool] = False  # True if noise is part of the machines' computation, not added to messages
    uses_host_noise: ClassVar[bool] = True  # True if a round's noise may depend on the protocol's `host_noise`
    method: ClassVar[str] = "auto"  # the `noise_method` that selects this class
    label: ClassVar[str] = ""  # name in results, if it is not the class's

    @property
    def name(self) -> str:
        """Name of the mechanism in results."""
        return self.label or type(self).__name__.lower()

    def init(self, dimension: int, key: jax.Array) -> Any:
        """Return the state before the first round. `key` is the seed's, for samples by machine or by node."""
        return ()

    def draw(self, state: Any, inputs: Any, keys: jax.Array, dimension: int) -> tuple[Any, Any]:
        """Sample a block of rounds: (state, leaves [block, ...]), or (state, None) without noise.

        Args:
            inputs: the block's slice of `inputs`.
            keys: keys of the block's rounds, shape [block].
        """
        raise Undefined(f"{self.name} must define draw(state, inputs, keys, dimension)")

    def aggregate(self, noise: Any) -> jax.Array | None:
        """Return the noise in the aggregate, [d], from the protocol's `noise`, or None if there is none."""
        return noise

    def message_memory(self, dimension: int, key: jax.Array) -> Any:
        """Return the machines' memory of their noise before the first round of a transcript. `key` is the seed's."""
        return ()

    def message_noise(self, memory: Any, inputs: Any, key: jax.Array, dimension: int) -> tuple[Any, Any]:
        """Return each participant's added noise in one round: (memory, leaves [per_round, ...] or None)."""
        return memory, None

    def align(self, others: Sequence[Any]) -> list[Any]:
        """Return mechanisms of this class with equal shapes, which can be stacked for a `vmap` over seeds."""
        return list(others)

    def floats(self, dimension: int) -> int:
        """Return the number of floats that a seed holds while a round is sampled, beyond `inputs` and the samples."""
        state = jax.eval_shape(lambda: self.init(dimension, random_key(0)))
        return 2 * sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32)


def normals(key, shape):
    """Return standard normals of a shape, float32.

    JAX's default layout discards half of the generator's output, to shard one large sample over devices. Noise here is
    sharded over seeds, not within a vector. The older layout is therefore sufficient, and about twice as fast.

    >>> normals(jax.random.key(0), (3,)).shape
    (3,)
    """
    with jax.threefry_partitionable(False):
        return jax.random.normal(key, shape)
