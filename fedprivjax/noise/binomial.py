r"""Binomial noise: what the one-bit noise messages of many users add up to (Cheu, Joseph, Mao & Peng 2022).

    Z ~ Binomial(m, p),  m = users present × trials of a user;    the noise is Z − m·p, in levels

Three ways to draw it. `binomial_tape` is exact for every m, and made on the host before a run; `RoundedNormal` is a
shortcut on the device, whose error `total_variation` tells; `LiteralBits` has single users' noise drawn on the device.
The accounting of a binomial covers the first and the last, not the shortcut.
"""

from math import ceil, floor, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.interface import Mechanism
from fedprivjax.noise.normals import normals

LARGEST = 2**30  # of a centred count: with a centred sum of levels it still fits int32
MOST_TOTAL = 10**18  # trials, up to which NumPy's draws were checked
MOST_TRIALS = {"float32": 10**6, "float64": 10**14}  # beyond which jax.random.binomial is wrong
EXACT_DEVIATION = 1000.0  # up to which the total variation is summed term by term


class Tape(NamedTuple):
    """Centred binomial noise, `noise − remainder` in levels.

    Attributes:
        noise: Z − ⌊m·p⌋, int32 [rounds, d].
        remainder: m·p − ⌊m·p⌋, float64 [rounds].
    """

    noise: np.ndarray
    remainder: np.ndarray


class Scale(NamedTuple):
    """What makes the rounded normal of a round out of standard normals: √(m·p·(1 − p)) and m·p − ⌊m·p⌋, [rounds]."""

    deviation: np.ndarray
    remainder: np.ndarray


def binomial_tape(stream: np.random.SeedSequence, totals, probability: float, dimension: int) -> Tape:
    """Exact noise of a run: Z ~ Binomial(totals, probability) for each round and coordinate, centred in int64.

    Args:
        stream: `plan.seeds.binomial_stream`.
        totals: m of each round, users present × trials, integers [rounds].
        dimension: d.

    >>> from fedprivjax.plan.seeds import binomial_stream
    >>> noise, remainder = binomial_tape(binomial_stream(0), [10**10, 5], 0.5, 3)
    >>> noise.dtype.name, noise.shape, remainder.tolist()
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
    return Tape(noise.astype(np.int32), totals * float(probability) - centre)


def normal_scale(totals, probability: float) -> Scale:
    """The scale of the rounded normal that stands for a tape, float64 [rounds]; totals as in `binomial_tape`.

    >>> normal_scale([400, 5], 0.5).remainder.tolist()
    [0.0, 0.5]
    """
    totals = _checked_totals(totals, probability)
    mean = totals * float(probability)
    return Scale(np.sqrt(mean * (1.0 - probability)), mean - np.floor(mean))


class BitNoise(NamedTuple):
    """A round's noise in sums of bits, `levels − remainder` in levels.

    Attributes:
        scale: σ of one message; 0 is no noise, and no rounding either.
        levels: int32 [d]; None where users' own bits are written out.
        remainder: of the mean, below one level.
        of_mean: what one level is in the mean.
        key: of users' own noise bits, or None.
    """

    scale: Any
    levels: Any = None
    remainder: Any = 0.0
    of_mean: Any = 0.0
    key: Any = None

    def ones(self, trials, probability, shape) -> jax.Array:
        """Every user's own noise, Binomial(trials, probability), int32 [users, d]; see `require_drawable`."""
        return _drawn(self.key, trials, probability, shape)


class OfBits(Mechanism):
    """Noise in sums of bits, in levels; a draw is what `noise(scale, sums, tape)` makes a member's `BitNoise` of.

    inputs: messages of a round, float32 [rounds].
    """

    def aggregate(self, noise: BitNoise) -> Any:
        if noise.levels is None:
            return None
        return jnp.where(noise.scale > 0, noise.of_mean * (noise.levels - noise.remainder), 0.0)


@struct.dataclass
class Taped(OfBits):
    """Exact binomial noise from the member's host-made tape; a seed draws nothing."""

    inputs: Any

    @property
    def name(self) -> str:
        return "binomial"

    def draw(self, state, inputs, keys, dimension: int):
        return state, TapeDraw(inputs)


@struct.dataclass
class RoundedNormal(OfBits):
    """One N(0, I) a round, of which a member makes `rounded_normal`: a shortcut, see `product_variation`."""

    inputs: Any

    taped = False

    @property
    def name(self) -> str:
        return "rounded normal, in place of a binomial"

    def draw(self, state, inputs, keys, dimension: int):
        return state, NormalDraw(inputs, jax.vmap(lambda key: normals(key, (dimension,)))(keys))


@struct.dataclass
class LiteralBits(OfBits):
    """Every user's own noise bits, for transcripts of small runs: a round gets the key to draw them from."""

    inputs: Any

    inside = True
    taped = False

    @property
    def name(self) -> str:
        return "binomial, every message written out"

    def draw(self, state, inputs, keys, dimension: int):
        return state, KeyDraw(keys)


@struct.dataclass
class TapeDraw:
    """What `Taped` draws: the messages of a round."""

    messages: Any

    def noise(self, scale, sums, tape: Tape) -> BitNoise:
        """A member's noise; `sums` has the `unit` of a level."""
        return BitNoise(scale, tape.noise, tape.remainder, sums.unit / self.messages)


@struct.dataclass
class NormalDraw:
    """What `RoundedNormal` draws: the messages of a round, and standard normals [d]."""

    messages: Any
    normal: Any

    def noise(self, scale, sums, tape: None) -> BitNoise:
        """A member's noise, on the integers about the binomial's mean."""
        levels = rounded_normal(self.normal, scale * jnp.sqrt(self.messages) / sums.unit)
        return BitNoise(scale, levels, 0.0, sums.unit / self.messages)


