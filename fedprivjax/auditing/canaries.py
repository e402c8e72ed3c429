"""Canaries: the linear predictor of small audits, and records of a prescribed gradient, inserted into any problem.

The predictor has the canary's loss and direction, and parameters in one or two arrays. It can also be a general model
with a dense layer, whose clipped gradients are computed as those of networks. Other problems get their canaries through
their model.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.dense_layers import with_clipping
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.models import Clipping, Dense, Example, GeneralModel, LinearModel, Outer, scaled
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.random_keys import random_key

AXES = 4  # audited directions: the canary's, then noise-only directions


@dataclass(frozen=True)
class CanaryLoss(LinearLoss):
    """The loss `label·(score + curvature·score²/2)`, with gradient `label·(1 + curvature·score)·features`.

    With curvature 0, the linear loss, the gradient is the same at every point.
    """

    curvature: float = 0.0

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.curvature == 0  # not convex for a negative label otherwise

    def value(self, score, label):
        return label * (score + self.curvature * score**2 / 2)

    def lipschitz(self, feature_bound: float, radius: float = np.inf) -> float:
        return feature_bound * (1 + self.curvature * feature_bound * radius if self.curvature else 1)

    def smoothness(self, feature_bound: float) -> float:
        return self.curvature * feature_bound**2

    def label_range(self):
        return (-1.0, 1.0)


# ---- directions


def canary_direction(dimension: int, *, dense: bool) -> np.ndarray:
    """Return a canary's unit vector, float64 [dimension]: the first axis or, if dense, a vector without a 0.

    Magnitudes alternate between 1 and 2, so that both of two arrays of parameters hold half of it. Signs are random.

    >>> canary_direction(4, dense=False).tolist()
    [1.0, 0.0, 0.0, 0.0]
    >>> np.abs(canary_direction(4, dense=True) * 10**0.5).round(9).tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    if not dense:
        return np.eye(dimension)[0]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], dimension)
    vector = signs * (1 + np.arange(dimension) % 2)
    return vector / np.linalg.norm(vector)


def audited_directions(canary: np.ndarray) -> np.ndarray:
    """Return orthonormal directions, float32 [`AXES`, d]: the canary's, then noise-only ones.

    They are the first axes after the reflection that maps the first axis to the canary's direction.

    Args:
        canary: any multiple of the canary's direction, [d]. Zero counts as the first axis.
    """
    axes = np.eye(canary.size)
    length = np.linalg.norm(canary.astype(float))
    normal = axes[0] - (canary / length if length > 0 else axes[0])
    squared = normal @ normal
    reflection = axes - 2 * np.multiply.outer(normal, normal) / squared if squared > 0 else axes
    return reflection[:AXES].astype(np.float32)


# ---- two arrays of parameters


def halves(vector) -> dict[str, Any]:
    """Return a vector of parameters, [d], as a bias and a kernel, which is a matrix with one column."""
    first = vector.shape[-1] // 2
    return {"bias": vector[..., :first], "kernel": vector[..., first:, None]}


def joined(params: dict[str, Any]) -> Any:
    """Return the vector of `halves`, [d]."""
    return jnp.concatenate([params["bias"], params["kernel"][..., 0]], axis=-1)


@struct.dataclass
class SplitOuter(Outer):
    """A factored gradient of two arrays of parameters, see `halves`."""

    def written_out(self) -> Any:
        return halves(super().written_out())

    def total(self) -> Any:
        return halves(super().total())


@dataclass(frozen=True)
class SplitLinearModel(LinearModel):
    """A linear predictor with its parameters in two arrays."""

    def value(self, params, example: Example):
        return super().value(joined(params), example)

    def gradients(self, points: tuple[Any, ...], example: Example) -> tuple[SplitOuter, ...]:
        rows = super().gradients(tuple(joined(point) for point in points), example)
        return tuple(SplitOuter(row.residual, row.features, row.feature_norm) for row in rows)

    def correct(self, params, example: Example):
        return super().correct(joined(params), example)


@dataclass(frozen=True)
class DenseLayerLoss:
    """The same predictor's loss, with a dense layer."""

    loss: LinearLoss

    def __call__(self, params, example: Example):
        first, second = jnp.split(example.features, [params["bias"].size])
        return self.loss.value(first @ params["bias"] + (second @ params["kernel"])[0], example.label)


def in_two_arrays(problem: Problem, loss: LinearLoss, clipping: Clipping) -> Problem:
    """Return the problem of a linear predictor with its parameters in two arrays.

    Args:
        clipping: "auto" for factored gradients, "ghost" or "rows" for those of a network, as in `general_problem`.
    """
    factored = clipping == "auto"
    model: Any = SplitLinearModel(loss) if factored else GeneralModel(DenseLayerLoss(loss))
    problem = replace(problem, model=model, start=halves(problem.start))
    return problem if factored else with_clipping(problem, clipping)


def labels_of(problem: Problem) -> np.ndarray:
    """Return the labels of all records, shape [records]."""
    return np.asarray(problem.pool.label)


def with_labels(problem: Problem, labels) -> Problem:
    """Return the problem with other labels."""
    return replace(problem, pool=problem.pool._replace(label=labels))


# ---- canaries in any problem


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
