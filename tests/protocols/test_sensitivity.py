"""Brute-force sensitivity: one record of one machine replaced, with the adversary's conditioning fixed.

Adaptive composition lets the query points stand as the first world saw them, so the second world's machine answers the
same questions with its own data and its own memory.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from neighbours import KEY, sent_by, with_sample

from fedprivjax import Ball, DPMu2, Given, Logistic, NoisySGD, Squared, StaleMomentum, draw_plan, linear_problem
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.clipping import clip
from fedprivjax.method.message_noise import growing_exposure
from fedprivjax.method.protocol import as_leaves
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_epsilon
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.models import Dense, Outer
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.dp_mu2 import Mu2State

ROUNDS, MACHINES = 12, 3
ROWS = np.array([np.random.default_rng([4, t]).permutation(MACHINES)[:2] for t in range(ROUNDS)])
SCHEDULE = Given(MACHINES, ROWS)
CLIP = 0.2


class Case(NamedTuple):
    protocol: Any
    summed: bool  # the view is the running sums of a machine's messages; otherwise the messages themselves
    momentum: bool = False  # True if the machines' memory differs between the worlds


SETTINGS = {"noise_std": 1.0, "step_size": 0.1}
CASES = {
    "mu2": Case(DPMu2(**SETTINGS), True),
    "mu2-clipped": Case(DPMu2(clip=CLIP, **SETTINGS), True),
    "mu2-server": Case(DPMu2(trust="server", **SETTINGS), True),
    "mu2-server-clipped": Case(DPMu2(trust="server", clip=CLIP, **SETTINGS), True),
    "mu2-fresh": Case(DPMu2(cancel=False, clip=CLIP, **SETTINGS), False),
    "sgd": Case(NoisySGD(**SETTINGS), False),
    "sgd-clipped": Case(NoisySGD(clip=CLIP, **SETTINGS), False),
    "mu2-batch": Case(DPMu2(batch=2, clip=CLIP, **SETTINGS), True),
    "mu2-batch-bounded": Case(DPMu2(batch=2, **SETTINGS), True),
    "mu2-batch-server": Case(DPMu2(trust="server", batch=3, clip=CLIP, **SETTINGS), True),
    "sgd-batch": Case(NoisySGD(batch=2, clip=CLIP, **SETTINGS), False),
    "stale-batch": Case(StaleMomentum(batch=2, clip=CLIP, **SETTINGS), False, momentum=True),
    "stale": Case(StaleMomentum(clip=CLIP, **SETTINGS), False, momentum=True),
}
SUMS = [name for name in CASES if "stale" not in name]
QUICK = ("mu2-clipped", "mu2-server", "mu2-fresh", "sgd-clipped", "mu2-batch-server")


@pytest.fixture(scope="module")
def problem():
    """Logistic regression, d = 4; every feature vector has norm 1 and G = 1, L = 1/4."""
    rng = np.random.default_rng(6)
    features = rng.normal(size=(ROUNDS * 2, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = (rng.random(ROUNDS * 2) < 0.5).astype(int)
    return linear_problem(features, labels, Logistic(), feature_bound=1.0 + 1e-6, constraint=Ball(1.0))


@typed_jit
def next_state(protocol, problem, state, inputs, noise):
    return protocol.round(problem, state, inputs, noise, KEY)[0]


def answers(case, problem, plan, states, momentum=None):
    """The participants' messages without noise at the first world's query points, [rounds, per_round, d]."""
    protocol, inputs = as_leaves(calibrate(case.protocol, problem, plan)), round_inputs(plan)
    sent = []
    for t, state in enumerate(states):
        inputs_t = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        if momentum is not None:
            state = state._replace(own=state.own._replace(momentum=momentum))
        sent.append(sent_by(protocol, problem, state, inputs_t))
        if momentum is not None:
            momentum = momentum.at[inputs_t.machine].set(sent[-1])
    return np.asarray(jnp.stack(sent), np.float64)


def first_world(case, problem, plan, points=None):
    """The state before each round of a noisy run; with `points`, query points that a server is free to choose."""
    rng = np.random.default_rng(8)
    protocol, inputs = as_leaves(calibrate(case.protocol, problem, plan)), round_inputs(plan)
    state, states = protocol.init(problem, plan.size, KEY), []
    for t in range(plan.size.rounds):
        states.append(state)
        noise = jnp.asarray(rng.normal(size=problem.dimension), jnp.float32)
        state = next_state(protocol, problem, state, jax.tree.map(lambda leaf, t=t: leaf[t], inputs), noise)
        if points is not None:
            state = state._replace(server=state.server._replace(x=jnp.asarray(points[t]), w=jnp.asarray(points[t])))
    return states


def views(case, plan, sent, machine):
    """Vectors that the machine's noise protects, one row per message."""
    own = sent[plan.schedule.participants == machine]
    return np.cumsum(own, axis=0) if case.summed else own


