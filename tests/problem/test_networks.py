"""Networks as models: any flax module is accepted, inputs keep their shape, and per-record gradients are clipped."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import sparing
from flax import linen as nn

from fedprivjax import (
    CNN,
    MLP,
    Ball,
    Full,
    Moreau,
    NoisySGD,
    Refusal,
    Softmax,
    Squared,
    datasets,
    from_dataset,
    simulate,
)
from fedprivjax.datasets import from_arrays
from fedprivjax.method import round as round_machinery
from fedprivjax.problem.losses import Absolute, Logistic
from fedprivjax.problem.problem import numbers_of_one
from fedprivjax.problem.random_keys import random_key

RNG = np.random.default_rng(7)
PIXELS = RNG.uniform(size=(24, 4, 4)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 24)
PICTURES = from_arrays(PIXELS, CLASSES, PIXELS[:6], CLASSES[:6], feature_bound=4.0, classes=3, bias=True)
LINE = from_arrays(PIXELS.reshape(24, -1), RNG.normal(size=24), feature_bound=4.0)


class Own(nn.Module):
    """A custom network for a batch of images, [batch, height, width, channels]."""

    @nn.compact
    def __call__(self, x):
        x = nn.silu(nn.Conv(2, (2, 2))(x))
        return nn.Dense(3)(x.reshape((x.shape[0], -1)))


class Averaging(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x.reshape((x.shape[0], -1))))


class Unflattened(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


class Listed(nn.Module):
    widths: object = None

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


def by_hand(params, image):
    """Return the scores of `MLP((5,))` in NumPy."""
    dense = [(np.asarray(params[name]["kernel"], float), params[name]["bias"]) for name in ("Dense_0", "Dense_1")]
    hidden = np.tanh(image.ravel() @ dense[0][0] + dense[0][1])
    return hidden @ dense[1][0] + dense[1][1]


def test_an_mlp_is_what_it_says():
    problem = from_dataset(PICTURES, network=MLP((5,)), start_seed=3)
    scores = np.stack([by_hand(problem.start, image) for image in PIXELS])
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(scores, CLASSES)
    values = jax.jit(jax.vmap(partial(problem.model.value, problem.start)))(problem.pool)
    right = jax.jit(jax.vmap(partial(problem.model.correct, problem.start)))(problem.pool)
    np.testing.assert_allclose(values, losses, rtol=1e-5)
    np.testing.assert_array_equal(right, scores.argmax(1) == CLASSES)
    assert problem.dimension == 16 * 5 + 5 + 5 * 3 + 3
    assert (problem.lipschitz, problem.smoothness) == (np.inf, np.inf)
    assert from_dataset(PICTURES, network=MLP((5,)), lipschitz=2.0).lipschitz == 2.0


def test_a_network_sees_pictures_without_the_constant():
    problem = from_dataset(PICTURES, network=Own())
    np.testing.assert_array_equal(problem.pool[0][..., 0], PIXELS)
    assert problem.test[0].shape == (6, 4, 4, 1)
    assert from_dataset(datasets.load("digits"), network=MLP((2,))).pool[0].shape == (1437, 8, 8, 1)
    flat = from_arrays(PIXELS.reshape(24, -1), CLASSES, feature_bound=4.0, classes=3, bias=True)
    assert from_dataset(flat, network=MLP((2,))).pool[0].shape == (24, 17)


class Convolutions(nn.Module):
    """`CNN((2, 3), (4,))` written in flax."""

    @nn.compact
    def __call__(self, x):
        for channels in (2, 3):
            x = nn.avg_pool(jnp.tanh(nn.Conv(channels, (3, 3))(x)), (2, 2), strides=(2, 2))
        return MLP((4,), 3)(x)


@pytest.mark.parametrize("side", sparing([4, 7], [7]))
def test_a_cnn_convolves_and_halves_its_pictures(side):
    pictures = RNG.uniform(size=(3, side, side, 2)).astype(np.float32)
    ours, flax = CNN((2, 3), (4,), 3), Convolutions()
    params = jax.jit(flax.init)(jax.random.key(1), pictures)["params"]
    renamed = {"MLP_0": params["MLP_0"]}
    for layer in (0, 1):
        conv = params[f"Conv_{layer}"]
        kernel = conv["kernel"].reshape(-1, conv["kernel"].shape[-1])
        renamed[f"Dense_{layer}"] = {"kernel": kernel, "bias": conv["bias"] + 0.1}
        params[f"Conv_{layer}"] = {**conv, "bias": conv["bias"] + 0.1}
    found = jax.jit(ours.apply)({"params": renamed}, pictures)
    np.testing.assert_allclose(found, jax.jit(flax.apply)({"params": params}, pictures), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_first_parameters_are_those_of_the_fully_optimised_program():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            values = nn.relu(nn.Conv(4, (3, 3))(inputs)).reshape(inputs.shape[0], -1)
            for kernel in (nn.initializers.truncated_normal(), nn.initializers.glorot_uniform()):
                values = nn.Dense(10, kernel_init=kernel)(values)
            return values

    problem = from_dataset(datasets.load("digits"), network=Net(), start_seed=3)
    optimised: Any = {"xla_backend_optimization_level": 3}

    @partial(jax.jit, compiler_options=optimised)
    def drawn(key):
        return Net().init(key, jnp.zeros((1, 8, 8, 1)))["params"]

    jax.tree.map(np.testing.assert_array_equal, problem.start, drawn(random_key(3)))


@pytest.mark.parametrize("network", [MLP((5,)), Own()], ids=["mlp", "own"])
def test_first_parameters_follow_from_their_seed_and_equal_settings_are_one_program(network):
    one, same, other = (from_dataset(PICTURES, network=network.clone(), start_seed=seed) for seed in (1, 1, 2))
    assert one.model == same.model
    assert hash(one.model) == hash(same.model)
    assert jax.tree.all(jax.tree.map(np.array_equal, one.start, same.start))
    assert not jax.tree.all(jax.tree.map(np.array_equal, one.start, other.start))
    np.testing.assert_array_equal(from_dataset(PICTURES, network=network, start=other.start).start, other.start)


@pytest.mark.parametrize(
    ("labels", "loss", "expected"),
    [
        (RNG.normal(size=24), None, Squared()),
        (RNG.normal(size=24), Absolute(), Absolute()),
        (CLASSES > 0, None, Logistic()),
    ],
)
def test_one_score_for_regression_and_two_classes(labels, loss, expected):
    data = from_arrays(PIXELS, labels, feature_bound=4.0, classes=2 if labels.dtype == bool else None)
    problem = from_dataset(data, loss, network=MLP((2,)))
    params = problem.start["Dense_1"]
    assert params["bias"].shape == (1,)
    one = jax.tree.map(lambda leaf: leaf[0], problem.pool)
    value = expected.value(jnp.float32(by_hand(problem.start, PIXELS[0])[0]), one[1])
    np.testing.assert_allclose(jax.jit(problem.model.value)(problem.start, one), value, rtol=1e-5)
    assert (jax.eval_shape(problem.model.correct, problem.start, one) is None) == (data.classes is None)


@pytest.mark.parametrize("rows", sparing([1, 2, 6], [2]))
def test_one_step_takes_each_records_gradient_clipped(monkeypatch, rows):
    """Each record's gradient is clipped over all parameters, for any number of records in memory at once."""
    problem = from_dataset(PICTURES, network=MLP((3,)), start_seed=1)
    six = jax.tree.map(lambda leaf: leaf[:6], problem.pool)
    gradients = jax.jit(jax.vmap(jax.grad(problem.model.value), (None, 0)))(problem.start, six)
    norms = np.sqrt(sum(np.sum(np.square(leaf.reshape(6, -1)), axis=1) for leaf in jax.tree.leaves(gradients)))
    bound = float(np.median(norms))
    factors = np.minimum(1.0, bound / norms) / 6
    wanted = jax.tree.map(lambda w, g: w - 0.5 * np.tensordot(factors, g, 1), problem.start, gradients)
    protocol = NoisySGD(mu=np.inf, clip=bound, step_size=0.5)
    floats = 2**24 if rows == 6 else rows * max(problem.dimension, numbers_of_one(problem))
    monkeypatch.setattr(round_machinery, "CACHE_FLOATS", floats)
    monkeypatch.setattr(round_machinery, "in_a_loop", lambda problem: rows == 1)
    assert round_machinery.rows_in_memory(problem, 6) == rows
    metric = "test_loss" if rows == 6 else "test_accuracy"  # of two programs
    run = simulate(protocol, problem, Full(6), rounds=1, order="stored", metrics=[metric])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), run.params, wanted)
    assert 0 <= run.metrics[metric][-1] < 9


