"""Independent noise in every round."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.interface import Mechanism, normals


@struct.dataclass
class Silent(Mechanism):
    """No noise, for non-private runs."""

    inputs: Any = ()

    uses_host_noise = False

    def draw(self, state, inputs, keys, dimension: int):
        return state, None


@struct.dataclass
class Randomised(Silent):
    """No added noise: machines randomise their messages themselves, by their own key, in `client` or `encode`."""

    inside = True


@struct.dataclass
class Fresh(Mechanism):
    """Independent noise `z_t = r_t·N(0, I)`, one vector per round, or its running sum if `accumulate`.

    inputs: r, float32 [rounds]. This is a trusted server's noise. It is also equal in distribution to the mean of the
    participants' independent noises, with r_t = √(Σ_j r_{t,j}²)/m.
    """

    inputs: Any
    accumulate: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def draw(self, state, inputs, keys, dimension: int):
        noise = inputs[:, None] * jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        return running(noise, state) if self.accumulate else (state, noise)


class MessageInputs(NamedTuple):
    """Per-round inputs of mechanisms that sample every message's noise, shape [rounds, per_round] unless stated.

    Mechanisms without memory of a machine's noise need no `machine`, `count` and `before`.

    Attributes:
        relative: relative noise of each participant, 0 in empty slots.
        divisor: divisor of the sum, shape [rounds], or None for the number of slots.
        machine: index of each participant. `Cancelling` and `Written` need one out of range in empty slots.
        count: number of its participations so far, at least 1.
        before: relative noise at its previous participation, 0 without one and in empty slots.
    """

    relative: Any
    divisor: Any = None
    machine: Any = None
    count: Any = None
    before: Any = None


@struct.dataclass
class PerMachine(Mechanism):
    """Independent noise of every participant, sampled separately: `z_t = (1/m)·Σ_j r_{t,j}·N(0, I)`.

    It has the same distribution as `Fresh` and is needed if single messages are inspected. If `summed`, the aggregate
    is the sum instead of the mean.
    """

    inputs: MessageInputs
    accumulate: bool = struct.field(pytree_node=False, default=False)
    summed: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """Return each participant's added noise in one round: (memory, noise [per_round, d])."""
        relative = inputs.relative
        return memory, relative[:, None] * jax.random.normal(key, (*relative.shape, dimension))

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        def one(_, step):
            inputs, key = step
            noise = self.message_noise((), inputs, key, dimension)[1]
            return (), jnp.sum(noise, axis=0) if self.summed else shared(noise, inputs.divisor)

        noise = jax.lax.scan(one, (), (inputs, keys))[1]
        return running(noise, state) if self.accumulate else (state, noise)

    def floats(self, dimension: int) -> int:
        return 3 * self.inputs.relative.shape[-1] * dimension


@struct.dataclass
class PerStep(Mechanism):
    """Noise inside the machines' local steps, not added to messages. A round receives (key, r) to sample it.

    inputs: r, float32 [rounds, per_round].
    """

    inputs: Any

    inside = True

    def draw(self, state, inputs, keys, dimension: int):
        return state, (keys, inputs)

    def aggregate(self, noise) -> None:
        """Return None: the noise is inside the messages."""

    def floats(self, dimension: int) -> int:
        return 3 * self.inputs.shape[-1] * dimension


def step_noise(noise, step, dimension: int):
    """Return the participants' noises of one local step, [per_round, d], from a round's (key, standard deviations)."""
    key, deviations = noise
    return deviations[:, None] * normals(jax.random.fold_in(key, step), (*deviations.shape, dimension))


def mean_of_fresh(relative: np.ndarray, divisor: Any = None) -> np.ndarray:
    """Return the relative noise of the mean of independent messages, float64 [rounds].

    Args:
        relative: relative noise of each message, shape [rounds, per_round], 0 in empty slots.
        divisor: divisor of their sum, one for all rounds or shape [rounds]. None is the number of slots.
    """
    return np.sqrt(np.sum(relative**2, axis=1)) / (relative.shape[1] if divisor is None else divisor)


def shared(rows, divisor):
    """Return the sum of rows [per_round, d] divided by the divisor, or by their number if it is None."""
    return jnp.mean(rows, axis=0) if divisor is None else jnp.sum(rows, axis=0) / divisor


def running(noise, state):
    """Return running sums of a block's noise [block, d], starting from `state` [d]."""
    noise = state[None] + jnp.cumsum(noise, axis=0)
    return noise[-1], noise
