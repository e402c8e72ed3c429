"""Objectives Σ_i p_i·F_i with custom weights p_i."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    BySize,
    DPMu2,
    Full,
    LocalSGD,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    Squared,
    Uniform,
    calibrate,
    draw_plan,
    linear_problem,
    simulate,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.problem.problem import Table
from fedprivjax.protocols.released import ReleasedMinibatchSGD

RNG = np.random.default_rng(3)
WEIGHTS = (0.5, 0.3, 0.2)
X, Y = RNG.normal(size=(3, 4, 2)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
EVEN = linear_problem(X, Y, Squared())
PROBLEM = replace(EVEN, machine_weights=WEIGHTS)


def make(**settings):
    return NoisyMinibatchSGD(**{"sampler": "full", "step_size": 0.1, "window": 1, **settings})


def test_a_round_follows_the_weighted_gradient():
    run = simulate(make(noise_std=0.0), PROBLEM, Full(3), rounds=1)
    slopes = [x.T @ -y / 4 for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose(run.params, -0.1 * np.average(slopes, axis=0, weights=WEIGHTS), rtol=1e-5)


@pytest.mark.slow
def test_it_is_unbiased_where_some_take_part():
    protocol = make(noise_std=0.0, sampler="subset", batch=2)
    steps = np.array([simulate(protocol, PROBLEM, Uniform(3, 2), rounds=1, seed=seed).params for seed in range(100)])
    slopes = [x.T @ -y / 4 for x, y in zip(X, Y, strict=True)]
    error = steps.std(axis=0) / np.sqrt(len(steps))
    expected = -0.1 * np.average(slopes, axis=0, weights=WEIGHTS)
    assert (np.abs(steps.mean(axis=0) - expected) < 4 * error).all()
    assert (np.abs(expected + 0.1 * np.mean(slopes, axis=0)) > 0.1 * error).any()


def test_noise_and_sensitivity_are_those_of_the_scaled_loss():
    """p_i·N·L_i replaces L_i, so machines that differ only in weight have noise proportional to it."""
    protocol = make(epsilon=1.0, clip=2.0, noise_rule="advanced", sampler="subset", batch=4)
    np.testing.assert_allclose(protocol.records.relative(PROBLEM, 2), np.array(WEIGHTS) / 0.5)
    np.testing.assert_allclose(protocol.records.machines(PROBLEM).lipschitz, 2.0 * 3 * np.array(WEIGHTS))
    problems = PROBLEM, EVEN
    plans = [draw_plan(problem, Full(3), 2, sampler=protocol.minibatches) for problem in problems]
    ready, plain = (calibrate(protocol, *given, delta=1e-5) for given in zip(problems, plans, strict=True))
    assert ready.noise_std == pytest.approx(plain.noise_std * 1.5, rel=1e-6)
    rows = zip((ready, plain), problems, plans, strict=True)
    each = [protocol.event(problem, plan).epsilons(1e-5).each for protocol, problem, plan in rows]
    np.testing.assert_allclose(*each, rtol=1e-3)


def test_a_plan_of_other_weights_is_refused():
    """Machine 0's records weigh half more in it than the problem says."""
    protocol = make(noise_std=1.0, clip=2.0, sampler="subset", batch=4)
    plan = draw_plan(PROBLEM, Full(3), 2, sampler=protocol.minibatches)
    with pytest.raises(Refusal, match=r"weights must be from 0 to 0\.25, got 0\.375 in round 1, slot 1"):
        calibrate(protocol, EVEN, plan, delta=1e-5)


def test_a_replaced_record_moves_a_message_by_the_scaled_bound():
    protocol = make(noise_std=0.0, clip=0.5, batch=4, sampler="subset")

    def message(labels):
        problem = replace(linear_problem(X, labels, Squared()), machine_weights=WEIGHTS)
        run = simulate(protocol, problem, Full(3), rounds=1)
        return np.asarray(run.params) * -3 / 0.1  # the sum of the messages

    for machine, weight in enumerate(WEIGHTS):
        high, low = Y.copy(), Y.copy()
        high[machine, 0], low[machine, 0] = 1e4, -1e4  # gradients of norm C, opposite
        apart = np.linalg.norm(message(high) - message(low))
        assert apart == pytest.approx(2 * 0.5 * 3 * weight / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ((0.5, 0.3, 0.1), "machine_weights must be positive and add up to 1, got a sum of 0.9"),
        ((1.2, -0.2, 0.0), "machine_weights must be positive"),
        ((0.5, 0.5, np.nan), "machine_weights must be positive and add up to 1, got the weight nan"),
    ],
)
def test_refused_weights(weights, says):
    with pytest.raises(ValueError, match=says):
        replace(EVEN, machine_weights=weights)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"own_lipschitz": (1.0, -2.0, 1.0)}, "lipschitz must be positive and finite on every machine, got -2.0"),
        ({"own_smoothness": 0.0}, "smoothness must be positive, got 0.0"),
        ({"distance": np.inf}, "distance must be finite, got inf"),
    ],
)
def test_refused_constants(settings, says):
    with pytest.raises(Refusal, match=says):
        replace(EVEN, **settings)


