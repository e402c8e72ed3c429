"""Models: a linear predictor, whose gradients stay factored, or any function `(params, example) -> loss`.

A linear predictor's gradient stays factored (`Outer`) until the cohort's sum, which is one matrix product. The gradient
of any other model is a pytree (`Dense`). A method's machine code uses only sums, scaling and norms of both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.restated import Stated
from fedprivjax.problem.convolutions import Convolutions, chosen
from fedprivjax.problem.linear_loss import LinearLoss

Clipping = Literal["auto", "ghost", "rows"]
CLIPPINGS = ("auto", "ghost", "rows")


class Vector:
    """Arithmetic shared by both classes. `_map` applies a function to the component on which operations act."""

    __array_ufunc__ = None  # NumPy scalars defer to the vector's __rmul__

    def _map(self, function, *others) -> Any:
        raise TypeError("a gradient must define _map")

    def norm(self) -> Any:
        raise TypeError("a gradient must define norm")

    def __add__(self, other):
        return self._map(jnp.add, other)

    def __sub__(self, other):
        return self._map(jnp.subtract, other)

    def __mul__(self, scalar):
        return self._map(lambda leaf: scalar * leaf)

    __rmul__ = __mul__


@struct.dataclass
class Outer(Vector):
    """Factored gradient `residual ⊗ features`: residual [outputs] or [], features [features], feature_norm []."""

    residual: jax.Array
    features: jax.Array
    feature_norm: jax.Array

    def _map(self, function, *others):
        return replace(self, residual=function(self.residual, *(other.residual for other in others)))

    def norm(self):
        return length(self.residual) * self.feature_norm

    def written_out(self):
        return jnp.multiply.outer(self.residual, self.features)

    def total(self):
        """Return the sum over a leading axis of vectors, with the parameters' shape: one matrix product."""
        return jnp.tensordot(self.residual, self.features, axes=(0, 0))


@struct.dataclass
class Dense(Vector):
    """Dense gradient, a pytree with the parameters' structure."""

    value: Any

    def _map(self, function, *others):
        return Dense(jax.tree.map(function, self.value, *(other.value for other in others)))

    def norm(self):
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(self.value)))

    def written_out(self):
        return self.value

    def total(self):
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), self.value)


def length(vector):
    """Return the Euclidean norm of an array, accurate also if squares underflow or overflow float32.

    >>> [round(float(length(jnp.array(one))), 3) for one in ([3.0, 4.0], -2.0, [0.0, 0.0])]
    [5.0, 2.0, 0.0]
    >>> bool(4.9e-30 < length(jnp.array([3e-30, 4e-30])) < 5.1e-30)
    True
    """
    largest = jnp.max(jnp.abs(vector))
    unit = jnp.clip(largest, 2.0**-126, 2.0**100)  # its reciprocal, by which a CPU may multiply, is not rounded to 0
    return unit * jnp.linalg.norm(jnp.ravel(vector) / unit)


def scaled(vector, weight):
    """Return `weight · vector`, exactly 0 for weight 0 even if the vector is infinite or NaN.

    >>> scaled(Dense(jnp.array([jnp.inf, 4.0])), 0.0).value.tolist()
    [0.0, 0.0]
    """
    return vector._map(lambda leaf: jnp.where(weight != 0, weight * leaf, 0.0))


class Example(NamedTuple):
    """One labelled example (or several, with a leading axis) and its feature norm, computed once per pool."""

    features: Any
    label: Any
    feature_norm: Any


