"""The round machinery all protocols share: what the cohort sends, summed by the cheapest way that is exact."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.method.clipping import clipped, clipping, clipping_info
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.problem.gradients import Dense, Outer, scaled
from fedprivjax.problem.memory_estimate import numbers_of_one
from fedprivjax.problem.problem import Problem

Oracle = Callable[..., Any]  # the gradient of one example's loss at some parameters; at several, a tuple of them
Machine = Callable[[Oracle], Any]  # what one machine sends, before noise

CHUNK_FLOATS = 2**24  # written-out gradients held at once


class RoundInputs(NamedTuple):
    """What a round is given: its number (from 1), and each participant's example, machine and participation count.

    Minibatch protocols get samples and weights [per_round, width], and which slots are filled, [per_round]; so does
    every protocol where the number of participants varies, with `expected`, the constant E[M_r].
    """

    round: Any
    samples: Any
    machine: Any
    participation: Any
    weights: Any = None
    present: Any = None
    expected: Any = None

    @property
    def cohort(self) -> Any:
        """How many take part in the round, or that many in all rounds."""
        return self.samples.shape[0] if self.expected is None else jnp.sum(self.present)

    @property
    def divisor(self) -> Any:
        """What a sum is divided by where the divisor must not follow the number of those who take part."""
        return self.samples.shape[0] if self.expected is None else self.expected

    @property
    def filled(self) -> Any:
        """1 for each slot that is filled and 0 for others, float32 [per_round]."""
        return jnp.ones(self.samples.shape[0]) if self.present is None else self.present


def cohort_sum(problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any = None) -> tuple[Any, dict]:
    """Sum of the participants' messages (of weighted records), each clipped to norm C where a bound is given.

    A linear predictor's messages stay factored until one matrix product. Otherwise, a message that is not clipped is
    linear in the gradient, and computed once on the cohort's summed gradient; one that is clipped is written out, a
    chunk of messages at a time.

    Args:
        machine: what one machine sends before clipping, as a function of its gradient oracle; linear in the gradient.
        inputs: the round's participants and their examples.
        bound: C, or None.

    Returns:
        The sum, of the parameters' structure; and of clipped messages `clipped_share` and `message_norm`, the mean norm
        before clipping.
    """
    model: Any = problem.model
    examples, weights = problem.take(inputs.samples, inputs.machine), inputs.weights
    if weights is not None:  # records of all machines in one row
        weights = weights.reshape(-1)
        examples = jax.tree.map(lambda leaf: leaf.reshape(weights.size, *leaf.shape[2:]), examples)
    if model.factored:
        return _sum_and_info(messages(problem, machine, examples), weights, bound)
    if bound is None:
        return machine(oracle(partial(model.summed_gradients, weights=weights), examples)).value, {}
    return _chunked_sum(problem, machine, examples, weights, bound)


def _sum_and_info(vectors: Outer | Dense, weights, bound) -> tuple[Any, dict]:
    if bound is None:
        return weighted(vectors, weights).total(), {}
    rows = jax.tree.leaves(vectors)[0].shape[0]
    used = jnp.ones(rows) if weights is None else (weights != 0).astype(jnp.float32)
    info = clipping_info(clipping(vectors, used, bound), jnp.sum(used))
    return weighted(clipped(vectors, bound), weights).total(), info


def cohort_messages(problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any = None):
    """Each participant's message (its weighted sum over its own records), written out, leaves [per_round, ...]."""
    examples = problem.take(inputs.samples, inputs.machine)
    if inputs.weights is None:
        vectors = clipped(messages(problem, machine, examples), bound)
        return jax.vmap(lambda vector: vector.written_out())(vectors)

    def one(examples, weights):
        return message_of(problem, machine, examples, weights, bound)

    return jax.vmap(one)(examples, inputs.weights)


def message_of(problem: Problem, machine: Machine, examples, weights, bound: Any = None):
    """One participant's message, its weighted sum over its own records, each clipped where a bound is given."""
    return weighted(clipped(messages(problem, machine, examples), bound), weights).total()


def weighted(vectors, weights):
    """Vectors with a leading axis, each times its weight, 0 for weight 0; None leaves them as they are."""
    return vectors if weights is None else jax.vmap(scaled)(vectors, weights)


def messages(problem: Problem, machine: Machine, examples) -> Outer | Dense:
    """The machine's message for each of the examples, with a leading axis."""
    return jax.vmap(lambda example: machine(oracle(problem.model.gradients, example)))(examples)


def oracle(gradients: Callable[[tuple, Any], tuple], data) -> Oracle:
    """A machine's gradient oracle on its example: `gradient(w)`, or `gradient(x, y)` for two points at once."""

    def gradient(*points):
        several = gradients(points, data)
        return several if len(points) > 1 else several[0]

    return gradient


def _chunked_sum(problem: Problem, machine: Machine, examples, weights, bound) -> tuple[Any, dict]:
    chunk = max(1, rows_in_memory(problem, jax.tree.leaves(examples)[0].shape[0]))

    def add(total, chunk):
        examples, weights = chunk
        size = jax.tree.leaves(examples)[0].shape[0]
        part, info = _sum_and_info(messages(problem, machine, examples), weights, bound)
        used = jnp.asarray(size, jnp.float32) if weights is None else jnp.sum(weights != 0)
        return jax.tree.map(jnp.add, total, part), (used, info)

    zero = jax.tree.map(jnp.zeros_like, problem.start)
    total, (used, info) = scan_in_chunks(add, zero, (examples, weights), chunk)
    share = used / jnp.maximum(jnp.sum(used), 1.0)
    return total, jax.tree.map(lambda values: jnp.sum(share * values), info)


def rows_in_memory(problem: Problem, rows: int) -> int:
    """Clipped gradients, of so many in a round, that are written out at once: none of a linear predictor's.

    A record takes d numbers for its gradient, or what its network computes on the way, if that is more.
    """
    if problem.model.factored:
        return 0
    return min(rows, max(1, CHUNK_FLOATS // max(problem.dimension, numbers_of_one(problem))))


def flat_rows(problem: Problem, tree):
    """A pytree of parameters with a leading axis as a matrix [rows, d]."""
    rows = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(rows, axis=1)


def add_noise(problem: Problem, tree, noise):
    """`tree + noise`, noise [d] or None."""
    return tree if noise is None else jax.tree.map(jnp.add, tree, problem.unravel(noise))
