"""An objective Σ_i p_i·F_i with weights p_i of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import Full, LocalSGD, NoisyMinibatchSGD, Squared, Uniform, linear_problem, simulate
from fedprivjax.plan.participation import Size

RNG = np.random.default_rng(3)
WEIGHTS = (0.5, 0.3, 0.2)
X, Y = RNG.normal(size=(3, 4, 2)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
PROBLEM = linear_problem(X, Y, Squared())


def make(**settings):
    return NoisyMinibatchSGD(
        **{"sampler": "full", "step_size": 0.1, "machine_weights": WEIGHTS, "window": 1, **settings}
    )


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
    np.testing.assert_allclose(protocol.relative(PROBLEM, Size(3, 3, 2)), np.array(WEIGHTS) / 0.5)
    np.testing.assert_allclose(protocol.machines(PROBLEM).lipschitz, 2.0 * 3 * np.array(WEIGHTS))
    even = make(epsilon=1.0, clip=2.0, noise_rule="advanced", sampler="subset", batch=4, machine_weights=None)
    plan = simulate(make(noise_std=0.0), PROBLEM, Full(3), rounds=2).plan
    ready, plain = (p.calibrated(PROBLEM, plan, delta=1e-5) for p in (protocol, even))
    assert ready.noise_std == pytest.approx(plain.noise_std * 1.5, rel=1e-6)
    each = [
        p.event(PROBLEM, plan).per_machine(p.noise_std / p.sensitivity(PROBLEM, plan.size), 1e-5)
        for p in (ready, plain)
    ]
    np.testing.assert_allclose(*each, rtol=1e-3)


def test_a_replaced_record_moves_a_message_by_the_scaled_bound():
    protocol = make(noise_std=0.0, clip=0.5, batch=4, sampler="subset")

    def message(labels):
        problem = linear_problem(X, labels, Squared())
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
    ],
)
def test_refused_weights(weights, says):
    with pytest.raises(ValueError, match=says):
        make(machine_weights=weights)


def test_refused_where_they_have_no_meaning():
    with pytest.raises(ValueError, match="machine_weights must be one number or one for each of 3 machines, got 2"):
        simulate(make(noise_std=0.0, machine_weights=(0.5, 0.5)), PROBLEM, Full(3), rounds=1)
    with pytest.raises(ValueError, match="machine_weights must be left out in local SGD"):
        LocalSGD(batch=2, machine_weights=WEIGHTS)
    with pytest.raises(ValueError, match="machine_weights must go with clip_at 'record', got 'message'"):
        make(clip_at="message", clip=1.0)


def test_jit_gives_what_it_gives_without():
    protocol = make(noise_std=0.0)
    with jax.disable_jit():
        plain = simulate(protocol, PROBLEM, Full(3), rounds=2).params
    assert jnp.allclose(simulate(protocol, PROBLEM, Full(3), rounds=2).params, plain, atol=1e-6)
