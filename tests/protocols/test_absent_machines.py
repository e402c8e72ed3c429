"""Absent machines and unused records have no effect on a run, even if their gradients are infinite."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import LocalSGD, NoisyMinibatchSGD, Varying, draw_plan, general_problem, simulate
from fedprivjax.engine.prepare import round_inputs
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


@pytest.mark.parametrize("clip", sparing(list(CLIPS), ["record"]))
@pytest.mark.parametrize(
    ("sampler", "batch"), sparing([("subset", 2), ("poisson", 1), ("full", None)], [("subset", 2)])
)
def test_an_absent_machines_record_may_be_infinite(clip, sampler, batch):
    protocol = replace(CLIPS[clip], sampler=sampler, batch=batch, noise_std=0.1, step_size=0.01)
    seed = without_machine_0(protocol)
    settings = {"rounds": ROUNDS, "seed": seed, "delta": 1e-5, "metrics": ()}
    infinite, finite = (simulate(protocol, problem(first), COHORTS, **settings).params for first in (1e30, 0.5))
    assert np.isfinite(finite).all()
    np.testing.assert_array_equal(infinite, finite)


STEPS, STEEP = 40, 1e3  # one step on a steep record multiplies by −999, and a walk of steps on it alone overflows


def valley():
    """½h·w², where every machine's first record of each pass is steep and one step on any other leads to 0."""
    curvature = np.ones((4, 2 * STEPS), np.float32)
    curvature[:, ::STEPS] = STEEP
    return general_problem(lambda w, h: 0.5 * h * jnp.vdot(w, w), curvature, jnp.ones(1), split=True, lipschitz=1.0)


@pytest.mark.parametrize("noise_std", sparing([0.0, 0.1], [0.0]))
def test_an_absent_machine_sends_nothing(noise_std):
    """An absent machine's slot repeats the round's first record, on which local steps from its point overflow."""
    protocol = LocalSGD(batch=STEPS, sampler="disjoint", noise_std=noise_std, step_size=1.0)
    cohorts = Varying(4, (0.5, 0.0, 0.5, 0.0))
    settings = {"rounds": 2, "seed": 1, "order": "stored"}
    run = simulate(protocol, valley(), cohorts, eval_every=1, metrics=("noise_norm",), **settings)
    present = run.plan.schedule.present
    assert not present.all()
    first = jax.tree.map(lambda leaf: leaf[np.flatnonzero(~present.all(axis=1))[0]], round_inputs(run.plan))
    key = jax.random.key(0)
    ends = run.protocol.rounds.messages(valley(), run.protocol.init(valley(), run.plan.size, key), first, None, key)
    assert (ends[np.asarray(first.present) == 0] == 0).all()
    assert np.isfinite(ends).all()
    assert np.isfinite(run.params).all()
    assert noise_std or (np.ravel(run.params) == 0.5).all()  # the mean of w_0 = 1 and w_1 = 0