def moved(case, problem, plan, states, sample, features, label):
    """Change of every view of the sample's machine, [messages, d], and which of its messages uses the sample."""
    uses = uses_of(plan, sample)
    machine = plan.schedule.participants[uses][0]
    momentum = jnp.zeros_like(states[0].own.momentum) if case.momentum else None
    other = with_sample(problem, sample, features, label)
    worlds = [views(case, plan, answers(case, p, plan, states, momentum), machine) for p in (problem, other)]
    return worlds[1] - worlds[0], int(np.flatnonzero(uses[plan.schedule.participants == machine])[0])


def uses_of(plan, sample):
    """True for messages that use the sample; bool, shape [rounds, per_round]."""
    return (plan.samples == sample).reshape(*plan.schedule.participants.shape, -1).any(axis=2)


def drawn_for(case, problem):
    return draw_plan(problem, SCHEDULE, seed=1, sampler=case.protocol.minibatches)


def strangers(problem, count=6):
    """(sample, features, label) to put in its place: random ones, and the same with its label turned."""
    rng = np.random.default_rng(7)
    for sample in rng.choice(problem.examples, count, replace=False):
        features = rng.normal(size=4)
        yield int(sample), features / np.linalg.norm(features), int(rng.integers(2))
        yield int(sample), np.asarray(problem.pool.features[sample]), 1 - int(problem.pool.label[sample])


@pytest.mark.parametrize("name", sparing(SUMS, QUICK))
def test_one_sample_moves_no_view_by_more_than_the_sensitivity(name, problem):
    case = CASES[name]
    plan = drawn_for(case, problem)
    shared = plan.size.per_round if privacy_of(case.protocol).trust == "server" else 1  # a server releases the mean
    bound = case.protocol.event(problem, plan).sensitivity
    states, largest = first_world(case, problem, plan), 0.0
    for sample, features, label in strangers(problem):
        change, k = moved(case, problem, plan, states, sample, features, label)
        change = np.linalg.norm(change, axis=1) / shared
        assert (change[:k] == 0).all()  # earlier views cannot know
        assert change[k] > 0
        assert (change <= bound * (1 + 1e-5)).all()
        if case.summed:
            np.testing.assert_allclose(change[k:], change[k], rtol=1e-4)
        else:
            assert (change[k + 1 :] == 0).all()
        largest = max(largest, change.max())
    if case.protocol.clip is None:
        assert largest > 0.1 * bound
    else:
        assert largest > 0.9 * bound


