"""Recorded runs of local SGD: a server optimiser under dropouts, a window with varying cohorts, and one pass."""

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    Ball,
    Dropouts,
    Full,
    LocalSGD,
    Logistic,
    ServerOptimizer,
    Uniform,
    Varying,
    linear_problem,
    simulate,
)

ADAM = {"server": ServerOptimizer("adam", b1=0.8, b2=0.9), "server_step": 0.05}
STEPS = {"noise_std": 0.3, "batch": 4, "step_size": 0.1}
CASES = {
    "optimiser": (
        LocalSGD(**STEPS, **ADAM),
        Dropouts(Full(6), 0.3),
        9,
        [0.19595888257026672, 0.19349661469459534, 0.1508471965789795],
    ),
    "window": (
        LocalSGD(**STEPS, window=3),
        Varying(6, (0.3, 0.4, 0.3)),
        9,
        [0.7955129146575928, 0.2636841833591461, 0.2989601492881775],
    ),
    "one pass": (
        LocalSGD(**STEPS, clip=0.5, sampler="disjoint", window=1),
        Uniform(6, 3),
        2,
        [0.1653439998626709, 0.11002256721258163, 0.050030842423439026],
    ),
}


@pytest.mark.parametrize("name", sparing(list(CASES), ["optimiser"]))
def test_a_seed_gives_the_recorded_run(name):
    protocol, participation, rounds, params = CASES[name]
    features = np.random.default_rng(0).normal(size=(6, 8, 3)).astype(np.float32)
    problem = linear_problem(features, (features.sum(2) > 0).astype(int), Logistic(), constraint=Ball(1.0))
    run = simulate(protocol, problem, participation, rounds=rounds, seed=3)
    np.testing.assert_allclose(run.params, params, atol=1e-6)
