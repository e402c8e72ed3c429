"""Skellam noise of integer messages: the difference of two Poisson samples of equal rate.

The sum of independent Skellam noises is Skellam noise, of the sum of their variances. A run samples the noise of each
round's sum on the host, by NumPy's Poisson sampler in float64. A transcript samples the noise of every message on the
device, by `jax.random.poisson`. Both are rejection samplers in floating point. The accounting takes them as exact.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.interface import Mechanism, MessageInputs

MAX_RATE = 1e5  # of jax.random.poisson in float32: at 1e6, its variance is 2.7% too large
MAX_PIECES = 1000  # largest number of its samples that are added
LARGEST = 2.0**23  # largest standard deviation of a sum: NumPy's variance is wrong from rates of 1e14 on


class IntegerNoise(NamedTuple):
    """Noise of a message, or of a round's sum.

    Attributes:
        levels: int32 [D].
        unit: value of one level, in a message or in the mean of the messages.
    """

    levels: Any
    unit: Any


class SkellamKeys(NamedTuple):
    """Keys from which a configuration samples its noise, of one message, or of all messages of a round.

    Attributes:
        key: one key, or one of each message, [per_round].
        relative: 1 for a message that is sent, 0 in an empty slot, of the same shape.
        divisor: divisor of the sum, or 1 for one message.
        numbers: zeros of the shape of a message, [D].
    """

    key: Any
    relative: Any
    divisor: Any
    numbers: Any

    def noise(self, deviation: Any, unit: Any) -> IntegerNoise:
        """Return noise of a standard deviation, in units of the integers, whose value in a message is `unit`."""

        def one(key, relative):
            return skellam(key, deviation * relative, self.numbers.shape)

        if self.relative.ndim == 0:
            return IntegerNoise(one(self.key, self.relative), unit)
        return IntegerNoise(jnp.sum(jax.vmap(one)(self.key, self.relative), axis=0), unit / self.divisor)


@struct.dataclass
class EverySkellam(Mechanism):
    """Skellam noise of every message, sampled on the device. inputs: 1 in filled slots, and the sum's divisor."""

    inputs: MessageInputs

    label: ClassVar[str] = "skellam, every message sampled separately"
    uses_host_noise = False

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        size = inputs.relative.shape[-1]
        split = jax.vmap(lambda key: jax.random.split(key, size))(keys)
        zeros = jnp.zeros((keys.shape[0], dimension), jnp.int32)
        return state, SkellamKeys(split, inputs.relative, inputs.divisor, zeros)

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        relative = inputs.relative
        zeros = jnp.zeros((relative.size, dimension), jnp.int32)
        return memory, SkellamKeys(jax.random.split(key, relative.size), relative, jnp.ones_like(relative), zeros)

    def aggregate(self, noise: IntegerNoise) -> Any:
        return noise.unit * noise.levels.astype(jnp.float32)


@struct.dataclass
class SummedSkellam(Mechanism):
    """Skellam noise of the sums, sampled on the host. inputs: divisor of the sum, float32 [rounds]."""

    inputs: Any

    label: ClassVar[str] = "skellam"

    def draw(self, state, inputs, keys, dimension: int):
        return state, inputs

    def aggregate(self, noise: IntegerNoise) -> Any:
        return noise.unit * noise.levels.astype(jnp.float32)


def summed_skellam(stream: np.random.SeedSequence, variances: np.ndarray, dimension: int) -> np.ndarray:
    """Return the noise of the sums of a run, int32 [rounds, D].

    Args:
        stream: `plan.seeds.binomial_stream`.
        variances: variance of a coordinate of each round's sum, float64 [rounds].

    >>> from fedprivjax.plan.seeds import binomial_stream
    >>> noise = summed_skellam(binomial_stream(0), np.full(2, 25.0), 10_000)
    >>> noise.dtype.name, noise.shape, noise.std(axis=1).round(1).tolist()
    ('int32', (2, 10000), [5.0, 5.0])
    """
    if np.sqrt(np.max(variances)) > LARGEST:
        raise Refusal(f"noise of an integer sum must be at most 2²³, got {np.sqrt(np.max(variances)):.4g}")
    rng, shape = np.random.Generator(np.random.Philox(stream)), (len(variances), dimension)
    one, other = (rng.poisson(variances[:, None] / 2, shape) for _ in range(2))
    return (one - other).astype(np.int32)


def skellam(key: jax.Array, deviation: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return one message's noise, int32, as a sum of samples of at most `MAX_RATE`, on the device.

    `require_drawable` checks a concrete deviation.
    """
    rate = deviation**2 / 2
    pieces = jnp.ceil(rate / MAX_RATE).astype(jnp.int32)

    def add(piece, total):
        keys = jax.random.split(jax.random.fold_in(key, piece))
        one, other = (jax.random.poisson(each, rate / jnp.maximum(pieces, 1), shape) for each in keys)
        return total + one - other

    return jax.lax.fori_loop(0, pieces, add, jnp.zeros(shape, jnp.int32))


def require_drawable(deviation: float) -> None:
    """Raise Refusal if a message's noise takes more than `MAX_PIECES` samples on the device.

    >>> require_drawable(2e4)
    Traceback (most recent call last):
    fedprivjax.Refusal: noise of integer messages must be at most 14142 in transcripts, got 2e+04; use fewer bits
    """
    most = np.sqrt(2 * MAX_RATE * MAX_PIECES)
    if deviation > most:
        raise Refusal(
            f"noise of integer messages must be at most {most:.0f} in transcripts, got {deviation:.4g}; use fewer bits"
        )
