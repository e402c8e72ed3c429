"""Traced functions of methods whose messages are means over minibatches, clipped or not."""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.method.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.problem.problem import Problem


class AtIterate:
    """Mixin of methods whose machines compute gradients at the last iterate w, and whose output is another point."""

    def query(self, state: Any):
        """The point at which machines compute gradients."""
        return state.w

    def iterates(self, state: Any) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": state.w}


def noisy_mean(problem: Problem, w, inputs: RoundInputs, noise, bound: Any) -> tuple[Any, dict]:
    """Return the noisy mean of the cohort's messages at w, and scalars of the round.

    Args:
        bound: C, to which every record's gradient is clipped, or None.
    """
    total, info = cohort_sum(problem, gradient_at(w), inputs, bound)
    count = jnp.sum(inputs.filled)
    return add_noise(problem, jax.tree.map(lambda g: g / count, total), noise), info


def record_messages(problem: Problem, w, inputs: RoundInputs, bound: Any):
    """Return the participants' messages without noise, leaves [per_round, ...]."""
    return cohort_messages(problem, gradient_at(w), inputs, bound)


def gradient_at(w):
    """Return one record's contribution to a message before clipping, as a function of its gradient oracle."""
    return lambda gradient: gradient(w)


def iterate_buffer(w, window: int | None):
    """Return a buffer for the last iterates filled with w, leaves [window, ...], or None without a window."""
    return None if window is None else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (window, *leaf.shape)), w)


def appended(last, w):
    """Return the last iterates with w as the newest."""
    return None if last is None else jax.tree.map(lambda rows, leaf: jnp.roll(rows, -1, 0).at[-1].set(leaf), last, w)


def mean_of(last):
    """Return the mean of the last iterates."""
    return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), last)
