"""Noise that is drawn anew in every round."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals


@struct.dataclass
class Silent(Mechanism):
    """No noise at all: the non-private run."""

    inputs: Any = ()

    taped = False

    def draw(self, state, inputs, keys, dimension: int):
        return state, None


@struct.dataclass
class Fresh(Mechanism):
    """`z_t = r_t·N(0, I)`, one vector a round; with `accumulate`, their running sum.

    inputs: r, float32 [rounds]. This is a trusted server's noise, and also, exactly in law, the mean of noises that all
    participants draw anew in every round: then r_t = √(Σ_j r_{t,j}²)/m.
    """

    inputs: Any
    accumulate: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def draw(self, state, inputs, keys, dimension: int):
        noise = inputs[:, None] * jax.vmap(lambda key: normals(key, (dimension,)))(keys)
        return running(noise, state) if self.accumulate else (state, noise)


class MessageInputs(NamedTuple):
    """Per round: each participant's relative noise, [rounds, per_round], 0 in slots that nobody fills; and what the sum
    is divided by, [rounds], or None for the number of slots."""

    relative: Any
    divisor: Any = None


@struct.dataclass
class PerMachine(Mechanism):
    """Every participant's own fresh noise, written out: `z_t = (1/m)·Σ_j r_{t,j}·N(0, I)`.

    The same law as `Fresh`; needed where single messages are looked at. With `summed` it is their sum rather than their
    mean.
    """

    inputs: MessageInputs
    accumulate: bool = struct.field(pytree_node=False, default=False)
    summed: bool = struct.field(pytree_node=False, default=False)

    def init(self, dimension: int, key):
        return jnp.zeros(dimension) if self.accumulate else ()

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        """What each participant adds to its message in one round: (memory, [per_round, d])."""
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
    """Noise inside the machines' own steps, which no sum carries: a round gets (key, r) to draw it from.

    inputs: r, float32 [rounds, per_round].
    """

    inputs: Any

    inside = True

    def draw(self, state, inputs, keys, dimension: int):
        return state, (keys, inputs)

    def aggregate(self, noise) -> None:
        """No sum carries it."""

    def floats(self, dimension: int) -> int:
        return 3 * self.inputs.shape[-1] * dimension


def step_noise(noise, step, dimension: int):
    """The participants' noises of one local step, [per_round, d], from a round's (key, standard deviations)."""
    key, deviations = noise
    return deviations[:, None] * normals(jax.random.fold_in(key, step), (*deviations.shape, dimension))


def mean_of_fresh(relative: np.ndarray, divisor: Any = None) -> np.ndarray:
    """Relative noise of the mean of independent messages, float64 [rounds].

    Args:
        relative: of each message, [rounds, per_round], 0 in slots that nobody fills.
        divisor: of their sum, one for all rounds or [rounds]; None is the number of slots.
    """
    return np.sqrt(np.sum(relative**2, axis=1)) / (relative.shape[1] if divisor is None else divisor)


def shared(rows, divisor):
    """Rows [per_round, d] added up and divided; None divides by their number."""
    return jnp.mean(rows, axis=0) if divisor is None else jnp.sum(rows, axis=0) / divisor


def running(noise, state):
    """Running sums of a block's noise [block, d], going on from `state` [d]."""
    noise = state[None] + jnp.cumsum(noise, axis=0)
    return noise[-1], noise
