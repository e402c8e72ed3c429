"""Pairs of digits: pools, sizes and draws on the real files; the projection on small arrays."""

import importlib
import re

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

from fedprivjax import Absolute, Logistic
from fedprivjax.datasets import by_machine, load, load_mnist, mnist_pairs
from fedprivjax.datasets.as_problem import from_dataset

pairs = importlib.import_module("fedprivjax.datasets.mnist")
mnist = importlib.import_module("fedprivjax.datasets.mnist")

# names are checked before any file is read
REFUSALS = [
    ({"similarity": 1.5}, "similarity must be from 0 to 1, got 1.5"),
    ({"similarity": -0.1}, "similarity must be from 0 to 1, got -0.1"),
    ({"similarity": float("nan")}, "similarity must be from 0 to 1, got nan"),
    ({"components": 0}, "components must be at least 1, got 0"),
    ({"components": 785}, "components must be at most 784, got 785"),
    ({"trial": -1}, "trial must be at least 0, got -1"),
    ({"per_digit": 0}, "per_digit must be at least 1, got 0"),
    ({"draw": "disjont"}, "unknown draw 'disjont', did you mean 'disjoint'? (known: bootstrap, disjoint)"),
    ({"lipschitz": "as ran"}, "unknown lipschitz 'as ran', did you mean 'as run'? (known: public, as run)"),
]

real = [
    pytest.mark.mnist,
    pytest.mark.skipif(not mnist.available(), reason="MNIST is neither in $FEDPRIVJAX_DATA nor in the cache"),
]


def marked(test):
    for mark in real:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def projected():
    return pairs._projected(50)


@pytest.fixture(scope="module")
def digit_of(projected):
    """Return each projected image's digit and position. Projections of the training set are distinct."""
    features, digits = projected
    places = {row.tobytes(): place for place, row in enumerate(features)}
    assert len(places) == 60000
    return lambda rows: np.array([(digits[places[row.tobytes()]], places[row.tobytes()]) for row in rows]).T


def per_machine(data):
    parts = by_machine(data.machine_of, 25)
    return [(data.features[part], tested) for part, tested in zip(parts, np.split(data.test_features, 25), strict=True)]


@pytest.mark.parametrize(("options", "message"), REFUSALS)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        mnist_pairs(**options)


def test_axes_agree_with_another_implementation(monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK", 7)
    images = np.random.default_rng(0).normal(size=(40, 6)) @ np.diag([6.0, 5, 4, 3, 2, 1]) + 10
    mean, axes = pairs.principal_axes(images.astype(np.float32), 3)
    other = PCA(3).fit(images)
    np.testing.assert_allclose(mean, images.mean(0), rtol=1e-6)
    np.testing.assert_allclose(np.abs(np.sum(axes * other.components_.T, axis=0)), 1, rtol=1e-6)
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
    assert (axes[np.argmax(np.abs(axes), axis=0), np.arange(3)] > 0).all()


@pytest.mark.slow
@marked
def test_projection_is_centred_and_keeps_the_largest_variances(projected):
    features = projected[0]
    images = load_mnist().features[::10, :-1].astype(np.float64)
    variance = features.var(axis=0, dtype=np.float64)
    np.testing.assert_allclose(features.mean(axis=0, dtype=np.float64), 0, atol=1e-5)
    assert (np.diff(variance) < 0).all()
    # the share of variance that 50 components of MNIST explain
    assert variance.sum() / 52.725 == pytest.approx(0.8246, abs=1e-3)
    distances = np.linalg.norm(np.diff(images, axis=0), axis=1)
    assert (np.linalg.norm(np.diff(features[::10], axis=0), axis=1) <= distances * (1 + 1e-5)).all()


@pytest.mark.slow
@marked
@pytest.mark.parametrize("draw", pairs.DRAWS)
@pytest.mark.parametrize("similarity", [0.0, 0.5, 1.0])
def test_sizes_labels_and_own_digits(digit_of, draw, similarity):
    data = load("mnist_pairs", similarity=similarity, draw=draw)
    assert (data.features.shape, data.test_features.shape) == ((25 * 1238, 50), (25 * 310, 50))
    assert np.bincount(data.machine_of).tolist() == [1238] * 25
    assert (data.features.dtype, data.feature_bound, data.classes) == (np.float32, 28.0, 2)
    # the batch of the experiments, n √(18/(4·35)), at this n
    assert int(1238 * np.sqrt(18 / (4 * 35))) == 443
    np.testing.assert_array_equal(data.labels, digit_of(data.features)[0] % 2 == 0)
    np.testing.assert_array_equal(data.test_labels, digit_of(data.test_features)[0] % 2 == 0)
    for pair, (train, test) in zip(pairs.PAIRS, per_machine(data), strict=True):
        digits = digit_of(np.concatenate([train, test]))[0]
        # own pair's records, and a fifth of the others'; 5 standard deviations of the latter
        expected = 1548 * (1 - similarity * 0.8)
        assert np.isin(digits, pair).sum() == pytest.approx(expected, abs=5 * np.sqrt(1548 * similarity * 0.16))
        assert (digits % 2 == 0).mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(1548))


def test_the_order_of_machines():
    assert pairs.PAIRS[:6] == ((0, 1), (0, 3), (0, 5), (0, 7), (0, 9), (2, 1))
    assert len(set(pairs.PAIRS)) == 25


