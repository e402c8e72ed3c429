"""Models: a linear predictor, whose gradients stay factored, or any function `(params, example) -> loss`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.restated import Stated
from fedprivjax.problem.gradients import Dense, Outer, scaled
from fedprivjax.problem.linear_loss import LinearLoss


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
    """Any differentiable scalar loss `function(params, example)`, with an optional `is_correct(params, example)`."""

    function: Callable[[Any, Any], Any]
    is_correct: Callable[[Any, Any], Any] | None = None

    stated: ClassVar[Stated] = Stated(by=("lipschitz", "smoothness"))
    factored = False
    squared = False  # unknown

    @property
    def least(self) -> float:
        """Lower bound on the loss of any example: the function's `least`, or −inf."""
        return getattr(self.function, "least", -inf)

    def value(self, params, example):
        return self.function(params, example)

    def gradients(self, points: tuple[Any, ...], example) -> tuple[Dense, ...]:
        """Return gradients of one example's loss at several parameters."""
        return tuple(Dense(jax.grad(self.function)(params, example)) for params in points)

    def summed_gradients(self, points: tuple[Any, ...], examples, weights=None) -> tuple[Dense, ...]:
        """Return gradients of the (weighted) sum of the examples' losses, without materialising per-example gradients.

        They are 0 if all weights are 0, for any examples. Otherwise every example's gradient must be finite.
        """

        def total(params):
            losses = jax.vmap(partial(self.function, params))(examples)
            return jnp.sum(losses if weights is None else weights * losses)

        sums = tuple(Dense(jax.grad(total)(params)) for params in points)
        return sums if weights is None else tuple(scaled(vector, jnp.any(weights != 0)) for vector in sums)

    def correct(self, params, example):
        return None if self.is_correct is None else self.is_correct(params, example)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        return inf

    def smoothness(self, feature_bound: float) -> float:
        return inf