@pytest.mark.slow
@pytest.mark.parametrize("network", [MLP((16,)), CNN((4, 8))], ids=["mlp", "cnn"])
def test_networks_learn_the_digits(network):
    problem = from_dataset(datasets.load("digits"), network=network)
    record = ["gradient_norm", "test_loss", "test_accuracy"]
    run = simulate(NoisySGD(mu=np.inf, clip=1.0, step_size=0.5), problem, Full(10), metrics=record, eval_every=143)
    assert run.metrics["test_accuracy"][-1] > 0.6
    assert np.isfinite(run.metrics["gradient_norm"]).all()


@pytest.mark.slow
def test_a_stream_goes_through_a_network_too():
    stream = datasets.load("stream", features=4, classes=3, test_examples=5)
    problem = from_dataset(stream, network=MLP((2,)))

    @jax.jit
    def seen(params):
        example = problem.take(1, 2)
        return problem.model.value(params, example), example

    value, (features, label) = seen(problem.start)
    expected = -np.log(jax.nn.softmax(by_hand(problem.start, np.asarray(features)))[label])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert problem.test[0].shape == (5, 4)


@pytest.mark.slow
def test_what_a_network_computes_on_the_way_is_counted():
    small, wide = (numbers_of_one(from_dataset(PICTURES, network=MLP((width,)))) for width in (8, 80))
    assert 2 * 72 <= wide - small < 8 * 72  # a sum and its activation per further unit
    assert numbers_of_one(from_dataset(PICTURES, network=CNN((8,)))) > 4 * 4 * 8 * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_dataset(LINE, network=CNN((2,))), "a CNN must have images [height, width, channels], got fea"),
        (lambda: from_dataset(PICTURES, network=CNN((2, 2, 2))), "channels must have at most 2 entries for images"),
        (lambda: MLP((0,)), "hidden must be at least 1, got 0. Leave out the layer"),
        (lambda: MLP(32), "hidden must be a list of widths, such as (32,), got 32"),  # pyright: ignore
        (lambda: MLP("32"), "hidden must be a list of widths, such as (64,), got '32'"),  # pyright: ignore
        (lambda: CNN(8), "channels must be a list of widths, such as (8,), got 8"),  # pyright: ignore
        (lambda: CNN((8,), hidden=None), "hidden must be a list of widths, such as (64,), got None"),  # pyright: ignore
        (lambda: CNN((4, -1)), "channels must be at least 1, got -1"),
        (lambda: MLP((4,), activation="tahn"), "unknown activation 'tahn', did you mean 'tanh'? (known: tanh, gelu,"),
        (
            lambda: from_dataset(PICTURES, network="mlp"),
            "network must be a flax.linen.Module or a flax.nnx.Module, got",
        ),
        (lambda: from_dataset(PICTURES, network=Averaging()), "network must have parameters only, since records must"),
        (
            lambda: from_dataset(PICTURES, network=Unflattened()),
            "network must give scores of shape [1, 3] for one example, got [1, 4, 4, 3]",
        ),
        (
            lambda: from_dataset(PICTURES, network=MLP((2,), scores=5)),
            "network must give scores of shape [1, 3] for one example, got [1, 5]",
        ),
        (
            lambda: from_dataset(LINE, network=Listed(np.ones(2))),
            "network Listed must have hashable settings. Use tuples instead of lists",
        ),
        (
            lambda: from_dataset(LINE, Moreau(Absolute(), 1.0), network=MLP()),
            "loss must not be smoothed for a network, got Moreau(loss=Absolute(), strength=1.0)",
        ),
        (
            lambda: from_dataset(PICTURES, Softmax(2), network=MLP()),
            "loss must take the 3 classes of 'arrays', got Softmax, which takes 2. Set loss = 'softmax' (Softmax(3))",
        ),
        (lambda: from_dataset(PICTURES, network=MLP(), start_seed=-1), "start_seed must be at least 0, got -1"),
        (lambda: from_dataset(PICTURES, network=MLP(), start={"w": np.ones(2)}), "start must have the structure of th"),
        (
            lambda: from_dataset(PICTURES, network=MLP(), constraint=Ball(0.1)),
            "start must lie in the constraint set, a ball of radius 0.1",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(Refusal) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value).partition("(PyTreeDef")[0]
