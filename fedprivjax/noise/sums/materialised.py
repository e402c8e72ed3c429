"""Noise that is correlated over each machine's messages, written out: the only way to see single messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.cancelling import standing_sums
from fedprivjax.noise.interface import Mechanism


class WrittenInputs(NamedTuple):
    """Per round and participant: its machine (a number that no machine has in slots that nobody fills), which of its
    messages this is, from 0, and its noise's scale. `divisor` is that of the sum, [rounds], or None for the number of
    slots."""

    machine: Any
    message: Any
    relative: Any
    divisor: Any = None


@struct.dataclass
class Written(Mechanism):
    """A machine adds `r·(F⁻¹ξ)_k` to its k-th message; all its normals are kept, [machines, messages, d].

    Attributes:
        rows: F⁻¹, [messages, messages].
        machines: how many there are.
    """

    method: ClassVar[str] = "materialised"
    inputs: WrittenInputs
    rows: Any
    machines: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key), jnp.zeros(dimension)

    def message_memory(self, dimension: int, key):
        """Every machine's normals: none yet."""
        return jnp.zeros((self.machines, len(self.rows), dimension))

    def message_noise(self, memory, inputs: WrittenInputs, key, dimension: int):
        """What each participant adds to its message in one round: (memory, [per_round, d])."""
        normals = jax.random.normal(key, (*inputs.machine.shape, dimension))
        memory = memory.at[inputs.machine, inputs.message].set(normals, mode="drop")
        own = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        added = jnp.einsum("pk,pkd->pd", jnp.asarray(self.rows)[inputs.message], own)
        return memory, inputs.relative[:, None] * added

    def draw(self, state, inputs: WrittenInputs, keys, dimension: int):
        return standing_sums(self, state, inputs, keys, dimension)

    def align(self, others: Sequence[Any]) -> list[Any]:
        most = max(len(other.rows) for other in others)
        return [replace(other, rows=np.pad(other.rows, (0, most - len(other.rows)))) for other in others]

    def floats(self, dimension: int) -> int:
        messages, per_round = len(self.rows), self.inputs.machine.shape[-1]
        return 2 * (self.machines * messages + 1) * dimension + (per_round * (messages + 3)) * dimension
