"""Examples that are computed when they are used: federations too large to store."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

STREAM = 0xDA7A_5EED  # sets the data's keys apart from those of a run's noise, which may have the same seed


@struct.dataclass
class Procedural:
    """A machine's k-th example is a pure function of (seed, machine, k): nothing is stored.

    Attributes:
        seed: of the data, uint32.
        generate: `(key, machine) -> example`, a pytree; one key for each (machine, k).
    """

    seed: Any
    generate: Callable[[Any, Any], Any] = struct.field(pytree_node=False)

    def take(self, samples, machine):
        """Examples, leaves [..., per-example shape].

        Args:
            samples: k, int [machines] or [machines, batch].
            machine: whose, int [machines].

        >>> stream = Procedural(0, lambda key, machine: jax.random.uniform(key, (3,)))
        >>> stream.take(jnp.array([[0, 1]]), jnp.array([7])).shape
        (1, 2, 3)
        """
        key = jax.random.fold_in(jax.random.key(self.seed), STREAM)

        def one(k, machine):
            return self.generate(jax.random.fold_in(jax.random.fold_in(key, machine), k), machine)

        samples, machine = jnp.asarray(samples), jnp.asarray(machine)
        machine = jnp.broadcast_to(machine.reshape(machine.shape + (1,) * (samples.ndim - machine.ndim)), samples.shape)
        for _ in range(samples.ndim):
            one = jax.vmap(one)
        return one(samples, machine)
