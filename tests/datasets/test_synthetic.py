"""Synthetic populations: bounds hold, the optimum is one, and exact risks agree with Monte Carlo and with integrals."""

import re

import jax
import numpy as np
import pytest
from cases import sparing
from scipy.integrate import quad

from fedprivjax.datasets import least_absolute, least_squares, logistic, robust_regression
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.datasets.populations import LeastAbsolutePopulation, LogisticPopulation
from fedprivjax.problem.losses import Absolute, GemanMcClure, Huber, Tukey
from fedprivjax.problem.smoothing import Moreau

DRAWS = 200_000
DEVIATIONS = 4.5  # of a standard error: a false alarm once in 10⁵


def squared_loss(data, params):
    return 0.5 * (data.features @ params - data.labels) ** 2


def absolute_loss(data, params):
    return np.abs(data.features @ params - data.labels)


def logistic_loss(data, params):
    scores = data.features.astype(np.float64) @ params
    return np.logaddexp(0, scores) - data.labels * scores


def residual(data, params):
    scores = data.features @ params
    if data.loss is not None:
        return np.sign(scores - data.labels)
    return (scores if data.classes is None else 1 / (1 + np.exp(-scores))) - data.labels


@pytest.fixture(scope="module", params=["least_squares", "heterogeneous", "logistic", "least_absolute"])
def population(request):
    if request.param == "logistic":
        return logistic(DRAWS, 5, optimum_norm=4.0, seed=3), logistic_loss
    if request.param == "least_absolute":
        return least_absolute(DRAWS, 5, noise=0.6, seed=3), absolute_loss
    split = {"machines": 8, "heterogeneity": 0.7} if request.param == "heterogeneous" else {}
    return least_squares(DRAWS, 5, noise=0.3, seed=3, **split), squared_loss


def gradient_deviations(data, params):
    gradients = residual(data, params)[:, None] * data.features
    return np.abs(gradients.mean(axis=0)) / (gradients.std(axis=0) / len(gradients) ** 0.5)


def test_optimum_is_stationary_and_its_neighbours_are_not(population):
    data, _ = population
    assert gradient_deviations(data, data.optimum).max() < DEVIATIONS
    assert gradient_deviations(data, 0.8 * data.optimum).max() > 2 * DEVIATIONS


@pytest.mark.parametrize("seed", range(3))
def test_population_excess_agrees_with_monte_carlo(population, seed):
    data, loss = population
    params = data.optimum + np.random.default_rng(seed).normal(size=5).astype(np.float32)
    differences = loss(data, params) - loss(data, data.optimum)
    error = differences.std() / DRAWS**0.5
    exact = float(data.population(params))
    assert exact > 20 * error  # so a factor of 1.3 would be seen
    assert abs(differences.mean() - exact) < DEVIATIONS * error


def test_population_is_pure_and_zero_at_the_optimum(population):
    data, _ = population
    assert float(data.population(data.optimum)) == pytest.approx(0, abs=1e-7)
    params = np.ones((3, 5), np.float32)
    traced = jax.jit(jax.vmap(data.population))(params)
    np.testing.assert_allclose(traced, float(data.population(params[0])), rtol=1e-5)


def test_test_set_is_of_the_same_population():
    data = least_squares(8, 3, test_examples=DRAWS, noise=0.3, machines=4, heterogeneity=1.0)
    losses = 0.5 * (data.test_features @ data.optimum - data.test_labels) ** 2
    assert abs(losses.mean() - data.population.floor) < DEVIATIONS * losses.std() / DRAWS**0.5
    assert float(data.population.risk(data.optimum)) == pytest.approx(data.population.floor, rel=1e-6)


def test_bounds_hold(population):
    data, _ = population
    assert data.feature_bound == 1.0
    np.testing.assert_allclose(np.linalg.norm(data.features, axis=1), 1, rtol=1e-6)
    if data.classes is None:
        assert 0.7 * data.label_bound < np.abs(data.labels).max() <= data.label_bound


