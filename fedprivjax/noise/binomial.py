r"""Binomial noise: the sum of the one-bit noise messages of many users (Cheu, Joseph, Mao & Peng 2022).

    Z ~ Binomial(m, p),  m = users present × trials per user;    the noise is Z − m·p, in levels

There are three samplers. `sample_binomial_noise` is exact for every m and runs on the host before a run.
`RoundedNormal` is an approximation on the device, with error `total_variation`. `LiteralBits` samples single users'
noise on the device. The accounting covers the first and the last, not the approximation.
"""

from math import ceil, floor, sqrt
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.interface import Mechanism, normals

LARGEST = 2**30  # largest centred count; its sum with a centred sum of levels fits int32
MAX_TOTAL = 10**18  # largest number of trials for which NumPy's sampler was checked
MAX_TRIALS = {"float32": 10**6, "float64": 10**14}  # jax.random.binomial is wrong beyond these
EXACT_DEVIATION = 1000.0  # largest standard deviation for which the total variation is summed term by term


class HostNoise(NamedTuple):
    """Centred binomial noise of a whole run, sampled on the host: `integers − remainder`, which has mean 0.

    Users (machines with one record each) add random noise bits to their messages. Each noise bit is 1 with probability
    p. Let Z be the number of ones among all users' m noise bits of one coordinate in a round. The noise of the
    coordinate is Z − m·p, in units of one bit.

    Attributes:
        integers: Z − ⌊m·p⌋, int32, shape [rounds, d] for vectors of d coordinates.
        remainder: m·p − ⌊m·p⌋, in [0, 1); float64, shape [rounds]. It is 0 if the mean m·p is an integer.
    """

    integers: np.ndarray
    remainder: np.ndarray


def sample_binomial_noise(stream: np.random.SeedSequence, totals, probability: float, dimension: int) -> HostNoise:
    """Sample the binomial noise of a whole run exactly, for every round and coordinate.

    Let Z be the number of ones among the m noise bits of one coordinate in a round, so Z ~ Binomial(m, p). The noise of
    the coordinate is Z − m·p. The result has two arrays whose difference is the noise: the integers Z − ⌊m·p⌋ and the
    remainder m·p − ⌊m·p⌋.

    Args:
        stream: seed of the random numbers, from `plan.seeds.binomial_stream`.
        totals: m, number of noise bits of one coordinate in each round, of all users together; int, shape [rounds].
        probability: p, probability that a noise bit is 1.
        dimension: d, number of coordinates.

    >>> from fedprivjax.plan.seeds import binomial_stream
    >>> integers, remainder = sample_binomial_noise(binomial_stream(0), [10**10, 5], 0.5, 3)
    >>> integers.dtype.name, integers.shape, remainder.tolist()
    ('int32', (2, 3), [0.0, 0.5])
    """
    totals = _checked_totals(totals, probability)
    rng = np.random.Generator(np.random.Philox(stream))
    centre = np.floor(totals * float(probability))
    noise = rng.binomial(totals[:, None], probability, size=(totals.size, dimension))
    noise -= centre.astype(np.int64)[:, None]
    largest = int(np.abs(noise).max(initial=0))
    if largest >= LARGEST:
        raise Refusal(
            f"binomial noise must stay below 2³⁰ levels, got {largest:.4g} from {totals.max():.4g} trials of "
            f"probability {probability:.4g}; use fewer levels"
        )
    return HostNoise(noise.astype(np.int32), totals * float(probability) - centre)


