"""Privacy audits of one record in sums over tiny cohorts, compared with the stated guarantees.

The target alone has a feature along the first axis, and its clipped gradient is +C or −C there.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedprivjax import (
    Full,
    Huber,
    OnePass,
    UserSGD,
    WholeSpace,
    draw_plan,
    linear_problem,
)
from fedprivjax.auditing.bounds import fitted
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import trajectory
from fedprivjax.engine.transcript import replay
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.problem.program import typed_jit

RUNS, CLIP, EPSILON, LEAK = 10_000, 0.3, 2.0, 0.02
ROUNDS = {"once": (OnePass(3, 3), 1, "shuffled"), "twice": (Full(3), 2, "cyclic")}


FIRST = Metric("first", lambda problem, snapshot: snapshot.params[0])


def attacked(label, users):
    rng = np.random.default_rng(3)
    features = np.concatenate([np.zeros((users, 1)), rng.normal(size=(users, 1))], axis=1)
    features[0] = [1.0, 0.0]
    labels = np.append(label * 50.0, rng.normal(size=users - 1))
    features, labels = (np.asarray(a, np.float32)[:, None] for a in (features, labels))
    return linear_problem(features, labels, Huber(1.0), constraint=WholeSpace())


@typed_jit(static_argnames="size")
def messages(arguments, keys, size):
    """What users send in many runs, along the first axis, [runs, rounds, per_round]."""
    return jax.vmap(lambda key: replay(arguments._replace(key=key), size)[1][1][..., 0])(keys)


@typed_jit(static_argnames="static")
def steps(arguments, host_noises, keys, static):
    """Distance of the server along the negative first axis in many runs, from the sum of its noisy means."""

    def one(host_noise, key):
        return trajectory(arguments._replace(host_noise=host_noise, key=key), static)[1]["first"][-1, 1]

    return -jax.vmap(one)(host_noises, keys)


def seen(trust, way, start, runs):
    """The likelihood ratio of what the adversary sees: the target's messages, the counts of bits, or what is all the
    same as these, the server's steps."""
    keys, size = jax.random.split(jax.random.key(runs[0]), RUNS), start.plan.size
    if way == "steps":
        host_noises = [start.host_noise_of(start.protocol, run, 2) for run in runs] if trust == "shuffler" else None
        host_noises = None if host_noises is None else jax.tree.map(lambda *leaves: np.stack(leaves), *host_noises)
        return np.asarray(steps(start.arguments, host_noises, keys, start.static), np.float64)
    sent = np.asarray(messages(start.arguments, keys, size), np.float64)
    return (sent * ((start.plan.samples == 0) if way == "messages" else 1)).sum(axis=(1, 2))


def attack(trust, way, often, scale=1.0):
    """ε that an attacker attains, and the one that is stated."""
    participation, rounds, order = ROUNDS[often]
    options = {"order": order, "rounds": rounds, "delta": LEAK, "metrics": [FIRST], "eval_every": rounds}
    options["noise_method"] = "auto" if way == "steps" else "materialised"
    worlds = [attacked(label, participation.machines) for label in (-1, 1)]
    begun = ready(UserSGD(epsilon=EPSILON, clip=CLIP, step_size=1.0, trust=trust), worlds[0], participation, **options)
    weaker = replace(begun.protocol, noise_std=scale * begun.protocol.noise_std)
    starts = [ready(weaker, world, participation, **options) for world in worlds]
    values = [seen(trust, way, start, range(k * RUNS, (k + 1) * RUNS)) for k, start in enumerate(starts)]
    return fitted(*values, delta=LEAK).epsilon_lower, begun.guarantee.epsilon


WAYS = [("shuffler", "steps"), ("shuffler", "bits"), ("none", "messages"), ("server", "steps")]
SEEN = [(*way, often) for way in WAYS for often in ROUNDS]


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "way", "often"), SEEN)
def test_no_more_is_learnt_than_stated_and_not_much_less(trust, way, often):
    learnt, stated = attack(trust, way, often)
    assert stated <= EPSILON * (1 + 1e-6)
    assert 0.5 * stated < learnt <= stated


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "way", "often"), SEEN)
def test_half_the_noise_is_caught(trust, way, often):
    learnt, stated = attack(trust, way, often, scale=0.5)
    assert learnt > stated


def observed(record, sigma, users, rng, when, size):
    """Algorithm 6 in one coordinate, on one batch whose other gradients are 0: the sum starts from noise, takes the
    gradients one by one, and gets noise again. An intruder sees it before or after the record, all others its end."""
    half = sigma * (users / 2) ** 0.5
    inside = half * rng.normal(size=size)  # of half the variance
    memory = {"before": inside.copy()}
    inside += record
    memory["after"] = inside.copy()
    output = inside + half * rng.normal(size=size)
    # the likelihood ratio: noise in both views cancels before the record, and the end reveals nothing more after it
    return {"before": output - memory["before"], "after": memory["after"], "never": output}[when]


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_intruder_learns_no_more_than_stated_whenever_they_look(when, scale):
    users, rng = 3, np.random.default_rng(5)
    world = attacked(1, 3)
    plan = draw_plan(world, ROUNDS["once"][0], 1)
    ready = calibrate(UserSGD(epsilon=EPSILON, clip=CLIP, trust="pan-private", step_size=1.0), world, plan, delta=LEAK)
    stated = event_of(ready, world, plan).epsilon(LEAK)
    worlds = [observed(s * CLIP, scale * ready.noise_std, users, rng, when, 100_000) for s in (1, -1)]
    learnt = fitted(*worlds, delta=LEAK).epsilon_lower
    assert (0.5 * stated < learnt <= stated) == (scale == 1.0)
    assert scale == 1.0 or learnt > stated


def test_without_an_intruder_the_two_noises_hide_more():
    rng, stated = np.random.default_rng(5), {}
    for trust in ("server", "pan-private"):
        world = attacked(1, 3)
        plan = draw_plan(world, ROUNDS["once"][0], 1)
        ready = calibrate(UserSGD(epsilon=EPSILON, clip=CLIP, trust=trust, step_size=1.0), world, plan, delta=LEAK)
        stated[trust] = ready.noise_std
    assert stated["pan-private"] == pytest.approx(2**0.5 * stated["server"], rel=1e-5)
    worlds = [observed(s * CLIP, stated["pan-private"], 3, rng, "never", 100_000) for s in (1, -1)]
    assert fitted(*worlds, delta=LEAK).epsilon_lower < 0.75 * EPSILON