def test_machines_have_different_optima_whose_mean_is_the_optimum():
    data = least_squares(40_000, 3, machines=4, heterogeneity=2.0, noise=0.0)
    assert np.bincount(data.machine_of).tolist() == [10_000] * 4
    own = []
    for machine in range(4):
        mine = data.machine_of == machine
        own.append(np.linalg.lstsq(data.features[mine].astype(float), data.labels[mine].astype(float), rcond=None)[0])
        np.testing.assert_allclose(data.features[mine] @ own[-1], data.labels[mine], atol=1e-5)
    np.testing.assert_allclose(np.mean(own, axis=0), data.optimum, atol=1e-5)
    spread = np.mean(np.sum((np.array(own) - data.optimum) ** 2, axis=1))
    assert spread > 1
    assert data.population.floor == pytest.approx(spread / 6, rel=1e-4)


def test_seed_decides_everything_and_the_truth_does_not_depend_on_the_size():
    one, same, larger, other = (least_squares(n, 3, seed=seed) for n, seed in [(9, 1), (9, 1), (20, 1), (9, 2)])
    np.testing.assert_array_equal(one.features, same.features)
    np.testing.assert_array_equal(one.optimum, larger.optimum)
    np.testing.assert_array_equal(one.test_features, larger.test_features)
    assert np.abs(one.optimum - other.optimum).max() > 0.1
    assert logistic(9, 3, test_examples=0).test_features is None


def coordinate_mean(function, features):
    """E f(t) of one coordinate of a uniform point, as an integral over the angle, t = sin(angle)."""

    def integral(f):
        return quad(f, -np.pi / 2, np.pi / 2, points=(-0.05, 0, 0.05), epsabs=1e-13, epsrel=1e-11, limit=200)[0]

    def density(angle):
        return np.cos(angle) ** (features - 2)

    return integral(lambda angle: density(angle) * function(np.sin(angle))) / integral(density)


@pytest.mark.parametrize("features", [2, 3, 10, 5000])
@pytest.mark.parametrize("scale", [0.01, 1.0, 25.0])
def test_logistic_excess_equals_the_integral(features, scale):
    optimum, params = np.zeros(features), np.zeros(features)
    optimum[0], params[:2] = 4.0, (0.6 * scale, 0.8 * scale)
    here, best = (coordinate_mean(lambda t, r=r: np.logaddexp(0, r * t), features) for r in (scale, 4.0))
    slope = coordinate_mean(lambda t: t / (1 + np.exp(-4.0 * t)), features)
    expected = here - best - (params[0] - 4.0) * slope
    assert float(LogisticPopulation(optimum)(params)) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("features", [2, 3, 10, 5000])
@pytest.mark.parametrize("noise", [0.02, 0.9, 5.0])
def test_absolute_excess_equals_the_integral(features, noise):
    off = np.zeros(features)
    off[:2] = 0.6, 0.8

    def cost(t):
        return t**2 / (2 * noise) if abs(t) <= noise else abs(t) - noise / 2

    expected = coordinate_mean(cost, features)
    assert float(LeastAbsolutePopulation(np.zeros(features), noise)(off)) == pytest.approx(expected, rel=3e-4)


@pytest.fixture(scope="module")
def outlying():
    return robust_regression(DRAWS, 5, noise=0.1, outliers=0.3, outlier_size=4.0, seed=3)


def test_a_share_of_labels_are_outliers_and_all_are_bounded(outlying):
    off = np.abs(outlying.features @ outlying.optimum - outlying.labels)
    clean = off <= np.sqrt(3) * 0.1 + 1e-5
    share = 0.3 * (1 - np.sqrt(3) * 0.1 / 4)  # some outliers lie within the noise
    assert abs(1 - clean.mean() - share) < DEVIATIONS * (0.3 * 0.7 / DRAWS) ** 0.5
    assert 3.99 < off.max() <= 4 + 1e-5
    assert 0.9 * outlying.label_bound < np.abs(outlying.labels).max() <= outlying.label_bound
    np.testing.assert_allclose(np.linalg.norm(outlying.features, axis=1), 1, rtol=1e-6)
    assert np.linalg.norm(outlying.optimum) == pytest.approx(1, rel=1e-6)


