from functools import cache
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from scipy.optimize import minimize
from scipy.special import expit

from fedprivjax import Ball, general_problem, linear_problem
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import Absolute, Hinge, Huber, Logistic, Pinball, Softmax, Squared
from fedprivjax.problem.models import Example, LinearModel
from fedprivjax.problem.smoothing import Moreau, ball_envelope

KINKED = {"hinge": Hinge(), "absolute": Absolute(), "pinball": Pinball(0.8)}
LOSSES = {**KINKED, "logistic": Logistic(), "huber": Huber(0.4), "squared": Squared()}
KINDS = [*((name, False) for name in LOSSES), *((name, True) for name in KINKED)]
QUICK = [("pinball", False), ("hinge", True)]
KINKS = [kind for kind in KINDS if kind[0] in KINKED]
COUNT, BOUND, RADIUS = 120, 2.0, 1.5
WIDTH = 1e-6  # of finite differences


def loss_and_slope(name, score, label):
    """Return the value of the plain loss and the interval of its slopes, in float64."""
    if name == "logistic":
        return np.logaddexp(0, score) - label * score, (expit(score) - label,) * 2
    gap = score - label
    if name == "huber":
        return (gap**2 / 2 if abs(gap) <= 0.4 else 0.4 * (abs(gap) - 0.2)), (np.clip(gap, -0.4, 0.4),) * 2
    if name == "squared":
        return gap**2 / 2, (gap, gap)
    low, high, gap = pieces(name, score, label)
    return max(low * gap, high * gap), (low if gap < 1e-9 else high, high if gap > -1e-9 else low)


def pieces(name, score, label):
    """Return both slopes and the distance from the kink."""
    if name == "hinge":
        a = 2 * label - 1
        return min(-a, 0), max(-a, 0), score - a
    return (-1, 1, score - label) if name == "absolute" else (-0.8, 0.2, score - label)


@cache
def points(name):
    """Return points of the ball, features, labels, and strengths that cover every piece of every envelope."""
    rng = np.random.default_rng(1)
    params = rng.normal(size=(COUNT, 3))
    params *= RADIUS * rng.uniform(size=(COUNT, 1)) ** 0.05 / np.linalg.norm(params, axis=1, keepdims=True)
    features = rng.normal(size=(COUNT, 3))
    features *= BOUND * rng.uniform(0.2, 1, size=(COUNT, 1)) / np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.integers(0, 2, COUNT).astype(float) if LOSSES[name].classifies else rng.normal(size=COUNT)
    return params, features, labels, 10 ** rng.uniform(-1, 1.5, COUNT)


@cache
def program(name, on_ball):
    """Return a program of values, the package's gradients and those of `jax.grad`, over many cases."""

    def one(params, features, label, strength):
        example = Example(features, label, jnp.linalg.norm(features))
        if on_ball:
            value, gradient = jax.value_and_grad(ball_envelope(LOSSES[name], strength, RADIUS))(params, example)
            return value, gradient, gradient
        model = LinearModel(Moreau(LOSSES[name], strength))
        (gradient,) = model.gradients((params,), example)
        value, differentiated = jax.value_and_grad(model.value)(params, example)
        return value, gradient.written_out(), differentiated

    return jax.jit(jax.vmap(one))


def envelope(name, on_ball, *arrays, x64=True):
    rows = len(arrays[0])
    # padded, so that every test runs the same program
    arrays = [np.resize(a, (COUNT, *np.shape(a)[1:])) for a in arrays]
    with jax.enable_x64(x64):
        found = program(name, on_ball)(*(jnp.asarray(a, float if x64 else jnp.float32) for a in arrays))
        return [np.asarray(each, np.float64)[:rows] for each in found]


def objective(name, v, w, x, y, b):
    return loss_and_slope(name, v @ x, y)[0] + b / 2 * np.sum((w - v) ** 2)


