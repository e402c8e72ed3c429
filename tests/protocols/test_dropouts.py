"""Cohorts of varying size and dropouts: computation, messages and guarantees."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DATA, MACHINES, POOL, SHARES, STEP
from neighbours import sent_by, with_sample
from oracles import absent
from oracles.pseudocode import softmax_gradient
from restating import planted, unsealed

from fedprivjax import (
    AcceleratedMinibatchSGD,
    DPMu2,
    Dropouts,
    Full,
    LocalSGD,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    ReducedTreeMomentum,
    Refusal,
    StaleMomentum,
    TreeMomentum,
    Uniform,
    UserSGD,
    Varying,
    simulate,
)
from fedprivjax.engine.prepare import ready, round_inputs
from fedprivjax.engine.transcript import transcript
from fedprivjax.method.protocol import as_leaves
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.calibration import guarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.testing import PROPERTIES, Trial, check_protocol

ROUNDS, CLIP = 12, 0.5
SIZES = Varying.between(MACHINES, 1, 3)
DROPPING = Dropouts(SIZES, 0.3)
SILENT = {"noise_std": 0.0, "clip": CLIP, "step_size": 0.05}
SETTINGS = {"mu": 2.0, "clip": CLIP, "step_size": 0.05}


def sent(plan):
    """Senders of every round as pairs (machine, sample)."""
    samples = plan.samples[..., 0]
    machines = plan.schedule.participants
    return [
        [(int(machines[t, j]), int(samples[t, j])) for j in np.flatnonzero(on)]
        for t, on in enumerate(plan.schedule.present)
    ]


@pytest.mark.parametrize(
    ("protocol", "oracle", "law"),
    [
        (DPMu2(**SILENT), absent.mu2, DROPPING),
        (NoisySGD(**SILENT), absent.noisy_sgd, DROPPING),
        (StaleMomentum(**SILENT), absent.stale_momentum, SIZES),
    ],
    ids=["mu2", "sgd", "stale"],
)
def test_without_noise_it_is_the_oracle(protocol, oracle, law):
    start = ready(protocol, POOL, law, rounds=ROUNDS, seed=5, metrics=())
    schedule = start.plan.schedule
    assert 1 < schedule.present.sum(axis=1).mean() < 3
    zero = np.zeros(POOL.start.shape)
    settings = {"divisor": schedule.divisor, "radius": 1.0, "step_size": 0.05, "clip": CLIP}
    points = oracle(softmax_gradient(*DATA[:2]), sent(start.plan), zero, **settings)
    queries = transcript(protocol, POOL, law, rounds=ROUNDS, seed=5).queries
    np.testing.assert_allclose(queries, points.reshape(ROUNDS, -1), atol=2e-6)
    assert np.abs(points[-1]).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [DPMu2(**SETTINGS), StaleMomentum(**SETTINGS)], ids=["mu2", "stale"])
def test_who_is_absent_shows_nothing(protocol):
    law = DROPPING if isinstance(protocol, DPMu2) else SIZES
    seen = transcript(protocol, POOL, law, rounds=ROUNDS, seed=2)
    present = seen.plan.schedule.present
    assert not seen.messages[~present].any()
    assert seen.messages[present].any(axis=1).all()


def records(kind, **settings):
    return kind(**{"noise_std": 0.4, "batch": 4, "sampler": "subset", **STEP, **settings})


METHODS = {
    "mu2": (DPMu2(noise_schedule="gap", **SETTINGS), POOL, DROPPING),
    "mu2-server": (DPMu2(trust="server", **SETTINGS), POOL, DROPPING),
    "mu2-fresh": (DPMu2(cancel=False, **SETTINGS), POOL, DROPPING),
    "mu2-everyone": (DPMu2(**SETTINGS), POOL, Dropouts(Full(MACHINES), 0.4)),
    "sgd": (NoisySGD(**SETTINGS), POOL, DROPPING),
    "sgd-server": (NoisySGD(trust="server", **SETTINGS), POOL, DROPPING),
    "stale": (StaleMomentum(**SETTINGS), POOL, SIZES),
    "minibatch": (records(NoisyMinibatchSGD), SHARES, DROPPING),
    "accelerated": (records(AcceleratedMinibatchSGD), SHARES, DROPPING),
    "local": (records(LocalSGD, sampler="replacement"), SHARES, DROPPING),
    "tree": (TreeMomentum(noise_std=0.4, batch=4, alpha=0.5, step_size=0.1), SHARES, SIZES),
    "user": (UserSGD(noise_std=0.4, step_size=0.3), POOL, DROPPING),
    "user-none": (UserSGD(noise_std=0.4, step_size=0.3, trust="none"), POOL, DROPPING),
    "user-server": (UserSGD(noise_std=0.4, step_size=0.3, trust="server"), POOL, DROPPING),
}
HELD = ("the noise has the stated distribution", "the transcript follows the run", "the view fits the trust model")
QUICK = {"mu2-server": ("the noise has the stated distribution",)}


def pairs():
    for name in METHODS:
        for held in HELD[: 3 if name == "mu2" else 1]:
            slow = [] if held in QUICK.get(name, ()) else [pytest.mark.slow]
            yield pytest.param(name, held, marks=slow, id=f"{name}-{held}")


@pytest.fixture(scope="module")
def trial(request):
    return Trial(*METHODS[request.param], ROUNDS)


@pytest.mark.parametrize(("trial", "held"), list(pairs()), indirect=["trial"])
def test_the_contract_with_absent_machines(trial, held):
    PROPERTIES[held](trial)


@pytest.mark.parametrize("name", METHODS)
def test_the_guarantee_is_that_of_the_plan(name):
    """Dropouts change neither a machine's guarantee nor its noise."""
    protocol, problem, law = METHODS[name]
    if law is SIZES:
        return
    start = ready(protocol, problem, law, rounds=ROUNDS, seed=4, metrics=(), eval_every=ROUNDS)
    planned = replace(start.plan, schedule=start.plan.schedule.planned)
    assert start.plan.schedule.dropped.any()
    one, two = (start.protocol.event(problem, plan).guarantee(1e-5) for plan in (start.plan, planned))
    if name == "user":  # fewer users' bits hide a record less
        assert one.epsilon > two.epsilon
    else:
        np.testing.assert_array_equal(one.per_machine, two.per_machine)


