"""Scans over chunks, and over the first entries only, and functions that `vmap` computes in a loop."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.extend.core import jaxpr_as_fun


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


def scan_counted(function, carry, xs, size: int, count=None):
    """`function(carry, chunk, count) -> (carry, y)` over consecutive chunks of `size`, as one scan with one body.

    The last entry is repeated to fill the last chunk. A chunk's count is the number of its entries that are to be used,
    or None if all are.

    Args:
        count: number of entries of `xs` that are to be used, which may be traced, or None for all.

    >>> add = lambda total, chunk, count: (total + jnp.sum(jnp.where(jnp.arange(2) < count, chunk, 0)), total)
    >>> scan_counted(add, 0, jnp.arange(5), 2)[1].tolist()
    [0, 1, 6]
    """
    length = jax.tree.leaves(xs)[0].shape[0]
    if length <= size:
        return _once(lambda carry, xs: function(carry, xs, count), carry, xs)
    if count is None and length % size == 0:
        return scan_in_chunks(lambda carry, chunk: function(carry, chunk, None), carry, xs, size)
    chunks = -(-length // size)
    cut = jax.tree.map(lambda leaf: leaf.reshape(chunks, size, *leaf.shape[1:]), padded(xs, chunks * size))
    counts = jnp.clip((length if count is None else count) - size * jnp.arange(chunks), 0, size)
    return jax.lax.scan(lambda carry, chunk: function(carry, *chunk), carry, (cut, counts))


def padded(xs, length: int):
    """Return a pytree of leaves [entries, ...] with the last entry repeated up to a length.

    >>> padded(jnp.arange(3), 5).tolist()
    [0, 1, 2, 2, 2]
    """

    def longer(leaf):
        leaf = jnp.asarray(leaf)
        return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], length - leaf.shape[0], axis=0)])

    return jax.tree.map(longer, xs)


def _once(function, carry, xs):
    carry, y = function(carry, xs)
    return carry, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], y)


def scan_first(function, carry, xs, count):
    """`jax.lax.scan` over the first `count` entries only. Further outputs are 0.

    Args:
        count: number of entries, which may be traced.

    >>> total, sums = scan_first(lambda total, x: (total + x, total), 0, jnp.arange(5), 3)
    >>> int(total), sums.tolist()
    (3, [0, 0, 1, 0, 0])
    """
    length = jax.tree.leaves(xs)[0].shape[0]
    output = jax.eval_shape(lambda carry: function(carry, entry(xs, 0))[1], carry)
    ys = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), output)

    def one(k, state):
        carry, ys = state
        carry, y = function(carry, entry(xs, k))
        return carry, jax.tree.map(lambda rows, new: rows.at[k].set(new), ys, y)

    return jax.lax.fori_loop(0, count, one, (carry, ys))


def vmapped(function: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """Return `jax.vmap(function, in_axes)`, which computes an axis of length 1 without it: XLA then copies less.

    Args:
        in_axes: 0 or None for each argument.

    >>> double = vmapped(lambda x, y: x + y, (0, None))
    >>> double(jnp.arange(1), 3).tolist(), double(jnp.arange(2), 3).tolist()
    ([3], [3, 4])
    """

    def call(*arguments: Any) -> Any:
        pairs = list(zip(in_axes, arguments, strict=True))
        mapped = [one for axis, one in pairs if axis is not None]
        if {len(leaf) for leaf in jax.tree.leaves(mapped)} != {1}:
            return jax.vmap(function, in_axes)(*arguments)
        values = function(*(one if axis is None else entry(one, 0) for axis, one in pairs))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], values)

    return call


def one_after_another(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`, which `vmap` computes in a loop; the function may close over traced arrays.

    >>> double = lambda x: one_after_another(lambda y: x + y, x)
    >>> jax.vmap(double)(jnp.arange(3)).tolist()
    [0, 2, 4]
    """
    program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    consts = len(program.consts)

    @sequential_vmap
    def run(*leaves):
        return jaxpr_as_fun(program.replace(consts=leaves[:consts]))(*leaves[consts:])

    return jax.tree.unflatten(jax.tree.structure(shape), run(*program.consts, *jax.tree.leaves(arguments)))


def entry(xs, k):
    """Return entry k, which may be traced, of every leaf."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, k, keepdims=False), xs)
