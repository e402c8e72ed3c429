"""Noise cancellation: each message adds fresh noise and subtracts the noise of the machine's previous message.

The aggregate therefore contains only each machine's latest noise, `z_t = (1/m)·Σ_{i∈[M]} Y_{i,last(t)}`
(Reshef & Levy 2025).

If the number of participants varies, m is one constant for all rounds, because noise that is added and subtracted with
different divisors would not cancel. An absent machine adds and subtracts nothing, and its noise stays in the aggregate.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.noise.fresh import shared
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals


class CancellingInputs(NamedTuple):
    """Per-round inputs of `Cancelling`.

    Attributes:
        relative: relative noise of each participant, shape [rounds, per_round], 0 in empty slots.
        machine: index of each participant, shape [rounds, per_round], out of range in empty slots.
        divisor: m, shape [rounds], or None for the number of slots.
    """

    relative: Any
    machine: Any
    divisor: Any = None


@struct.dataclass
class Cancelling(Mechanism):
    """Cancelling noise with a [machines, d] array of latest noises. The only sampler that gives single messages."""

    method: ClassVar[str] = "materialised"
    inputs: CancellingInputs
    machines: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key), jnp.zeros(dimension)

    def message_memory(self, dimension: int, key):
        """Return the latest noise of every machine before the first round, zero; shape [machines, d]."""
        return jnp.zeros((self.machines, dimension))

    def message_noise(self, memory, inputs: CancellingInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory [machines, d], noise [per_round, d])."""
        fresh = inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))
        old = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        return memory.at[inputs.machine].set(fresh, mode="drop"), fresh - old

    def draw(self, state, inputs: CancellingInputs, keys, dimension: int):
        return standing_sums(self, state, inputs, keys, dimension)

    def floats(self, dimension: int) -> int:
        return 2 * (self.machines + 1) * dimension + 3 * self.inputs.machine.shape[-1] * dimension


class ReplayedInputs(NamedTuple):
    """Per-round inputs of `Replayed`, by participant.

    Attributes:
        machine: index of the machine.
        count: number of its participations so far.
        relative: relative noise in this round, 0 in empty slots.
        before: relative noise at its previous participation, 0 without one and in empty slots.
        divisor: m, shape [rounds], or None for the number of slots.
    """

    machine: Any
    count: Any
    relative: Any
    before: Any
    divisor: Any = None


@struct.dataclass
class Replayed(Mechanism):
    """Cancelling noise that regenerates old noise from keys by machine and count, without state per machine."""

    method: ClassVar[str] = "replayed"
    inputs: ReplayedInputs

    def init(self, dimension: int, key):
        return jax.random.fold_in(key, 0), jnp.zeros(dimension)  # rounds are numbered from 1: key 0 is free

    def draw(self, state, inputs: ReplayedInputs, keys, dimension: int):
        key, standing = state

        def one_machine(machine, count, relative, before):
            machine_key = jax.random.fold_in(key, machine)
            new, old = (normals(jax.random.fold_in(machine_key, k), (dimension,)) for k in (count, count - 1))
            return relative * new - before * old

        def one_round(standing, inputs):
            difference = jax.vmap(one_machine)(inputs.machine, inputs.count, inputs.relative, inputs.before)
            standing = standing + shared(difference, inputs.divisor)
            return standing, standing

        standing, noise = jax.lax.scan(one_round, standing, inputs)
        return (key, standing), noise

    def floats(self, dimension: int) -> int:
        return 2 * dimension + 3 * self.inputs.machine.shape[-1] * dimension


def standing_sums(mechanism: Mechanism, state, inputs, keys, dimension: int):
    """Sample a block of rounds of a mechanism whose message noises accumulate in the aggregate: (state, [block, d]).

    Args:
        state: the machines' memory, and the sum so far [d].
    """

    def one(state, step):
        (memory, standing), (inputs, key) = state, step
        memory, added = mechanism.message_noise(memory, inputs, key, dimension)
        standing = standing + shared(added, inputs.divisor)
        return (memory, standing), standing

    return jax.lax.scan(one, state, (inputs, keys))