def test_a_sample_of_a_machine_that_drops_out_moves_no_view_beyond_its_mu():
    """Brute force: every sample of machine 0 in turn is replaced; all that its messages tell of it is counted."""
    protocol = DPMu2(noise_schedule="proportional", noise_std=1.0, clip=CLIP, step_size=0.1)
    start = ready(protocol, POOL, Dropouts(Full(MACHINES), 0.4), rounds=ROUNDS, seed=1, metrics=())
    plan, inputs, leaves = start.plan, round_inputs(start.plan), as_leaves(start.protocol)
    mine = plan.schedule.participants == 0
    relative = protocol.message_noise.relative(plan)
    assert 0 < (mine & plan.schedule.dropped).sum() < ROUNDS - 3
    state = start.protocol.init(POOL, plan.size, jax.random.key(0))
    apart = {"x": np.asarray(POOL.start) + 0.1, "x_previous": np.asarray(POOL.start) - 0.1}
    state = state._replace(server=state.server._replace(**apart))

    def views(problem):
        rows = [
            np.asarray(sent_by(leaves, problem, state, jax.tree.map(lambda leaf, t=t: leaf[t], inputs)))
            for t in range(ROUNDS)
        ]
        return np.cumsum(np.array(rows)[mine], axis=0)

    plain, worst = views(POOL), 0.0
    for t, j in zip(*np.nonzero(mine), strict=True):
        sample = int(plan.samples[t, j, 0])
        features = -np.asarray(POOL.pool.features[sample])
        change = np.linalg.norm(views(with_sample(POOL, sample, features, 1)) - plain, axis=1)
        if plan.schedule.dropped[t, j]:
            assert not change.any()
        told = (change / relative[mine]) ** 2 * plan.schedule.present[mine]
        assert (change <= 2 * CLIP * (1 + 1e-5)).all()
        worst = max(worst, np.sqrt(told.sum()))
    mu = start.event.mus.each[0]
    assert 0.3 * mu < worst <= mu * (1 + 1e-5)


