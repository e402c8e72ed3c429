"""Canaries: records with a prescribed gradient, inserted into any problem through its model."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.gradients import Dense, scaled
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key

STREAM = 0xCA9A_4135  # separates the canaries' random stream from all others


class Planted(NamedTuple):
    """An example, with the gradient that replaces its own if it is a canary.

    Attributes:
        example: the original example.
        charge: norm of the canary's gradient, negative for the opposite vector, 0 if the example is not a canary.
        number: index of the canary, which determines its direction.
    """

    example: Any
    charge: Any
    number: Any


@dataclass(frozen=True)
class CanaryModel:
    """A model whose canaries have the gradient `charge·direction(number)` at every point."""

    inner: Any

    factored = False
    squared = False

    def value(self, params, example: Planted):
        """Return the loss of the original example."""
        return self.inner.value(params, example.example)

    def gradients(self, points: tuple[Any, ...], example: Planted) -> tuple[Dense, ...]:
        """Return gradients at several parameters, as dense pytrees."""
        flat, unravel = ravel_pytree(points[0])
        canary = unravel(example.charge * direction(example.number, flat.size))

        def chosen(plain):
            return Dense(jax.tree.map(lambda own, other: jnp.where(example.charge != 0, own, other), canary, plain))

        return tuple(chosen(one.written_out()) for one in self.inner.gradients(points, example.example))

    def summed_gradients(self, points: tuple[Any, ...], examples: Planted, weights=None) -> tuple[Dense, ...]:
        """Return gradients of the (weighted) sum of the examples' losses."""
        rows = jax.vmap(lambda example: self.gradients(points, example))(examples)
        rows = rows if weights is None else tuple(jax.vmap(scaled)(row, weights) for row in rows)
        return tuple(Dense(row.total()) for row in rows)

    def correct(self, params, example: Planted):
        return self.inner.correct(params, example.example)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        return self.inner.lipschitz(feature_bound, radius)

    def smoothness(self, feature_bound: float) -> float:
        return self.inner.smoothness(feature_bound)


def direction(number, dimension: int):
    """Return a canary's unit vector, [dimension]: random signs. Two canaries are orthogonal up to about 1/√d.

    >>> one, other = direction(0, 10_000), direction(1, 10_000)
    >>> bool(abs(one @ one - 1) < 1e-3), bool(abs(one @ other) < 0.05)
    (True, True)
    """
    key = jax.random.fold_in(random_key(np.uint32(STREAM)), number)
    return jnp.where(jax.random.bernoulli(key, shape=(dimension,)), 1.0, -1.0) * dimension**-0.5


def with_canaries(problem: Problem, rows: np.ndarray, charges: np.ndarray) -> Problem:
    """Return the problem with some examples replaced by canaries. The stored data do not change.

    Args:
        problem: a problem with a stored pool.
        rows: rows of the pool, int [canaries]. Canary i has the direction `direction(i)`.
        charges: signed norms of the canaries' gradients, shape [canaries].

    Raises:
        Refusal: if examples are computed on demand.

    >>> from fedprivjax import Squared, linear_problem
    >>> problem = linear_problem(np.eye(4), np.zeros(4), Squared(label_bound=1.0), feature_bound=1.0)
    >>> planted = with_canaries(problem, np.array([2]), np.array([3.0]))
    >>> (gradient,) = planted.model.gradients((jnp.zeros(4),), planted.take(np.array(2), None))
    >>> bool(jnp.allclose(gradient.written_out(), 3.0 * direction(0, 4)))
    True
    """
    if not problem.stored:
        raise Refusal("pool must be stored, since canaries replace stored examples; got examples computed on demand")
    charge, number = np.zeros(int(problem.examples), np.float32), np.zeros(int(problem.examples), np.int32)
    charge[rows], number[rows] = charges, np.arange(len(rows))
    planted = Planted(problem.pool, charge, number)
    model: Any = CanaryModel(problem.model)
    return replace(problem, pool=planted, model=model, test=None)
