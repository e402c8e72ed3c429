r"""Sums of one-bit messages through a shuffler (Cheu, Joseph, Mao & Peng 2022): P_VEC.

A user rounds each coordinate at random to one of `levels` + 1 points of [−D, D], with D the bound, and adds noise bits:

    u = (x + D)·g/(2D);    ones = ⌊u⌋ + Bernoulli(u − ⌊u⌋) + Binomial(q, p)    of g + q one-bit messages, labelled j

A shuffler permutes the bits of a coordinate, and the analyzer counts them. With S the sum of the users' rounded levels
and Z ~ Binomial(n·q, p) the noise of n users, the bits reveal only S + Z and n, so only these are simulated:

    estimate = (2D/g)·[(S − n·g/2) + (Z − n·q·p)]

The literal bits (`randomizer`, `shuffled`, `analyzer`) run on the host, for small sizes; they have the same
distribution. Deviation from the paper: the levels are centred as integers, before they become float32.

P_1D, for numbers from 0 to W, is P_VEC for one coordinate: of x − W/2, with the bound W/2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.method.round import slot_keys
from fedprivjax.theory import cheu

CHUNK_NUMBERS = 2**18  # uniforms in memory at once, few enough for a CPU cache
SLACK = 1e-5  # relative tolerance of norms in float32


@struct.dataclass
class VectorSum:
    """Private sum of vectors, which users send as bits through a shuffler (P_VEC of Cheu et al. 2022).

    Every user has a vector of d coordinates and L2 norm at most D. The user rounds each coordinate x at random to an
    integer level from 0 to g. The expected level is (x + D)·g/(2D). For each coordinate, the user sends g bits and q
    noise bits. The number of ones among the g bits is the level. A shuffler permutes all users' bits of a coordinate,
    so an adversary learns only the number of ones.

    Attributes:
        bound: D, bound on the L2 norm of every user's vector.
        levels: g, number of levels above 0.
        trials: q, number of noise bits per user and coordinate.
        probability: p, probability that a noise bit is 1.
    """

    bound: Any
    levels: Any
    trials: Any
    probability: Any

    def __post_init__(self):
        require_positive("bound", self.bound)
        _require_count("levels", self.levels)
        _require_count("trials", self.trials)
        _require_probability(self.probability)

    @property
    def unit(self) -> Any:
        """Distance between neighbouring levels in the unit of the vectors: 2D/g, for `bound` D and `levels` g."""
        return 2 * self.bound / self.levels

    # ---- on the device, exact in distribution

    def rounded(self, key: jax.Array, vectors: jax.Array) -> jax.Array:
        """Return users' vectors with their coordinates rounded at random to integer levels; int32 [n, d].

        The levels are from 0 to `levels`.

        Args:
            key: random key of the round.
            vectors: one vector for each of n users, [n, d].
        """
        return self.rounded_by(slot_keys(key, vectors.shape[0]), vectors)

    def rounded_by(self, keys: jax.Array, vectors: jax.Array) -> jax.Array:
        """Return users' vectors rounded at random to integer levels, with one random key per user; int32 [n, d].

        The result for a user does not depend on which other users are computed together with it.

        Args:
            keys: random key of each user, [n].
            vectors: one vector for each of n users, [n, d].
        """
        levels = jnp.asarray(self.levels).astype(jnp.int32)
        scaled = vectors * (levels / (2 * self.bound)) + 0.5 * (levels % 2)
        low = jnp.floor(scaled)
        up = _uniforms(keys, vectors.shape[1:]) < scaled - low
        return jnp.clip((low + up).astype(jnp.int32) + levels // 2, 0, levels)

    def estimate(self, total_levels, noise_levels, users, remainder=0.0) -> jax.Array:
        """Return the estimated sum of the users' vectors, (2D/g)·(L − n·g/2 + Z − r); float32 [d].

        Here D = `bound`, g = `levels`, q = `trials`, and p = `probability`.

        Args:
            total_levels: L, sum over users of the integer levels, from 0 to g, to which they rounded their coordinates;
                int32 [d].
            noise_levels: Z, number of all users' noise bits that are 1, minus ⌊n·q·p⌋; int32 [d].
            users: n, number of users, which may be traced by JAX.
            remainder: r = n·q·p − ⌊n·q·p⌋. The expected number of noise bits that are 1 is n·q·p, so Z − r has mean 0.
        """
        span = jnp.asarray(users).astype(jnp.int32) * jnp.asarray(self.levels).astype(jnp.int32)
        counted = (total_levels - span // 2 + noise_levels).astype(jnp.float32)  # centred: both terms are below 2³⁰
        return self.unit * (counted - (0.5 * (span % 2) + jnp.asarray(remainder, jnp.float32)))

    # ---- literal messages, on the host

    def randomizer(self, rng: np.random.Generator, vectors) -> np.ndarray:
        """Return all bits that users send, uint8 [..., d, g + q], for g = `levels` and q = `trials`.

        For each coordinate, bits that are 1 come first. Their order does not matter, because the shuffler permutes
        them.

        Args:
            rng: NumPy generator.
            vectors: vectors of the users, [..., d].

        Raises:
            Refusal: if a vector is longer than `bound`.
        """
        require_within(self.bound, vectors)
        levels, trials = int(self.levels), int(self.trials)
        scaled = self._scaled(vectors)
        low = np.floor(scaled)
        ones = low + (rng.random(scaled.shape) < scaled - low)
        ones += (rng.random((*scaled.shape, trials)) < self.probability).sum(axis=-1)
        return (np.arange(levels + trials) < ones[..., None]).astype(np.uint8)

    def shuffled(self, rng: np.random.Generator, bits: np.ndarray) -> np.ndarray:
        """Return all users' bits of each coordinate in a random order, [..., d, n·k].

        Args:
            rng: NumPy generator.
            bits: k bits of each of n users for each of d coordinates, [..., n, d, k].
        """
        bits = np.swapaxes(bits, -3, -2)
        return rng.permuted(bits.reshape(*bits.shape[:-2], -1), axis=-1)

    def analyzer(self, bits: np.ndarray) -> np.ndarray:
        """Return the estimated sum of the users' vectors, float64 [..., d].

        Args:
            bits: shuffled bits of n users, [..., d, n·(g + q)], for g = `levels` and q = `trials`.
        """
        users = bits.shape[-1] // (int(self.levels) + int(self.trials))
        counts = bits.sum(axis=-1, dtype=np.int64) - users * int(self.trials) * float(self.probability)
        return self.unit * (counts - users * int(self.levels) / 2)

    # ---- numbers, on the host

    def totals(self, users) -> np.ndarray:
        """Return n·q, the number of noise bits of n users per coordinate, for q = `trials`; int64.

        Args:
            users: n, a number or an array of numbers.
        """
        return np.asarray(users, np.int64) * int(self.trials)

    def moments(self, vectors) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the variance of the estimated sum for given vectors, two float64 arrays [d].

        The mean is the exact sum. The variance is (2D/g)²·(Σ_i f_i·(1 − f_i) + n·q·p·(1 − p)), with D = `bound`, g =
        `levels`, q = `trials` and p = `probability`. Here n is the number of users, and f_i is the fractional part of
        (x_i + D)·g/(2D), which is rounded at random to 0 or 1.

        Args:
            vectors: vectors x_i of the n users, [n, d].
        """
        vectors = np.asarray(vectors, np.float64)
        fraction = self._scaled(vectors) % 1.0
        noise = vectors.shape[0] * int(self.trials) * self.probability * (1 - self.probability)
        variance = (fraction * (1 - fraction)).sum(axis=0) + noise
        return vectors.sum(axis=0), self.unit**2 * variance

    def messages_per_user(self, dimension: int) -> int:
        """Return the number of one-bit messages that a user sends in one sum: d·(g + q).

        Args:
            dimension: d, number of coordinates. For each coordinate, a user sends g + q bits, with g = `levels` and q =
                `trials`.
        """
        return int(cheu.messages_per_user(dimension=dimension, levels=int(self.levels), trials=int(self.trials)))

    def bits_per_user(self, dimension: int, *, shared_shuffler: bool) -> int:
        """Return the number of bits that a user sends in one sum.

        Args:
            dimension: d, number of coordinates of a vector.
            shared_shuffler: True if one shuffler serves all coordinates. Each one-bit message then also carries the
                number of its coordinate, in ⌈log₂ d⌉ bits. False if each coordinate has a shuffler of its own.

        >>> VectorSum(1.0, 4, 6, 0.5).bits_per_user(5, shared_shuffler=True)
        200
        """
        sizes = {"dimension": dimension, "levels": int(self.levels), "trials": int(self.trials)}
        return int(cheu.bits_per_user(**sizes, labelled=shared_shuffler))

    def _scaled(self, vectors) -> np.ndarray:
        """u, float64 in [0, levels]."""
        scaled = (np.asarray(vectors, np.float64) + self.bound) * (self.levels / (2 * self.bound))
        return np.clip(scaled, 0.0, self.levels)


