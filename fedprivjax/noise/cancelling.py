"""Noise cancellation: a machine takes back the noise of its last message when it adds a fresh one.

So the aggregate carries each machine's latest noise only, `z_t = (1/m)·Σ_{i∈[M]} Y_{i,last(t)}`
(Reshef & Levy 2025).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct


class CancellingInputs(NamedTuple):
    """Per round: each participant's relative noise and which machine it is, [rounds, per_round]."""

    relative: jax.Array
    machine: jax.Array


@struct.dataclass
class Cancelling:
    """Materialised: an [machines, d] array of last noises; gather, subtract, scatter. The only way to see messages."""

    inputs: CancellingInputs
    machines: int = struct.field(pytree_node=False)

    def init(self, dimension: int):
        return self.init_memory(dimension), jnp.zeros(dimension)

    def init_memory(self, dimension: int):
        """Every machine's last noise: none yet."""
        return jnp.zeros((self.machines, dimension))

    def message_noise(self, memory, inputs: CancellingInputs, key, dimension: int):
        """What each participant adds to its message in one round: (memory [machines, d], [per_round, d])."""
        fresh = inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))
        return memory.at[inputs.machine].set(fresh), fresh - memory[inputs.machine]

    def block(self, state, inputs: CancellingInputs, keys, dimension: int):
        def one(state, step):
            (memory, standing), (inputs, key) = state, step
            memory, difference = self.message_noise(memory, inputs, key, dimension)
            standing = standing + jnp.mean(difference, axis=0)
            return (memory, standing), standing

        return jax.lax.scan(one, state, (inputs, keys))
