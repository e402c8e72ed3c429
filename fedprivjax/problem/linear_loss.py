"""Interface of the loss of one example under a linear predictor, and losses with one kink.

A linear predictor's score is `params @ features`. A loss depends on scores and a label only. Every gradient is thus
an outer product `residual ⊗ features`, and every constant is a function of a bound on the feature norm.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Undefined
from fedprivjax.checks.restated import Stated

CONSTANTS = Stated(by=("lipschitz", "smoothness"), free=("correct", "prediction", "convex", "least"))


@dataclass(frozen=True)
class LinearLoss:
    """Base class of losses of a linear predictor: functions `value(score, label)` of one example.

    Scores are the product of parameters and features.

    Attributes:
        outputs: number of scores of an example, such as the number of classes. 0 means one scalar score.
        classifies: True if labels are class indices. Default: True if `outputs` is positive.
        squared: True if the loss is half the squared error.
        convex: True if the loss is convex in the score.
        least: lower bound on the loss, or −inf if no bound is declared.
    """

    stated: ClassVar[Stated] = CONSTANTS
    outputs: ClassVar[Any] = 0
    squared: ClassVar[Any] = False
    convex: ClassVar[Any] = True
    least: ClassVar[Any] = -inf

    @property
    def classifies(self) -> bool:
        return self.outputs > 0

    def value(self, score: jax.Array, label: jax.Array) -> jax.Array:
        """Return the loss of one example, a scalar.

        Args:
            score: shape [outputs], or [] for a scalar score.
            label: class index or number, shape [].
        """
        raise Undefined("a linear loss must define value(score, label)")

    def residual(self, score: jax.Array, label: jax.Array) -> jax.Array:
        """Return the derivative of the loss with respect to the score, with the score's shape."""
        return jax.grad(self.value)(score, label)

    @property
    def unsmoothed(self) -> "LinearLoss":
        """Loss without smoothing: for a Moreau envelope (`Moreau`), the loss that the envelope smooths.

        For any other loss, the result is the loss itself.
        """
        return self

    def for_norm(self, feature_norm: jax.Array) -> "LinearLoss":
        """Return the loss for examples whose feature vector has this L2 norm.

        By default, it is the loss itself. A Moreau envelope (`Moreau`) returns another loss, because the envelope's
        value at a given score depends on the norm.
        """
        return self

    def correct(self, score: jax.Array, label: jax.Array) -> jax.Array | None:
        """Return 1.0 if the class predicted from `score` is `label`, otherwise 0.0. Return None for regression.

        Default: compare the label with `prediction`.
        """
        return (self.prediction(score) == label).astype(jnp.float32) if self.classifies else None

    def prediction(self, scores: Any) -> Any:
        """Return the predictions for scores: class indices, or values for regression.

        Args:
            scores: shape [..., outputs], or [...] for scalar scores. The predictions have shape [...].

        >>> from fedprivjax.problem.losses import Logistic
        >>> Logistic().prediction(jnp.array([-1.0, 2.0])).tolist()
        [0, 1]
        """
        if self.outputs:
            return scores.argmax(axis=-1)
        return (scores > 0).astype(int) if self.classifies else scores

    def lipschitz(self, feature_bound: float, radius: float = inf) -> float:
        """Return the Lipschitz constant of the loss: the largest norm of its gradient in the parameters.

        Args:
            feature_bound: largest L2 norm of a feature vector.
            radius: largest L2 norm of the parameters.
        """
        raise Undefined("a linear loss must define lipschitz(feature_bound, radius)")

    def smoothness(self, feature_bound: float) -> float:
        """Return the Lipschitz constant of the loss's gradient in the parameters, or inf if the loss is not smooth.

        Args:
            feature_bound: largest L2 norm of a feature vector.
        """
        raise Undefined("a linear loss must define smoothness(feature_bound)")

    def shape(self, features: int) -> tuple[int, ...]:
        """Return the shape of the parameters: [outputs, features], or [features] for scalar scores.

        Args:
            features: number of features of an example.
        """
        return (self.outputs, features) if self.outputs else (features,)

    def label_range(self) -> tuple[float, float]:
        """Return (smallest, largest) valid label.

        Default: (0, number of classes − 1) if the loss classifies, otherwise (−inf, inf). A loss with one scalar score
        has two classes.
        """
        return (0, (self.outputs or 2) - 1) if self.classifies else (-inf, inf)


@dataclass(frozen=True)
class Kinked(LinearLoss):
    """Base class of losses with one kink: `max(low·(s − kink), high·(s − kink))` with low ≤ 0 ≤ high.

    The residual is one of the slopes. At the kink it is 0, the subgradient of smallest norm, as in `jax.grad` of the
    value. L is inf. Methods that need a finite L use the smoothed loss (`Moreau`).
    """

    stated = CONSTANTS
    least = 0.0

    def kink(self, label: jax.Array) -> jax.Array:
        """Return the score at which the slope changes."""
        raise Undefined("a kinked loss must define kink(label)")

    def slopes(self, label: jax.Array) -> tuple[jax.Array | float, jax.Array | float]:
        """Return the slopes `(low, high)` below and above the kink."""
        raise Undefined("a kinked loss must define slopes(label)")

    def value(self, score, label):
        low, high = self.slopes(label)
        gap = score - self.kink(label)
        return high * jax.nn.relu(gap) - low * jax.nn.relu(-gap)

    def residual(self, score, label):
        low, high = self.slopes(label)
        gap = score - self.kink(label)
        return jnp.where(gap > 0, high, jnp.where(gap < 0, low, jnp.zeros_like(gap)))

    def smoothness(self, feature_bound):
        return inf
