"""The round machinery all protocols share: what the cohort sends, summed by the cheapest way that is exact."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.problem.gradients import Dense, Outer, scaled
from fedprivjax.problem.models import GeneralModel, LinearModel
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.loops import scan_in_chunks

Oracle = Callable[..., Any]  # the gradient of one example's loss at some parameters; at several, a tuple of them
Machine = Callable[[Oracle], Any]  # what one machine sends, before noise

CHUNK_FLOATS = 2**24  # written-out gradients held at once


class RoundInputs(NamedTuple):
    """What a round is given: its number (from 1), and each participant's example, machine and participation count.

    Minibatch protocols get samples and weights [per_round, width], and which slots are filled, [per_round].
    """

    round: Any
    samples: Any
    machine: Any
    participation: Any
    weights: Any = None
    present: Any = None


def cohort_sum(problem: Problem, machine: Machine, inputs: RoundInputs, *, linear: bool):
    """Sum of the participants' messages (of weighted records), a pytree of the parameters' structure.

    A linear predictor's messages stay factored until one matrix product. Otherwise, a message that is linear in the
    gradient is computed once on the cohort's summed gradient; one that is not is written out, a chunk at a time.

    Args:
        machine: what one machine sends, as a function of its gradient oracle.
        inputs: the round's participants and their examples.
        linear: whether the message is linear in the gradient.
    """
    examples, weights = problem.take(inputs.samples, inputs.machine), inputs.weights
    if weights is not None:  # records of all machines in one row
        weights = weights.reshape(-1)
        examples = jax.tree.map(lambda leaf: leaf.reshape(weights.size, *leaf.shape[2:]), examples)
    if isinstance(problem.model, LinearModel):
        return weighted(messages(problem, machine, examples), weights).total()
    if linear:
        return machine(oracle(partial(problem.model.summed_gradients, weights=weights), examples)).value
    return _chunked_sum(problem, machine, examples, weights)


def machine_messages(problem: Problem, machine: Machine, inputs: RoundInputs):
    """Each participant's weighted sum over its own records, written out, leaves [per_round, ...]."""

    def one(examples, weights):
        return weighted(messages(problem, machine, examples), weights).total()

    return jax.vmap(one)(problem.take(inputs.samples, inputs.machine), inputs.weights)


def weighted(vectors, weights):
    """Vectors with a leading axis, each times its weight, 0 for weight 0; None leaves them as they are."""
    return vectors if weights is None else jax.vmap(scaled)(vectors, weights)


def messages(problem: Problem, machine: Machine, examples) -> Outer | Dense:
    """The machine's message for each of the examples, with a leading axis."""
    return jax.vmap(lambda example: machine(oracle(problem.model.gradients, example)))(examples)


def oracle(gradients: Callable[[tuple, Any], tuple], data) -> Oracle:
    """A machine's gradient oracle on its example: `gradient(w)`, or `gradient(x, y)` for two points at once."""

    def gradient(*points):
        found = gradients(points, data)
        return found if len(points) > 1 else found[0]

    return gradient


def _chunked_sum(problem: Problem, machine: Machine, examples, weights):
    assert isinstance(problem.model, GeneralModel)
    per_round = jax.tree.leaves(examples)[0].shape[0]
    chunk = max(1, min(per_round, CHUNK_FLOATS // problem.dimension))

    def add(total, some):
        examples, weights = some
        return jax.tree.map(jnp.add, total, weighted(messages(problem, machine, examples), weights).total()), ()

    return scan_in_chunks(add, jax.tree.map(jnp.zeros_like, problem.start), (examples, weights), chunk)[0]


def flat_rows(problem: Problem, tree):
    """A pytree of parameters with a leading axis as a matrix [rows, d]."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(rows, axis=1)


def add_noise(problem: Problem, tree, noise_std, noise):
    """`tree + noise_std·noise`, noise [d] or None."""
    if noise is None:
        return tree
    return jax.tree.map(lambda leaf, z: leaf + noise_std * z, tree, problem.unravel(noise))
