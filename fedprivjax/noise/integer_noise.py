"""Noise of integer messages: Skellam, the difference of two Poisson samples of equal rate, or discrete Gaussian.

The discrete Gaussian N_Z(0, v) takes the integer z with a probability proportional to exp(−z²/(2v)). A run samples the
noise of each round's sum on the host in float64:

* A sum of Skellam noises is Skellam noise, sampled by NumPy's Poisson sampler.
* A sum of n noises N_Z(0, v) is sampled as one N_Z(0, n·v), if the distance of the two distributions is below the
  rounding error of float64. This is so from v = 4 on. Otherwise n samples are added.

A transcript, the record of all messages, samples the noise of every message on the device in float32. All are rejection
samplers in floating point. The accounting takes them as exact.
"""

from collections.abc import Callable
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
CLOSE = 1e-15  # largest τ of a sum of discrete Gaussian noises that is sampled as one
TINY = 1e-3  # standard deviation of discrete Gaussian noise that is 0 in float64


class IntegerNoise(NamedTuple):
    """Noise of a message, or of a round's sum.

    Attributes:
        levels: int32 [D].
        unit: value of one level, in a message or in the mean of the messages.
    """

    levels: Any
    unit: Any


class IntegerKeys(NamedTuple):
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

    def noise(self, distribution: str, deviation: Any, unit: Any) -> IntegerNoise:
        """Return noise of a standard deviation, in units of the integers, whose value in a message is `unit`."""

        def one(key, relative):
            return SAMPLERS[distribution].message(key, deviation * relative, self.numbers.shape)

        if self.relative.ndim == 0:
            return IntegerNoise(one(self.key, self.relative), unit)
        return IntegerNoise(jnp.sum(jax.vmap(one)(self.key, self.relative), axis=0), unit / self.divisor)


@struct.dataclass
class EveryInteger(Mechanism):
    """Sampler of the noise of every single message, for messages of integers. It samples on the device.

    It is used for transcripts, which contain every message of a run. If only sums of messages are needed,
    `SummedIntegers` is cheaper.

    Attributes:
        inputs: tuple of arrays. Its field `relative`, shape [rounds, per_round], is 1 for each message that is sent,
            otherwise 0. Its field `divisor` is the number by which the server divides each round's sum of messages.
    """

    inputs: MessageInputs

    label: ClassVar[str] = "integers, every message sampled separately"
    uses_host_noise = False

    def draw(self, state, inputs: MessageInputs, keys, dimension: int):
        size = inputs.relative.shape[-1]
        split = jax.vmap(lambda key: jax.random.split(key, size))(keys)
        zeros = jnp.zeros((keys.shape[0], dimension), jnp.int32)
        return state, IntegerKeys(split, inputs.relative, inputs.divisor, zeros)

    def message_noise(self, memory, inputs: MessageInputs, key, dimension: int):
        relative = inputs.relative
        zeros = jnp.zeros((relative.size, dimension), jnp.int32)
        return memory, IntegerKeys(jax.random.split(key, relative.size), relative, jnp.ones_like(relative), zeros)

    def aggregate(self, noise: IntegerNoise) -> Any:
        return noise.unit * noise.levels.astype(jnp.float32)


@struct.dataclass
class SummedIntegers(Mechanism):
    """Mechanism for integer noise in sums of messages, which is sampled on the host before the run.

    Every machine adds Skellam or discrete Gaussian noise to its message of integers. The function `summed_noise`
    samples the noise of the sums. This class holds the number by which the server divides each round's sum.

    Attributes:
        inputs: number by which each round's sum is divided, float32 [rounds].
    """

    inputs: Any

    label: ClassVar[str] = "integers"

    def draw(self, state, inputs, keys, dimension: int):
        return state, inputs

    def aggregate(self, noise: IntegerNoise) -> Any:
        return noise.unit * noise.levels.astype(jnp.float32)


def summed_noise(
    distribution: str, stream: np.random.SeedSequence, deviation: float, senders: np.ndarray, dimension: int
) -> np.ndarray:
    """Sample the integer noise in each round's sum of messages, for all rounds; int32 [rounds, dimension].

    Every message of a round has independent noise.

    Args:
        distribution: distribution of a message's noise, "skellam" or "discrete-gaussian".
        stream: seed of the random numbers, from `plan.seeds.binomial_stream`.
        deviation: standard deviation of the noise in one coordinate of a message.
        senders: number of messages in each round's sum, int [rounds].
        dimension: number of coordinates of a message.

    >>> from fedprivjax.plan.seeds import binomial_stream
    >>> noise = summed_noise("skellam", binomial_stream(0), 2.5, np.array([4, 4]), 10_000)
    >>> noise.dtype.name, noise.shape, noise.std(axis=1).round(1).tolist()
    ('int32', (2, 10000), [5.0, 5.0])
    """
    largest = deviation * np.sqrt(np.max(senders))
    if largest > LARGEST:
        raise Refusal(f"noise of an integer sum must be at most 2²³, got {largest:.4g}")
    rng = np.random.Generator(np.random.Philox(stream))
    return SAMPLERS[distribution].summed(rng, deviation, senders, dimension).astype(np.int32)