@pytest.mark.slow
@marked
def test_bootstrap_draws_from_the_first_images_with_replacement(projected, digit_of):
    data = mnist_pairs()
    digits, places = digit_of(np.concatenate([data.features, data.test_features]))
    for digit in range(10):
        last = np.flatnonzero(projected[1] == digit)[773]
        assert places[digits == digit].max() <= last
    images = [(digit_of(train)[1], digit_of(test)[1]) for train, test in per_machine(data)]
    # of 1548 records, 1238 draws leave (1 − 1/1548)^1238 unseen
    assert np.mean([len(set(train)) for train, _ in images]) / 1548 == pytest.approx(
        1 - (1 - 1 / 1548) ** 1238, abs=0.01
    )
    leaked = np.mean([np.isin(test, train).mean() for train, test in images])
    assert leaked == pytest.approx(0.55, abs=0.02)


@marked
@pytest.mark.parametrize("similarity", [0.0, 0.3, 1.0])
def test_disjoint_machines_share_nothing(digit_of, similarity):
    data = mnist_pairs(similarity, draw="disjoint")
    digits, places = digit_of(np.concatenate([data.features, data.test_features]))
    assert len(set(places)) == 25 * 1548
    assert np.bincount(digits).tolist() == [5 * 774] * 10
    if similarity == 0:
        train, test = per_machine(data)[7]
        assert np.bincount(digit_of(np.concatenate([train, test]))[0]).tolist() == [0, 0, 774, 0, 0, 774]


@marked
def test_largest_disjoint_draw():
    data = mnist_pairs(draw="disjoint", per_digit=1084)
    assert len(data.labels) + len(data.test_labels) == 25 * 2168
    for draw, most in [("disjoint", 1084), ("bootstrap", 5421)]:
        message = f"per_digit must be at most {most} for draw '{draw}', got {most + 1}"
        with pytest.raises(ValueError, match=f"^{message}$"):
            mnist_pairs(draw=draw, per_digit=most + 1)


@pytest.mark.parametrize("own", [0, 4, 7, 12])
@pytest.mark.parametrize("draw", [pairs._bootstrap, pairs._disjoint])
def test_draws_on_few_images(draw, own):
    """Forty images per digit, from six of which a machine samples."""
    by_digit = [np.arange(40) + 100 * digit for digit in range(10)]
    records = draw(by_digit, 6, own, np.random.default_rng(3))
    assert records.shape == (25, 12)
    for pair, row in zip(pairs.PAIRS, records, strict=True):
        assert np.isin(row[:own] // 100, pair).all()
    others = np.array([~np.isin(row // 100, pair) for pair, row in zip(pairs.PAIRS, records, strict=True)])
    assert others[:, :own].sum() == 0
    if own < 12:
        assert others[:, own:].mean() == pytest.approx(0.8, abs=5 * 0.4 / np.sqrt(25 * (12 - own)))
    if draw is pairs._disjoint:
        assert len(np.unique(records)) == 300
    else:
        assert (records % 100).max() == 5


def test_the_same_split_for_every_machine():
    records = np.arange(1548) + 10_000 * np.arange(3)[:, None]
    train, test = pairs._split(records)
    expected = train_test_split(np.arange(1548), test_size=0.2, random_state=1)
    assert (train.shape, test.shape) == ((3, 1238), (3, 310))
    for machine in range(3):
        np.testing.assert_array_equal(train[machine] - 10_000 * machine, expected[0])
        np.testing.assert_array_equal(test[machine] - 10_000 * machine, expected[1])


@marked
@pytest.mark.parametrize("draw", pairs.DRAWS)
def test_trials_are_reproducible_and_differ(draw):
    one, same, other = (mnist_pairs(draw=draw, trial=trial) for trial in (1, 1, 2))
    np.testing.assert_array_equal(one.features, same.features)
    np.testing.assert_array_equal(one.test_features, same.test_features)
    assert (one.features != other.features).any(axis=1).mean() > 0.9
    assert pairs._projected.cache_info().misses <= 2


@marked
def test_noise_lipschitz_is_twice_the_second_machines_largest_norm():
    assert mnist_pairs().noise_lipschitz is None
    found = []
    for trial in range(10):
        data = mnist_pairs(trial=trial, lipschitz="as run")
        norms = np.linalg.norm(data.features.astype(np.float64), axis=1)
        assert data.noise_lipschitz == pytest.approx(2 * norms[data.machine_of == 1].max(), rel=1e-12)
        found.append(data.noise_lipschitz)
    assert np.mean(found) == pytest.approx(20.9, abs=0.35)
    assert max(found) == pytest.approx(21.19, abs=0.005)
    assert min(found) > 20


@marked
def test_problem_takes_the_constant_for_the_usual_loss_only():
    as_run = mnist_pairs(lipschitz="as run")
    assert from_dataset(as_run, Logistic(score_bound=15.0)).lipschitz == as_run.noise_lipschitz
    assert from_dataset(as_run, Absolute()).lipschitz == 28
    problem = from_dataset(mnist_pairs())
    assert (problem.lipschitz, problem.dimension) == (28, 50)
    assert problem.partition_table.sizes.tolist() == [1238] * 25
