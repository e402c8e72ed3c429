"""Scans over chunks, and over the first entries only, and functions that `vmap` computes in a loop."""

from collections.abc import Callable
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
    at = lambda k: jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, k, keepdims=False), xs)  # noqa: E731
    output = jax.eval_shape(lambda carry: function(carry, at(0))[1], carry)
    ys = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), output)

    def one(k, state):
        carry, ys = state
        carry, y = function(carry, at(k))
        return carry, jax.tree.map(lambda rows, new: rows.at[k].set(new), ys, y)

    return jax.lax.fori_loop(0, count, one, (carry, ys))


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
