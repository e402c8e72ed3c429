"""Noise whose parts in messages add up in the aggregate, such as noise that a machine's next message subtracts.

With noise cancellation each message adds fresh noise and subtracts the noise of the machine's previous message. The
aggregate therefore contains only each machine's latest noise, `z_t = (1/m)·Σ_{i∈[M]} Y_{i,last(t)}` (Reshef & Levy
2025).

If the number of participants varies, m is one constant for all rounds, because noise that is added and subtracted with
different divisors would not cancel. An absent machine adds and subtracts nothing, and its noise stays in the aggregate.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.interface import Mechanism, MessageInputs, normals, shared


class Standing(Mechanism):
    """Base class of mechanisms whose message noises add up in the aggregate, m being the inputs' divisor."""

    def init(self, dimension: int, key):
        """Return the machines' memory and the sum [d] before the first round."""
        return self.message_memory(dimension, key), jnp.zeros(dimension)

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        def one(state, step):
            (memory, standing), (inputs, key) = state, step
            memory, added = self.message_noise(memory, inputs, key, dimension)
            standing = standing + shared(added, inputs.divisor)
            return (memory, standing), standing

        return jax.lax.scan(one, state, (inputs, keys))

    def floats(self, dimension: int) -> int:
        return super().floats(dimension) + 3 * self.inputs.machine.shape[-1] * dimension


@struct.dataclass
class Cancelling(Standing):
    """Cancelling noise with a [machines, d] array of latest noises. The only sampler that gives single messages."""

    method: ClassVar[str] = "materialised"
    inputs: MessageInputs
    machines: int = struct.field(pytree_node=False)

    def message_memory(self, dimension: int, key):
        """Return the latest noise of every machine before the first round, zero; shape [machines, d]."""
        return jnp.zeros((self.machines, dimension))

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory [machines, d], noise [per_round, d])."""
        fresh = inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))
        old = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        return memory.at[inputs.machine].set(fresh, mode="drop"), fresh - old


@struct.dataclass
class Written(Standing):
    """Noise `r·(F⁻¹ξ)_k` in a machine's k-th message, see `noise.sums`. The only sampler of such messages.

    All normals are stored, [machines, messages, d].

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
        fresh = jax.random.normal(key, (*inputs.machine.shape, dimension))
        message = inputs.count - 1
        memory = memory.at[inputs.machine, message].set(fresh, mode="drop")
        own = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        added = jnp.einsum("pk,pkd->pd", jnp.asarray(self.rows)[message], own, precision="highest")
        return memory, inputs.relative[:, None] * added

    def align(self, others: Sequence[Any]) -> list[Any]:
        most = max(len(other.rows) for other in others)
        return [replace(other, rows=np.pad(other.rows, (0, most - len(other.rows)))) for other in others]

    def floats(self, dimension: int) -> int:
        return super().floats(dimension) + self.inputs.machine.shape[-1] * len(self.rows) * dimension


@struct.dataclass
class Replayed(Standing):
    """Cancelling noise that regenerates old noise from keys by machine and count, without state per machine."""

    method: ClassVar[str] = "replayed"
    inputs: MessageInputs

    def message_memory(self, dimension: int, key):
        """Return the key from which all noise is derived."""
        return jax.random.fold_in(key, 0)  # rounds are numbered from 1: key 0 is free

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory, noise [per_round, d])."""

        def one(machine, count, relative, before):
            machine_key = jax.random.fold_in(memory, machine)
            new, old = (normals(jax.random.fold_in(machine_key, k), (dimension,)) for k in (count, count - 1))
            return relative * new - before * old

        return memory, jax.vmap(one)(inputs.machine, inputs.count, inputs.relative, inputs.before)
