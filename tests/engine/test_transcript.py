from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cases import sparing

from fedprivjax import DPMu2, Full, NoisySGD, Seeds, StaleMomentum, Uniform, simulate, transcript

PARTIAL = Uniform(5, 3)
SETTINGS = {"mu": 6.0, "step_size": 0.05, "clip": 0.5}
CASES = {
    "cancelling": DPMu2(**SETTINGS),
    "fresh": DPMu2(cancel=False, **SETTINGS),
    "server": DPMu2(trust="server", **SETTINGS),
    "sgd": NoisySGD(average=True, **SETTINGS),
    "stale": StaleMomentum(**SETTINGS),
}


SEED = Seeds(1, 2, 3)


@pytest.fixture(scope="module")
def views(softmax_problem):
    return cache(lambda name: transcript(CASES[name], softmax_problem, PARTIAL, seed=SEED))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_same_trajectory_as_the_materialised_run(name, views, softmax_problem):
    view = views(name)
    run = simulate(CASES[name], softmax_problem, PARTIAL, seed=SEED, noise_method="materialised")
    np.testing.assert_allclose(view.params, run.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(view.plan.samples, run.plan.samples)
    assert view.queries.shape == (20, 15)
    assert (view.messages is None) == (name == "server")
    if name != "server":
        assert view.messages.shape == (20, 3, 15)


def project(w, radius=1.0):
    return w * min(1.0, radius / max(np.linalg.norm(w), 1e-30))


@pytest.mark.parametrize("name", sparing(["cancelling", "fresh"], ["cancelling"]))
def test_sums_of_messages_make_the_next_query(name, views):
    view = views(name)
    replies = np.cumsum(view.messages.mean(axis=1, dtype=np.float64), axis=0)
    x, w = np.zeros(15), np.zeros(15)
    for t, (query, reply) in enumerate(zip(view.queries, replies, strict=True), start=1):
        np.testing.assert_allclose(query, x, rtol=1e-4, atol=1e-5)
        w = project(w - 0.05 * reply)
        x = x + 2 / (t + 2) * (w - x)
    np.testing.assert_allclose(view.queries[-1], np.ravel(view.params))
    assert np.linalg.norm(view.queries[-1]) > 0.05


@pytest.mark.slow
def test_stale_means_make_the_next_query(views):
    view = views("stale")
    x, w = np.zeros(15), np.zeros(15)
    for t, (query, messages) in enumerate(zip(view.queries, view.messages, strict=True), start=1):
        np.testing.assert_allclose(query, x, rtol=1e-4, atol=1e-5)
        w = project(w - 0.05 * messages.mean(axis=0, dtype=np.float64))
        x = x + 2 / (t + 2) * (w - x)


def test_noisy_sgd_queries_are_its_iterates(views):
    view = views("sgd")
    w = np.zeros(15)
    for query, messages in zip(view.queries, view.messages, strict=True):
        np.testing.assert_allclose(query, w, rtol=1e-4, atol=1e-5)
        w = project(w - 0.05 * messages.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(np.ravel(view.params), view.queries.mean(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["cancelling", "fresh"])
def test_without_noise_messages_are_clipped_increments(name, softmax_problem):
    view = transcript(replace(CASES[name], mu=np.inf), softmax_problem, PARTIAL, seed=1)
    norms = np.linalg.norm(view.messages, axis=-1)
    assert norms.max() <= 0.5 * (1 + 1e-5)
    assert np.isclose(norms, 0.5, rtol=1e-5).any()


def test_noise_of_a_message_is_of_the_stated_size(softmax_problem):
    """First messages cancel no earlier noise: noise_std·r is added to an increment of norm at most C."""
    view = transcript(DPMu2(mu=0.01, clip=0.5, step_size=0.05), softmax_problem, Full(60), seed=1)
    assert view.messages.shape == (1, 60, 15)
    z = view.messages.ravel() / (2 * 0.5 / 0.01)
    error = 4 / np.sqrt(2 * z.size)
    assert abs(z.std() - 1) < error < 1 / 6
