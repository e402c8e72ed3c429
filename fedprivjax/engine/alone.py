"""Local baseline: metrics of the models that machines fit to their own records, without communication.

The baseline is the same for every protocol: full-batch projected gradient descent from the problem's start, on the mean
loss of the machine's records, without clipping and without noise. The first step is 1/L, or 1 if the smoothness L is
unknown. A step is accepted if the new loss is at most the quadratic upper bound with curvature 1/step. The step size
grows by a fifth after an accepted step and is halved after a rejected one.
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric, Snapshot, summed
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit

STEPS = 300  # including rejected steps
MOST = 100  # largest number of trained machines; a fixed random subset of more machines
TOGETHER = 8  # machines trained at once
LONGER, SHORTER = 1.2, 0.5  # factors of the step size after an accepted and a rejected step


def machines_of(problem: Problem) -> int:
    """Return the number of machines in the partition table.

    Raises:
        Refusal: the machines share one pool.
    """
    if problem.partition_table is None:
        remedy = "Add problem.partition, or leave 'alone' out of evaluation.baselines"
        raise Refusal(f"baseline 'alone' must go with machines that own records, got a shared pool. {remedy}")
    return len(problem.partition_table.rows)


def machines_alone(problem: Problem) -> np.ndarray:
    """Return the machines that are trained: all, or a fixed random subset of `MOST`; int, shape [trained]."""
    return np.sort(np.random.default_rng(0).permutation(machines_of(problem))[:MOST])


def alone(problem: Problem, metrics: Sequence[Metric]) -> dict[str, np.ndarray]:
    """Return metrics of each machine's local model by name, for metrics of parameters; float32, shape [trained].

    Raises:
        Refusal: the machines share one pool.
    """
    trained = machines_alone(problem)
    assert problem.partition_table is not None
    together = min(TOGETHER, len(trained))
    rows = problem.partition_table.rows[np.resize(trained, -(-len(trained) // together) * together)]
    step = 1 / problem.smoothness if isfinite(problem.smoothness) else 1.0
    of_params = tuple(metric for metric in metrics if metric.of == "params")
    values = _program(problem.traced, rows.reshape(-1, together, rows.shape[1]), np.float32(step), of_params)
    return {name: np.ravel(value)[: len(trained)] for name, value in values.items()}


@typed_jit(static_argnames="metrics")
def _program(problem: Problem, rows, step, metrics: tuple[Metric, ...]):
    """Return metrics by name, shape [groups, together], for record indices `rows` [groups, together, max_records]."""

    def one(own):
        snapshot = Snapshot(trained_on(problem, own, step))
        return {metric.name: metric.function(problem, snapshot) for metric in metrics}

    return jax.lax.map(jax.vmap(one), rows)


def trained_on(problem: Problem, rows, step):
    """Return the parameters after `STEPS` steps on one machine's records.

    Args:
        rows: indices into the pool, int [max_records], padded with −1.
        step: first step size.
    """
    model: Any = problem.model
    weights = (rows >= 0) / jnp.maximum(jnp.sum(rows >= 0), 1)
    data = problem.take(jnp.maximum(rows, 0)), weights

    def total(params, chunk, fresh):
        examples, weights = chunk
        weights = weights if fresh is None else weights * fresh
        losses = jax.vmap(partial(model.value, params))(examples)
        (gradient,) = model.summed_gradients((params,), examples, weights)
        return jnp.sum(jnp.where(weights > 0, weights * losses, 0.0)), gradient.value

    def of(params):
        return params, *summed(problem, partial(total, params), data)

    def advanced(state, _):
        (params, loss, gradient), step = state
        new = of(problem.constraint.project(jax.tree.map(lambda w, g: w - step * g, params, gradient)))
        move = jax.tree.map(jnp.subtract, new[0], params)
        good = new[1] <= loss + _dot(gradient, move) + _dot(move, move) / (2 * step)
        kept = jax.tree.map(partial(jnp.where, good), new, (params, loss, gradient))
        return (kept, step * jnp.where(good, LONGER, SHORTER)), None

    ((params, *_), _), _ = jax.lax.scan(advanced, (of(problem.start), step), length=STEPS)
    return params


def _dot(one, other):
    return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