def test_noise_of_a_round_by_its_own_number_would_pile_up():
    """Bernoulli(1/2), 100 machines, 1200 rounds: divided by one constant, as much noise stands in every round from the
    time when everyone has sent; divided by each round's own number, what is taken back is not what was added."""
    schedule = Varying.binomial(100, 0.5).draw(1200, np.random.default_rng(0))
    plan = replace(ready(DPMu2(**SETTINGS), POOL, SIZES, rounds=4, metrics=()).plan, schedule=schedule)
    noise_std = np.sqrt(1 / 12)  # r² is a machine's number of messages, about 600; here at unit variance
    ones = DPMu2(noise_std=noise_std, noise_schedule=(1.0,) * 700)
    scale = ones.message_noise.relative(plan).max()
    constant = ones.noise_variances(plan) / (noise_std * scale) ** 2
    np.testing.assert_allclose(constant[100:], 100 / schedule.divisor**2, rtol=1e-9)
    assert constant[-1] == pytest.approx(0.040, rel=1e-3)
    over = 1 / schedule.present.sum(axis=1)
    start, slot = np.nonzero(schedule.present)
    end = start + schedule.gaps[start, slot]
    taken = end < 1200
    left = 100 / 50**2 + np.sum((over[end[taken]] - over[start[taken]]) ** 2)
    assert 0.45 < left < 0.65


def ghosts(private, problem, message, inputs, noise, memory, limits, key):
    """Return a release in which empty slots are added to the sum."""
    everyone = inputs if inputs.weights is None else inputs._replace(weights=jnp.ones_like(inputs.weights))
    return NoisyMessages.release(private, problem, message, everyone, noise, memory, limits, key)


def of_the_present(private, facts, noise_std):
    """Return an event that counts dropouts as more private, although they are not known in advance."""
    schedule, relative = facts.plan.schedule, private.noise_of(facts.reads).relative(facts.plan)
    squares = np.where(schedule.present, relative**-2.0, 0.0)
    exposure = np.sqrt(np.bincount(schedule.participants.ravel(), squares.ravel(), MACHINES))
    return replace(NoisyMessages.event(private, facts, noise_std), exposure=Grouped.of(exposure))


GHOSTS = planted(NoisySGD(**SETTINGS), unsealed(release=ghosts))
OF_THE_PRESENT = planted(DPMu2(**SETTINGS), unsealed(event=of_the_present))


@pytest.mark.parametrize(
    ("protocol", "held"),
    [
        pytest.param(GHOSTS, "absent machines leave no trace", id="ghosts"),
        pytest.param(OF_THE_PRESENT, "dropouts count as planned", id="present"),
    ],
)
def test_planted_faults_are_caught(protocol, held):
    with pytest.raises(AssertionError, match=f"fails '{held}'"):
        check_protocol(protocol, POOL, Uniform(MACHINES, 2), properties=[held])


def test_refusals_say_why():
    everyone = Dropouts(Full(MACHINES), 0.3)
    for protocol, problem, law, why in (
        (StaleMomentum(**SETTINGS), POOL, DROPPING, "earlier samples weigh more in its next message"),
        (METHODS["tree"][0], SHARES, DROPPING, "a machine uses its records in other rounds than planned"),
        (
            replace(METHODS["tree"][0], trust="none"),
            SHARES,
            Varying.between(4, 2, 4),
            "participation must be Full",
        ),
        (ReducedTreeMomentum(noise_std=0.4, batch=9, alpha=0.5, step_size=0.1), SHARES, everyone, "other rounds"),
        (records(NoisyMinibatchSGD, batch=1, trust="shuffler"), SHARES, DROPPING, "fewer messages give a record less"),
    ):
        with pytest.raises(Refusal, match=why):
            simulate(protocol, problem, law, rounds=ROUNDS)


def test_public_samples_are_refused_with_dropouts():
    start = ready(METHODS["minibatch"][0], SHARES, DROPPING, rounds=ROUNDS, metrics=())
    with pytest.raises(Refusal, match="if the used records are public"):
        start.protocol.event(SHARES, replace(start.plan, secret=False))


def test_a_round_that_nobody_fills_is_refused():
    start = ready(NoisySGD(**SETTINGS), POOL, Uniform(MACHINES, 2), rounds=3, metrics=())
    rows = start.plan.schedule.participants
    dropped = np.zeros(rows.shape, bool)
    dropped[1] = True
    empty = Schedule(MACHINES, rows, dropped=dropped, expected=1.5)
    with pytest.raises(Refusal, match="at least one machine in every round, got none in round 2"):
        guarantee(start.protocol, POOL, replace(start.plan, schedule=empty))