def brute_force(name, on_ball, w, x, y, b):
    """Return the minimiser by a general constrained solver, over v and a bound t of both pieces of a kinked loss."""
    within = {"type": "ineq", "fun": lambda z: RADIUS**2 - z[:3] @ z[:3], "jac": lambda z: np.append(-2 * z[:3], 0)}
    constraints = [within] * on_ball

    def cost(z):
        first = z[3] if name in KINKED else loss_and_slope(name, z[:3] @ x, y)[0]
        slope = 0 if name in KINKED else loss_and_slope(name, z[:3] @ x, y)[1][0]
        gradient = np.append(slope * x + b * (z[:3] - w), 1.0 if name in KINKED else 0.0)
        return first + b / 2 * np.sum((w - z[:3]) ** 2), gradient

    if name in KINKED:
        low, high, offset = pieces(name, 0.0, y)
        for s in (low, high):
            row = np.append(-s * x, 1.0)
            above = {"fun": lambda z, r=row, s=s: z @ r - s * offset, "jac": lambda z, r=row: r}
            constraints.append({"type": "ineq", **above})
    start = np.append(0.9 * w, loss_and_slope(name, 0.9 * w @ x, y)[0])
    options = {"ftol": 1e-15, "maxiter": 300}
    v = minimize(cost, start, jac=True, method="SLSQP", constraints=constraints, options=options).x[:3]
    return v * min(1, RADIUS / np.linalg.norm(v)) if on_ball else v


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINDS, QUICK))
def test_the_envelope_is_the_minimum_that_brute_force_finds(name, on_ball):
    arrays = [a[:40] for a in points(name)]
    rows = list(zip(*arrays, strict=True))
    found = [brute_force(name, on_ball, *row) for row in rows]
    least = np.array([objective(name, v, *row) for v, row in zip(found, rows, strict=True)])
    slopes = np.array([row[3] * (row[0] - v) for v, row in zip(found, rows, strict=True)])
    for x64, tolerance in ((True, 1e-9), (False, 1e-5)):
        value, gradient, _ = envelope(name, on_ball, *arrays, x64=x64)
        np.testing.assert_allclose(value, least, rtol=tolerance, atol=tolerance)
        # an error ε of the minimum allows an error √ε of the minimiser
        np.testing.assert_allclose(gradient, slopes, atol=2e-5)


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINDS, QUICK))
def test_the_minimiser_is_optimal(name, on_ball):
    """`b·(w − v) = c·x + n` with c a slope at v, and n a multiple ≥ 0 of v that is 0 inside the ball."""
    arrays = points(name)
    _, gradients, _ = envelope(name, on_ball, *arrays)
    outside = 0
    for w, x, y, b, gradient in zip(*arrays, gradients, strict=True):
        v = w - gradient / b
        c, nu = x @ gradient / (x @ x), 0.0
        if on_ball and np.linalg.norm(v) > RADIUS * (1 - 1e-9):
            c, nu = np.linalg.lstsq(np.stack([x, v], axis=1), gradient, rcond=None)[0]
        low, high = loss_and_slope(name, v @ x, y)[1]
        np.testing.assert_allclose(gradient, c * x + nu * v, atol=1e-9)
        assert low - 1e-9 <= c <= high + 1e-9
        assert nu >= -1e-9
        assert not on_ball or np.linalg.norm(v) <= RADIUS * (1 + 1e-12)
        outside += nu > 1e-3
    assert (outside > 10) == on_ball


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINDS, QUICK))
def test_gradients_are_derivatives_of_the_value(name, on_ball):
    params, *rest = points(name)
    _, gradient, differentiated = envelope(name, on_ball, params, *rest)
    np.testing.assert_allclose(differentiated, gradient, atol=1e-12)
    for axis in np.eye(3):
        up, down = (envelope(name, on_ball, params + sign * WIDTH * axis, *rest)[0] for sign in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * WIDTH), gradient @ axis, atol=1e-4)
    single = envelope(name, on_ball, params, *rest, x64=False)
    np.testing.assert_allclose(single[1], gradient, atol=3e-5)
    np.testing.assert_allclose(single[2], single[1], atol=1e-6)


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINDS, QUICK))
def test_properties_of_an_envelope(name, on_ball):
    """An envelope is between f − G²/(2b) and f, convex and b-smooth, with gradients of norm at most G."""
    params, features, labels, strengths = points(name)
    value, gradient, _ = envelope(name, on_ball, params, features, labels, strengths)
    plain = np.array([loss_and_slope(name, w @ x, y)[0] for w, x, y in zip(params, features, labels, strict=True)])
    norms = np.linalg.norm(features, axis=1)
    lipschitz = np.array([Moreau(LOSSES[name], 1.0).lipschitz(norm, RADIUS) for norm in norms])
    if name == "squared":
        lipschitz = norms * (norms * RADIUS + np.abs(labels))
    assert (value <= plain + 1e-12).all()
    assert (plain <= value + lipschitz**2 / (2 * strengths) + 1e-12).all()
    assert (np.linalg.norm(gradient, axis=1) <= lipschitz * (1 + 1e-12)).all()

    order = np.random.default_rng(2).permutation(len(params))
    other = params[order] * np.random.default_rng(3).uniform(0, 1, size=(COUNT, 1))
    far_value, far_gradient, _ = envelope(name, on_ball, other, features, labels, strengths)
    apart = np.sum((params - other) ** 2, axis=1)
    assert (np.sum((gradient - far_gradient) ** 2, axis=1) <= strengths**2 * apart * (1 + 1e-9)).all()
    gap = value - far_value - np.sum(far_gradient * (params - other), axis=1)
    assert (gap >= -1e-12).all()
    assert (gap <= strengths / 2 * apart * (1 + 1e-9)).all()


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINKS, QUICK[1:]))
def test_the_bounds_of_an_envelope_are_tight(name, on_ball):
    """At some points the gradient has norm G, the gap is G²/(2b), and the curvature is b."""
    x, b = np.array([1.2, 0.0, 0.0]), 8.0
    lipschitz = Moreau(LOSSES[name], b).lipschitz(1.2)
    scores = np.linspace(-1.4, 1.4, COUNT)[:, None] * np.array([1.0, 0, 0])
    arrays = scores, np.tile(x, (COUNT, 1)), np.zeros(COUNT), np.full(COUNT, b)
    value, gradient, _ = envelope(name, on_ball, *arrays)
    plain = np.array([loss_and_slope(name, w @ x, 0.0)[0] for w in scores])
    assert np.abs(gradient).max() == pytest.approx(lipschitz, rel=1e-9)
    assert (plain - value).max() == pytest.approx(lipschitz**2 / (2 * b), rel=1e-9)
    assert np.diff(gradient[:, 0]).max() / np.diff(scores[:, 0])[0] == pytest.approx(b, rel=1e-9)


