"""Cached exposures depend on a plan's weights and on its samples."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import Full, TreeMomentum, general_problem, ready


def test_a_plan_of_other_weights_has_an_exposure_of_its_own():
    table, pool = np.arange(12).reshape(2, 6), np.ones((12, 3), np.float32)
    problem = general_problem(
        lambda w, x: jnp.vdot(w, x), pool, np.zeros(3, np.float32), partition_table=table, lipschitz=1.0
    )
    start = ready(
        TreeMomentum(noise_std=1.0, alpha=0.5, step_size=0.1, batch=2), problem, Full(2), rounds=9, metrics=()
    )
    assert start.plan.weights is not None
    less = start.plan.weights.copy()
    less[1:] *= 0.01
    light = replace(start.plan, samples=start.plan.samples.copy(), weights=less)  # nothing is cached for these samples
    start.protocol.event(problem, light)
    heavy = replace(light, weights=start.plan.weights)
    assert start.protocol.event(problem, heavy).mu == pytest.approx(start.event.mu, rel=1e-6)
