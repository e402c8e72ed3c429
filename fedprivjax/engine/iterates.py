"""Metrics of the reported point and of a protocol's other iterates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.engine.metric import Metric, Snapshot
from fedprivjax.method.interface import as_leaves
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.random_keys import random_key

OUTPUT = "output"


def iterate_names(protocol, problem: Problem, size: Size) -> tuple[str, ...]:
    """Return the names of iterates at which metrics are evaluated: "output", then the protocol's other iterates.

    Raises:
        Refusal: if iterates have no names, or the output's, or if one has another structure or other shapes than the
            output, such as a row for each machine.
    """

    output, found = _points((as_leaves(protocol.traced), replace(problem.traced, excess=None)), size)
    if not isinstance(found, dict) or OUTPUT in found:
        got = f"{OUTPUT!r}, which is the reported point," if isinstance(found, dict) else called(found)
        raise Refusal(
            f"iterates must be a dict of further points by name, got {got} of {protocol.name}. Name each point"
        )
    for name, point in found.items():
        if jax.tree.structure(point) != jax.tree.structure(output) or _shapes(point) != _shapes(output):
            got = f"{_shapes(output)}, got {_shapes(point)} for {name!r} of {protocol.name}"
            remedy = "Return one point of each name, such as a mean over machines"
            raise Refusal(f"iterates must have the structure and shapes of the output, {got}. {remedy}")
    return (OUTPUT, *sorted(found))


@by_shapes
def _points(parts: tuple[Any, Problem], size: Size) -> tuple[Any, Any]:
    """Return the shapes of a protocol's reported point and of its further iterates, for a problem."""

    def points(parts):
        protocol, problem = parts
        state = protocol.init(problem, size, random_key(0))
        return protocol.output(state), protocol.iterates(state)

    return jax.eval_shape(points, parts)


def evaluate(protocol, problem: Problem, state, noise, metrics: Sequence[Metric], info=None) -> dict[str, Any]:
    """Return the value of every metric at one evaluation, by name.

    A value is a scalar. It has shape [iterates] for a metric of parameters if the protocol has several iterates.

    Args:
        noise: noise in the last round's aggregate, [d], or None.
        info: scalars reported by the rounds, by name; each is the mean since the last evaluation.
    """
    snapshots = [Snapshot(params, noise, info) for params in _iterates(protocol, state).values()]
    values = {}
    for metric in metrics:
        if metric.of == "params" and len(snapshots) > 1:
            values[metric.name] = jnp.stack([metric.function(problem, snapshot) for snapshot in snapshots])
        else:
            values[metric.name] = metric.function(problem, snapshots[0])
    return values


def by_iterate(
    metrics: Sequence[Metric], names: Sequence[str], values: Mapping[str, Any]
) -> dict[str, dict[str, np.ndarray]]:
    """Return a run's metrics by iterate, the output first; arrays [evaluations].

    Metrics of the round are listed for the output only.

    Args:
        names: names of the iterates, from `iterate_names`.
        values: recorded values of `evaluate`, [evaluations] or [evaluations, iterates].
    """
    several = {metric.name for metric in metrics if metric.of == "params"} if len(names) > 1 else set()
    arrays = {name: np.asarray(value) for name, value in values.items()}
    tables = {OUTPUT: {name: value[:, 0] if name in several else value for name, value in arrays.items()}}
    for place, iterate in enumerate(names[1:], 1):
        tables[iterate] = {name: arrays[name][:, place] for name in arrays if name in several}
    return tables


def _shapes(point: Any) -> Any:
    """Return the shape of every leaf of a point, in its structure."""
    return jax.tree.map(lambda leaf: list(leaf.shape), point)


def _iterates(protocol, state) -> dict[str, Any]:
    """Return the reported parameters and the protocol's other iterates, by name."""
    return {OUTPUT: protocol.output(state), **dict(sorted(protocol.iterates(state).items()))}
