"""Scalars that the rounds report: recorded values equal those computed by hand."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from restating import planted, unsealed

from fedprivjax import (
    Ball,
    DPMu2,
    Logistic,
    Metric,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    Uniform,
    Varying,
    general_problem,
    linear_problem,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.simulate import run_program
from fedprivjax.method import round as round_machinery
from fedprivjax.problem.problem import numbers_of_one

INFO = ("clipped_share", "message_norm")
BOUND, CLIP, ROUNDS, EVERY = 0.8, 0.5, 8, 3  # the last evaluation is of two rounds
MU2 = DPMu2(noise_std=0.3, clip=BOUND, step_size=0.3)
RNG = np.random.default_rng(0)


@pytest.fixture(params=sparing(["linear", "general"], ["linear"]))
def problem(request, softmax_problem, general_twin, monkeypatch):
    """Return the problem. The general one computes messages in chunks of 2."""
    problem = softmax_problem if request.param == "linear" else general_twin()
    monkeypatch.setattr(round_machinery, "CACHE_FLOATS", 2 * numbers_of_one(problem))
    return problem


def gradient(w, features, label):
    """Return the gradient of softmax regression, [15]."""
    scores = w.reshape(3, 5) @ features
    residual = np.exp(scores - scores.max())
    residual = residual / residual.sum() - np.eye(3)[label]
    return np.outer(residual, features).ravel()


def since_last_record(values):
    """The mean over the rounds since the last record, [records]."""
    return np.array([np.mean(values[start : start + EVERY]) for start in range(0, len(values), EVERY)])


def test_of_clipped_increments(problem, data):
    """Expected values are computed with NumPy from the points of a transcript."""
    seen = transcript(MU2, problem, Uniform(7, 5), rounds=ROUNDS, seed=3)
    norms = np.zeros((ROUNDS, 5))
    for t, x in enumerate(np.asarray(seen.queries, np.float64), start=1):
        before = np.asarray(seen.queries[max(t - 2, 0)], np.float64)
        for slot, z in enumerate(seen.plan.samples[t - 1]):
            one = data[0][z], data[1][z]
            norms[t - 1, slot] = np.linalg.norm(t * gradient(x, *one) - (t - 1) * gradient(before, *one))
    settings = {"rounds": ROUNDS, "seed": 3, "eval_every": EVERY, "noise_method": "materialised"}
    run = simulate(MU2, problem, Uniform(7, 5), metrics=INFO, **settings)
    np.testing.assert_allclose(run.metrics["message_norm"], since_last_record(norms.mean(axis=1)), rtol=1e-4)
    shares = since_last_record((norms > BOUND).mean(axis=1))
    np.testing.assert_allclose(run.metrics["clipped_share"], shares, rtol=1e-6)
    assert 0 < shares.min() < shares.max() < 1


MACHINES, RECORDS, FEATURES = 5, 6, 3
X = RNG.normal(size=(MACHINES, RECORDS, FEATURES)).astype(np.float32)
Y = (RNG.random((MACHINES, RECORDS)) < 0.5).astype(int)
SPLIT = linear_problem(X, Y, Logistic(), constraint=Ball(1.0))
PADDED = NoisyMinibatchSGD(noise_std=0.3, batch=(1, 2, 3, 4, 5), clip=CLIP, step_size=0.2)
COHORTS = Varying(MACHINES, (0.3, 0.3, 0.4))
WHERE = Metric("where", lambda problem, snapshot: jnp.ravel(snapshot.params))


def loss(w, example):
    features, label = example
    score = jnp.vdot(w, features)
    return jnp.logaddexp(0.0, score) - label * score


@pytest.mark.parametrize("kind", sparing(["linear", "general"], []))
def test_of_records_in_padded_minibatches_and_cohorts(kind, monkeypatch):
    """Padding of minibatches and absent machines do not count."""
    monkeypatch.setattr(round_machinery, "CACHE_FLOATS", 4 * FEATURES)
    problem = SPLIT
    if kind == "general":
        problem = general_problem(loss, (X, Y.astype(np.float32)), np.zeros(3), constraint=Ball(1.0), split=True)
    settings = {"rounds": ROUNDS, "seed": 4}
    path = simulate(PADDED, problem, COHORTS, eval_every=1, metrics=(WHERE,), **settings)
    w = np.concatenate([np.zeros((1, FEATURES)), path.iterates["last"]["where"][:-1]]).astype(np.float64)
    norms, shares = np.zeros(ROUNDS), np.zeros(ROUNDS)
    for t in range(ROUNDS):
        used = path.plan.samples[t][path.plan.weights[t] > 0]
        x, y = X.reshape(-1, FEATURES)[used].astype(float), Y.ravel()[used]
        each = np.abs(1 / (1 + np.exp(-x @ w[t])) - y) * np.linalg.norm(x, axis=1)
        norms[t], shares[t] = each.mean(), (each > CLIP).mean()
    assert not path.plan.schedule.present.all()
    assert len({(weights > 0).sum() for weights in path.plan.weights}) > 2
    run = simulate(PADDED, problem, COHORTS, eval_every=EVERY, metrics=INFO, **settings)
    np.testing.assert_allclose(run.metrics["message_norm"], since_last_record(norms), rtol=1e-4)
    np.testing.assert_allclose(run.metrics["clipped_share"], since_last_record(shares), rtol=1e-6)
    assert 0 < shares.mean() < 1


@pytest.mark.slow
def test_in_a_sweep_they_are_those_of_single_runs():
    options = {"rounds": ROUNDS, "eval_every": EVERY, "metrics": ("train_loss", *INFO)}
    data = sweep(replace(PADDED, clip=None), SPLIT, COHORTS, over={"clip": [0.2, 0.5]}, seeds=2, **options)
    for clip in (0.2, 0.5):
        for seed in (0, 1):
            run = simulate(replace(PADDED, clip=clip), SPLIT, COHORTS, seed=seed, **options)
            for name in INFO:
                found = data[name].sel(clip=clip, seed=seed).values
                np.testing.assert_allclose(found, run.metrics[name], rtol=1e-5)
            assert run.non_private_metrics == ("train_loss", *INFO)
    assert data.attrs["non_private_metrics"] == "train_loss, clipped_share, message_norm"


@pytest.mark.slow
def test_recording_them_changes_no_other_metric(problem):
    options = {"rounds": ROUNDS, "seed": 3, "eval_every": EVERY}
    plain = simulate(MU2, problem, Uniform(7, 5), metrics=("train_loss", "noise_norm"), **options)
    more = simulate(MU2, problem, Uniform(7, 5), metrics=("train_loss", *INFO, "noise_norm"), **options)
    assert set(more.metrics) - set(plain.metrics) == set(INFO)
    np.testing.assert_array_equal(more.params, plain.params)
    for name, values in plain.metrics.items():
        np.testing.assert_array_equal(more.metrics[name], values)


def tacit(private, *arguments):
    """Return a release that reports nothing."""
    return NoisyMessages.release(private, *arguments)._replace(info={})


def flops(protocol, problem, record):
    start = ready(protocol, problem, Uniform(7, 5), rounds=ROUNDS, eval_every=EVERY, metrics=record)
    return run_program.lower(start.arguments, start.static).compile().cost_analysis()["flops"]


@pytest.mark.slow
def test_what_is_not_recorded_costs_nothing(softmax_problem):
    silent = planted(DPMu2(noise_std=0.3, clip=BOUND, step_size=0.3), unsealed(release=tacit))
    assert flops(MU2, softmax_problem, ()) == flops(silent, softmax_problem, ()) < flops(MU2, softmax_problem, INFO)


@pytest.mark.parametrize("protocol", [replace(MU2, clip=None), NoisySGD(noise_std=0.1, step_size=0.1)])
def test_what_rounds_do_not_report_is_refused(protocol, softmax_problem):
    with pytest.raises(Refusal, match="unknown metric 'clipped_share'"):
        simulate(protocol, softmax_problem, Uniform(7, 5), metrics=("clipped_share",))
