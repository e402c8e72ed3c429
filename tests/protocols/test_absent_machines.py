"""Machines that are absent, and records that nobody draws, leave no trace, be their gradients infinite."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import NoisyMinibatchSGD, Varying, draw_plan, general_problem, simulate
from fedprivjax.protocols.released import ReleasedMinibatchSGD

MACHINES, RECORDS, ROUNDS = 6, 4, 5
COHORTS = Varying.between(MACHINES, 1, 3)


def problem(first):
    """Fourth powers of errors, of which record 0 has the features `first`: at 10³⁰ its gradient is infinite."""
    features = np.random.default_rng(0).normal(size=(MACHINES, RECORDS, 3)).astype(np.float32)
    features[0, 0] = first
    return general_problem(lambda w, x: (jnp.vdot(w, x) - 1.0) ** 4, features, jnp.ones(3), split=True, lipschitz=1.0)


def without_machine_0(protocol):
    """A seed whose schedule leaves machine 0 out of every filled slot, and some slots empty."""
    for seed in range(200):
        schedule = draw_plan(problem(1.0), COHORTS, ROUNDS, seed, sampler=protocol.minibatches).schedule
        if not (schedule.participants[schedule.present] == 0).any() and not schedule.present.all():
            return seed
    raise AssertionError("no such schedule")


CLIPS = {
    "none": NoisyMinibatchSGD(),
    "record": NoisyMinibatchSGD(clip=1.0),
    "message": ReleasedMinibatchSGD(clip=1.0, clip_at="message"),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(("sampler", "batch"), [("subset", 2), ("poisson", 1), ("full", None)])
def test_an_absent_machines_record_may_be_infinite(clip, sampler, batch):
    protocol = replace(CLIPS[clip], sampler=sampler, batch=batch, noise_std=0.1, step_size=0.01)
    seed = without_machine_0(protocol)
    settings = {"rounds": ROUNDS, "seed": seed, "delta": 1e-5, "record": ()}
    infinite, finite = (simulate(protocol, problem(first), COHORTS, **settings).params for first in (1e30, 0.5))
    assert np.isfinite(finite).all()
    np.testing.assert_array_equal(infinite, finite)