def test_well_inside_the_ball_both_envelopes_are_one():
    for name in KINKED:
        params, features, labels, strengths = points(name)
        everywhere = envelope(name, False, params, features, labels, strengths)
        on_ball = envelope(name, True, params, features, labels, strengths)
        inside = np.linalg.norm(params - everywhere[1] / strengths[:, None], axis=1) < RADIUS
        assert 10 < inside.sum() < COUNT - 10
        np.testing.assert_allclose(on_ball[1][inside], everywhere[1][inside], atol=1e-12)
        np.testing.assert_allclose(on_ball[0][inside], everywhere[0][inside], atol=1e-12)
        assert np.abs(on_ball[1] - everywhere[1])[~inside].max() > 0.1


@pytest.mark.parametrize("name", sparing(["logistic", "huber", "squared"], ["logistic"]))
def test_the_minimiser_is_found_for_any_strength(name):
    """From the minimiser u to the score `u + τ·h'(u)` and back, for τ from 10⁻⁸ to 10⁸ and u up to the hundreds."""
    rng = np.random.default_rng(4)
    roots, tau = rng.normal(size=COUNT) * 10 ** rng.uniform(-2, 2.5, COUNT), 10 ** rng.uniform(-8, 8, COUNT)
    labels = rng.integers(0, 2, COUNT).astype(float)
    slopes = np.array([loss_and_slope(name, u, y)[1][0] for u, y in zip(roots, labels, strict=True)])
    params, features = (roots + tau * slopes) / np.sqrt(tau), np.sqrt(tau)
    arrays = [np.stack([a, 0 * a, 0 * a], axis=1) for a in (params, features)]
    for x64, tolerance in ((True, 1e-9), (False, 1e-5)):
        gradient = envelope(name, False, *arrays, labels, np.ones(COUNT), x64=x64)[1][:, 0]
        np.testing.assert_allclose(gradient / features, slopes, rtol=tolerance, atol=tolerance)


def test_smoothing_the_absolute_error_is_hubers_loss():
    params, features, labels, strengths = points("absolute")
    tau = np.sum(features**2, axis=1) / strengths
    gap = np.sum(params * features, axis=1) - labels
    huber = np.where(np.abs(gap) <= tau, gap**2 / (2 * tau), np.abs(gap) - tau / 2)
    np.testing.assert_allclose(envelope("absolute", False, params, features, labels, strengths)[0], huber, atol=1e-12)


@pytest.mark.parametrize(("name", "on_ball"), sparing(KINDS, QUICK))
def test_features_of_zero_leave_the_loss_alone(name, on_ball):
    params = np.array([[0.0, 0.0, 0.0], [1.0, -0.5, 0.5]])
    for label in (0.0, 1.0):
        arrays = params, np.zeros((2, 3)), np.full(2, label), np.full(2, 0.5)
        value, *gradients = envelope(name, on_ball, *arrays, x64=False)
        np.testing.assert_allclose(value, loss_and_slope(name, 0.0, label)[0], rtol=1e-6)
        assert not np.any(gradients)


