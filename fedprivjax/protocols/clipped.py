"""Minibatch messages that are clipped otherwise than record by record, as some published code does."""

import jax
import jax.numpy as jnp

from fedprivjax.problem.gradients import Dense, clip
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.cohort import RoundInputs, machine_messages

CLIPPED = {
    "record": "every record's gradient",
    "message": "a machine's mean over its batch: a record may then move it by 2C, not by 2C/K",
    "other": "a batch's mean by the factor that another batch's norm gives: no private bound at all",
}


def clipped_messages(problem: Problem, w, inputs: RoundInputs, at: str, bound):
    """The participants' mean gradients at w, clipped as a whole, leaves [per_round, ...].

    Args:
        at: "message", or "other", where the first half of a machine's samples gives the factor for the second.
        bound: C, on a message's norm.
    """

    def means(samples, weights):
        some = inputs._replace(samples=samples, weights=weights)
        return machine_messages(problem, lambda gradient: gradient(w), some)

    if at == "message":
        return jax.vmap(lambda g: clip(Dense(g), bound).value)(means(inputs.samples, inputs.weights))
    halves = zip(jnp.split(inputs.samples, 2, axis=1), jnp.split(2 * inputs.weights, 2, axis=1), strict=True)
    measured, used = (means(*half) for half in halves)
    norms = jax.vmap(lambda g: Dense(g).norm())(measured)
    factors = jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-30))
    return jax.tree.map(lambda rows: rows * factors.reshape(-1, *[1] * (rows.ndim - 1)), used)