def test_a_dishonest_server_gains_nothing_against_clipping(problem):
    """Query points as far apart as the ball allows: unclipped increments exceed S by far, clipped ones never C."""
    plan = draw_plan(problem, SCHEDULE, seed=1)
    rng = np.random.default_rng(3)
    points = rng.normal(size=(ROUNDS, 4))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    last = int(plan.samples[-1, 0])
    turned = np.asarray(problem.pool.features[last]), 1 - int(problem.pool.label[last])
    states = first_world(CASES["mu2-clipped"], problem, plan, points)
    clipped, _ = moved(CASES["mu2-clipped"], problem, plan, states, last, *turned)
    assert np.linalg.norm(clipped, axis=1).max() <= 2 * CLIP * (1 + 1e-5)
    bound = CASES["mu2"].protocol.event(problem, plan).sensitivity / 2
    sent = answers(CASES["mu2"], problem, plan, first_world(CASES["mu2"], problem, plan, points))
    honest = answers(CASES["mu2"], problem, plan, first_world(CASES["mu2"], problem, plan))
    assert np.linalg.norm(honest, axis=-1).max() <= bound
    assert np.linalg.norm(sent, axis=-1).max() > bound


@pytest.mark.parametrize("name", sparing(["stale", "stale-batch"], ["stale-batch"]))
def test_stale_momentum_grows_exactly_as_accounted(name, problem):
    case = CASES[name]
    plan, bound = drawn_for(case, problem), 2 * CLIP / case.protocol.batch
    states, saturated = first_world(case, problem, plan), 0
    for sample, features, label in strangers(problem):
        machine = plan.schedule.participants[uses_of(plan, sample)][0]
        change, k = moved(case, problem, plan, states, sample, features, label)
        change = np.linalg.norm(change, axis=1)
        rounds = 1 + np.flatnonzero((machine == plan.schedule.participants).any(axis=1))
        growth = np.cumprod(np.append(1.0, (rounds[k + 1 :] - 1) / rounds[k:-1]))
        assert change[k] <= bound * (1 + 1e-5)
        saturated += change[k] > 0.9 * bound
        np.testing.assert_allclose(change[k:], change[k] * growth, rtol=1e-4)
    assert saturated


def test_exposure_of_stale_momentum_is_the_worst_sample(problem):
    plan = draw_plan(problem, SCHEDULE, seed=1)
    relative = np.random.default_rng(0).uniform(0.5, 2.0, ROWS.shape)
    for machine in range(MACHINES):
        rounds = 1 + np.flatnonzero((machine == ROWS).any(axis=1))
        own = relative[machine == ROWS]
        worst = 0.0
        for k in range(len(rounds)):
            growth = [
                np.prod([(rounds[j] - 1) / rounds[j - 1] for j in range(k + 1, e + 1)]) for e in range(k, len(own))
            ]
            worst = max(worst, np.sum((np.array(growth) / own[k:]) ** 2))
        np.testing.assert_allclose(growing_exposure(relative, plan.schedule)[machine], worst**0.5, rtol=1e-12)


def vectors(values, features):
    """The same gradient written out and factored."""
    values, features = jnp.asarray(values, jnp.float32), jnp.asarray(features, jnp.float32)
    factored = Outer(values, features, jnp.linalg.norm(features))
    return factored, Dense(factored.written_out())


@pytest.mark.parametrize(
    ("values", "features", "norm"),
    [
        ([0.0, 0.0], [1.0, 0.0], 0.0),
        ([1.0, -1.0], [0.0, 0.0], 0.0),
        ([3.0, 4.0], [1.0, 0.0], 2.0),
        ([3.0, 4.0], [0.2, 0.0], 1.0),
        ([3e15, 4e15], [1.0, 0.0], 2.0),
        ([3e-15, 4e-15], [1.0, 0.0], 5e-15),
        ([np.nan, 1.0], [1.0, 0.0], 0.0),
        ([np.inf, 1.0], [1.0, 0.0], 0.0),
        ([np.inf, 1.0], [0.0, 0.0], 0.0),
    ],
    ids=["zero", "zero-features", "above", "below", "huge", "tiny", "nan", "infinite", "infinite-times-zero"],
)
def test_clip(values, features, norm):
    for vector in vectors(values, features):
        result = np.asarray(jax.jit(clip)(vector, 2.0).written_out(), np.float64)
        np.testing.assert_allclose(np.linalg.norm(result), norm, rtol=1e-6)
        if norm:
            wanted = np.outer(values, features)
            np.testing.assert_allclose(result, wanted * norm / np.linalg.norm(wanted), rtol=1e-6)


