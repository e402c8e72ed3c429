"""An objective Σ_i p_i·F_i with weights p_i of one's own."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import (
    Full,
    LocalSGD,
    NoisyMinibatchSGD,
    Refusal,
    Squared,
    Uniform,
    calibrate,
    draw_plan,
    linear_problem,
    simulate,
)
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


def test_it_is_unbiased_where_some_take_part():
    protocol = make(noise_std=0.0, sampler="subset", batch=2)
    steps = np.array([simulate(protocol, PROBLEM, Uniform(3, 2), rounds=1, seed=seed).params for seed in range(300)])
    slopes = [x.T @ -y / 4 for x, y in zip(X, Y, strict=True)]
    error = steps.std(axis=0) / np.sqrt(len(steps))
    expected = -0.1 * np.average(slopes, axis=0, weights=WEIGHTS)
    assert (np.abs(steps.mean(axis=0) - expected) < 4 * error).all()
    assert (np.abs(expected + 0.1 * np.mean(slopes, axis=0)) > 0.1 * error).any()


def test_noise_and_sensitivity_are_those_of_the_scaled_loss():
    """p_i·N·L_i takes the place of L_i, so machines alike in all but weight have noise in its proportion."""
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
        ((0.5, 0.5, np.nan), "machine_weights must be positive and add up to 1, got a sum of nan"),
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
    with pytest.raises(ValueError, match="machine_weights must be left out in local SGD"):
        simulate(LocalSGD(batch=2, noise_std=0.0, step_size=0.1), PROBLEM, Full(3), rounds=1)
    whole = ReleasedMinibatchSGD(sampler="full", noise_std=0.0, step_size=0.1, clip_at="message", clip=1.0)
    with pytest.raises(ValueError, match="machine_weights must go with clip_at 'record', got 'message'"):
        simulate(whole, PROBLEM, Full(3), rounds=1)


@pytest.mark.slow
def test_jit_gives_what_it_gives_without():
    protocol = make(noise_std=0.0)
    with jax.disable_jit():
        plain = simulate(protocol, PROBLEM, Full(3), rounds=2).params
    assert jnp.allclose(simulate(protocol, PROBLEM, Full(3), rounds=2).params, plain, atol=1e-6)
