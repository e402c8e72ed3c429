"""Traced functions of methods that report the mean of their last iterates: a buffer of them, and its mean."""

import jax
import jax.numpy as jnp


def iterate_buffer(w, window: int | None):
    """Return a buffer for the last iterates filled with w, leaves [window, ...], or None without a window."""
    return None if window is None else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (window, *leaf.shape)), w)


def appended(last, w):
    """Return the last iterates with w as the newest."""
    return None if last is None else jax.tree.map(lambda rows, leaf: jnp.roll(rows, -1, 0).at[-1].set(leaf), last, w)


def mean_of(last):
    """Return the mean of the last iterates."""
    return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), last)
