"""Sensitivities and ε that are claimed, beside what brute force and other accountants find."""

import jax
import jax.numpy as jnp
import numpy as np
from cases import POOL
from faults.federations import CLIP
from neighbours import KEY, sent_by, with_sample

from fedprivjax import (
    Ball,
    Given,
    Logistic,
    OnePass,
    Squared,
    Uniform,
    draw_plan,
    linear_problem,
)
from fedprivjax.engine.ready import round_inputs
from fedprivjax.plan.samplers import Replacement
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.attainable import attainable_epsilon
from fedprivjax.privacy.accountants.peer import gaussian_epsilon
from fedprivjax.privacy.accountants.sampled import sampled_epsilon
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.noise_rules import noise_std
from fedprivjax.protocols.interface import as_leaves


def largest_increment(protocol):
    """How far a record moves an increment at most, with f = ½(a·w)² on the unit ball (G = L = 1) and an iterate that
    went from −a to a: a record's increment is 3a, and that of a record with a = 0 nothing."""
    features = np.zeros((4, 2), np.float32)
    features[:, 0] = 1.0
    problem = linear_problem(features, np.zeros(4), Squared(1e-6), feature_bound=1.0, constraint=Ball(1.0))
    end, round = jnp.array([1.0, 0.0]), 1000
    plan = draw_plan(problem, Given(1, [[0]]), seed=1)
    state = protocol.init(problem, plan.size, KEY)
    state = state._replace(x_previous=-end, x=-end + 2 / (round + 1) * (end + end), w=end)
    at = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))._replace(round=jnp.asarray(round))
    other = with_sample(problem, int(plan.samples[0, 0]), np.zeros(2), 0.0)
    sent = [np.asarray(sent_by(as_leaves(protocol), one, state, at)) for one in (problem, other)]
    return problem, plan, np.linalg.norm(sent[1] - sent[0])


def largest_gradient(protocol):
    """How far a record moves a message at the start: gradients are ∓x/2 along any direction, of length 1.02·C, and the
    record is replaced by one with the other label."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(12, 6))
    features *= 2 * 1.02 * CLIP / np.linalg.norm(features, axis=1, keepdims=True)
    problem = linear_problem(features, np.zeros(12, int), Logistic(), constraint=Ball(1.0))
    plan = draw_plan(problem, Given(2, [[0, 1]]), seed=1)
    state, at = protocol.init(problem, plan.size, KEY), jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    record = int(plan.samples[0, 0])
    other = with_sample(problem, record, np.asarray(problem.pool.features[record]), 1)
    sent = [np.asarray(sent_by(as_leaves(protocol), one, state, at)) for one in (problem, other)]
    return problem, plan, np.linalg.norm(sent[1] - sent[0])


DELTA = 1e-2


def of_messages(protocol, delta=1e-5):
    """The ε that is claimed on a schedule, and dp-accounting's for the noise of the busiest machine's messages."""
    problem = POOL
    plan = draw_plan(problem, Uniform(4, 2), 12, seed=3)
    ready = calibrate(protocol, problem, plan, delta=delta)
    inputs = ready.mechanism(problem, plan, "materialised").inputs
    relative = np.asarray(inputs.relative, float)
    own = plan.schedule.participants == np.argmax(plan.schedule.total)
    claimed = ready.event(problem, plan).epsilon(delta)
    return claimed, gaussian_epsilon(ready.noise_std * relative[own] / (2 * CLIP), delta)


def of_each_round(whole):
    """50 full batches: the rounds' ε added up, each at δ (whole) or at its share of it; and the composition's."""
    rounds, mu = 50, 0.026
    claimed = rounds * float(gdp.epsilon(mu, DELTA if whole else DELTA / rounds))
    return claimed, gaussian_epsilon(np.full(rounds, 1 / mu), DELTA)


def of_sampler(counted):
    """The ε of samples with replacement if they were a sampler's, and what is attained."""
    settings = {"records": 20, "rounds": 10, "delta": 1e-5}
    attained = attainable_epsilon(2.0, sampler=Replacement(5), **settings)
    return sampled_epsilon(2.0, sampler=counted, **settings), attained


def of_rule(rule):
    """The ε that a rule's noise is for, and what is attained with it."""
    settings = {"sampler": Replacement(40), "records": 1000, "rounds": 35, "delta": 1e-6}
    std = noise_std(rule, lipschitz=1.0, epsilon=12.0, acknowledged=True, **settings)
    return 12.0, attainable_epsilon(40 * std, **settings)


def of_halves(kind):
    """The ε of a server that forgets, and of the noise of half its variance, in which a record is seen once."""
    problem = POOL
    plan = draw_plan(problem, OnePass(12, 4), 3, seed=1)
    ready = calibrate(kind(epsilon=4.0, clip=CLIP, trust="pan-private"), problem, plan, delta=DELTA)
    multiplier = ready.noise_std * np.sqrt(plan.size.per_round / 2) / (2 * CLIP)
    return ready.event(problem, plan).epsilon(DELTA), gaussian_epsilon([multiplier], DELTA)