class BitNoise(NamedTuple):
    """Noise of one round in sums of bits, `levels − remainder` in levels.

    Attributes:
        scale: σ of one message. 0 means no noise and no rounding.
        levels: int32 [d], or None if users' bits are sampled separately.
        remainder: fractional part of the mean, below one level.
        of_mean: value of one level in the mean.
        key: key of the users' noise bits, or None.
    """

    scale: Any
    levels: Any = None
    remainder: Any = 0.0
    of_mean: Any = 0.0
    key: Any = None

    def ones(self, trials, probability, shape) -> jax.Array:
        """Sample every user's noise, Binomial(trials, probability), int32 [users, d]. Takes 0.2 µs per number.

        Args:
            trials: may be traced; `require_drawable` checks a concrete number.
            probability: may be traced.
        """
        dtype = jnp.result_type(float)
        trials, probability = jnp.asarray(trials, dtype), jnp.asarray(probability, dtype)
        return jax.random.binomial(self.key, trials, probability, shape, dtype).astype(jnp.int32)


@struct.dataclass
class OfBits(Mechanism):
    """Base class of noise in sums of bits. A sample's `noise(scale, sums, host_noise)` is a configuration's `BitNoise`.

    inputs: messages of a round, float32 [rounds].
    """

    inputs: Any

    def aggregate(self, noise: BitNoise) -> Any:
        if noise.levels is None:
            return None
        return jnp.where(noise.scale > 0, noise.of_mean * (noise.levels - noise.remainder), 0.0)


@struct.dataclass
class HostSampled(OfBits):
    """Exact binomial noise that the protocol sampled on the host. Nothing is sampled on the device."""

    label: ClassVar[str] = "binomial"

    def draw(self, state, inputs, keys, dimension: int):
        return state, BitDraw(inputs)


@struct.dataclass
class RoundedNormal(OfBits):
    """Approximate sampler of binomial noise, which rounds normal numbers to integers.

    The privacy accounting does not cover the approximation. `noise.binomial.product_variation` bounds its error over a
    run, as a total variation distance from exact binomial noise.

    Attributes:
        inputs: number of messages in each round, float32, shape [rounds].
    """

    label: ClassVar[str] = "rounded normal, instead of a binomial"
    uses_host_noise = False

    def draw(self, state, inputs, keys, dimension: int):
        return state, BitDraw(inputs, jax.vmap(lambda key: normals(key, (dimension,)))(keys))


@struct.dataclass
class LiteralBits(OfBits):
    """Separate noise bits of every user, for transcripts of small runs. A round receives the key to sample them."""

    label: ClassVar[str] = "binomial, every message sampled separately"
    inside = True
    uses_host_noise = False

    def draw(self, state, inputs, keys, dimension: int):
        return state, BitDraw(inputs, key=keys)


@struct.dataclass
class BitDraw:
    """Sample of one round.

    Attributes:
        messages: number of messages.
        normal: standard normals [d] to be rounded, or None.
        key: key of the users' noise bits, or None.
    """

    messages: Any
    normal: Any = None
    key: Any = None

    def noise(self, scale, sums, host_noise: HostNoise | None) -> BitNoise:
        """Return a configuration's noise, on the integers around the binomial's mean.

        Args:
            scale: σ of one message.
            sums: `sums.unit` is the value of one level.
            host_noise: noise of the round, if neither normals nor a key were sampled.
        """
        if self.key is not None:
            return BitNoise(scale, key=self.key)
        of_mean = sums.unit / self.messages
        if host_noise is not None:
            return BitNoise(scale, host_noise.integers, host_noise.remainder, of_mean)
        return BitNoise(scale, rounded_normal(self.normal, scale * jnp.sqrt(self.messages) / sums.unit), 0.0, of_mean)


def rounded_normal(drawn, deviation, remainder: Any = 0.0):
    """Return `rint(deviation·z + remainder)`, int32: a rounded normal that approximates Z − ⌊m·p⌋.

    The remainder keeps the rounding on the binomial's lattice. The caller subtracts it again.

    Args:
        drawn: z, standard normals.
        deviation, remainder: √(m·p·(1 − p)) and m·p − ⌊m·p⌋.
    """
    return jnp.clip(jnp.rint(deviation * drawn + remainder), -LARGEST, LARGEST).astype(jnp.int32)


