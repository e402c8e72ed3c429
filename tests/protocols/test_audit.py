"""Privacy audits of the engine's transcripts, compared with the claimed guarantees.

The target sample alone has a feature along the first axis, so along it every view is noise plus the target's clipped
increment: C in one world and −C in the other. The other samples keep the run adaptive. The attacker weighs the views as
the likelihood ratio does.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import Ball, DPMu2, Given, Logistic, NoisySGD, StaleMomentum, WholeSpace, draw_plan, linear_problem
from fedprivjax.auditing.bounds import fitted
from fedprivjax.engine.prepare import Arguments, round_inputs
from fedprivjax.engine.transcript import replay
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import flat_rows
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.problem.program import typed_jit

RUNS, MU, CLIP, STEP = 6000, 2.0, 0.3, 0.05
ROWS = np.array([[0, 1], [1, 2], [0, 2], [0, 1], [2, 1], [0, 2]])  # machine 0 in rounds 1, 3, 4, 6
PARTIAL = Given(3, ROWS)
OWN = 1 + np.flatnonzero((ROWS == 0).any(axis=1))


def problem(label, constraint):
    """Logistic regression with d = 3; the first sample goes to machine 0 in round 1."""
    rng = np.random.default_rng(3)
    features = np.concatenate([np.zeros((12, 1)), rng.normal(size=(12, 2))], axis=1)
    features[0] = [1.0, 0.0, 0.0]
    labels = (rng.random(12) < 0.5).astype(int)
    labels[0] = label
    return linear_problem(features, labels, Logistic(), constraint=constraint)


def relative(ready, plan):
    inputs = ready.mechanism(problem(0, Ball(1.0)), plan, "materialised").inputs
    return np.asarray(getattr(inputs, "relative", inputs), np.float64)


def running_sums(ready, plan, queries, messages):
    """Σ s + Y_k at each of the machine's messages, each moved by the same amount."""
    own = messages[:, ROWS == 0, 0]
    return np.cumsum(own, axis=1) @ relative(ready, plan)[ROWS == 0] ** -2.0


def first_message(ready, plan, queries, messages):
    return messages[:, 0, 0, 0]


def growing_messages(ready, plan, queries, messages):
    """The target's share of a later message grows by (t_j − 1)/t_{j−1}."""
    share = np.cumprod(np.append(1.0, (OWN[1:] - 1) / OWN[:-1]))
    return messages[:, ROWS == 0, 0] @ (share * relative(ready, plan)[ROWS == 0] ** -2.0)


def server_replies(ready, plan, queries, messages):
    """q̃_t from the query points: w_{t+1} = x_t + (t+2)/2·(x_{t+1} − x_t) and w_t − w_{t+1} = η·q̃_t."""
    x = queries[:, :, 0]
    t = np.arange(1, x.shape[1])
    w = np.concatenate([x[:, :1], x[:, :-1] + (t + 2) / 2 * np.diff(x, axis=1)], axis=1)
    return -np.diff(w, axis=1) @ relative(ready, plan)[:-1] ** -2.0


def first_step(ready, plan, queries, messages):
    return queries[:, 0, 0] - queries[:, 1, 0]


class Case(NamedTuple):
    protocol: Any
    statistic: Any
    constraint: Any = Ball(1.0)


SETTINGS = {"mu": MU, "clip": CLIP, "step_size": STEP}
CASES = {
    "uniform": Case(DPMu2(**SETTINGS), running_sums),
    "proportional": Case(DPMu2(noise_schedule="proportional", **SETTINGS), running_sums),
    "gap": Case(DPMu2(noise_schedule="gap", **SETTINGS), running_sums),
    "fresh": Case(DPMu2(cancel=False, **SETTINGS), first_message),
    "server": Case(DPMu2(trust="server", **SETTINGS), server_replies, WholeSpace()),
    "sgd": Case(NoisySGD(**SETTINGS), first_message),
    "sgd-server": Case(NoisySGD(trust="server", **SETTINGS), first_step, WholeSpace()),
    "stale": Case(StaleMomentum(**SETTINGS), growing_messages),
}


QUICK = ("uniform",)


@typed_jit(static_argnames="size")
def views(protocol, world, mechanism, inputs, keys, size):
    """Query points and messages of many runs."""
    return jax.vmap(lambda key: replay(Arguments(protocol, world, mechanism, inputs, None, key), size)[1][:2])(keys)


def attack(case, noise_scale=1.0):
    """Audit of many runs on each of two neighbouring datasets."""
    worlds = [problem(label, case.constraint) for label in (0, 1)]
    plan = draw_plan(worlds[0], PARTIAL, order="stored")
    ready = calibrate(case.protocol, worlds[0], plan)
    ready = replace(ready, noise_std=noise_scale * ready.noise_std)
    mechanism = ready.mechanism(worlds[0], plan, "materialised")

    values = []
    for seed, world in enumerate(worlds):
        keys = jax.random.split(jax.random.key(seed), RUNS)
        seen = views(as_leaves(ready), world, mechanism, round_inputs(plan), keys, plan.size)
        values.append(case.statistic(ready, plan, *(np.asarray(part, np.float64) for part in seen)))
    return fitted(*values, delta=1e-5)


def claimed(case):
    """μ of the target's machine on this schedule."""
    world = problem(0, case.constraint)
    plan = draw_plan(world, PARTIAL, order="stored")
    return guarantee(case.protocol, world, plan).per_machine[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_more_is_learnt_than_claimed_and_not_much_less(name):
    case = CASES[name]
    assert 0.6 * claimed(case) <= attack(case).mu_lower <= claimed(case)


@pytest.mark.parametrize("name", sparing(CASES, QUICK))
def test_half_the_noise_is_caught(name):
    case = CASES[name]
    assert attack(case, noise_scale=0.5).mu_lower > claimed(case)


def test_a_clip_that_is_not_enforced_is_caught():
    """Calibrated to C = 0.3 for a target gradient of norm 1/2: every view changes by 1 instead of 0.6."""
    case = CASES["uniform"]
    loose = case._replace(protocol=replace(case.protocol, clip=5 / 3 * CLIP))
    assert attack(loose, noise_scale=3 / 5).mu_lower > claimed(case)


@pytest.mark.slow
def test_target_alone_has_the_first_feature():
    """Assumption of the statistics: the target saturates the clip on both datasets, with opposite signs."""
    case = CASES["uniform"]
    for label, sign in ((0, 1.0), (1, -1.0)):
        world = problem(label, case.constraint)
        plan = draw_plan(world, PARTIAL, order="stored")
        assert plan.samples[0, 0] == 0
        protocol = replace(case.protocol, mu=None, noise_std=0.0).rounds.read_once(world, plan)
        first = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
        key = jax.random.key(0)
        state = protocol.init(world, plan.size, key)
        sent = flat_rows(world, protocol.rounds.messages(world, state, first, None, key))
        np.testing.assert_allclose(np.asarray(sent[0]), [sign * CLIP, 0.0, 0.0], rtol=1e-6)
    assert (jnp.asarray(world.pool.features)[1:, 0] == 0).all()
