"""Declared properties of a problem: gradient bounds, a distance, and the machines' weights."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import (
    Ball,
    Full,
    NoisyMinibatchSGD,
    Softmax,
    Squared,
    calibrate,
    datasets,
    draw_plan,
    from_dataset,
    general_problem,
    linear_problem,
    procedural_problem,
)
from fedprivjax.checks.refusal import Refusal

X, Y = np.random.default_rng(4).normal(size=(3, 4, 2)).astype(np.float32), np.zeros((3, 4), int)
DECLARED = {"lipschitz": [0.5, 1.0, 2.0], "distance": 3.0, "machine_weights": [0.5, 0.3, 0.2]}


def linear(**declared):
    return linear_problem(X, Y, Softmax(2), constraint=Ball(1.0), **declared)


def general(**declared):
    def loss(w, z):
        return jnp.sum((w - z) ** 2)

    return general_problem(loss, X, jnp.zeros(2), split=True, constraint=Ball(1.0), **declared)


def loaded(**declared):
    data = datasets.load("least_squares", examples=12, features=2)
    return from_dataset(data, Squared(), constraint=Ball(1.0), partition_table=np.arange(12).reshape(3, 4), **declared)


MAKERS = {"linear_problem": linear, "general_problem": general, "from_dataset": loaded}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_declared_reaches_the_problem(make):
    problem = make(**DECLARED)
    assert problem.own_lipschitz == (0.5, 1.0, 2.0)
    assert problem.lipschitz == 2.0
    assert problem.distance_to_optimum == 3.0
    assert problem.machine_weights == (0.5, 0.3, 0.2)
    np.testing.assert_allclose(problem.message_factors, [1.5, 0.9, 0.6])
    assert make(lipschitz=0.25).lipschitz == 0.25
    assert make().distance_to_optimum == 2.0
    assert make().machine_weights is None


@pytest.mark.parametrize("make", [linear, loaded])
def test_machines_noise_follows_what_is_declared(make):
    protocol = NoisyMinibatchSGD(batch=2, epsilon=1.0, step_size=0.1)
    plain, declared = make(lipschitz=1.0), make(**DECLARED)

    def calibrated(problem):
        plan = draw_plan(problem, Full(3), 2, sampler=protocol.minibatches)
        return calibrate(protocol, problem, plan, delta=1e-5)

    one, other = calibrated(plain), calibrated(declared)
    largest = max(0.5 * 1.5, 1.0 * 0.9, 2.0 * 0.6)  # L_i · p_i · number of machines
    assert other.noise_std == pytest.approx(largest * one.noise_std, rel=1e-6)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"machine_weights": [0.5, 0.4, 0.2]}, "machine_weights must be positive and add up to 1, got a sum of 1.1"),
        (
            {"machine_weights": [1.2, -0.4, 0.2]},
            "machine_weights must be positive and add up to 1, got the weight -0.4",
        ),
        ({"machine_weights": [0.5, 0.5, 0.0]}, "machine_weights must be positive and add up to 1, got the weight 0"),
        ({"machine_weights": [0.5, 0.5]}, "machine_weights must have a value for each of 3 machines, got 2"),
        ({"lipschitz": [0.5, 0.5]}, "lipschitz must have a value for each of 3 machines, got 2"),
        ({"lipschitz": [0.5, 0.0, 1.0]}, "lipschitz must be positive and finite on every machine, got 0.0"),
        ({"lipschitz": [0.5, np.inf, 1.0]}, "lipschitz must be positive and finite on every machine, got inf"),
        ({"lipschitz": -1.0}, "lipschitz must be positive, got -1.0"),
        ({"lipschitz": []}, "lipschitz must be positive and finite on every machine, got none"),
        ({"distance": 0.0}, "distance must be positive, got 0.0"),
        ({"distance": np.inf}, "distance must be finite, got inf"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_no_problem_has_is_refused(make, declared, message):
    with pytest.raises(Refusal) as caught:
        make(**declared)
    assert str(caught.value) == message


def test_declarations_are_refused_on_an_existing_problem_too():
    with pytest.raises(Refusal, match=r"add up to 1, got a sum of 0\.9"):
        replace(linear(), machine_weights=(0.5, 0.2, 0.2))


def test_a_computed_problem_has_a_gradient_bound_and_a_distance_but_no_weights():
    declared = {"lipschitz": 0.5, "distance": 2.0}
    problems = [
        procedural_problem(lambda key, machine: (jnp.ones(2), 1.0), Squared(), **declared),
        procedural_problem(
            lambda key, machine: jnp.ones(2), lambda w, z: jnp.sum(w * z), start=np.zeros(2), **declared
        ),
        from_dataset(datasets.load("stream", features=3, classes=2), **declared),
    ]
    for problem in problems:
        assert (problem.lipschitz, problem.distance_to_optimum) == (0.5, 2.0)
    with pytest.raises(Refusal, match="machine_weights must be None for a stream"):
        from_dataset(datasets.load("stream", features=3, classes=2), machine_weights=[0.5, 0.5])


def test_a_declared_bound_replaces_the_bound_of_a_dataset():
    data = replace(datasets.load("least_squares", examples=12, features=2), noise_lipschitz=7.0)
    noted, own = from_dataset(data), from_dataset(data, lipschitz=0.5)
    assert (noted.lipschitz, own.lipschitz) == (7.0, 0.5)
    assert noted.lipschitz_note
    assert not own.lipschitz_note


def test_constants_of_machines_may_be_arrays_of_jax():
    table, each = np.arange(12).reshape(3, 4), jnp.array([0.5, 0.25, 0.25])
    declared = from_dataset(datasets.load("digits"), partition_table=table, lipschitz=each, machine_weights=each)
    assert declared.own_lipschitz == declared.machine_weights == (0.5, 0.25, 0.25)
    hash(declared.own_lipschitz)