def require_drawable(distribution: str, deviation: float) -> None:
    """Raise Refusal if the device cannot sample a message's noise in a transcript.

    >>> require_drawable("skellam", 2e4)
    Traceback (most recent call last):
    fedprivjax.Refusal: noise of integer messages must be at most 14142 in transcripts, got 2e+04; use fewer bits
    """
    most = SAMPLERS[distribution].most
    if deviation > most:
        raise Refusal(
            f"noise of integer messages must be at most {most:.0f} in transcripts, got {deviation:.4g}; use fewer bits"
        )


# ---- Skellam


def summed_skellam(rng: np.random.Generator, deviation: float, senders: np.ndarray, dimension: int) -> np.ndarray:
    """Return Skellam noise of sums on the host, [rounds, D]."""
    rates = (senders * deviation**2 / 2)[:, None]
    one, other = (rng.poisson(rates, (len(senders), dimension)) for _ in range(2))
    return one - other


def skellam(key: jax.Array, deviation: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return one message's Skellam noise, int32, as a sum of samples of at most `MAX_RATE`, on the device."""
    rate = deviation**2 / 2
    pieces = jnp.ceil(rate / MAX_RATE).astype(jnp.int32)

    def add(piece, total):
        keys = jax.random.split(jax.random.fold_in(key, piece))
        one, other = (jax.random.poisson(each, rate / jnp.maximum(pieces, 1), shape) for each in keys)
        return total + one - other

    return jax.lax.fori_loop(0, pieces, add, jnp.zeros(shape, jnp.int32))


# ---- discrete Gaussian


def distance_from_discrete_gaussian(variance: float, senders: int) -> float:
    """Return τ: the sum of n discrete Gaussian noises has the probabilities of N_Z(0, n·v) up to factors e^±(τ/2).

    >>> f"{distance_from_discrete_gaussian(1.0, 2):.4g}", distance_from_discrete_gaussian(1.0, 1)
    ('0.0005172', 0.0)
    """
    k = np.arange(1, senders)
    return 10 * float(np.exp(-2 * np.pi**2 * variance * k / (k + 1)).sum())


def summed_discrete_gaussian(
    rng: np.random.Generator, deviation: float, senders: np.ndarray, dimension: int
) -> np.ndarray:
    """Return the noise of sums of discrete Gaussian noises on the host, [rounds, D]."""
    rows = []
    for n in senders.astype(int):
        close = distance_from_discrete_gaussian(deviation**2, n) <= CLOSE
        pieces, std = (1, deviation * np.sqrt(n)) if close else (n, deviation)
        rows.append(sum((_on_host(rng, std, dimension) for _ in range(pieces)), np.zeros(dimension)))
    return np.stack(rows)


def _on_host(rng: np.random.Generator, deviation: float, dimension: int) -> np.ndarray:
    """Return independent samples of N_Z(0, deviation²), float64 [D]."""
    found, missing = np.zeros(dimension), np.arange(dimension)
    while missing.size:
        size = missing.size
        values, accepted = _proposed(np, rng.exponential(size=size), rng.random(size), rng.random(size), deviation)
        found[missing[accepted]] = values[accepted]
        missing = missing[~accepted]
    return found


def discrete_gaussian(key: jax.Array, deviation: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return one message's discrete Gaussian noise, int32, on the device."""

    def again(state):
        tries, found, done = state
        keys = jax.random.split(jax.random.fold_in(key, tries), 3)
        exponential = jax.random.exponential(keys[0], shape)
        signs, uniform = jax.random.uniform(keys[1], shape), jax.random.uniform(keys[2], shape)
        values, accepted = _proposed(jnp, exponential, signs, uniform, deviation)
        return tries + 1, jnp.where(done, found, values), done | accepted

    start = jnp.int32(0), jnp.zeros(shape), jnp.zeros(shape, bool)
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), again, start)[1].astype(jnp.int32)


def _proposed(numpy: Any, exponential: Any, sign: Any, uniform: Any, deviation: Any) -> tuple[Any, Any]:
    """Return integers of the discrete Laplace distribution, and whether they are accepted as discrete Gaussian.

    Canonne, Kamath & Steinke 2020, Algorithm 3, with the Laplace distribution of scale σ: |z| = ⌊σ·E⌋ with a random
    sign, without a negative zero, accepted with probability exp(−(|z|/σ − 1)²/2).

    Args:
        numpy: module of the arrays, numpy or jax.numpy.
        exponential: samples of the exponential distribution of mean 1.
        sign: samples in [0, 1), as `uniform`.
    """
    deviation = numpy.maximum(deviation, TINY)
    size, negative = numpy.floor(deviation * exponential), sign < 0.5
    accepted = (uniform < numpy.exp(-((size / deviation - 1) ** 2) / 2)) & ~(negative & (size == 0))
    return numpy.where(negative, -size, size), accepted


class Sampler(NamedTuple):
    """Samplers of a distribution of integer noise.

    Attributes:
        summed: noise of sums on the host, from a generator, the standard deviation of a message's noise, the numbers
            of messages, and D.
        message: noise of one message on the device, from a key, its standard deviation, and a shape.
        most: largest standard deviation of `message`.
    """

    summed: Callable[[np.random.Generator, float, np.ndarray, int], np.ndarray]
    message: Callable[[jax.Array, Any, tuple[int, ...]], jax.Array]
    most: float


SAMPLERS = {
    "skellam": Sampler(summed_skellam, skellam, float(np.sqrt(2 * MAX_RATE * MAX_PIECES))),
    "discrete-gaussian": Sampler(summed_discrete_gaussian, discrete_gaussian, 2.0**16),
}