def total_variation(total: int, probability: float) -> float:
    """Return the total variation distance of ⌊m·p⌋ + rint(√(m·p·(1 − p))·N(0, 1) + remainder) to Binomial(m, p).

    It is summed term by term up to a standard deviation of 1000. Beyond that its Edgeworth expansion is used, with
    relative error below 1e-5. The distance is for exact normals, not for those of float32.

    >>> f"{total_variation(400, 0.5):.2g}"
    '0.00019'
    """
    totals = _checked_totals([total], probability)
    deviation = float(np.sqrt(totals[0] * float(probability) * (1.0 - probability)))
    if deviation == 0:
        return 0.0
    if deviation > EXACT_DEVIATION:
        return _expanded_variation(deviation, probability)
    mean, reach = total * probability, 14 * deviation + 2
    counts = np.arange(floor(mean - reach), ceil(mean + reach) + 1)
    low, high = ((counts + side - mean) / deviation for side in (-0.5, 0.5))
    upper = counts > mean  # differences of the smaller tail avoid cancellation
    ndtr = scipy.special.ndtr
    normal = np.where(upper, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return float(0.5 * np.abs(scipy.stats.binom.pmf(counts, total, probability) - normal).sum())


def product_variation(totals, probability: float, dimension: int) -> float:
    """Return a bound on the total variation of a whole run with rounded normals: d·Σ_rounds `total_variation`, ≤ 1.

    >>> product_variation([400, 400], 0.5, 10) == 20 * total_variation(400, 0.5)
    True
    """
    values, counts = np.unique(np.asarray(totals), return_counts=True)
    each = [total_variation(int(total), probability) for total in values]
    return min(1.0, float(dimension * np.dot(counts, each)))


def require_drawable(trials, dtype: str = "float32") -> None:
    """Raise Refusal if jax.random.binomial is wrong for so many trials. In float32 its variance is wrong from 4e6 on.

    >>> require_drawable(2_000_000)
    Traceback (most recent call last):
    fedprivjax.Refusal: trials must be at most 1e+06 to be drawn in float32, got 2000000; draw a sample_binomial_noise
    """
    largest = int(np.max(trials))
    if largest > MAX_TRIALS[dtype]:
        most = MAX_TRIALS[dtype]
        raise Refusal(
            f"trials must be at most {most:.0e} to be drawn in {dtype}, got {largest}; draw a sample_binomial_noise"
        )


def _checked_totals(totals, probability: float) -> np.ndarray:
    if not 0 <= probability <= 1:
        raise Refusal(f"probability must be between 0 and 1, got {probability}")
    totals = np.asarray(totals)
    if not np.issubdtype(totals.dtype, np.integer) or totals.ndim != 1:
        raise Refusal(f"totals must be integers, one per round, got {totals.dtype} {list(totals.shape)}")
    if totals.size and not 0 <= totals.min() <= totals.max() <= MAX_TOTAL:
        raise Refusal(f"totals must be between 0 and 1e18, got {totals.min():.4g} to {totals.max():.4g}")
    return totals.astype(np.int64)


def _expanded_variation(deviation: float, probability: float) -> float:
    """Return ½·E|κ₃/6·He₃ + κ₄/24·He₄ + κ₃²/72·He₆ − He₂/(24·s²)|: binomial minus rounded normal, expanded."""
    x = np.linspace(-12, 12, 200_001)
    skewness = (1 - 2 * probability) / deviation
    kurtosis = (1 - 6 * probability * (1 - probability)) / deviation**2
    series = [0, 0, -1 / (24 * deviation**2), skewness / 6, kurtosis / 24, 0, skewness**2 / 72]
    density = np.exp(-x * x / 2) / sqrt(2 * np.pi)
    values = np.abs(np.polynomial.hermite_e.hermeval(x, series)) * density
    return float(0.5 * values.sum() * (x[1] - x[0]))
