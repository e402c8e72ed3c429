from math import inf, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import expit, logsumexp

from fedprivjax.losses import LinearLoss, Logistic, Softmax, Squared
from fedprivjax.models import Example, LinearModel

BOUND, RADIUS, LABEL_BOUND = 3.0, 0.7, 1.5
LOSSES = {"softmax": Softmax(4), "logistic": Logistic(), "squared": Squared(LABEL_BOUND)}


def scores_and_labels(name, count=200, scale=5.0):
    rng = np.random.default_rng(11)
    if name == "softmax":
        return scale * rng.normal(size=(count, 4)), rng.integers(0, 4, count)
    if name == "logistic":
        return scale * rng.normal(size=count), rng.integers(0, 2, count)
    return scale * rng.normal(size=count), rng.uniform(-LABEL_BOUND, LABEL_BOUND, count)


def closed_form(name, score, label):
    """Value and derivative in the score, in float64."""
    if name == "softmax":
        p = np.exp(score - logsumexp(score))
        return logsumexp(score) - score[label], p - np.eye(4)[label]
    if name == "logistic":
        return np.logaddexp(0, score) - label * score, expit(score) - label
    return (score - label) ** 2 / 2, score - label


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_residuals(name):
    loss = LOSSES[name]
    scores, labels = scores_and_labels(name)
    expected = [closed_form(name, s, y) for s, y in zip(scores, labels, strict=True)]
    scores = jnp.asarray(scores, jnp.float32)
    np.testing.assert_allclose(jax.vmap(loss.value)(scores, labels), [v for v, _ in expected], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(jax.vmap(loss.residual)(scores, labels), [r for _, r in expected], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["softmax", "logistic"])
def test_huge_scores_stay_finite(name):
    scores, labels = scores_and_labels(name, scale=1e6)
    scores = jnp.asarray(scores, jnp.float32)
    assert np.isfinite(jax.vmap(LOSSES[name].value)(scores, labels)).all()
    assert np.isfinite(jax.vmap(LOSSES[name].residual)(scores, labels)).all()


def test_optax_agrees():
    scores, labels = scores_and_labels("softmax")
    one_hot = jnp.asarray(np.eye(4)[labels], jnp.float32)
    scores = jnp.asarray(scores, jnp.float32)
    values = jax.vmap(Softmax(4).value)(scores, labels)
    np.testing.assert_allclose(values, optax.losses.softmax_cross_entropy(scores, one_hot), rtol=1e-5, atol=2e-6)
    score, label = jnp.asarray(scores[:, 0]), jnp.asarray(labels % 2, jnp.float32)
    np.testing.assert_allclose(
        jax.vmap(Logistic().value)(score, label), optax.losses.sigmoid_binary_cross_entropy(score, label), rtol=1e-6
    )
    np.testing.assert_allclose(jax.vmap(Squared().value)(score, label), optax.losses.l2_loss(score, label), rtol=1e-6)


def adversary(name):
    """Parameters, features and label that come near the gradient bound, on the ball where it needs one."""
    x = np.zeros(5)
    x[0] = BOUND
    if name == "softmax":
        params = np.zeros((4, 5))
        params[1, 0] = 20.0  # certain of class 1, while the label is 0
        return params, x, 0
    params = np.zeros(5)
    params[0] = 20.0 if name == "logistic" else RADIUS
    return params, x, 0 if name == "logistic" else -LABEL_BOUND


def flattest(name):
    """Parameters where the curvature is largest."""
    x = np.zeros(5)
    x[0] = BOUND
    if name == "softmax":
        params = np.zeros((4, 5))
        params[:2, 0] = 20.0  # two classes with probability 1/2 each
        return params, x, 0
    return np.zeros(5), x, 0


def random_cases(name, count=100):
    rng = np.random.default_rng(12)
    loss = LOSSES[name]
    _, labels = scores_and_labels(name, count)
    for label in labels:
        params = rng.normal(size=loss.shape(5))
        wanted = RADIUS * rng.uniform() if name == "squared" else rng.uniform(0, 5)
        x = rng.normal(size=5)
        yield params * wanted / np.linalg.norm(params), x * BOUND * rng.uniform() / np.linalg.norm(x), label


def model(name):
    """Value and gradient as jitted functions of (params, features, label)."""

    def value(params, features, label):
        return LinearModel(LOSSES[name]).value(params, Example(features, label, jnp.float32(0)))

    return jax.jit(jax.grad(value)), jax.jit(jax.hessian(value))


def as_arrays(name, case):
    params, features, label = case
    dtype = jnp.int32 if name == "softmax" else jnp.float32
    return jnp.asarray(params, jnp.float32), jnp.asarray(features, jnp.float32), jnp.asarray(label, dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_lipschitz_is_a_bound_and_is_nearly_attained(name):
    bound = LOSSES[name].lipschitz(BOUND, RADIUS)
    gradient, _ = model(name)
    norms = [np.linalg.norm(gradient(*as_arrays(name, case))) for case in random_cases(name)]
    worst = np.linalg.norm(gradient(*as_arrays(name, adversary(name))))
    assert max(norms) <= bound * (1 + 1e-5)
    assert 0.999 * bound <= worst <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_smoothness_is_a_bound_and_is_nearly_attained(name):
    bound = LOSSES[name].smoothness(BOUND)
    _, hessian = model(name)

    def curvature(case):
        params, features, label = as_arrays(name, case)
        return np.linalg.norm(np.asarray(hessian(params, features, label)).reshape(params.size, -1), 2)

    assert max(curvature(case) for case in random_cases(name)) <= bound * (1 + 1e-5)
    assert 0.999 * bound <= curvature(flattest(name)) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_move_at_most_by_the_smoothness(name):
    gradient, _ = model(name)
    bound = LOSSES[name].smoothness(BOUND)
    rng = np.random.default_rng(13)
    for params, x, label in random_cases(name, 40):
        moved = params + rng.normal(size=params.shape) * 10 ** rng.uniform(-1, 1)
        change = gradient(*as_arrays(name, (params, x, label))) - gradient(*as_arrays(name, (moved, x, label)))
        assert np.linalg.norm(change) <= bound * np.linalg.norm(params - moved) * (1 + 1e-4)


def test_constants_in_closed_form():
    mnist = sqrt(785)
    assert Softmax(10).lipschitz(mnist) == pytest.approx(39.6, abs=0.03)
    assert Softmax(10).smoothness(mnist) == pytest.approx(392.5)
    assert Logistic().lipschitz(2.0) == 2.0
    assert Logistic().smoothness(2.0) == 1.0
    assert Squared(1.0).lipschitz(2.0, 3.0) == 2 * (2 * 3 + 1)
    assert Squared(1.0).smoothness(2.0) == 4.0
    assert Squared(1.0).lipschitz(2.0) == inf
    assert Squared().lipschitz(2.0, 3.0) == inf


def test_correct():
    scores = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert jax.vmap(Softmax(3).correct)(scores, jnp.array([1, 2])).tolist() == [1.0, 0.0]
    score, label = jnp.array([-1.0, -1.0, 1.0, 1.0]), jnp.array([0.0, 1.0, 0.0, 1.0])
    assert jax.vmap(Logistic().correct)(score, label).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert Squared().correct(score, label) is None


def test_shapes_and_label_ranges():
    assert (Softmax(3).shape(5), Logistic().shape(5), Squared().shape(5)) == ((3, 5), (5,), (5,))
    assert (Softmax(3).outputs, Logistic().outputs) == (3, 0)
    assert Softmax(3).label_range() == (0, 2)
    assert Logistic().label_range() == (0, 1)
    assert Squared(2.0).label_range() == (-2.0, 2.0)
    assert Squared().label_range() == (-inf, inf)


@pytest.mark.parametrize("classes", [1, 0, -3])
def test_one_class_is_no_classification(classes):
    with pytest.raises(ValueError, match=rf"^classes must be at least 2, got {classes}$"):
        Softmax(classes)


def test_a_loss_of_ones_own_needs_a_value_only():
    class Absolute(LinearLoss):
        def value(self, score, label):
            return jnp.abs(score - label)

    example = Example(jnp.array([1.0, 2.0]), jnp.float32(1.0), jnp.float32(sqrt(5)))
    (gradient,) = LinearModel(Absolute()).gradients((jnp.array([3.0, 0.0]),), example)
    assert gradient.written_out().tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="must define lipschitz"):
        Absolute().lipschitz(1.0)
    with pytest.raises(TypeError, match="must define smoothness"):
        Absolute().smoothness(1.0)
    with pytest.raises(TypeError, match="must define value"):
        LinearLoss().value(jnp.float32(0), jnp.float32(0))
