"""Vectors as integers: a public random rotation, and conditional stochastic rounding (Kairouz, Liu & Steinke 2021).

The rotation multiplies with public random signs and the Walsh-Hadamard matrix, divided by √D. It spreads every vector
evenly over its coordinates. All functions are traced.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.problem.random_keys import random_key

SIGNS = 2021  # seed of the public signs, which are the same in every run
TRIES = 64  # roundings of a vector before it is rounded towards zero
MOVE = (5**0.5 - 1) / 2  # of the uniform numbers of a try
SLACK = 1e-5  # relative, of a squared norm in float32, by which the bound is made smaller


def padded_size(dimension: int) -> int:
    """Return the smallest power of 2 that is at least `dimension`.

    >>> [padded_size(d) for d in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (dimension - 1).bit_length()


def hadamard(vector: jax.Array) -> jax.Array:
    """Return the Walsh-Hadamard transform of a vector [D], D a power of 2, divided by √D. It is its own inverse.

    >>> hadamard(jnp.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    size, half = vector.size, 1
    while half < size:
        pairs = vector.reshape(-1, 2, half)
        vector = jnp.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return vector.reshape(size) / jnp.sqrt(jnp.float32(size))


def signs(t: Any, size: int) -> jax.Array:
    """Return the public signs of round t, ±1, float32 [D]."""
    return jax.random.rademacher(jax.random.fold_in(random_key(SIGNS), t), (size,), jnp.float32)


def rotated(vector: jax.Array, t: Any) -> jax.Array:
    """Return a vector [d] padded with zeros to a power of 2 and rotated by the signs of round t, [D]."""
    size = padded_size(vector.size)
    return hadamard(signs(t, size) * jnp.pad(vector, (0, size - vector.size)))


def unrotated(vector: jax.Array, t: Any) -> jax.Array:
    """Return the padded vector of which `rotated` is the given one, [D]."""
    return signs(t, vector.size) * hadamard(vector)


def rounded(key: jax.Array, vector: jax.Array, bound: Any) -> jax.Array:
    """Return a vector [D], D a power of 2, rounded to integers of L2 norm at most `bound`, int32 [D].

    Every coordinate goes to one of its two nearest integers at random, without bias. This is repeated until the norm is
    at most the bound, at most `TRIES` times. Otherwise the vector is rounded towards zero, which makes no norm larger.
    A try moves the uniform numbers of the one before by a constant modulo 1, so that all configurations share them.

    Args:
        bound: at least the norm of the vector.
    """
    low, uniform = jnp.floor(vector), jax.random.uniform(key, vector.shape)
    most = bound**2 * (1 - SLACK)

    def tried(count):
        return low + (jnp.mod(uniform + count * MOVE, 1.0) < vector - low)

    def beyond(found):
        return ~(_squared_norm(found) <= most)

    def again(state):
        return state[0] + 1, tried(state[0])

    _, found = jax.lax.while_loop(lambda state: beyond(state[1]) & (state[0] < TRIES), again, (1, tried(0)))
    return jnp.where(beyond(found), jnp.trunc(vector), found).astype(jnp.int32)


def _squared_norm(vector: jax.Array) -> jax.Array:
    """Return ‖x‖² of a vector [D], summed in pairs: the relative error is at most (log₂ D + 1)·2⁻²³, below `SLACK`."""
    squares = vector**2
    while squares.size > 1:
        one, other = jnp.split(squares, 2)
        squares = one + other
    return squares[0]


def centred(values: jax.Array, bits: int) -> jax.Array:
    """Return integers modulo 2^b, from −2^(b−1) to 2^(b−1) − 1, int32.

    >>> centred(jnp.array([7, 8, -9]), 4).tolist()
    [7, -8, 7]
    """
    half = 1 << (bits - 1)
    return jnp.bitwise_and(values + half, 2 * half - 1) - half
