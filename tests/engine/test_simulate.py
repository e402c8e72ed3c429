import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    Given,
    Logistic,
    NoisySGD,
    Refusal,
    Seeds,
    Softmax,
    Squared,
    StaleMomentum,
    Uniform,
    WholeSpace,
    draw_plan,
    general_problem,
    linear_problem,
    simulate,
)
from fedprivjax.engine.simulate import run_program
from fedprivjax.sweeps.execute import run_chunk

SETTINGS = {"mu": 8.0, "clip": 0.5, "step_size": 0.05}
PARTIAL = Uniform(5, 3)


def where(problem, snapshot):
    """Return the reported point: a metric may be an array."""
    return jnp.ravel(snapshot.params)


def how_noisy(problem, snapshot):
    return snapshot.noise


def cross_entropy(w, features, labels):
    scores = np.asarray(features, np.float64) @ w.reshape(3, 5).T
    log_sum = np.log(np.exp(scores).sum(axis=1))
    return np.mean(log_sum - scores[np.arange(len(labels)), labels]), np.mean(scores.argmax(axis=1) == labels)


def test_metrics_are_what_they_say(softmax_problem, data):
    optimum = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32) / 5
    problem = replace(softmax_problem, optimum=jnp.asarray(optimum))
    names = ("test_loss", "test_accuracy", "train_loss", "train_accuracy", "excess_risk", "distance", "noise_norm")
    run = simulate(DPMu2(**SETTINGS), problem, PARTIAL, seed=1, eval_every=3, metrics=(*names, where, how_noisy))
    features, labels, test_features, test_labels = data
    best = cross_entropy(optimum.ravel(), test_features, test_labels)[0]
    for k, w in enumerate(np.asarray(run.metrics["where"], np.float64)):
        loss, accuracy = cross_entropy(w, test_features, test_labels)
        train_loss, train_accuracy = cross_entropy(w, features, labels)
        distance, noise = np.linalg.norm(w - optimum.ravel()), np.linalg.norm(run.metrics["how_noisy"][k])
        expected = (loss, accuracy, train_loss, train_accuracy, loss - best, distance, noise)
        recorded = [run.metrics[name][k] for name in names]
        np.testing.assert_allclose(recorded, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(run.metrics["where"][-1], np.ravel(run.params))
    assert len(set(run.metrics["test_loss"].tolist())) == len(run.rounds)
    assert not run.diverged


def test_recorded_noise_is_that_of_the_aggregate(softmax_problem):
    """With full participation, z_t = noise_std·r·N(0, I)/√m in each round, without noise of earlier rounds."""
    protocol = DPMu2(mu=1.0, clip=0.5, step_size=0.05)
    run = simulate(protocol, softmax_problem, Full(2), eval_every=1, metrics=(how_noisy,))
    expected = run.protocol.noise_std * np.sqrt(30) / np.sqrt(2)
    z = run.metrics["how_noisy"].ravel() / expected
    error = 4 / np.sqrt(2 * z.size)
    assert abs(z.std() - 1) < error < 1 / 6
    assert abs(z.mean()) < 4 / np.sqrt(z.size)


def test_average_and_last_iterate_are_both_recorded(softmax_problem):
    settings = {"seed": 1, "eval_every": 1, "metrics": ("test_loss", "noise_norm")}
    last = simulate(NoisySGD(**SETTINGS), softmax_problem, PARTIAL, **settings)
    mean = simulate(NoisySGD(average=True, **SETTINGS), softmax_problem, PARTIAL, **settings)
    assert set(last.metrics) == set(mean.metrics) == {"test_loss", "noise_norm"}
    assert [list(run.iterates) for run in (last, mean)] == [["output", "average"], ["output", "last"]]
    assert last.iterates["output"] is last.metrics
    assert set(last.iterates["average"]) == set(mean.iterates["last"]) == {"test_loss"}  # the noise is of the round
    np.testing.assert_allclose(last.metrics["test_loss"], mean.iterates["last"]["test_loss"], rtol=1e-6)
    np.testing.assert_allclose(mean.metrics["test_loss"], last.iterates["average"]["test_loss"], rtol=1e-6)
    assert np.abs(last.metrics["test_loss"] - mean.metrics["test_loss"])[1:].min() > 0


@pytest.mark.parametrize(
    ("every", "rounds", "expected"),
    sparing(
        [
            (7, 20, [7, 14, 20]),
            (5, 20, [5, 10, 15, 20]),
            (20, 20, [20]),
            (50, 20, [20]),
            (None, 20, list(range(1, 21))),
            (None, 19, list(range(1, 20))),
            (1, 1, [1]),
        ],
        [(7, 20, [7, 14, 20])],
    ),
)
def test_rounds_of_evaluations(every, rounds, expected, softmax_problem):
    run = simulate(DPMu2(**SETTINGS), softmax_problem, PARTIAL, rounds=rounds, eval_every=every, metrics=("test_loss",))
    assert run.rounds.tolist() == expected
    assert run.metrics["test_loss"].shape == (len(expected),)


@pytest.mark.slow
def test_less_frequent_evaluations_are_a_subset():
    """The noise of 70 rounds between evaluations is sampled in two blocks."""
    problem = linear_problem(
        np.random.default_rng(0).normal(size=(150, 2)), np.arange(150) % 2, Logistic(), constraint=Ball(1.0)
    )
    protocol = DPMu2(noise_schedule="gap", **SETTINGS)
    every, seldom = (
        simulate(protocol, problem, Uniform(3, 1), eval_every=every, metrics=("train_loss",)) for every in (1, 70)
    )
    assert seldom.rounds.tolist() == [70, 140, 150]
    np.testing.assert_allclose(seldom.metrics["train_loss"], every.metrics["train_loss"][[69, 139, 149]], rtol=1e-5)


def test_a_run_prints_its_settings(softmax_problem):
    run = simulate(DPMu2(**SETTINGS), softmax_problem, PARTIAL, seed=4, delta=1e-4)
    assert run.protocol.noise_std == pytest.approx(2 * 0.5 / 8.0)
    assert run.protocol.step_size == 0.05
    assert run.guarantee.mu == pytest.approx(8.0)
    assert run.guarantee.delta == 1e-4
    assert run.plan.size == (5, 3, 20)
    np.testing.assert_array_equal(run.plan.samples, draw_plan(softmax_problem, PARTIAL, seed=4).samples)
    assert set(run.metrics) == {"test_loss", "test_accuracy", "noise_norm"}
    assert not simulate(replace(DPMu2(**SETTINGS), mu=np.inf), softmax_problem, PARTIAL).guarantee.private


def test_a_run_that_diverges_is_marked():
    rng = np.random.default_rng(0)
    problem = linear_problem(rng.normal(size=(60, 3)), rng.normal(size=60), Squared())
    run, calm = (
        simulate(DPMu2(mu=np.inf, step_size=step), problem, PARTIAL, metrics=("train_loss",)) for step in (1e30, 1e-3)
    )
    assert run.diverged
    assert not calm.diverged


def test_custom_start(data):
    start = np.full((3, 5), 0.1, np.float32)
    problem = linear_problem(data[0], data[1], Softmax(3), constraint=Ball(1.0), start=start)
    run = simulate(DPMu2(**SETTINGS), problem, PARTIAL, eval_every=1, metrics=(where,))
    np.testing.assert_array_equal(run.metrics["where"][0], start.ravel())  # x_1 is the start


@pytest.mark.slow
def test_parameters_may_be_any_pytree(softmax_problem, general_twin):
    """The same problem with its matrix in two leaves."""

    def value(params, example):
        scores = jnp.concatenate([params["top"] @ example.features, params["rest"] @ example.features])
        return Softmax(3).value(scores, example.label)

    start = {"rest": jnp.zeros((2, 5)), "top": jnp.zeros((1, 5))}
    parts = general_problem(value, softmax_problem.pool, start, constraint=Ball(0.3))
    protocol = DPMu2(mu=np.inf, clip=0.5, step_size=0.05)
    run = simulate(protocol, parts, PARTIAL, metrics=("train_loss",), eval_every=5)
    whole = simulate(protocol, general_twin(Ball(0.3)), PARTIAL, metrics=("train_loss",), eval_every=5)
    np.testing.assert_allclose(run.metrics["train_loss"], whole.metrics["train_loss"], rtol=1e-5)
    np.testing.assert_allclose(jnp.concatenate([run.params["top"], run.params["rest"]]), whole.params, atol=1e-5)
    noisy = simulate(DPMu2(**SETTINGS), parts, PARTIAL, metrics=("noise_norm",))
    assert jax.tree.structure(noisy.params) == jax.tree.structure(start)
    assert not noisy.diverged


FEATURES, LABELS = np.eye(6, 4), np.array([0, 1, 1, 0, 1, 0])
GOOD = linear_problem(FEATURES, LABELS, Softmax(2), feature_bound=1.0, constraint=Ball(1.0))
UNKNOWN = linear_problem(FEATURES, LABELS, Softmax(2), constraint=Ball(1.0))
UNBOUNDED = linear_problem(FEATURES, LABELS, Softmax(2), feature_bound=1.0)
SPLIT = linear_problem(
    FEATURES, LABELS, Softmax(2), constraint=Ball(1.0), partition_table=np.array([[0, 1, 2, 3, 4], [5] + 4 * [-1]])
)
OWN = {"mu": 1.0, "clip": 1.0, "step_size": 0.1}


def bad(name, value):
    return lambda: simulate(DPMu2(**{**OWN, name: value}), GOOD, Full(2))


REFUSALS = {
    "per_round": (lambda: Uniform(100, 120), "per_round must be at most machines (100), got 120"),
    "pool": (
        lambda: simulate(DPMu2(**OWN), GOOD, Uniform(4, 2), rounds=4),
        "per_round · rounds must be at most the 6 examples, got 2 · 4 = 8",
    ),
    "partition": (
        lambda: simulate(DPMu2(**OWN), SPLIT, Full(2), rounds=2),
        "machine 1 must have at least 2 examples for this schedule, got 1.",
    ),
    "machines": (
        lambda: simulate(DPMu2(**OWN), SPLIT, Full(3), rounds=1),
        "machines must be 2, as the data are split, got 3",
    ),
    "schedule": (
        lambda: simulate(DPMu2(**OWN), GOOD, Given(2, [[0], [1]]), rounds=3),
        "rounds must be at most the schedule's (2), got 3",
    ),
    "rounds": (lambda: simulate(DPMu2(**OWN), GOOD, Full(2), rounds=0), "rounds must be at least 1, got 0"),
    "seed": (lambda: simulate(DPMu2(**OWN), GOOD, Full(2), seed=-1), "seed must be at least 0, got -1"),
    "eval_every": (lambda: simulate(DPMu2(**OWN), GOOD, Full(2), eval_every=0), "eval_every must be at least 1, got 0"),
    "zero mu": (bad("mu", 0.0), "mu must be positive, got 0.0"),
    "negative mu": (bad("mu", -2), "mu must be positive, got -2"),
    "NaN mu": (bad("mu", np.nan), "mu must be positive, got nan"),
    "zero step": (bad("step_size", 0.0), "step_size must be positive, got 0.0"),
    "negative step": (bad("step_size", -1.0), "step_size must be positive, got -1.0"),
    "NaN step": (bad("step_size", np.nan), "step_size must be positive, got nan"),
    "infinite step": (bad("step_size", np.inf), "step_size must be finite, got inf"),
    "NaN step scale": (bad("step_scale", np.nan), "step_scale must be positive, got nan"),
    "zero clip": (bad("clip", 0), "clip must be positive, got 0"),
    "NaN clip": (bad("clip", np.float32(np.nan)), "clip must be positive, got nan"),
    "infinite clip": (bad("clip", np.inf), "clip must be finite, got inf"),
    "zero radius": (lambda: Ball(0.0), "radius must be positive, got 0.0"),
    "NaN radius": (lambda: Ball(np.nan), "radius must be positive, got nan"),
    "negative noise": (lambda: DPMu2(noise_std=-1.0), "noise_std must be finite and not negative, got -1.0"),
    "NaN noise": (lambda: DPMu2(noise_std=np.nan), "noise_std must be finite and not negative, got nan"),
    "infinite noise": (
        lambda: simulate(DPMu2(noise_std=np.inf, clip=1.0, step_size=0.1), GOOD, Full(2)),
        "noise_std must be finite and not negative, got inf",
    ),
    "both": (lambda: DPMu2(mu=1.0, noise_std=1.0), "mu or noise_std must be given, not both"),
    "both as NumPy numbers": (
        lambda: simulate(DPMu2(mu=np.float32(1.0), noise_std=np.float32(1.0), clip=1.0), GOOD, Full(2)),
        "mu or noise_std must be given, not both",
    ),
    "neither": (
        lambda: simulate(DPMu2(), GOOD, Full(2)),
        "one of epsilon, mu and noise_std must be given, got none. Set epsilon (with delta), ",
    ),
    "no clip": (lambda: simulate(DPMu2(mu=1.0), UNKNOWN, Full(2)), "clip must be set, because the loss has no finite"),
    "no clip or ball": (lambda: simulate(DPMu2(mu=1.0), UNBOUNDED, Full(2)), "clip must be set"),
    "no clip of SGD": (lambda: simulate(NoisySGD(mu=1.0), UNKNOWN, Full(2)), "clip must be set"),
    "no clip of stale": (lambda: simulate(StaleMomentum(mu=1.0), GOOD, Full(2)), "clip must be set"),
    "no step": (
        lambda: simulate(DPMu2(mu=1.0, clip=1.0), replace(GOOD, constraint=WholeSpace()), Full(2)),
        "step_size must be set",
    ),
    "start": (
        lambda: linear_problem(FEATURES, LABELS, Softmax(2), constraint=Ball(1.0), start=np.ones((2, 4), np.float32)),
        "start must lie in the constraint set, a ball of radius 1",
    ),
    "labels": (lambda: linear_problem(FEATURES, LABELS + 1, Softmax(2)), "labels must lie in 0..1, got 2"),
    "features": (
        lambda: linear_problem(np.where(FEATURES == 1, np.nan, 0), LABELS, Softmax(2)),
        "features must be finite, got 4 bad examples (first at 0)",
    ),
    "loss": (
        lambda: general_problem(lambda w, x: w * x, np.ones((4, 3)), np.zeros(3)),
        "the loss must return a scalar for one example, got shape (3,)",
    ),
    "metric": (
        lambda: simulate(DPMu2(**OWN), GOOD, Full(2), metrics=("test_los",)),
        "unknown metric 'test_los', did you mean 'test_loss'?",
    ),
    "missing": (
        lambda: simulate(DPMu2(**OWN), GOOD, Full(2), metrics=("test_loss",)),
        "metric 'test_loss' must have a test set, and the problem has none",
    ),
    "trust": (lambda: DPMu2(mu=1.0, trust="sever"), "unknown trust 'sever', did you mean 'server'?"),
    "schedule name": (lambda: DPMu2(mu=1.0, noise_schedule="gab"), "unknown noise_schedule 'gab', did you mean 'gap'?"),
    "stale schedule": (
        lambda: StaleMomentum(mu=1.0, noise_schedule="gap"),
        "unknown noise_schedule 'gap' (known: uniform)",
    ),
    "cancel": (lambda: DPMu2(mu=1.0, trust="server", cancel=False), "cancel=False must go with trust='none'"),
    "method": (
        lambda: simulate(DPMu2(**OWN), GOOD, Uniform(3, 2), noise_method="aggregate"),
        "noise method 'aggregate' must have full participation or no cancellation",
    ),
    "order": (
        lambda: simulate(DPMu2(**OWN), GOOD, Full(2), order="sorted"),
        "unknown order 'sorted', did you mean 'stored'?",
    ),
    "delta": (lambda: simulate(DPMu2(**OWN), GOOD, Full(2), delta=1.5), "delta must be"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_input_is_refused_in_one_line_before_anything_is_compiled(name):
    make, message = REFUSALS[name]
    compiled = run_program._cache_size(), run_chunk._cache_size()
    with pytest.raises(Refusal) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert run_program._cache_size() <= compiled[0]
    assert run_chunk._cache_size() <= compiled[1]


@pytest.mark.parametrize("seed", [2**32, Seeds(0, 0, 2**40)])
def test_seeds_that_would_collide_are_refused(softmax_problem, seed):
    with pytest.raises(ValueError, match=r"^seed must be below 2³², got \d+$"):
        simulate(DPMu2(mu=1.0, clip=1.0), softmax_problem, PARTIAL, seed=seed)


@pytest.mark.parametrize("protocol", [DPMu2(mu=math.inf, step_size=0.1), DPMu2(mu=1.0, clip=1.0, trust="server")])
def test_a_noise_method_is_checked_even_if_unused(softmax_problem, protocol):
    with pytest.raises(ValueError, match=r"^unknown noise method 'covarance', did you mean 'covariance'\?"):
        simulate(protocol, softmax_problem, PARTIAL, noise_method="covarance")
