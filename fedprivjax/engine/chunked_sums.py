"""Sums and means over many examples in chunks, with bounded memory for any number of examples and any model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedprivjax.problem.devices import DividedRows, added, number_of
from fedprivjax.problem.models import GeneralModel
from fedprivjax.problem.problem import Problem, numbers_of_one

CHUNK_NUMBERS = 2**24  # largest number of intermediate values of the losses in memory at once


def summed(problem: Problem, function: Callable[[Any, Any], Any], examples: Any, further: int = 0) -> Any:
    """Return `Σ function(chunk, weights)` over chunks of the examples; any pytree of arrays.

    Args:
        function: sum over a chunk's examples, linear in the weights [chunk]. A weight is 0 if an earlier chunk holds
            the example. The weights are None if there is only one chunk.
        examples: pytree with leaves [examples, ...], or `DividedRows`, of which each device sums its own.
        further: number of values of an example in memory besides those of its loss.

    >>> import numpy as np
    >>> from fedprivjax import Squared, linear_problem
    >>> problem = linear_problem(np.eye(3), np.arange(3.0), Squared())
    >>> float(summed(problem, lambda chunk, weights: chunk.label.sum(), problem.pool))
    3.0
    """
    if isinstance(examples, DividedRows):
        return added(_summed(problem, function, examples.rows, examples.held))
    return _summed(problem, function, examples, further=further)


def _summed(problem: Problem, function: Callable[..., Any], examples: Any, held: Any = None, further: int = 0) -> Any:
    count = jax.tree.leaves(examples)[0].shape[0]
    size = at_once(problem, count, further)
    if size >= count:
        return function(examples, held)

    def chunk(index):
        start = jnp.minimum(index * size, count - size)
        part, own = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), (examples, held))
        fresh = (start + jnp.arange(size) >= index * size).astype(jnp.float32)
        return function(part, fresh if own is None else fresh * own)

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(chunk, 0))
    return jax.lax.fori_loop(0, -(-count // size), lambda i, total: jax.tree.map(jnp.add, total, chunk(i)), zeros)


def at_once(problem: Problem, count: int, further: int = 0) -> int:
    """Return the chunk size for `count` examples: within `CHUNK_NUMBERS`, with chunks of nearly equal size."""
    each = max(1, numbers_of_one(problem) + further)
    if count * each <= CHUNK_NUMBERS:
        return count
    example = jax.eval_shape(lambda: problem.take(0, 0))
    each += sum(leaf.size for leaf in jax.tree.leaves(example))  # a chunk's examples are copied
    return -(-count // -(-count // max(1, CHUNK_NUMBERS // each)))


def mean_loss(problem: Problem, params, examples):
    """Return the mean loss over many examples."""
    return mean(problem, problem.model.value, params, examples)


def outcomes(problem: Problem, snapshot: Any, examples: Literal["pool", "test"]) -> tuple[Any, Any]:
    """Return the mean loss over the pool or the test set, and the share of correct predictions, or None for regression.

    They are computed once for all metrics of a `Snapshot`, and the compiler computes the scores once for both. Both are
    means over tokens for sequences with a label per token.
    """
    shared = {} if snapshot.shared is None else snapshot.shared
    if examples not in shared:
        shared[examples] = by_weight(mean(problem, outcome(problem), snapshot.params, getattr(problem, examples)))
    return shared[examples]


def outcome(problem: Problem) -> Callable[[Any, Any], tuple[Any, ...]]:
    """Return a function `(params, example)` with the loss, and if the prediction is correct, or None for regression.

    If the model weighs its examples, both are multiplied by the weight, which follows them. Convolutions are XLA's,
    which are fast without derivatives.
    """
    model: Any = problem.model
    general = isinstance(model, GeneralModel)
    plain, weigh = (replace(model, convolutions="xla"), model.weight) if general else (model, None)

    def of_one(params, example):
        parts = plain.value(params, example), plain.correct(params, example)
        if weigh is None:
            return parts
        weight = weigh(example)
        return *jax.tree.map(lambda part: weight * part, parts), weight

    return of_one


def by_weight(means: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the mean loss and accuracy, given the means of what `outcome` returns."""
    return jax.tree.map(lambda part: part / means[2], means[:2]) if means[2:] else means  # pyright: ignore


def client_means(problem: Problem, function: Callable[[Any, Any], Any], further: int = 0) -> Any:
    """Return the means of `function(example, client)` over every client's test examples; leaves [clients].

    Args:
        function: function of a test example and the index of its client, which returns a pytree of scalars.
        further: as in `summed`.
    """
    clients: Any = problem.test_clients

    def of_chunk(chunk, weights):
        examples, owner = chunk

        def of_clients(leaf):
            each = leaf if weights is None else weights * leaf
            return jax.ops.segment_sum(each, owner, num_segments=clients.counts.shape[0])

        return jax.tree.map(of_clients, jax.vmap(function)(examples, owner))

    sums = summed(problem, of_chunk, (problem.test, clients.of), further)
    return jax.tree.map(lambda leaf: leaf / clients.counts, sums)


def mean_gradient(problem: Problem, params, examples):
    """Return the gradient of the mean loss over many examples, with the structure of the parameters."""
    model: Any = problem.model

    def of_chunk(chunk, weights):
        return model.summed_gradients((params,), chunk, weights)[0].value

    return jax.tree.map(lambda leaf: leaf / number_of(examples), summed(problem, of_chunk, examples))


def mean(problem: Problem, function: Callable[..., Any], params, examples):
    """Return the mean of `function(params, example)`, any pytree of scalars, over many examples."""

    def of_chunk(chunk, weights):
        values = jax.vmap(function, in_axes=(None, 0))(params, chunk)
        return jax.tree.map(lambda leaf: total(leaf, weights), values)

    sums = summed(problem, of_chunk, examples)
    return jax.tree.map(lambda leaf: leaf / number_of(examples), sums)


def total(values, weights):
    """Return the weighted sum of a chunk's values, [chunk]. Weights of None are 1."""
    return jnp.sum(values if weights is None else weights * values)
