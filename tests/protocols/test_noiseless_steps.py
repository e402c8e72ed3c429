"""Default steps of minibatch methods without noise: more rounds come closer to the optimum."""

from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Balanced,
    Ball,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    Squared,
    WholeSpace,
    linear_problem,
    simulate,
)
from fedprivjax.engine.prepare import ready

RECORDS, MACHINES = 300, 3
RNG = np.random.default_rng(0)
X = np.hstack([RNG.uniform(-1, 1, (RECORDS, 4)), np.eye(3)[RNG.integers(0, 3, RECORDS)]])  # numbers and a category
Y = X @ np.array([0.8, -0.5, 0.3, 1.1, 0.9, -0.4, 0.2]) + 0.2 * RNG.normal(size=RECORDS)
ROWS = np.arange(RECORDS).reshape(MACHINES, -1)
BOUND = float(np.linalg.norm(X, axis=1).max())
LARGE = linear_problem(X, Y, Squared(label_bound=4.0), feature_bound=BOUND, constraint=Ball(20.0), partition_table=ROWS)
FREE = replace(LARGE, constraint=WholeSpace())
INF = float("inf")
WHOLE = NoisyMinibatchSGD(epsilon=INF, sampler="full")
SUBSET = NoisyMinibatchSGD(epsilon=INF, sampler="subset", batch=10)


def step_of(protocol, problem=LARGE, rounds=1000, participation=None):
    law = Full(MACHINES) if participation is None else participation
    return float(ready(protocol, problem, law, rounds=rounds, metrics=[]).protocol.step_size)


def relative_error(w):
    return float(np.sqrt(np.mean((X @ np.asarray(w) - Y) ** 2)) / np.std(Y))


@pytest.mark.parametrize("problem", [LARGE, FREE], ids=["ball", "everywhere"])
def test_gradient_descent_steps_by_its_smoothness_whatever_the_rounds(problem):
    for rounds in (10, 1000):
        assert step_of(WHOLE, problem, rounds) == pytest.approx(1 / problem.smoothness)


def test_more_rounds_come_to_the_closed_form():
    least = relative_error(np.linalg.lstsq(X, Y, rcond=None)[0])
    short, long = (simulate(WHOLE, LARGE, Full(MACHINES), rounds=rounds, metrics=[]) for rounds in (100, 2000))
    assert relative_error(long.params) < relative_error(short.params) < 0.5
    assert relative_error(long.params) == pytest.approx(least, rel=0.02)


def test_of_random_records_a_longer_run_goes_farther():
    """Their mean gradient differs from the whole one by at most 2L, so a step falls as 1/√R, not as 1/R."""
    short, long = (step_of(SUBSET, rounds=rounds) for rounds in (400, 1600))
    assert long == pytest.approx(short / 2)
    assert step_of(SUBSET, rounds=1) == pytest.approx(1 / (4 * LARGE.smoothness))
    part = step_of(SUBSET, participation=Balanced(MACHINES, 1), rounds=400)
    assert part < short


def test_a_noise_however_small_has_the_theorems_step():
    faint = NoisyMinibatchSGD(noise_std=1e-9, sampler="full")
    assert step_of(faint, rounds=2000) == pytest.approx(step_of(faint, rounds=1000) / 2)


def test_a_modulus_or_a_clip_that_binds_keeps_its_step():
    logistic = linear_problem(X, Y > 0, Logistic(), feature_bound=BOUND, constraint=Ball(4.0), partition_table=ROWS)
    assert step_of(replace(WHOLE, clip=0.1), logistic, 400) == pytest.approx(3**0.5 * 4 / (0.05 * 20))
    curved = replace(WHOLE, strong_convexity=0.1)
    assert step_of(curved, logistic, 400) == pytest.approx(1 / (4 * logistic.smoothness))  # its theorem's cap


def test_the_accelerated_method_needs_no_set_without_noise():
    whole = AcceleratedMinibatchSGD(epsilon=INF, sampler="full")
    assert step_of(whole, FREE) == step_of(whole, LARGE) == pytest.approx(1 / (2 * LARGE.smoothness))
