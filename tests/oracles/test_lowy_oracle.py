"""The oracle's own check: closed forms and laws on tiny data, then what the authors' released scripts gave."""

import numpy as np
import pytest
from oracles import lowy_razaviyayn as oracle
from scipy.optimize import minimize

from fedprivjax.datasets import insurance
from fedprivjax.datasets.insurance import available

CENTRES = np.array([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]])  # one record a machine
TARGETS = np.array([[1.0], [-1.0], [0.5]])
LOOPS = {"minibatch": oracle.minibatch_sgd, "local": oracle.local_sgd}


def run(loop, features, labels, gradient=oracle.least_squares_gradient, **changes):
    settings = {"batch": 3, "rounds": 10, "per_round": len(features), "step": 0.1, "noise_std": 0.0, "window": 8}
    return LOOPS[loop](features, labels, gradient, **{**settings, "rng": np.random.default_rng(0), **changes})


def test_minibatch_of_the_whole_is_gradient_descent_with_the_sum_of_the_machines():
    w, points = np.zeros(2), []
    for _ in range(10):
        w = w - 0.1 * sum(x[0] * (x[0] @ w - y[0]) for x, y in zip(CENTRES, TARGETS, strict=True))
        points.append(w)
    np.testing.assert_allclose(run("minibatch", CENTRES, TARGETS, window=1), w, rtol=1e-12)
    np.testing.assert_allclose(run("minibatch", CENTRES, TARGETS), np.mean(points[-8:], axis=0), rtol=1e-12)


def test_local_steps_shrink_the_residual_and_end_points_are_averaged():
    w = np.zeros(2)
    for _ in range(10):
        ends = []
        for (x,), (y,) in zip(CENTRES, TARGETS, strict=True):
            shrunk = (x @ w - y) * (1 - 0.1 * x @ x) ** 3
            ends.append(w + x * (shrunk - (x @ w - y)) / (x @ x))
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(run("local", CENTRES, TARGETS, window=1), w, rtol=1e-12)


@pytest.mark.parametrize(("loop", "scale"), [("minibatch", np.sqrt(10 * 3)), ("local", np.sqrt(10 * 4 / 3))])
def test_noise_of_every_machine_and_step(loop, scale):
    """Without a gradient w_R is Gaussian: minibatch R·M releases summed, local R·K walks averaged over M."""
    flat = np.zeros((3, 1, 4000)), np.zeros((3, 1))
    w = run(loop, *flat, batch=4, step=0.5, noise_std=0.2, window=1)
    assert w.std() == pytest.approx(0.5 * 0.2 * scale, rel=0.06)  # five standard errors
    assert abs(w.mean()) < 5 * 0.1 * scale / np.sqrt(4000)


def test_cohorts_are_uniform_and_without_replacement():
    """Machine i only moves coordinate i, by one step."""
    features, labels = np.eye(5)[:, None], np.ones((5, 1))
    rng = np.random.default_rng(1)
    moved = np.array(
        [run("minibatch", features, labels, rounds=1, per_round=2, window=1, rng=rng) > 0 for _ in range(1000)]
    )
    assert (moved.sum(axis=1) == 2).all()
    np.testing.assert_allclose(moved.mean(axis=0), 0.4, atol=5 * np.sqrt(0.24 / 1000))


def test_records_are_drawn_with_replacement():
    """Record j only moves coordinate j, so the first step is the multinomial count of 4 draws from 4."""
    features, labels = np.eye(4)[None], np.ones((1, 4))
    rng = np.random.default_rng(2)
    counts = np.array([run("minibatch", features, labels, batch=4, rounds=1, rng=rng) for _ in range(2000)]) * 40
    np.testing.assert_allclose(counts.sum(axis=1), 4)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.1)
    np.testing.assert_allclose(counts.var(axis=0), 4 * 0.25 * 0.75, rtol=0.2)  # 0 without replacement


def test_error_breaks_a_tie_for_zero():
    features = np.array([[1.0], [0.0], [-1.0], [0.0]])
    assert oracle.test_error(np.ones(1), features, np.array([1, 1, 0, 0])) == 0.25


def test_newton_finds_the_minimum_of_either_loss():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 4))
    y = (rng.random(200) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.5, 0.0]))).astype(float)
    found = oracle.newton_minimum(x, y, oracle.logistic_gradient, oracle.logistic_curvature)
    other = minimize(oracle.logistic_risk, np.zeros(4), (x, y), tol=1e-10)
    np.testing.assert_allclose(found, other.x, atol=1e-4)
    assert oracle.logistic_risk(found, x, y) == pytest.approx(other.fun, abs=1e-9)
    found = oracle.newton_minimum(x, y, oracle.least_squares_gradient, lambda w, x, y: np.ones(len(y)))
    np.testing.assert_allclose(found, np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-4)


def agrees(values, mean, sd, trials):
    """Whether a mean is within three standard errors of that of the authors' scripts, by their sd."""
    return abs(np.mean(values) - mean) < 3 * sd * np.sqrt(1 / len(values) + 1 / trials)


def sd_of(machines):
    return {3: (0.5691, 0.0322), 5: (0.5676, 0.0334)}[machines]


@pytest.mark.skipif(not available(), reason="insurance.csv is neither in $FEDPRIVJAX_DATA nor in the cache")
@pytest.mark.parametrize("machines", [3, 5])
def test_insurance_optimum_has_the_authors_test_error(machines):
    found = []
    for trial in range(20):
        data = insurance(machines, trial=trial)
        x, y = data.features.astype(float), data.labels.astype(float)
        w = np.linalg.lstsq(x, y, rcond=None)[0]
        found.append(oracle.relative_rmse([w], data.test_features, data.test_labels, y))
    assert agrees(found, *sd_of(machines), 20)