@pytest.mark.parametrize("name", KINKED)
def test_where_two_pieces_meet_the_derivative_is_the_gradient(name):
    """At w = 0 with ‖x‖² = b, a common start, the score is at the end of the middle piece."""
    arrays = np.zeros((1, 3)), np.eye(3)[:1], np.ones(1), np.ones(1)
    _, gradient, differentiated = envelope(name, False, *arrays, x64=False)
    assert gradient[0].tolist() == differentiated[0].tolist() == [pytest.approx(pieces(name, 0, 1)[0]), 0, 0]


@pytest.mark.slow
def test_the_slope_can_be_differentiated_again():
    """Newton-type methods get the curvature `h″/(1 + τ·h″)` at the minimiser."""

    @jax.jit
    def derivatives(score, label, norm):
        loss = Moreau(Logistic(), 2.0).for_norm(norm)
        in_norm = jax.grad(lambda norm: Moreau(Logistic(), 2.0).for_norm(norm).value(score, label))(norm)
        return loss.residual(score, label), jax.grad(jax.grad(loss.value))(score, label), in_norm

    with jax.enable_x64(True):
        residual, curvature, in_norm = (float(each) for each in derivatives(0.7, 1.0, 3.0))
    root = 0.7 - 4.5 * residual
    second = expit(root) * expit(-root)
    assert curvature == pytest.approx(second / (1 + 4.5 * second), rel=1e-9)
    # the envelope falls in τ at half the squared slope, and dτ/d‖x‖ = 2‖x‖/b
    assert in_norm == pytest.approx(-(residual**2) / 2 * 3.0, rel=1e-9)


def test_problems_take_both():
    rng = np.random.default_rng(5)
    features = rng.normal(size=(20, 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (features[:, 0] > 0).astype(np.float32)
    linear = linear_problem(features, labels, Moreau(Hinge(), 3.0), feature_bound=1.0, constraint=Ball(0.1))
    assert (linear.lipschitz, linear.smoothness) == (1.0, 3.0)
    assert linear.model.correct(jnp.ones(3), linear.take(0)) is not None
    exact = general_problem(ball_envelope(Hinge(), 3.0, 0.1), (features, labels), jnp.zeros(3), constraint=Ball(0.1))
    # the slopes at 0 push each minimiser out to the boundary: there v = 0.1·x·sign, with ‖x‖ = 1
    (summed,) = jax.jit(exact.model.summed_gradients)((exact.start,), exact.pool)
    signs = 2 * labels - 1
    np.testing.assert_allclose(summed.value, -0.3 * signs @ features, rtol=1e-5)


def test_labels_and_classes_are_the_losses_own():
    assert Moreau(Hinge(), 1.0).label_range() == (0, 1)
    assert Moreau(Hinge(), 1.0).classifies
    assert not Moreau(Absolute(), 1.0).classifies
    assert Moreau(Squared(2.0), 1.0).lipschitz(1.0, 3.0) == 5.0
    assert Moreau(Absolute(), 1.0).correct(jnp.float32(1), jnp.float32(1)) is None
    assert float(Moreau(Hinge(), 1.0).correct(jnp.float32(-1), jnp.float32(0))) == 1.0
    with pytest.raises(TypeError, match="for_norm"):
        Moreau(Hinge(), 1.0).value(jnp.float32(0), jnp.float32(0))


class Cliff(LinearLoss):
    def smoothness(self, feature_bound):
        return inf

    def __repr__(self):
        return "Cliff()"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Moreau(Hinge(), 0.0), "strength must be positive, got 0.0"),
        (lambda: Moreau(Hinge(), inf), "strength must be finite, got inf"),
        (lambda: Moreau(Softmax(3), 1.0), "loss must have one score, got Softmax(classes=3)"),
        (
            lambda: Moreau(Moreau(Hinge(), 1.0), 1.0),
            "loss must not be smoothed already, got Moreau(loss=Hinge(), strength=1.0)",
        ),
        (
            lambda: Moreau(Logistic(15.0), 1.0),
            "loss must be convex, got Logistic(score_bound=15.0)",
        ),
        (lambda: Moreau(Cliff(), 1.0), "loss must be smooth or Kinked, got Cliff()"),
        (
            lambda: ball_envelope(Squared(), 1.0, 1.0),
            "loss must be Hinge, Absolute or Pinball, got Squared(label_bound=inf)",
        ),
        (lambda: ball_envelope(Hinge(), -1.0, 1.0), "strength must be positive, got -1.0"),
        (lambda: ball_envelope(Hinge(), 1.0, inf), "radius must be finite, got inf"),
    ],
)
def test_what_cannot_be_smoothed_is_refused(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        make()
    assert str(caught.value) == message
