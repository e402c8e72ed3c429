"""Examples that are computed on demand, for federations too large to store."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.problem.random_keys import random_key

STREAM = 0xDA7A_5EED  # separates the data's keys from those of a run's noise with the same seed


@struct.dataclass
class Procedural:
    """Examples that are a pure function of (seed, machine, k), for the machine's k-th example. Nothing is stored.

    Attributes:
        seed: seed of the data, uint32.
        generate: function `(key, machine) -> example`, a pytree. Each pair (machine, k) has its own key.
    """

    seed: Any
    generate: Callable[[Any, Any], Any] = struct.field(pytree_node=False)

    def take(self, samples, machine):
        """Return examples, a pytree with leaves [..., per-example shape].

        Args:
            samples: k, int [machines] or [machines, batch].
            machine: owner of the examples, int [machines].

        >>> stream = Procedural(0, lambda key, machine: jax.random.uniform(key, (3,)))
        >>> stream.take(jnp.array([[0, 1]]), jnp.array([7])).shape
        (1, 2, 3)
        """
        key = jax.random.fold_in(random_key(self.seed), STREAM)

        def one(k, machine):
            return self.generate(jax.random.fold_in(jax.random.fold_in(key, machine), k), machine)

        samples, machine = jnp.asarray(samples), jnp.asarray(machine)
        machine = jnp.broadcast_to(machine.reshape(machine.shape + (1,) * (samples.ndim - machine.ndim)), samples.shape)
        for _ in range(samples.ndim):
            one = jax.vmap(one)
        return one(samples, machine)
