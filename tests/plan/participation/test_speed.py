"""Speed of rounds with a random cohort size, compared with a fixed size of the same mean."""

import time

import jax
import numpy as np
import pytest

from fedprivjax import NoisyMinibatchSGD, Softmax, Uniform, Varying, linear_problem, ready
from fedprivjax.engine.simulate import run_program

ROUNDS, REPEATS = 200, 12


def started(participation):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100, 40, 100)).astype(np.float32)
    problem = linear_problem(features, rng.integers(0, 10, (100, 40)), Softmax(10))
    protocol = NoisyMinibatchSGD(noise_std=1.0, step_size=0.01, clip=1.0, batch=10)
    start = ready(protocol, problem, participation, rounds=ROUNDS, metrics=(), eval_every=ROUNDS)
    return jax.device_put(start.arguments), start.static


def seconds(run):
    begun = time.perf_counter()
    jax.block_until_ready(run_program(*run))
    return time.perf_counter() - begun


@pytest.mark.slow
@pytest.mark.timed
def test_padded_cohorts_cost_at_most_half_more_than_fixed_ones_of_the_same_mean():
    """Interleaved timings, the fastest of each. The padded width is 1.4 times the mean."""
    law = Varying.binomial(100, 0.5)
    assert law.mean_size == pytest.approx(50, rel=1e-3)
    padded, fixed = started(law), started(Uniform(100, 50))
    for run in (padded, fixed):
        seconds(run)
    taken = np.array([[seconds(padded), seconds(fixed)] for _ in range(REPEATS)])
    padded_least, fixed_least = taken.min(axis=0)
    assert padded_least < 1.5 * fixed_least, taken