EVEN = [GemanMcClure(1.0), Tukey(2.0), Huber(0.5), Absolute()]


@pytest.mark.parametrize("loss", sparing(EVEN, EVEN[1:3]), ids=str)
def test_the_true_parameters_minimise_the_risk_of_every_even_loss(outlying, loss):
    def risks(params):
        return np.asarray(loss.value(outlying.features @ params, outlying.labels), np.float64)

    scores = outlying.features @ outlying.optimum
    gradients = np.asarray(loss.residual(scores, outlying.labels))[:, None] * outlying.features
    assert (np.abs(gradients.mean(axis=0)) < DEVIATIONS * gradients.std(axis=0) / DRAWS**0.5).all()
    for shift in np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32):
        worse = risks(outlying.optimum + shift) - risks(outlying.optimum)
        assert worse.mean() > DEVIATIONS * worse.std() / DRAWS**0.5


def test_the_robust_losses_are_those_of_robust_regression():
    data = robust_regression(8, 3, machines=4)
    assert from_dataset(data).model.loss == GemanMcClure(1.0)
    np.testing.assert_array_equal(from_dataset(data, GemanMcClure(2.0)).optimum, data.optimum)
    assert from_dataset(data).excess is None
    assert data.machine_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_wide_noise_makes_the_absolute_risk_a_parabola():
    data = least_absolute(8, 5, noise=4.0, seed=1, machines=4)
    params = np.array([[0.5, -1, 0, 1, 2], data.optimum])
    modulus = 1 / (4.0 * 5)
    for point in params:
        parabola = modulus / 2 * np.sum((point - data.optimum) ** 2)
        assert float(data.population(point)) == pytest.approx(parabola, rel=1e-5, abs=1e-12)
    assert data.machine_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_only_the_default_loss_and_its_envelope_have_the_optimum():
    data = least_absolute(8, 3)
    assert from_dataset(data).model.loss == Absolute()
    for loss in (None, Absolute(), Moreau(Absolute(), 4.0)):
        problem = from_dataset(data, loss)
        assert problem.excess is data.population
        np.testing.assert_array_equal(problem.optimum, data.optimum)
    assert from_dataset(data, Huber(1.0)).excess is None
    assert from_dataset(least_squares(8, 3), Absolute()).optimum is None


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (least_squares, {"examples": 0}, "examples must be at least 1, got 0"),
        (logistic, {"features": 1}, "features must be at least 2, got 1"),
        (logistic, {"test_examples": -1}, "test_examples must be at least 0, got -1"),
        (logistic, {"optimum_norm": 0.0}, "optimum_norm must be positive, got 0.0"),
        (least_squares, {"noise": -0.1}, "noise must be finite and not negative, got -0.1"),
        (least_squares, {"noise": np.nan}, "noise must be finite and not negative, got nan"),
        (least_squares, {"heterogeneity": -1.0}, "heterogeneity must be finite and not negative, got -1.0"),
        (
            least_squares,
            {"heterogeneity": 0.5},
            "machines must be given if heterogeneity is positive (0.5), got None",
        ),
        (least_absolute, {"noise": 0.0}, "noise must be positive, got 0.0"),
        (least_absolute, {"machines": 3}, "examples must be a multiple of machines (3), got 10"),
        (robust_regression, {"outliers": 1.5}, "outliers must lie in 0..1, got 1.5"),
        (robust_regression, {"outliers": np.nan}, "outliers must lie in 0..1, got nan"),
        (robust_regression, {"outlier_size": 0.0}, "outlier_size must be positive, got 0.0"),
        (robust_regression, {"noise": 0.0}, "noise must be positive, got 0.0"),
        (robust_regression, {"machines": 3}, "examples must be a multiple of machines (3), got 10"),
        (least_squares, {"machines": 0}, "machines must be at least 1, got 0"),
        (least_squares, {"machines": 3}, "examples must be a multiple of machines (3), got 10"),
    ],
)
def test_bad_options_are_refused(make, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**{"examples": 10, "features": 4, **options})
