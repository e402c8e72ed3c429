"""A scan over chunks of rounds."""

import jax
import jax.numpy as jnp


def scan_in_chunks(function, carry, xs, size: int):
    """`function(carry, chunk) -> (carry, y)` over consecutive chunks of `size` (the last may be shorter), as one scan.

    Args:
        xs: pytree with leaves [length, ...]; a chunk has leaves [size, ...].

    Returns:
        The last carry and the stacked outputs, leaves [chunks, ...].

    >>> scan_in_chunks(lambda total, chunk: (total + chunk.sum(), total), 0, jnp.arange(5), 2)[1].tolist()
    [0, 1, 6]
    """
    length = jax.tree.leaves(xs)[0].shape[0]
    whole, rest = divmod(length, size)
    if whole == 0:
        return _once(function, carry, xs)
    chunks = jax.tree.map(lambda leaf: leaf[: whole * size].reshape(whole, size, *leaf.shape[1:]), xs)
    carry, ys = jax.lax.scan(function, carry, chunks)
    if rest:
        carry, last = _once(function, carry, jax.tree.map(lambda leaf: leaf[whole * size :], xs))
        ys = jax.tree.map(lambda *parts: jnp.concatenate(parts), ys, last)
    return carry, ys


def _once(function, carry, xs):
    carry, y = function(carry, xs)
    return carry, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], y)
