"""Losses of one example under a linear predictor, with their Lipschitz and smoothness constants."""

from dataclasses import dataclass
from math import inf, sqrt

import jax
import jax.numpy as jnp

from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.problem.linear_loss import CONSTANTS, Kinked, LinearLoss


@dataclass(frozen=True)
class Softmax(LinearLoss):
    """Cross-entropy of a softmax over `classes` scores, for labels 0 … classes − 1.

    As a function of the scores, the loss has a gradient of norm at most √2 and a Hessian of norm at most 1/2. For
    features of norm at most B, it therefore has Lipschitz constant G = √2·B and smoothness L = B²/2 in the parameters.

    >>> Softmax(10).lipschitz(28.0)
    39.59...
    """

    classes: int
    least = 0.0

    def __post_init__(self):
        require_at_least("classes", self.classes, 2)

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.classes

    def value(self, score, label):
        import optax

        return optax.losses.softmax_cross_entropy_with_integer_labels(score, label)

    def residual(self, score, label):
        # closed form: the derivative of the label's look-up would be a slow scatter
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
    """Binary cross-entropy for labels 0 and 1, with scores clipped to `score_bound` if given.

    The loss is `log(1 + e^s) − y·s` for score s and label y. For features of norm at most B, it has Lipschitz constant
    G = B and smoothness L = B²/4.

    For a `score_bound` b, let `c = clip(s, −b, b)` and `p = sigmoid(c)`. The loss is then `−y·log(10⁻¹² + p) − (1 −
    y)·log(10⁻¹² + 1 − p)`. For scores beyond the bound, this loss is constant, so it is not convex. Methods use the
    derivative `p − y` for all scores. With b = 15, it is the loss in the experiments of Lowy & Razaviyayn 2023.

    Args:
        score_bound: largest absolute score, or None for no limit.

    Raises:
        Refusal: if `score_bound` is not positive.

    >>> Logistic().smoothness(2.0)
    1.0
    >>> round(float(Logistic(score_bound=15.0).value(jnp.array(40.0), jnp.array(0.0))), 3)
    15.0
    """

    score_bound: float | None = None
    classifies = True  # type: ignore[override]
    least = 0.0

    def __post_init__(self):
        require_positive("score_bound", self.score_bound, optional=True)

    @property
    def convex(self):  # type: ignore[override]
        return self.score_bound is None

    def value(self, score, label):
        if self.score_bound is None:
            import optax

            return optax.losses.sigmoid_binary_cross_entropy(score, label.astype(score.dtype))
        score = jnp.clip(score, -self.score_bound, self.score_bound)
        log_one, log_zero = (jnp.log(1e-12 + jax.nn.sigmoid(s)) for s in (score, -score))
        return -(label * log_one + (1 - label) * log_zero)

    def residual(self, score, label):
        if self.score_bound is None:
            return super().residual(score, label)
        return jax.nn.sigmoid(jnp.clip(score, -self.score_bound, self.score_bound)) - label

    def correct(self, score, label):
        return _right_side(score, label)

    def lipschitz(self, feature_bound, radius=inf):
        return feature_bound

    def smoothness(self, feature_bound):
        return feature_bound**2 / 4

    def label_range(self):
        return (0, 1)


@dataclass(frozen=True)
class Squared(LinearLoss):
    """Half the squared error, `(s − y)²/2`, for score s and label y with `|y| ≤ label_bound`.

    For features of norm at most B, it has smoothness L = B². For parameters of norm at most r, it has Lipschitz
    constant G = B·(B·r + label_bound). If the parameters are not bounded, G is infinite.

    Args:
        label_bound: public bound on `|y|`.

    >>> Squared(label_bound=1.0).lipschitz(1.0, radius=2.0)
    3.0
    """

    label_bound: float = inf
    squared = True
    least = 0.0

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


@dataclass(frozen=True)
class Huber(LinearLoss):
    """Huber loss: squared for small errors, linear for large errors.

    For score s and label y, the loss is `(s − y)²/2` if `|s − y| ≤ width`, otherwise `width·(|s − y| − width/2)`. For
    features of norm at most B, it has Lipschitz constant G = width·B and smoothness L = B².

    Args:
        width: largest absolute error at which the loss is squared.

    >>> Huber(0.5).lipschitz(2.0), Huber(0.5).smoothness(2.0)
    (1.0, 4.0)
    """

    width: float
    least = 0.0

    def __post_init__(self):
        require_positive("width", self.width)

    def value(self, score, label):
        import optax

        return optax.losses.huber_loss(score, label, delta=self.width)

    def residual(self, score, label):
        return jnp.clip(score - label, -self.width, self.width)

    def lipschitz(self, feature_bound, radius=inf):
        return self.width * feature_bound

    def smoothness(self, feature_bound):
        return feature_bound**2


@dataclass(frozen=True)
class Robust(LinearLoss):
    """Base class of bounded losses of `r = s − y`: `r²/2` near zero and constant far away, robust to outliers.

    They are smooth and not convex. With `u = r/scale`, the residual (the derivative by the score s) is
    `scale·ψ(u)`. ψ has its steepest slope 1 at zero, so the Lipschitz constant is G = scale·max ψ·B and the smoothness
    L = B², for features of norm at most B.

    Args:
        scale: error at which the loss reaches half its limit (`GemanMcClure`) or its limit (`Tukey`).
    """

    scale: float
    stated = CONSTANTS
    convex = False
    least = 0.0

    def __post_init__(self):
        require_positive("scale", self.scale)

    def smoothness(self, feature_bound):
        return feature_bound**2