@struct.dataclass
class KeyDraw:
    """What `LiteralBits` draws: the key of a round."""

    key: Any

    def noise(self, scale, sums, tape: None) -> BitNoise:
        """A member's noise."""
        return BitNoise(scale, key=self.key)


def rounded_normal(drawn, deviation, remainder: Any = 0.0):
    """`rint(deviation·z + remainder)`, int32: a rounded normal in place of Z − ⌊m·p⌋.

    The remainder, to be taken off again as with a tape, keeps the rounding on the binomial's own lattice.

    Args:
        drawn: z, standard normals.
        deviation, remainder: of one round, see `normal_scale`.
    """
    return jnp.clip(jnp.rint(deviation * drawn + remainder), -LARGEST, LARGEST).astype(jnp.int32)


def total_variation(total: int, probability: float) -> float:
    """Distance in law of one draw of ⌊m·p⌋ + rint(√(m·p·(1 − p))·N(0, 1) + remainder) to Binomial(m, p).

    Summed term by term up to a standard deviation of 1000, beyond it by its Edgeworth expansion (relative error below
    1e-5). It holds for exact normals: see `grid_variation` for those of float32.

    >>> f"{total_variation(400, 0.5):.2g}"
    '0.00019'
    """
    totals = _checked_totals([total], probability)
    deviation = float(normal_scale(totals, probability).deviation[0])
    if deviation == 0:
        return 0.0
    if deviation > EXACT_DEVIATION:
        return _expanded_variation(deviation, probability)
    mean, reach = total * probability, 14 * deviation + 2
    counts = np.arange(floor(mean - reach), ceil(mean + reach) + 1)
    low, high = ((counts + side - mean) / deviation for side in (-0.5, 0.5))
    upper = counts > mean  # differences of the smaller tail lose no digits
    ndtr = scipy.special.ndtr
    normal = np.where(upper, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return float(0.5 * np.abs(scipy.stats.binom.pmf(counts, total, probability) - normal).sum())


def product_variation(totals, probability: float, dimension: int) -> float:
    """A bound on the error in law of a whole run on rounded normals: d·Σ_rounds `total_variation`, at most 1.

    >>> product_variation([400, 400], 0.5, 10) == 20 * total_variation(400, 0.5)
    True
    """
    values, counts = np.unique(np.asarray(totals), return_counts=True)
    each = [total_variation(int(total), probability) for total in values]
    return min(1.0, float(dimension * np.dot(counts, each)))


def grid_variation(deviation: float) -> float:
    """A bound on what float32 adds to `total_variation`: its normals have 2²³ equally likely values, none past 5.42.

    Each integer within reach gains or loses at most one of them. It passes the law's own error soon (near a deviation
    of 50 for p = 1/2), yet it moves mass only between neighbours: no distribution function moves by more than 2⁻²³.
    """
    return min(1.0, (2 * 5.42 * deviation + 1) * 2.0**-24 + 2 * float(scipy.special.ndtr(-5.42)))


def require_drawable(trials, dtype: str = "float32") -> None:
    """Refuse so many trials that jax.random.binomial is wrong: in float32 its variance is off from 4e6 on.

    >>> require_drawable(2_000_000)
    Traceback (most recent call last):
    fedprivjax.Refusal: trials must be at most 1e+06 to be drawn in float32, got 2000000; draw a binomial_tape
    """
    largest = int(np.max(trials))
    if largest > MOST_TRIALS[dtype]:
        most = MOST_TRIALS[dtype]
        raise Refusal(f"trials must be at most {most:.0e} to be drawn in {dtype}, got {largest}; draw a binomial_tape")


def literal_trials(key: jax.Array, trials: int, probability, shape) -> jax.Array:
    """Single users' noise, Binomial(trials, probability), int32 of a shape; for small sizes, at 0.2 µs each.

    Args:
        trials: known before tracing, for `require_drawable` reads it.
        probability: may be traced.
    """
    require_drawable(trials, jnp.result_type(float).name)
    return _drawn(key, trials, probability, shape)


def _drawn(key: jax.Array, trials, probability, shape) -> jax.Array:
    dtype = jnp.result_type(float)
    drawn = jax.random.binomial(key, jnp.asarray(trials, dtype), jnp.asarray(probability, dtype), shape, dtype)
    return drawn.astype(jnp.int32)


def _checked_totals(totals, probability: float) -> np.ndarray:
    if not 0 <= probability <= 1:
        raise Refusal(f"probability must be between 0 and 1, got {probability}")
    totals = np.asarray(totals)
    if not np.issubdtype(totals.dtype, np.integer) or totals.ndim != 1:
        raise Refusal(f"totals must be integers, one a round, got {totals.dtype} {list(totals.shape)}")
    if totals.size and not 0 <= totals.min() <= totals.max() <= MOST_TOTAL:
        raise Refusal(f"totals must be between 0 and 1e18, got {totals.min():.4g} to {totals.max():.4g}")
    return totals.astype(np.int64)


def _expanded_variation(deviation: float, probability: float) -> float:
    """½·E|κ₃/6·He₃ + κ₄/24·He₄ + κ₃²/72·He₆ − He₂/(24·s²)|: the binomial's expansion less the rounded normal's."""
    x = np.linspace(-12, 12, 200_001)
    skewness = (1 - 2 * probability) / deviation
    kurtosis = (1 - 6 * probability * (1 - probability)) / deviation**2
    series = [0, 0, -1 / (24 * deviation**2), skewness / 6, kurtosis / 24, 0, skewness**2 / 72]
    density = np.exp(-x * x / 2) / sqrt(2 * np.pi)
    values = np.abs(np.polynomial.hermite_e.hermeval(x, series)) * density
    return float(0.5 * values.sum() * (x[1] - x[0]))