@dataclass(frozen=True)
class LinearModel:
    """A linear predictor under a `LinearLoss`."""

    loss: LinearLoss

    stated: ClassVar[Stated] = Stated(by=("lipschitz", "smoothness"), free=("correct", "least"), concrete=True)
    factored = True  # gradients are residual ⊗ features

    @property
    def squared(self) -> bool:
        """True if the loss is half the squared error of the prediction."""
        return self.loss.squared

    @property
    def least(self) -> float:
        """Lower bound on the loss of any example."""
        return self.loss.least

    def value(self, params, example: Example):
        """Return the loss of one example."""
        return self.loss.for_norm(example.feature_norm).value(params @ example.features, example.label)

    def gradients(self, points: tuple[Any, ...], example: Example) -> tuple[Outer, ...]:
        """Return factored gradients of one example's loss at several parameters.

        On a CPU the features are read once. On an accelerator stacking the points of many runs takes longer.
        """
        stacked = lambda points, features: tuple(jnp.stack(points) @ features)  # noqa: E731
        apart = lambda points, features: tuple(point @ features for point in points)  # noqa: E731
        scores = jax.lax.platform_dependent(points, example.features, cpu=stacked, default=apart)
        loss = self.loss.for_norm(example.feature_norm)
        return tuple(
            Outer(loss.residual(score, example.label), example.features, example.feature_norm) for score in scores
        )

    def summed_gradients(self, points: tuple[Any, ...], examples: Example, weights=None) -> tuple[Dense, ...]:
        """Return gradients of the (weighted) sum of the examples' losses, one matrix product each."""
        rows = jax.vmap(partial(self.gradients, points))(examples)
        rows = rows if weights is None else tuple(jax.vmap(scaled)(row, weights) for row in rows)
        return tuple(Dense(row.total()) for row in rows)

    def correct(self, params, example: Example):
        """Return 1.0 if the prediction is correct, otherwise 0.0. None for regression."""
        return self.loss.correct(params @ example.features, example.label)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        return self.loss.lipschitz(feature_bound, radius)

    def smoothness(self, feature_bound: float) -> float:
        return self.loss.smoothness(feature_bound)


@dataclass(frozen=True)
class GeneralModel:
    """Any differentiable scalar loss `function(params, example)`, with an optional `is_correct(params, example)`.

    Attributes:
        clipping: computation of clipped gradients, as in `general_problem`.
    """

    function: Callable[[Any, Any], Any]
    is_correct: Callable[[Any, Any], Any] | None = None
    convolutions: Convolutions = field(default="auto", repr=False)
    clipping: Clipping = field(default="auto", repr=False)

    stated: ClassVar[Stated] = Stated(by=("lipschitz", "smoothness"))
    factored = False
    squared = False  # unknown

    @property
    def least(self) -> float:
        """Lower bound on the loss of any example: the function's `least`, or −inf."""
        return getattr(self.function, "least", -inf)

    def value(self, params, example):
        return chosen(self, lambda loss: loss, (params, example), params, example)

    def gradients(self, points: tuple[Any, ...], example) -> tuple[Dense, ...]:
        """Return gradients of one example's loss at several parameters."""
        return tuple(Dense(chosen(self, jax.grad, (params, example), params, example)) for params in points)

    def summed_gradients(self, points: tuple[Any, ...], examples, weights=None) -> tuple[Dense, ...]:
        """Return gradients of the (weighted) sum of the examples' losses, without materialising per-example gradients.

        They are 0 if all weights are 0, for any examples. Otherwise every example's gradient must be finite.
        """

        def gradient_of(loss):
            def total(params, examples, weights):
                losses = jax.vmap(partial(loss, params))(examples)
                return jnp.sum(losses if weights is None else weights * losses)

            return jax.grad(total)

        example = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], examples))
        sums = [chosen(self, gradient_of, (params, example), params, examples, weights) for params in points]
        sums = tuple(map(Dense, sums))
        return sums if weights is None else tuple(scaled(vector, jnp.any(weights != 0)) for vector in sums)

    def correct(self, params, example):
        return None if self.is_correct is None else self.is_correct(params, example)

    @property
    def weight(self) -> Callable[[Any], Any] | None:
        """Weight of an example in means over many, a function of it, or None if all weigh the same."""
        return getattr(self.function, "weight", None)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        return inf

    def smoothness(self, feature_bound: float) -> float:
        return inf