def require_countable(users: int, levels: int) -> None:
    """Raise Refusal if the levels of a sum overflow int32.

    >>> require_countable(1_000_000, 10_000)
    Traceback (most recent call last):
    fedprivjax.Refusal: users × levels must be below 2³¹, got 1000000 × 10000
    """
    if int(users) * int(levels) >= 2**31:
        raise Refusal(f"users × levels must be below 2³¹, got {users} × {levels}")


def require_within(bound: float, vectors) -> None:
    """Raise Refusal if a host vector in [..., d] is longer than `bound` or has NaN. Vectors are never clipped here.

    >>> require_within(1.0, [[0.6, 0.8], [3.0, 4.0]])
    Traceback (most recent call last):
    fedprivjax.Refusal: vectors must have norm at most 1, got 5 (row 1). Clip them, or raise the bound
    """
    norms = np.linalg.norm(np.asarray(vectors, np.float64), axis=-1).reshape(-1)
    beyond = ~(norms <= bound * (1 + SLACK))
    if beyond.any():
        row = int(beyond.argmax())
        raise Refusal(
            f"vectors must have norm at most {bound:.6g}, got {norms[row]:.6g} (row {row}). "
            "Clip them, or raise the bound"
        )


def _uniforms(keys: jax.Array, shape) -> jax.Array:
    """Return uniforms of the given shape for each key, in the older layout: twice as fast (see `normals`)."""
    with jax.threefry_partitionable(False):
        return jax.vmap(lambda key: jax.random.uniform(key, shape))(keys)


def _require_count(name: str, value: Any) -> None:
    """Raise Refusal for a concrete number that is not an integer of at least 1. Arrays and traced values pass."""
    require_positive(name, value)
    if isinstance(value, int | float | np.number) and (value < 1 or value != int(value)):
        raise Refusal(f"{name} must be an integer of at least 1, got {value}")


def _require_probability(value: Any) -> None:
    if isinstance(value, int | float | np.number) and not 0 <= value <= 1:
        raise Refusal(f"probability must be between 0 and 1, got {value}")