@dataclass(frozen=True)
class GemanMcClure(Robust):
    """Geman-McClure loss for robust regression: smooth, bounded and not convex.

    For score s, label y and `scale` c, let u = (s − y)/c. The loss is `(c²/2)·u²/(1 + u²)`. For features of norm at
    most B, it has Lipschitz constant G = (3√3/16)·c·B and smoothness L = B².

    >>> round(GemanMcClure(2.0).lipschitz(1.0), 4), GemanMcClure(2.0).smoothness(3.0)
    (0.6495, 9.0)
    """

    def value(self, score, label):
        square = jnp.square(self._scaled(score, label))
        return self.scale**2 / 2 * square / (1 + square)

    def residual(self, score, label):
        u = self._scaled(score, label)
        return self.scale * u / jnp.square(1 + jnp.square(u))

    def lipschitz(self, feature_bound, radius=inf):
        return 3 * sqrt(3.0) / 16 * self.scale * feature_bound

    def _scaled(self, score, label):
        return jnp.clip((score - label) / self.scale, -1e9, 1e9)  # (1 + u²)² stays within float32


@dataclass(frozen=True)
class Tukey(Robust):
    """Tukey's biweight loss for robust regression: smooth, bounded and not convex.

    For score s, label y and `scale` c, let u = (s − y)/c. The loss is `(c²/6)·(1 − (1 − u²)³)` if `|u| ≤ 1`, otherwise
    c²/6. For features of norm at most B, it has Lipschitz constant G = (16/(25√5))·c·B and smoothness L = B².

    >>> round(Tukey(2.0).lipschitz(1.0), 4), Tukey(2.0).smoothness(3.0)
    (0.5724, 9.0)
    """

    def value(self, score, label):
        square = jnp.minimum(jnp.square((score - label) / self.scale), 1.0)
        return self.scale**2 / 6 * square * (3 - square * (3 - square))

    def residual(self, score, label):
        u = jnp.clip((score - label) / self.scale, -1.0, 1.0)
        return self.scale * u * jnp.square(1 - jnp.square(u))

    def lipschitz(self, feature_bound, radius=inf):
        return 16 / (25 * sqrt(5.0)) * self.scale * feature_bound


@dataclass(frozen=True)
class Hinge(Kinked):
    """Hinge loss for labels 0 and 1.

    The loss is `max(0, 1 − a·s)` for score s, with a = −1 for class 0 and a = +1 for class 1. For features of norm at
    most B, it has Lipschitz constant G = B. It is not smooth. `Moreau` makes it smooth.

    >>> float(Hinge().value(jnp.array(-0.5), jnp.array(1.0)))
    1.5
    """

    classifies = True  # type: ignore[override]

    def kink(self, label):
        return 2 * label - 1

    def slopes(self, label):
        sign = 2 * label - 1
        return jnp.minimum(-sign, 0), jnp.maximum(-sign, 0)

    def correct(self, score, label):
        return _right_side(score, label)

    def lipschitz(self, feature_bound, radius=inf):
        return feature_bound

    def label_range(self):
        return (0, 1)


@dataclass(frozen=True)
class Absolute(Kinked):
    """Absolute error, `|s − y|`, for score s and label y.

    For features of norm at most B, it has Lipschitz constant G = B. It is not smooth. `Moreau` makes it smooth.

    >>> float(Absolute().value(jnp.array(2.0), jnp.array(3.5)))
    1.5
    """

    def kink(self, label):
        return label

    def slopes(self, label):
        return -1.0, 1.0

    def lipschitz(self, feature_bound, radius=inf):
        return feature_bound


@dataclass(frozen=True)
class Pinball(Kinked):
    """Pinball loss, for regression of a quantile.

    The loss is `max(q·(y − s), (q − 1)·(y − s))` for `quantile` q, score s and label y. For features of norm at most B,
    it has Lipschitz constant G = max(q, 1 − q)·B. It is not smooth. `Moreau` makes it smooth.

    Args:
        quantile: level of the quantile, between 0 and 1.

    >>> Pinball(0.9).lipschitz(2.0)
    1.8
    """

    quantile: float

    def __post_init__(self):
        require_between("quantile", self.quantile, 0, 1)

    def kink(self, label):
        return label

    def slopes(self, label):
        return -self.quantile, 1 - self.quantile

    def lipschitz(self, feature_bound, radius=inf):
        return max(self.quantile, 1 - self.quantile) * feature_bound


LOSSES = {  # by name in experiment files
    "softmax": Softmax,
    "logistic": Logistic,
    "squared": Squared,
    "hinge": Hinge,
    "absolute": Absolute,
    "pinball": Pinball,
    "huber": Huber,
    "geman_mcclure": GemanMcClure,
    "tukey": Tukey,
}


def _right_side(score, label):
    """Return 1.0 if the label is 1 and the score positive (a probability above 1/2), or the label 0 and it is not."""
    return ((score > 0) == (label > 0.5)).astype(jnp.float32)
