"""Moreau smoothing of each record's loss: `f_b(w) = min over v of f(v) + (b/2)·‖w − v‖²`, b-smooth and G-Lipschitz.

For a linear predictor's loss `f(w) = h(⟨w, x⟩)` the minimum over the whole space is a minimum over scores. With
`τ = ‖x‖²/b`,

    u = the minimiser of h(u) + (u − s)²/(2τ),    r = (s − u)/τ = h'(u),    f_b = h(u) + τ·r²/2,    ∇f_b = r·x

(Lowy & Razaviyayn 2023, Theorems 2.2 and 2.4, after Nesterov 2005.) They use that f_b is convex and b-smooth,
`f_b ≤ f ≤ f_b + G²/(2b)`, and `‖∇f_b‖ ≤ G`. The paper states 2G for a minimum over a convex set W, but G holds on W
too. Since v is the minimiser, `b·(w − v) = g + n` with g a subgradient of f at v and n normal to W there.
`⟨n, w − v⟩ ≤ 0` then gives `b·‖w − v‖² ≤ ⟨g, w − v⟩ ≤ G·‖w − v‖`. Noise calibrated to the loss therefore covers its
envelope.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, isinf
from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.problem.linear_loss import Kinked, LinearLoss

BISECTIONS = 30  # followed by NEWTON_STEPS, each of which squares the error
NEWTON_STEPS = 3
BALL_BISECTIONS = 60  # one bit of the slope per bisection


@dataclass(frozen=True)
class Moreau(LinearLoss):
    """Smooth version of each record's loss f: the Moreau envelope `f_b(w) = min over v of f(v) + (b/2)·‖w − v‖²`.

    Here w are the parameters, b is the `strength`, and v ranges over all parameters, also outside the constraint set.
    `ball_envelope` is the variant with v in a ball. The envelope has the loss's Lipschitz constant G, and is at most
    G²/(2b) below the loss.

    A run's metrics report the loss of the envelope. The excess risk is also computed from the envelope, unless the
    problem defines `excess`.

    Args:
        loss: `Hinge`, `Absolute`, `Pinball`, or a convex smooth loss of one score.
        strength: smoothness constant b of the envelope, positive.

    Raises:
        ValueError: if the strength is not positive. Also if the loss has several scores, is not convex, is already
            smoothed, or is neither smooth nor piecewise linear with one kink.

    >>> from fedprivjax import Absolute, linear_problem
    >>> problem = linear_problem(jnp.eye(2), jnp.ones(2), Moreau(Absolute(), 4.0), feature_bound=1.0)
    >>> problem.lipschitz, problem.smoothness
    (1.0, 4.0)
    """

    loss: LinearLoss
    strength: float

    def __post_init__(self):
        require_positive("strength", self.strength)
        _require_smoothable(self.loss)

    @property
    def least(self) -> float:  # type: ignore[override]
        return self.loss.least

    @property
    def classifies(self):
        return self.loss.classifies

    @property
    def unsmoothed(self):
        return self.loss

    def for_norm(self, feature_norm):
        return _Envelope(self.loss, feature_norm**2 / self.strength)

    def value(self, score, label):
        raise TypeError("an envelope depends on the features' norm: use for_norm(feature_norm).value(score, label)")

    def correct(self, score, label):
        return self.loss.correct(score, label)

    def lipschitz(self, feature_bound, radius=inf):
        return self.loss.lipschitz(feature_bound, radius)

    def smoothness(self, feature_bound):
        return self.strength

    def label_range(self):
        return self.loss.label_range()


@dataclass(frozen=True)
class _Envelope(LinearLoss):
    """Envelope `min over u of h(u) + (u − s)²/(2τ)` at the score s; h itself for τ = 0."""

    loss: LinearLoss
    tau: Any

    def value(self, score, label):
        return _envelope(self.loss, score, label, self.tau)

    def residual(self, score, label):
        if isinstance(self.loss, Kinked):
            # the smallest positive number replaces τ = 0: the slope is the loss's, not 0/0
            tau = jnp.maximum(self.tau, jnp.finfo(score.dtype).tiny)
            return jnp.clip((score - self.loss.kink(label)) / tau, *self.loss.slopes(label))
        return self.loss.residual(_smooth_prox(self.loss, score, label, self.tau), label)


# custom derivative: the value is smooth where two branches of the formula meet, their derivatives are not
@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _envelope(loss: LinearLoss, score, label, tau):
    residual = _Envelope(loss, tau).residual(score, label)
    return loss.value(score - tau * residual, label) + tau * residual**2 / 2


@_envelope.defjvp
def _envelope_jvp(loss: LinearLoss, primals, tangents):
    score, label, tau = primals
    residual = _Envelope(loss, tau).residual(score, label)
    return _envelope(loss, score, label, tau), residual * tangents[0] - residual**2 / 2 * tangents[2]


def _smooth_prox(loss: LinearLoss, score, label, tau):
    """Return the root u of the increasing `u − score + tau·h'(u)`, once differentiable in the score and in tau."""

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = middle - score + tau * loss.residual(middle, label) > 0
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    def newton(u):
        slope, curvature = jax.jvp(lambda u: loss.residual(u, label), (u,), (jnp.ones_like(u),))
        return u - (u - score + tau * slope) / jax.lax.stop_gradient(1 + tau * curvature)

    # h' increases, so its value at the score bounds it at the root
    far = score - tau * loss.residual(score, label)
    bracket = jax.lax.stop_gradient((jnp.minimum(far, score), jnp.maximum(far, score)))
    low, high = jax.lax.stop_gradient(jax.lax.fori_loop(0, BISECTIONS, halve, bracket))
    root = (low + high) / 2
    for _ in range(NEWTON_STEPS - 1):
        root = jnp.clip(newton(root), low, high)
    return newton(jax.lax.stop_gradient(root))


def ball_envelope(loss: Kinked, strength: float, radius: float) -> Callable[[Any, Any], Any]:
    """Return a smooth version of each record's loss on a ball: the Moreau envelope over the ball.

        f_b(w) = min over ‖v‖ ≤ radius of h(⟨v, x⟩) + (b/2)·‖w − v‖²

    Here w are the parameters, b is the `strength`, and h is the loss as a function of the score ⟨v, x⟩ of the features
    x. On the ball, the envelope's gradient has Lipschitz constant b, and the envelope has the Lipschitz constant of the
    loss. `Moreau` is the variant without a restriction of v, and is computed faster.

    Args:
        loss: `Hinge`, `Absolute` or `Pinball`.
        strength: smoothness constant b of the envelope, positive.
        radius: radius of the ball, which is also the problem's constraint set.

    Returns:
        A function `(params [features], example) -> scalar` for `general_problem`, differentiable in the parameters. An
        example is `(features, label)` or an `Example`.

    Raises:
        ValueError: if the loss is not `Hinge`, `Absolute` or `Pinball`, or if the strength or the radius is not
            positive.

    >>> from fedprivjax import Absolute, Ball, general_problem
    >>> data, loss = (jnp.eye(2), jnp.array([1.0, 3.0])), Absolute()
    >>> smoothed = ball_envelope(loss, 4.0, radius=1.0)
    >>> general_problem(smoothed, data, jnp.zeros(2), constraint=Ball(1.0), lipschitz=1.0, smoothness=4.0).dimension
    2
    """
    if not isinstance(loss, Kinked):
        raise Refusal(f"loss must be Hinge, Absolute or Pinball, got {loss}")
    require_positive("strength", strength)
    require_positive("radius", radius)

    @jax.custom_jvp
    def envelope(params, features, label):
        gradient = _ball_gradient(loss, strength, radius, params, features, label)
        score = (params - gradient / strength) @ features
        return loss.value(score, label) + gradient @ gradient / (2 * strength)

    @envelope.defjvp
    def _(primals, tangents):
        return envelope(*primals), _ball_gradient(loss, strength, radius, *primals) @ tangents[0]

    return lambda params, example: envelope(params, *example[:2])


def _ball_gradient(loss: Kinked, strength: float, radius: float, params, features, label):
    """Return `b·(w − v)` for the minimiser v over the ball."""

    # norm and score of w − slope·x/b follow from three inner products, so a bisection needs no vector
    squared, score, span = params @ params, params @ features, features @ features / strength

    def shrink(slope):
        """Return the factor that scales `w − slope·x/b` into the ball."""
        norm = jnp.sqrt(jnp.maximum(squared - slope * (2 * score - slope * span) / strength, radius**2))
        return radius / norm

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = shrink(middle) * (score - middle * span) > loss.kink(label)
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    bracket = tuple(jnp.asarray(slope, params.dtype) for slope in loss.slopes(label))
    low, high = jax.lax.fori_loop(0, BALL_BISECTIONS, halve, bracket)
    slope = (low + high) / 2
    factor = shrink(slope)
    # b·(w − v) would cancel inside the ball, where the factor is 1
    return factor * slope * features + strength * (1 - factor) * params


def _require_smoothable(loss: LinearLoss) -> None:
    if loss.outputs:
        raise Refusal(f"loss must have one score, got {loss}")
    if isinstance(loss, Moreau):
        raise Refusal(f"loss must not be smoothed already, got {loss}")
    if not loss.convex:
        raise Refusal(f"loss must be convex, got {loss}")
    if not isinstance(loss, Kinked) and isinf(loss.smoothness(1.0)):
        raise Refusal(f"loss must be smooth or Kinked, got {loss}")
