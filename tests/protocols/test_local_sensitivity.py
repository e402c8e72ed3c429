"""Brute-force sensitivity of local SGD: one record replaced at random, with every noisy local step as a release."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing, unit_rows
from neighbours import KEY, sent_by, with_sample

from fedprivjax import Ball, Huber, LocalSGD, Logistic, Uniform, calibrate, draw_plan, guarantee, linear_problem
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import flat_rows
from fedprivjax.privacy import gdp
from fedprivjax.problem.program import typed_jit

MACHINES, RECORDS, FEATURES, ROUNDS, STEPS, TRIED, DELTA = 3, 6, 3, 2, 3, 4, 1e-5
LOSSES = {"logistic": Logistic(), "huber": Huber(0.5)}
SETTINGS = [(loss, clip, sampler) for loss in LOSSES for clip in (None, 0.1) for sampler in ("disjoint", "replacement")]
TRIALS = [(*settings, seed) for settings in SETTINGS for seed in range(4)]
QUICK = [("huber", 0.1, "disjoint", 0)]


def drawn(rng, loss):
    """A record's features, of norm 1, and its label."""
    features = unit_rows(rng, 1, FEATURES)[0]
    return features, int(rng.integers(2)) if loss == "logistic" else float(rng.choice([-5.0, 0.1, 5.0]))


def world(rng, loss):
    records = [drawn(rng, loss) for _ in range(MACHINES * RECORDS)]
    features = np.stack([one for one, _ in records]).reshape(MACHINES, RECORDS, FEATURES)
    labels = np.array([label for _, label in records]).reshape(MACHINES, RECORDS)
    bounds = {"feature_bound": 1.0 + 1e-6, "constraint": Ball(float(rng.uniform(0.5, 2.0)))}
    return linear_problem(features, labels, LOSSES[loss], **bounds)


@typed_jit
def ends_of(protocol, problem, state, inputs, noise):
    return flat_rows(problem, protocol.rounds.messages(problem, state, inputs, noise, KEY))


def starting(state, w):
    """The state in which machines start from w."""
    served = state.server
    return state._replace(server=served._replace(server=served.server._replace(w=w)))


def steps_of(protocol, problem, plan, rng):
    """Every local step of a noisy run as (slot, record, the state in which it starts, its inputs)."""
    state = protocol.init(problem, plan.size, KEY)
    for t in range(ROUNDS):
        at = jax.tree.map(lambda leaf, t=t: leaf[t], round_inputs(plan))
        noise = jax.random.key(int(rng.integers(2**31))), jnp.full(at.machine.shape, 0.5)
        for slot in range(plan.size.per_round):
            start = protocol.rounds.query(state)
            for step in range(STEPS):
                alone = at._replace(**{name: getattr(at, name)[:, step : step + 1] for name in ("samples", "weights")})
                before = starting(state, start)
                yield slot, int(at.samples[slot, step]), before, alone
                key = jax.random.fold_in(noise[0], step)
                start = problem.unravel(ends_of(protocol, problem, before, alone, (key, noise[1]))[slot])
        state = starting(state, start)


@pytest.mark.parametrize(("loss", "clip", "sampler", "seed"), sparing(TRIALS, QUICK))
def test_steps_move_by_no_more_than_is_stated(loss, clip, sampler, seed):
    rng = np.random.default_rng([seed, *map(ord, f"{loss}{clip}{sampler}")])
    problem, law = world(rng, loss), Uniform(MACHINES, 2)
    protocol = LocalSGD(noise_std=1.0, clip=clip, batch=STEPS, sampler=sampler, step_size=float(rng.uniform(0.05, 0.5)))
    plan = draw_plan(problem, law, ROUNDS, seed=seed, sampler=protocol.minibatches)
    event = calibrate(protocol, problem, plan).event(problem, plan)
    leaves, largest = as_leaves(protocol), 0.0
    walk = list(steps_of(leaves, problem, plan, rng))
    used = np.unique([record for _, record, *_ in walk])
    for record in rng.choice(used, min(TRIED, used.size), replace=False):
        features, label = drawn(rng, loss)
        if rng.random() < 0.5:  # turned round: the opposite gradient, or nearly
            features = np.asarray(problem.pool.features[record])
            label = (
                1 - int(problem.pool.label[record])
                if loss == "logistic"
                else -5.0 * float(np.sign(problem.pool.label[record]))
            )
        other, squares = with_sample(problem, int(record), features, label), 0.0
        for slot, at, state, inputs in walk:
            change = np.asarray(sent_by(leaves, other, state, inputs) - sent_by(leaves, problem, state, inputs), float)
            moved = np.linalg.norm(change[slot]) / protocol.step_size
            assert moved <= event.sensitivity * (1 + 1e-4)
            assert moved == 0 or at == record
            squares += moved**2
            largest = max(largest, moved / event.sensitivity)
        if sampler == "disjoint":  # a record is in one step, which is no secret
            stated = guarantee(protocol, problem, plan, delta=DELTA).epsilon
            assert gdp.epsilon(np.sqrt(squares), DELTA) <= stated * (1 + 1e-3)
    assert largest > 0.25
