"""Losses of one example under a linear predictor, with their Lipschitz and smoothness constants.

A linear predictor's score is `params @ features`; a loss sees scores and a label only, so every gradient is an outer
product `residual ⊗ features` and every constant is a function of a bound on the feature norm.
"""

from dataclasses import dataclass
from math import inf, sqrt

import jax
import jax.numpy as jnp
import optax

from fedprivjax.checks import require_at_least, require_positive


@dataclass(frozen=True)
class LinearLoss:
    """A loss `value(score, label)` of a linear predictor; subclasses say what it is.

    `outputs` is the number of scores (0: one scalar score). `bounds`, where given, are the smallest and largest label.
    """

    @property
    def outputs(self) -> int:
        return 0

    @property
    def classifies(self) -> bool:
        """Whether labels are classes, so whole numbers."""
        return self.outputs > 0

    def value(self, score: jax.Array, label: jax.Array) -> jax.Array:
        """Loss of one example: scalar. score: [outputs] or []."""
        raise TypeError("a linear loss must define value(score, label)")

    def residual(self, score: jax.Array, label: jax.Array) -> jax.Array:
        """Derivative of the loss in the score, of the score's shape."""
        return jax.grad(self.value)(score, label)

    def correct(self, score: jax.Array, label: jax.Array) -> jax.Array | None:
        """1.0 where the predicted class is the label, or None for a regression loss."""
        return None

    def lipschitz(self, feature_bound: float, radius: float = inf) -> float:
        """Largest gradient norm over features of norm ≤ `feature_bound` and parameters of norm ≤ `radius`."""
        raise TypeError("a linear loss must define lipschitz(feature_bound, radius)")

    def smoothness(self, feature_bound: float) -> float:
        """Largest curvature over features of norm at most `feature_bound`."""
        raise TypeError("a linear loss must define smoothness(feature_bound)")

    def shape(self, features: int) -> tuple[int, ...]:
        """Shape of the predictor's parameters."""
        return (self.outputs, features) if self.outputs else (features,)

    def label_range(self) -> tuple[float, float]:
        """Smallest and largest label allowed."""
        return (-inf, inf)


@dataclass(frozen=True)
class Softmax(LinearLoss):
    """Cross-entropy of a softmax over `classes` scores; labels 0 … classes − 1.

    The residual `p − e_label` has norm at most √2 and its Jacobian `diag(p) − ppᵀ` norm at most 1/2, so G = √2·B and
    L = B²/2 for features of norm at most B.

    >>> Softmax(10).lipschitz(28.0)
    39.59...
    """

    classes: int

    def __post_init__(self):
        require_at_least("classes", self.classes, 2)

    @property
    def outputs(self) -> int:
        return self.classes

    def value(self, score, label):
        return optax.losses.softmax_cross_entropy_with_integer_labels(score, label)

    def residual(self, score, label):
        # in closed form: differentiating the label's look-up would scatter, one label at a time
        return jax.nn.softmax(score) - (jnp.arange(self.classes) == label).astype(score.dtype)

    def correct(self, score, label):
        return (jnp.argmax(score, axis=-1) == label).astype(jnp.float32)

    def lipschitz(self, feature_bound, radius=inf):
        return sqrt(2.0) * feature_bound

    def smoothness(self, feature_bound):
        return feature_bound**2 / 2

    def label_range(self):
        return (0, self.classes - 1)


@dataclass(frozen=True)
class Logistic(LinearLoss):
    """Binary cross-entropy `log(1 + e^s) − y·s`, labels 0 and 1: G = B, L = B²/4.

    >>> Logistic().smoothness(2.0)
    1.0
    """

    @property
    def classifies(self):
        return True

    def value(self, score, label):
        return optax.losses.sigmoid_binary_cross_entropy(score, label.astype(score.dtype))

    def correct(self, score, label):
        return ((score > 0) == (label > 0.5)).astype(jnp.float32)

    def lipschitz(self, feature_bound, radius=inf):
        return feature_bound

    def smoothness(self, feature_bound):
        return feature_bound**2 / 4

    def label_range(self):
        return (0, 1)


@dataclass(frozen=True)
class Squared(LinearLoss):
    """Half the squared error, `(s − y)²/2`, for labels with |y| ≤ `label_bound`.

    Its gradient is bounded on a ball only: G = B·(B·radius + label_bound), L = B².

    >>> Squared(label_bound=1.0).lipschitz(1.0, radius=2.0)
    3.0
    """

    label_bound: float = inf

    def __post_init__(self):
        require_positive("label_bound", self.label_bound, infinite=True)

    def value(self, score, label):
        return 0.5 * (score - label) ** 2

    def lipschitz(self, feature_bound, radius=inf):
        return feature_bound * (feature_bound * radius + self.label_bound)

    def smoothness(self, feature_bound):
        return feature_bound**2

    def label_range(self):
        return (-self.label_bound, self.label_bound)
