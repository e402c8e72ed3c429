"""Transcripts of methods with minibatches of a machine's records."""

from functools import cache

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    AcceleratedMinibatchSGD,
    LocalSGD,
    NoisyMinibatchSGD,
    Squared,
    Uniform,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.protocols.released import ReleasedMinibatchSGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8, 3)).astype(np.float32)
PROBLEM = linear_problem(X, X.sum(axis=2), Squared())
SOME, ROUNDS, STEP = Uniform(4, 2), 6, 0.1
COMMON = {"noise_std": 0.5, "batch": 3, "step_size": STEP}
CASES = {
    "minibatch": NoisyMinibatchSGD(**COMMON),
    "sum": ReleasedMinibatchSGD(aggregate="sum", **COMMON),
    "clipped message": ReleasedMinibatchSGD(clip=1.0, clip_at="message", sampler="replacement", **COMMON),
    "accelerated": AcceleratedMinibatchSGD(**COMMON),
    "local": LocalSGD(**COMMON),
}


@pytest.fixture(scope="module")
def views():
    return cache(lambda name: transcript(CASES[name], PROBLEM, SOME, rounds=ROUNDS, seed=1))


@pytest.mark.parametrize("name", sparing(CASES, ["minibatch"]))
def test_same_trajectory_as_the_materialised_run(name, views):
    run = simulate(CASES[name], PROBLEM, SOME, rounds=ROUNDS, seed=1, noise_method="materialised")
    np.testing.assert_allclose(views(name).params, run.params, rtol=1e-5, atol=1e-6)
    assert views(name).messages.shape == (ROUNDS, 2, 3)
    assert views(name).queries.shape == (ROUNDS, 3)


@pytest.mark.parametrize("name", sparing(["minibatch", "sum", "clipped message"], ["minibatch"]))
def test_messages_move_the_query_by_a_step(name, views):
    view = views(name)
    together = view.messages.sum(axis=1) if name == "sum" else view.messages.mean(axis=1)
    np.testing.assert_allclose(view.queries[1:], view.queries[:-1] - STEP * together[:-1], rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(np.diff(view.queries, axis=0)) > 0.05


def test_the_mean_of_end_points_is_the_next_query(views):
    view = views("local")
    np.testing.assert_allclose(view.queries[1:], view.messages.mean(axis=1)[:-1], rtol=1e-4, atol=1e-5)


def test_local_steps_lead_from_the_query_to_the_message(views):
    view = views("local")
    assert view.steps.shape == (*view.messages.shape[:2], 3, view.messages.shape[2])
    ends = view.queries[:, None] + view.steps.sum(axis=2)
    np.testing.assert_allclose(ends, view.messages, rtol=1e-4, atol=1e-5)
    assert views("minibatch").steps is None


def test_messages_carry_the_noise_that_is_claimed():
    """Without a gradient, a message is N(0, σ²), and the end of K local steps is N(0, K·(ησ)²) around its start."""
    flat = linear_problem(np.zeros((4, 8, 500), np.float32), np.zeros((4, 8), np.float32), Squared())
    for name, expected in (("minibatch", 0.5), ("local", STEP * 0.5 * np.sqrt(3))):
        view = transcript(CASES[name], flat, SOME, rounds=20)
        noise = view.messages - (view.queries[:, None] if name == "local" else 0)
        assert noise.std() == pytest.approx(expected, rel=0.03)  # 20·2·500 numbers: six standard errors
        assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]) < 0.04
        if name == "local":
            np.testing.assert_allclose(view.steps.std(axis=(0, 1, 3)), STEP * 0.5, rtol=0.04)


@pytest.mark.parametrize(("sampler", "batch"), [("subset", 3), ("poisson", 3), ("full", None)])
def test_a_transcript_has_the_samples_only_if_they_are_public(sampler, batch):
    protocol = NoisyMinibatchSGD(noise_std=0.5, step_size=STEP, sampler=sampler, batch=batch)
    plan = transcript(protocol, PROBLEM, SOME, rounds=2).plan
    assert plan.secret == (sampler != "full")
    assert plan.samples.shape[-1] == (0 if plan.secret else 8) == plan.weights.shape[-1]
