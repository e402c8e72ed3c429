"""Noise cancellation: a machine takes back the noise of its last message when it adds a fresh one.

So the aggregate carries each machine's latest noise only, `z_t = (1/m)·Σ_{i∈[M]} Y_{i,last(t)}`
(Reshef & Levy 2025).

Where the number of participants varies, m is one constant for all rounds: noise that was added over one number and
taken back over another would not cancel. A machine that is absent adds and takes back nothing, and its noise stands.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.noise.fresh import shared
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals


class CancellingInputs(NamedTuple):
    """Per round: each participant's relative noise and which machine it is, [rounds, per_round]; in slots that nobody
    fills 0 and a number that no machine has. `divisor` is m, [rounds], or None for the number of slots."""

    relative: Any
    machine: Any
    divisor: Any = None


@struct.dataclass
class Cancelling(Mechanism):
    """Materialised: an [machines, d] array of last noises; gather, subtract, scatter. The only way to see messages."""

    method: ClassVar[str] = "materialised"
    inputs: CancellingInputs
    machines: int = struct.field(pytree_node=False)

    def init(self, dimension: int, key):
        return self.message_memory(dimension, key), jnp.zeros(dimension)

    def message_memory(self, dimension: int, key):
        """Every machine's last noise: none yet."""
        return jnp.zeros((self.machines, dimension))

    def message_noise(self, memory, inputs: CancellingInputs, key, dimension: int):
        """What each participant adds to its message in one round: (memory [machines, d], [per_round, d])."""
        fresh = inputs.relative[:, None] * jax.random.normal(key, (*inputs.machine.shape, dimension))
        old = memory.at[inputs.machine].get(mode="fill", fill_value=0.0)
        return memory.at[inputs.machine].set(fresh, mode="drop"), fresh - old

    def draw(self, state, inputs: CancellingInputs, keys, dimension: int):
        return standing_sums(self, state, inputs, keys, dimension)

    def floats(self, dimension: int) -> int:
        return 2 * (self.machines + 1) * dimension + 3 * self.inputs.machine.shape[-1] * dimension


class ReplayedInputs(NamedTuple):
    """Per round and participant: machine, participation count, relative noise now and at the last participation (0),
    both 0 in slots that nobody fills. `divisor` is m, [rounds], or None for the number of slots."""

    machine: Any
    count: Any
    relative: Any
    before: Any
    divisor: Any = None


@struct.dataclass
class Replayed(Mechanism):
    """Old noise regenerated from a key of its machine and count, so nothing of the federation's size is kept."""

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
    """The draws of a block for a mechanism whose messages' noises add up in the aggregate: (state, [block, d]).

    Args:
        state: what machines remember, and the sum so far, [d].
    """

    def one(state, step):
        (memory, standing), (inputs, key) = state, step
        memory, added = mechanism.message_noise(memory, inputs, key, dimension)
        standing = standing + shared(added, inputs.divisor)
        return (memory, standing), standing

    return jax.lax.scan(one, state, (inputs, keys))
