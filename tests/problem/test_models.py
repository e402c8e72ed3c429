from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax.problem.losses import Absolute, Hinge, Logistic, Pinball, Softmax, Squared
from fedprivjax.problem.models import Example, GeneralModel, LinearModel
from fedprivjax.problem.smoothing import Moreau

LOSSES = {
    "softmax": Softmax(3),
    "logistic": Logistic(),
    "squared": Squared(),
    "pinball": Pinball(0.8),
    "smoothed hinge": Moreau(Hinge(), 2.0),
}


def case(name, count=7):
    rng = np.random.default_rng(21)
    loss = LOSSES[name]
    features = rng.normal(size=(count, 4)).astype(np.float32)
    labels = jnp.asarray(rng.integers(0, 2, count), jnp.int32 if name == "softmax" else jnp.float32)
    examples = Example(jnp.asarray(features), labels, jnp.asarray(np.linalg.norm(features, axis=1)))
    return loss, jnp.asarray(rng.normal(size=loss.shape(4)), jnp.float32), examples


def general_twin(loss):
    def value(params, example):
        return loss.for_norm(example.feature_norm).value(params @ example.features, example.label)

    return GeneralModel(value)


def points(params):
    """Return two points, as in the correction of a momentum."""
    return params, 0.5 - params


@pytest.mark.parametrize("name", sparing(list(LOSSES), ["softmax", "pinball", "smoothed hinge"]))
def test_the_factored_gradients_are_the_gradients(name):
    loss, params, examples = case(name)
    linear = LinearModel(loss)

    @jax.jit
    def of(params):
        """Return the dense form, the norms and the sum of the factored gradients at each point."""
        found = jax.vmap(linear.gradients, in_axes=(None, 0))(points(params), examples)
        return [(*jax.vmap(lambda g: (g.written_out(), g.norm()))(factored), factored.total()) for factored in found]

    plain = jax.jit(jax.vmap(jax.grad(linear.value), in_axes=(None, 0)))
    for point, (written, norms, total) in zip(points(params), of(params), strict=True):
        expected = np.asarray(plain(point, examples))
        np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(norms, np.linalg.norm(expected.reshape(7, -1), axis=1), rtol=1e-5)
        np.testing.assert_allclose(total, expected.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sparing(list(LOSSES), ["softmax", "pinball"]))
def test_a_general_model_agrees_with_the_linear_one(name):
    loss, params, examples = case(name)
    linear, general = LinearModel(loss), general_twin(loss)

    @jax.jit
    def of(params):
        expected = jax.vmap(lambda e: [g.written_out() for g in linear.gradients(points(params), e)])(examples)
        found = jax.vmap(general.gradients, in_axes=(None, 0))(points(params), examples)
        return found, general.summed_gradients(points(params), examples), expected

    found, summed, expected = of(params)
    for per_example, sum_of_all, rows in zip(found, summed, expected, strict=True):
        np.testing.assert_allclose(per_example.value, rows, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sum_of_all.value, rows.sum(0), rtol=1e-5, atol=1e-5)
    first = jax.tree.map(lambda leaf: leaf[0], examples)
    assert float(general.value(params, first)) == pytest.approx(float(linear.value(params, first)))


def test_parameters_may_be_a_pytree():
    def loss(params, example):
        return 0.5 * (params["w"] @ example["x"] + params["b"] - example["y"]) ** 2

    params = {"w": jnp.array([1.0, -1.0]), "b": jnp.float32(0.5)}
    examples = {"x": jnp.array([[1.0, 2.0], [0.0, 1.0]]), "y": jnp.array([1.0, 2.0])}
    errors = np.array([1 - 2 + 0.5 - 1, -1 + 0.5 - 2])
    (summed,) = GeneralModel(loss).summed_gradients((params,), examples)
    np.testing.assert_allclose(summed.value["w"], errors @ np.asarray(examples["x"]), rtol=1e-6)
    np.testing.assert_allclose(summed.value["b"], errors.sum(), rtol=1e-6)


def test_what_is_right():
    loss, params, examples = case("softmax")
    right = jax.vmap(LinearModel(loss).correct, in_axes=(None, 0))(params, examples)
    scores = np.asarray(examples.features) @ np.asarray(params).T
    np.testing.assert_array_equal(right, scores.argmax(1) == np.asarray(examples.label))
    assert LinearModel(Squared()).correct(jnp.ones(4), jax.tree.map(lambda leaf: leaf[0], examples)) is None
    assert general_twin(loss).correct(params, examples) is None
    assert GeneralModel(lambda params, x: 0.0, is_correct=lambda params, x: 1.0).correct(None, None) == 1.0


def test_constants():
    linear = LinearModel(Squared(1.0))
    assert linear.lipschitz(2.0, 3.0) == Squared(1.0).lipschitz(2.0, 3.0)
    assert linear.smoothness(2.0) == 4.0
    smoothed = LinearModel(Moreau(Absolute(), 5.0))
    assert (smoothed.lipschitz(2.0, 3.0), smoothed.smoothness(2.0)) == (2.0, 5.0)
    general = GeneralModel(lambda params, example: 0.0)
    assert (general.lipschitz(1.0, 1.0), general.smoothness(1.0)) == (inf, inf)


def test_equal_models_are_one_program():
    assert LinearModel(Softmax(3)) == LinearModel(Softmax(3))
    assert hash(LinearModel(Softmax(3))) == hash(LinearModel(Softmax(3)))
    assert LinearModel(Softmax(3)) != LinearModel(Softmax(4))
    assert LinearModel(Moreau(Hinge(), 2.0)) == LinearModel(Moreau(Hinge(), 2.0))
    assert hash(LinearModel(Moreau(Hinge(), 2.0))) != hash(LinearModel(Moreau(Hinge(), 3.0)))


def test_a_sum_that_counts_nothing_is_zero_whatever_the_examples():
    model = GeneralModel(lambda w, x: jnp.sum((w * x - 1.0) ** 4))
    examples = jnp.array([[1e30, 1.0], [2.0, 3.0]], jnp.float32)  # the first one's gradient is infinite
    at = (jnp.ones(2),)
    summed = jax.jit(model.summed_gradients)
    assert not np.isfinite(summed(at, examples)[0].value).all()
    assert summed(at, examples, jnp.zeros(2))[0].value.tolist() == [0.0, 0.0]
    found = summed(at, examples[1:], jnp.array([0.5]))[0].value
    np.testing.assert_allclose(found, [4.0, 48.0], rtol=1e-6)


def test_a_model_says_whether_its_loss_is_the_squared_error():
    assert LinearModel(Squared()).squared
    assert not LinearModel(Softmax(3)).squared
    assert not GeneralModel(lambda params, x: 0.0).squared
