"""The device's side of methods whose messages are clipped or plain means over minibatches."""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.method.round import RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.problem.problem import Problem


def noisy_mean(
    problem: Problem, w, inputs: RoundInputs, noise, bound: Any, *, constant: bool = False
) -> tuple[Any, dict]:
    """The server's mean of the cohort's messages at w, with its noise, every record's gradient clipped to the bound.

    Args:
        constant: the sum is divided by E[M_r] in every round, not by the round's own number.
    """
    total, info = cohort_sum(problem, gradient_at(w), inputs, bound)
    count = inputs.expected if constant and inputs.expected is not None else jnp.sum(inputs.filled)
    return add_noise(problem, jax.tree.map(lambda g: g / count, total), noise), info


def record_messages(problem: Problem, w, inputs: RoundInputs, bound: Any):
    """The participants' messages without noise, leaves [per_round, ...]."""
    return cohort_messages(problem, gradient_at(w), inputs, bound)


def gradient_at(w):
    """What one record adds to its machine's message before clipping, as a function of its gradient oracle."""
    return lambda gradient: gradient(w)


def room(w, window: int | None):
    """Room for the last iterates, leaves [window, ...], all of them w; None without a window."""
    return None if window is None else jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (window, *leaf.shape)), w)


def appended(last, w):
    """The last iterates with w as the newest."""
    return None if last is None else jax.tree.map(lambda rows, leaf: jnp.roll(rows, -1, 0).at[-1].set(leaf), last, w)


def mean_of(last):
    """The mean of the last iterates."""
    return jax.tree.map(lambda rows: jnp.mean(rows, axis=0), last)
