"""Messages of released code: clipped as a whole, or scaled by another batch's norm."""

from dataclasses import dataclass
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.method.clipping import clip
from fedprivjax.method.minibatch_round import record_messages
from fedprivjax.method.record_mechanism import MachineTable, RecordMechanism
from fedprivjax.method.round import RoundInputs
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.gradients import Dense
from fedprivjax.problem.problem import Problem

CLIPPED = {
    "record": "every record's gradient",
    "message": "a machine's mean over its batch, whose sensitivity to a record is then 2C instead of 2C/K",
    "other": "a batch's mean, with the factor of another batch's norm: unbounded sensitivity",
}
AGGREGATES = {"mean": "mean of the messages", "sum": "sum of the messages, an effective step of M times the step"}


@dataclass(frozen=True)
class UnboundedRecords(RecordMechanism):
    """Messages scaled by another batch's norm: their sensitivity to one record is unbounded."""

    def shift(self, m: MachineTable) -> np.ndarray:
        return np.full(m.batch.size, inf)

    def bounds(self, problem: Problem) -> tuple[Assumption, ...]:
        return (Assumption("rescaled messages"),)


def released_messages(problem: Problem, w, inputs: RoundInputs, at: str, bound):
    """Return the participants' mean gradients at w with the code's clipping, leaves [per_round, ...].

    Args:
        at: a key of `CLIPPED`; with "other", the first half of a machine's samples gives the factor of the second.
        bound: C, or None.
    """
    if bound is None or at == "record":
        return record_messages(problem, w, inputs, bound)
    if at == "message":
        means = record_messages(problem, w, inputs, None)
        return jax.vmap(lambda g: clip(Dense(g), bound).value)(means)
    halves = zip(jnp.split(inputs.samples, 2, axis=1), jnp.split(2 * inputs.weights, 2, axis=1), strict=True)
    measured, used = (record_messages(problem, w, inputs._replace(samples=s, weights=p), None) for s, p in halves)
    norms = jax.vmap(lambda g: Dense(g).norm())(measured)
    factors = jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-30))
    return jax.tree.map(lambda rows: rows * factors.reshape(-1, *[1] * (rows.ndim - 1)), used)
