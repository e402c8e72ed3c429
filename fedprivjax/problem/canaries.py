"""Canaries: records whose gradient is a vector of one's own, put into any problem by its model rather than its data."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.gradients import Dense, scaled
from fedprivjax.problem.problem import Problem

STREAM = 0xCA9A_4135  # sets canaries' directions apart from all else


class Planted(NamedTuple):
    """An example as it was, and what its gradient is instead.

    Attributes:
        example: the problem's own.
        charge: the canary's norm, negative for the opposite vector; 0 for examples that are none.
        number: the canary's, which tells its direction.
    """

    example: Any
    charge: Any
    number: Any


@dataclass(frozen=True)
class CanaryModel:
    """A model whose planted examples have the gradient `charge·direction(number)`, whatever the point."""

    inner: Any

    factored = False
    squared = False

    def value(self, params, example: Planted):
        """The loss of the example as it was."""
        return self.inner.value(params, example.example)

    def gradients(self, points: tuple[Any, ...], example: Planted) -> tuple[Dense, ...]:
        """Gradients at several parameters, written out."""
        flat, unravel = ravel_pytree(points[0])
        canary = unravel(example.charge * direction(example.number, flat.size))

        def chosen(plain):
            return Dense(jax.tree.map(lambda own, other: jnp.where(example.charge != 0, own, other), canary, plain))

        return tuple(chosen(one.written_out()) for one in self.inner.gradients(points, example.example))

    def summed_gradients(self, points: tuple[Any, ...], examples: Planted, weights=None) -> tuple[Dense, ...]:
        """Gradients of the (weighted) sum of the examples' losses."""
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
    """A canary's unit vector, [dimension]: random signs, so that two are orthogonal up to 1/√d.

    >>> one, other = direction(0, 10_000), direction(1, 10_000)
    >>> bool(abs(one @ one - 1) < 1e-3), bool(abs(one @ other) < 0.05)
    (True, True)
    """
    key = jax.random.fold_in(jax.random.key(np.uint32(STREAM)), number)
    return jnp.where(jax.random.bernoulli(key, shape=(dimension,)), 1.0, -1.0) * dimension**-0.5


def with_canaries(problem: Problem, rows: np.ndarray, charges: np.ndarray) -> Problem:
    """The problem with canaries in the place of some of its examples; its data stay where they are.

    Args:
        problem: with a stored pool.
        rows: of the pool, int [canaries]; canary i has the direction `direction(i)`.
        charges: norms of their gradients, with a sign, [canaries].

    Raises:
        Refusal: examples that are computed.

    >>> from fedprivjax import Squared, linear_problem
    >>> problem = linear_problem(np.eye(4), np.zeros(4), Squared(label_bound=1.0), feature_bound=1.0)
    >>> planted = with_canaries(problem, np.array([2]), np.array([3.0]))
    >>> (gradient,) = planted.model.gradients((jnp.zeros(4),), planted.take(np.array(2), None))
    >>> bool(jnp.allclose(gradient.written_out(), 3.0 * direction(0, 4)))
    True
    """
    if not problem.stored:
        raise Refusal("pool must be stored, for canaries stand in the place of its examples, and these are computed")
    charge, number = np.zeros(int(problem.examples), np.float32), np.zeros(int(problem.examples), np.int32)
    charge[rows], number[rows] = charges, np.arange(len(rows))
    planted = Planted(problem.pool, charge, number)
    model: Any = CanaryModel(problem.model)
    return replace(problem, pool=planted, model=model, test=None)
