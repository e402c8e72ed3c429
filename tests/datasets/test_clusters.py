"""Made-up classes: the best rule is as right as it is said, bounds hold, and a seed fixes everything."""

import re

import numpy as np
import pytest
from scipy.fft import dct

from fedprivjax import Refusal, datasets
from fedprivjax.datasets.stream import _population, clusters

MANY = 40_000
DEVIATIONS = 4.5  # of a standard error: a false alarm once in 10⁵


def best_rule(data, features, classes, accuracy):
    """Return the class of the nearest mean in the metric of the components' covariance."""
    means, deviations = _population(features, classes, accuracy, data.feature_bound, seed=0)
    scores = dct(data.test_features, norm="ortho") / deviations @ (means / deviations).T
    return float(np.mean(scores.argmax(axis=1) == data.test_labels))


@pytest.mark.parametrize(("features", "classes", "accuracy"), [(60, 10, 0.94), (20, 2, 0.7), (4, 3, 0.9)])
def test_the_best_rule_has_the_requested_accuracy(features, classes, accuracy):
    data = clusters(10, features, classes, accuracy=accuracy, test_examples=MANY)
    error = (accuracy * (1 - accuracy) / MANY) ** 0.5
    assert (
        abs(best_rule(data, features, classes, accuracy) - accuracy) < DEVIATIONS * error + 0.002
    )  # norms are bounded


def test_no_linear_rule_that_is_fitted_is_better_than_the_best():
    data = clusters(MANY, 60, accuracy=0.9, test_examples=MANY)
    onehot = np.eye(10)[data.labels]
    fitted = np.linalg.lstsq(data.features, onehot, rcond=None)[0]
    right = np.mean((data.test_features @ fitted).argmax(axis=1) == data.test_labels)
    assert 0.88 < right < 0.9 + 0.007


@pytest.mark.parametrize("bound", [1.0, 28.0])
def test_norms_are_bounded_and_typically_half_the_bound(bound):
    data = clusters(5000, 100, feature_bound=bound)
    squares = np.sum(np.square(data.features, dtype=float), axis=1)
    assert squares.max() <= bound**2 * (1 + 1e-5)
    assert np.sqrt(squares.mean()) == pytest.approx(bound / 2, rel=0.02)


def test_a_seed_is_a_population_and_a_trial_a_sample_of_it():
    one, again, trial, other = (
        clusters(3000, 40, **given, test_examples=0) for given in ({}, {}, {"trial": 1}, {"seed": 1})
    )
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.labels, again.labels)
    assert not np.array_equal(one.features, trial.features)
    assert one.test_features is None
    first, second, third = (each.features[each.labels == 3].mean(axis=0) for each in (one, trial, other))
    assert np.linalg.norm(first - second) < np.linalg.norm(first - third) / 2


def test_heterogeneity_and_label_noise_have_the_requested_rates():
    data = clusters(MANY, 8, 4, machines=8, heterogeneity=0.6)
    assert data.machine_of is not None
    assert np.bincount(data.machine_of).tolist() == [MANY // 8] * 8
    own = np.mean(data.labels == data.machine_of % 4)
    assert own == pytest.approx(0.6 + 0.4 / 4, abs=0.015)
    clean, noisy = clusters(MANY, 8, 4), clusters(MANY, 8, 4, label_noise=0.5)
    np.testing.assert_array_equal(clean.features, noisy.features)
    assert np.mean(clean.labels != noisy.labels) == pytest.approx(0.5 * 3 / 4, abs=0.015)


def test_it_loads_by_name():
    assert datasets.load("clusters", examples=20, features=12).feature_bound == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": 10}, "features must be at least 11, got 10"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"accuracy": 0.1}, "accuracy must be between 0.1 and 1, got 0.1"),
        ({"label_noise": 1.5}, "label_noise must lie in 0..1, got 1.5"),
        ({"heterogeneity": 0.5}, "machines must be given if heterogeneity is positive (0.5), got None"),
        ({"machines": 3}, "examples must be a multiple of machines (3), got 20"),
        ({"feature_bound": 0.0}, "feature_bound must be positive, got 0.0"),
        ({"trial": -1}, "trial must be at least 0, got -1"),
        ({"examples": 2.5}, "clusters option examples must be an integer, got 2.5"),
        ({"separation": 2.0}, "unknown clusters option 'separation'"),
    ],
)
def test_bad_options_are_one_line(given, message):
    with pytest.raises(Refusal, match="^" + re.escape(message)):
        datasets.load("clusters", **{"examples": 20, "features": 20, **given})