@pytest.mark.parametrize("name", ["uniform", "proportional", "gap", "sequence", "fresh", "stale", "batch"])
def test_guarantee_is_what_another_accountant_finds(name, problem):
    """Machine by machine, from the standard deviations that the mechanism really draws with."""
    sequence = tuple(1.0 + 0.3 * k for k in range(ROUNDS))
    protocol = {
        "fresh": DPMu2(mu=2.0, clip=CLIP, cancel=False),
        "batch": DPMu2(mu=2.0, clip=CLIP, batch=3),
        "stale": StaleMomentum(mu=2.0, clip=CLIP),
        "sequence": DPMu2(mu=2.0, clip=CLIP, noise_schedule=sequence),
    }.get(name) or DPMu2(mu=2.0, clip=CLIP, noise_schedule=name)
    plan = draw_plan(problem, SCHEDULE, seed=1, sampler=protocol.minibatches)
    rows, bound = plan.schedule.participants, 2 * CLIP / protocol.batch
    ready = calibrate(protocol, problem, plan)
    inputs = ready.mechanism(problem, plan, "materialised").inputs
    relative = np.asarray(getattr(inputs, "relative", inputs), np.float64)
    stated = guarantee(protocol, problem, plan, delta=1e-5)
    for machine in range(MACHINES):
        sigma = ready.noise_std * relative[machine == rows]
        rounds = 1 + np.flatnonzero((machine == rows).any(axis=1))
        if name == "fresh":
            sigma = sigma[:1]  # a sample touches one message
        if name == "stale":  # the first sample's share of every later message
            sigma = sigma / np.cumprod(np.append(1.0, (rounds[1:] - 1) / rounds[:-1]))
        epsilon = gaussian_epsilon(sigma / bound, 1e-5)
        mu = np.sqrt(np.sum((bound / sigma) ** 2))
        if name == "stale":
            assert mu <= stated.per_machine[machine] * (1 + 1e-6)
        else:
            np.testing.assert_allclose(stated.per_machine[machine], mu, rtol=1e-6)
            np.testing.assert_allclose(float(gdp.epsilon(mu, 1e-5)), epsilon, rtol=2e-3)
    assert stated.mu == stated.per_machine.max() <= 2.0 * (1 + 1e-9)


def test_an_increment_may_move_by_more_than_gradients_do():
    """S is G + 2LD, not G: with f = ½(a·w)² on the unit ball (G = L = 1) and an iterate that went from −a to a, a
    record's increment is a·3, and that of a record with a = 0 nothing."""
    features = np.zeros((4, 2), np.float32)
    features[:, 0] = 1.0
    squared = linear_problem(features, np.zeros(4, np.float32), Squared(1e-6), feature_bound=1.0, constraint=Ball(1.0))
    t, end = 1000, jnp.array([1.0, 0.0])
    plan = draw_plan(squared, Given(1, [[0]]), seed=1)
    protocol = calibrate(DPMu2(**SETTINGS), squared, plan)
    state = protocol.init(squared, plan.size, KEY)
    state = state._replace(server=Mu2State(-end + 2 / (t + 1) * (end + end), -end, end))
    at = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))._replace(round=jnp.asarray(t))
    other = with_sample(squared, int(plan.samples[0, 0]), np.zeros(2), 0.0)
    moved = float(jnp.linalg.norm(sent_by(protocol, squared, state, at) - sent_by(protocol, other, state, at)))
    assert moved == pytest.approx(3, rel=0.01)
    assert squared.lipschitz == pytest.approx(1, rel=1e-5)
    assert moved <= protocol.event(squared, plan).sensitivity
