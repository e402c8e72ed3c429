"""Noisy minibatch SGD and local SGD against plain loops."""

import jax.numpy as jnp
import numpy as np
import pytest
from oracles import lowy_razaviyayn as oracle

from fedprivjax import (
    Ball,
    Full,
    LocalSGD,
    Logistic,
    Squared,
    Uniform,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.protocols.released import ReleasedMinibatchSGD
from fedprivjax.sweeps.intervals import of_iterate

MACHINES, RECORDS, FEATURES, BATCH, ROUNDS, WINDOW, SEEDS = 5, 6, 4, 3, 12, 8, 200
RNG = np.random.default_rng(7)
X = RNG.normal(size=(MACHINES, RECORDS, FEATURES)).astype(np.float32)
HELD_OUT = RNG.normal(size=(40, FEATURES)).astype(np.float32)
TEACHERS = RNG.normal(size=(MACHINES, FEATURES))  # machines differ, so who takes part matters
SCORES = np.einsum("ind,id->in", X, TEACHERS)
SOME = Uniform(MACHINES, 3)
RUN = {"batch": BATCH, "window": WINDOW}

LOSSES = {
    "logistic": (Logistic(score_bound=15.0), oracle.logistic_gradient, (SCORES > 0).astype(int)),
    "squared": (Squared(), oracle.least_squares_gradient, SCORES.astype(np.float32)),
}
METHODS = {
    "minibatch": (
        lambda **settings: ReleasedMinibatchSGD(sampler="replacement", aggregate="sum", **RUN, **settings),
        oracle.minibatch_sgd,
    ),
    "local": (lambda **settings: LocalSGD(**RUN, **settings), oracle.local_sgd),
}


def problem_of(loss):
    made, _, labels = LOSSES[loss]
    test = HELD_OUT, (HELD_OUT @ TEACHERS.mean(0) > 0).astype(int)
    return linear_problem(X, labels, made, test=test if loss == "logistic" else None)


def loop_of(method, loss):
    _, gradient, labels = LOSSES[loss]
    settings = {"rounds": ROUNDS, "per_round": SOME.per_round, **RUN}
    return lambda **more: METHODS[method][1](X.astype(float), labels.astype(float), gradient, **settings, **more)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", METHODS)
def test_without_noise_a_run_is_the_loop_on_its_records(method, loss):
    protocol = METHODS[method][0](noise_std=0.0, step_size=0.1)
    run = simulate(protocol, problem_of(loss), SOME, rounds=ROUNDS, seed=3, eval_every=ROUNDS)
    cohorts = run.plan.schedule.participants
    picks = run.plan.samples - RECORDS * cohorts[:, :, None]  # places among a machine's own records
    assert picks.shape == (ROUNDS, SOME.per_round, BATCH)
    assert picks.min() == 0
    assert picks.max() == RECORDS - 1
    found = loop_of(method, loss)(step=0.1, noise_std=0.0, rng=np.random.default_rng(0), picks=picks, cohorts=cohorts)
    np.testing.assert_allclose(run.params, found, rtol=0, atol=1e-5)
    assert np.linalg.norm(found) > 0.1
    if loss == "logistic":
        *_, accuracy = run.metrics["test_accuracy"]
        test = problem_of(loss).test
        assert 1 - accuracy == pytest.approx(oracle.test_error(found, HELD_OUT, np.asarray(test.label)), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_with_noise_runs_have_the_law_of_the_loop(method):
    """Each samples its own cohorts, records and noise; a wrong scale of the noise is detected."""
    std, step = 0.8, 0.2
    protocol = METHODS[method][0](noise_std=std, step_size=step)
    record = [coordinate(k) for k in range(FEATURES)]
    runs = sweep(protocol, problem_of("logistic"), SOME, rounds=ROUNDS, eval_every=ROUNDS, seeds=SEEDS, metrics=record)
    ours = np.stack([of_iterate(runs[metric.__name__]).values[:, -1] for metric in record], axis=1)
    loop = loop_of(method, "logistic")

    def theirs(scale):
        rngs = [np.random.default_rng([11, seed]) for seed in range(SEEDS)]
        return np.array([loop(step=step, noise_std=scale * std, rng=rng) for rng in rngs])

    same = theirs(1.0)
    assert np.all(apart(ours, same) < 4)
    assert spread_apart(ours, same) < 4
    for wrong in (2 / 3, 3 / 2):
        assert spread_apart(ours, theirs(wrong)) > 4


def coordinate(k):
    def metric(problem, snapshot):
        return jnp.ravel(snapshot.params)[k]

    metric.__name__ = f"w{k}"
    return metric


def apart(a, b):
    """Difference of two samples' means in standard errors, for each column."""
    return np.abs(a.mean(0) - b.mean(0)) / np.sqrt(a.var(0, ddof=1) / len(a) + b.var(0, ddof=1) / len(b))


def spread_apart(a, b):
    """The same for total variances."""
    return apart(*(np.sum((w - w.mean(0)) ** 2, axis=1) for w in (a, b)))


STRONG = linear_problem(X, (SCORES > 0).astype(int), Logistic(), constraint=Ball(2.0))


@pytest.mark.slow
@pytest.mark.parametrize("modulus", [0.0, 0.5])
def test_a_sum_of_messages_is_a_mean_with_a_longer_step(modulus):
    mean, total = (
        simulate(
            ReleasedMinibatchSGD(
                sampler="full", noise_std=0.0, step_size=step, aggregate=aggregate, strong_convexity=modulus
            ),
            STRONG,
            Full(MACHINES),
            rounds=12,
        )
        for aggregate, step in (("mean", 0.4), ("sum", 0.4 / MACHINES))
    )
    np.testing.assert_allclose(total.params, mean.params, atol=1e-5)