def test_refused_where_they_have_no_meaning():
    with pytest.raises(ValueError, match="machine_weights must have a value for each of 3 machines, got 2"):
        simulate(make(noise_std=0.0), replace(EVEN, machine_weights=(0.5, 0.5)), Full(3), rounds=1)
    with pytest.raises(ValueError, match="machine_weights must not be set for LocalSGD"):
        simulate(LocalSGD(batch=2, noise_std=0.0, step_size=0.1), PROBLEM, Full(3), rounds=1)
    whole = ReleasedMinibatchSGD(sampler="full", noise_std=0.0, step_size=0.1, clip_at="message", clip=1.0)
    with pytest.raises(ValueError, match="machine_weights must go with clip_at 'record', got 'message'"):
        simulate(whole, PROBLEM, Full(3), rounds=1)


OTHERS = [DPMu2(mu=1.0, clip=1.0), NoisySGD(mu=1.0, clip=1.0), DPMu2(mu=1.0, clip=1.0, batch=2)]


@pytest.mark.parametrize("weights", [WEIGHTS, "sizes"])
@pytest.mark.parametrize("protocol", OTHERS, ids=["dp_mu2", "noisy_sgd", "batches"])
def test_methods_whose_messages_count_alike_refuse_them(protocol, weights):
    problem = replace(EVEN, machine_weights=weights)
    name = type(protocol).__name__
    with pytest.raises(Refusal, match=f"machine_weights must not be set for {name}, which weights all messages"):
        ready(protocol, problem, BySize(3, 2), rounds=1)


SHARES = np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, -1, -1, -1], [9, 10, 11, -1, -1, -1]])
UNEQUAL = linear_problem(X.reshape(12, 2), Y.ravel(), Squared(), partition_table=SHARES, machine_weights="sizes")


def test_weights_by_size_follow_the_split_and_make_it_public():
    assert UNEQUAL.weights == (0.5, 0.25, 0.25)
    moved = replace(UNEQUAL, partition_table=Table(SHARES[[1, 0, 2]]))
    np.testing.assert_allclose(moved.message_factors, [0.75, 1.5, 0.75])
    protocol = make(noise_std=1.0, clip=2.0)
    said, listed = (
        ready(protocol, replace(UNEQUAL, machine_weights=weights), Full(3), rounds=2).guarantee
        for weights in ("sizes", (0.5, 0.25, 0.25))
    )
    np.testing.assert_allclose(said.per_machine, listed.per_machine)
    names = [[one.name for one in guarantee.assumptions] for guarantee in (said, listed)]
    assert ["public sizes" in each for each in names] == [True, False]


@pytest.mark.parametrize("sampler", sparing(["full", "subset"], ["subset"]))
def test_one_record_moves_a_release_weighted_by_size_as_far_as_is_accounted(sampler):
    """By brute force over machines and records: the largest move of a round's sum is the stated shift."""
    protocol = make(noise_std=0.0, clip=0.5, sampler=sampler, batch=None if sampler == "full" else 3)
    x, y = X.reshape(12, 2), Y.ravel()

    def message(labels):
        problem = linear_problem(x, labels, Squared(), partition_table=SHARES, machine_weights="sizes")
        return np.asarray(simulate(protocol, problem, Full(3), rounds=1).params) * -3 / 0.1

    moved = np.zeros(12)
    for record in range(12):
        high, low = y.copy(), y.copy()
        high[record], low[record] = 1e4, -1e4
        moved[record] = np.linalg.norm(message(high) - message(low))
    machines = protocol.records.machines(UNEQUAL)
    worst = [moved[row[row >= 0]].max() for row in SHARES]
    np.testing.assert_allclose(worst, protocol.records.shift(machines), rtol=1e-4)


def test_participation_by_share_beside_weights_by_size_is_warned_of():
    """Nothing is said where only one of them goes by size, or where all machines take part as often."""
    law, protocol = BySize(3, 2, (6, 3, 3)), make(noise_std=1.0, clip=2.0)
    with pytest.warns(UserWarning, match="take part more often, and machine_weights = 'sizes' counts their size again"):
        ready(protocol, UNEQUAL, law)
    ready(protocol, replace(UNEQUAL, machine_weights=None), law)
    ready(protocol, UNEQUAL, Uniform(3, 2), rounds=6)
    ready(protocol, UNEQUAL, BySize(3, 3, (6, 6, 6)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: replace(UNEQUAL, machine_weights="size"), "unknown machine_weights 'size', did you mean 'sizes'?"),
        (
            lambda: replace(UNEQUAL, partition_table=None),
            "machine_weights must go with machines that own records, got 'sizes'",
        ),
    ],
)
def test_refused_sizes(make, says):
    with pytest.raises(Refusal, match=says):
        make()


@pytest.mark.slow
def test_jit_gives_what_it_gives_without():
    protocol = make(noise_std=0.0)
    with jax.disable_jit():
        plain = simulate(protocol, PROBLEM, Full(3), rounds=2).params
    assert jnp.allclose(simulate(protocol, PROBLEM, Full(3), rounds=2).params, plain, atol=1e-6)
