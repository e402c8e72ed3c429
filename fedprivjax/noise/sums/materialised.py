"""Noise that is correlated over each machine's messages, sampled per message. The only way to get single messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.cancelling import Standing
from fedprivjax.noise.fresh import MessageInputs


@struct.dataclass
class Written(Standing):
    """Noise `r·(F⁻¹ξ)_k` in a machine's k-th message. All normals are stored, [machines, messages, d].

    Attributes:
        rows: F⁻¹, shape [messages, messages].
        machines: number of machines.
    """

    method: ClassVar[str] = "materialised"
    inputs: MessageInputs
    rows: Any
    machines: int = struct.field(pytree_node=False)

    def message_memory(self, dimension: int, key):
        """Return every machine's normals before the first round, zero; shape [machines, messages, d]."""
        return jnp.zeros((self.machines, len(self.rows), dimension))

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory, noise [per_round, d])."""
        normals = jax.random.normal(key, (*inputs.machine.shape, dimension))
        message = inputs.count - 1
        memory = memory.at[inputs.machine, message].set(normals, mode="drop")
        own = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        added = jnp.einsum("pk,pkd->pd", jnp.asarray(self.rows)[message], own, precision="highest")
        return memory, inputs.relative[:, None] * added

    def align(self, others: Sequence[Any]) -> list[Any]:
        most = max(len(other.rows) for other in others)
        return [replace(other, rows=np.pad(other.rows, (0, most - len(other.rows)))) for other in others]

    def floats(self, dimension: int) -> int:
        messages, per_round = len(self.rows), self.inputs.machine.shape[-1]
        return 2 * (self.machines * messages + 1) * dimension + (per_round * (messages + 3)) * dimension
