"""Brute-force sensitivity with fixed query points and rounding keys, and distributions of the sums."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from cases import sparing, unit_rows

from fedprivjax import Ball, Dropouts, Huber, Mean, OnePass, UserAGD, UserSGD, draw_plan, gradient, linear_problem
from fedprivjax.engine.prepare import ready, round_inputs
from fedprivjax.engine.simulate import execute
from fedprivjax.engine.transcript import replay
from fedprivjax.method.linear import of_record
from fedprivjax.method.private_mean import sensitivity
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.release import Limits
from fedprivjax.method.round import cohort_messages, flat_rows
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.views import FullView
from fedprivjax.problem.program import typed_jit

USERS, PER_ROUND, ROUNDS, FEATURES, WIDTH, CLIP = 12, 4, 3, 5, 0.5, 0.2
TRUSTS = ("shuffler", "none", "server", "pan-private")
KEY = jax.random.key(0)
RNG = np.random.default_rng(6)
X, Y = unit_rows(RNG, USERS, FEATURES), RNG.choice([-0.3, 0.3, 5.0], USERS).astype(np.float32)
PASS = OnePass(USERS, PER_ROUND)


def world(features=X, labels=Y):
    """Huber regression, d = 5; a label far away makes a gradient of norm 1/2, the bound."""
    set_of = {"feature_bound": 1.0 + 1e-6, "constraint": Ball(2.0)}
    return linear_problem(features[:, None], labels[:, None], Huber(WIDTH), **set_of)


def neighbours():
    """(record, world with another in its place): random ones, and the label turned to the other side."""
    rng = np.random.default_rng(7)
    for record in rng.choice(USERS, 4, replace=False):
        features, labels = X.copy(), Y.copy()
        labels[record] = -np.sign(Y[record]) * 5
        yield record, world(labels=labels)
        features[record] = unit_rows(rng, 1, FEATURES)[0]
        yield record, world(features, labels)


def opposite():
    """Worlds whose record 0 has gradients as far apart as any: ±1/2 along its features, the ones along an axis."""
    features = X.copy()
    features[0] = np.eye(FEATURES)[0]
    return [world(features, np.append(sign * 50, Y[1:]).astype(np.float32)) for sign in (1, -1)]


@typed_jit
def gradients_of(protocol, problem, state, inputs):
    """Gradients of the users before rounding, [per_round, d]."""
    clip = protocol.clip
    return flat_rows(problem, cohort_messages(problem, of_record(gradient(protocol.rounds.query(state))), inputs, clip))


@typed_jit
def mean_of(protocol, problem, state, inputs, key):
    """The server's mean without noise; behind a shuffler, rounded levels [per_round, d]."""
    if protocol.trust == "shuffler":
        return protocol.vector_sum.rounded(key, gradients_of(protocol, problem, state, inputs))
    message, limits = gradient(protocol.rounds.query(state)), Limits(Mean(), None)
    mean = protocol.privacy.release(problem, message, inputs, None, (), limits, key).read
    return flat_rows(problem, jax.tree.map(lambda leaf: leaf[None], mean))[0]


def states_of(protocol, problem, plan):
    """The state before each round of a noisy run, whose noise is the test's."""
    rng, inputs = np.random.default_rng(8), round_inputs(plan)
    quiet = replace(protocol, trust="server", vector_sum=None)
    state, states = quiet.init(problem, plan.size, KEY), []
    for t in range(plan.size.rounds):
        states.append(state)
        noise = np.float32(0.3) * rng.normal(size=problem.dimension).astype(np.float32)
        state = quiet.round(problem, state, jax.tree.map(lambda leaf, t=t: leaf[t], inputs), noise, KEY)[0]
    return states


def set_up(method, trust, problem=None, **settings):
    problem = world() if problem is None else problem
    plan = draw_plan(problem, PASS, ROUNDS, seed=1)
    protocol = calibrate(method(**{"noise_std": 0.4, "step_size": 0.5, "trust": trust, **settings}), problem, plan)
    return protocol, as_leaves(protocol.traced), problem, plan


def rounds_of(leaves, problem, plan):
    """(round, state, inputs, the round's own key)."""
    inputs = round_inputs(plan)
    at = [jax.tree.map(lambda leaf, t=t: leaf[t], inputs) for t in range(plan.size.rounds)]
    keys = [protocol_key(KEY, np.int32(t + 1)) for t in range(plan.size.rounds)]
    return list(zip(range(plan.size.rounds), states_of(leaves, problem, plan), at, keys, strict=True))


GAUSSIAN = [(method, trust, clip) for method in (UserSGD, UserAGD) for trust in TRUSTS[1:] for clip in (None, CLIP)]
QUICK = [(UserSGD, "server", None)]


@pytest.mark.parametrize(("method", "trust", "clip"), sparing(GAUSSIAN, QUICK))
def test_a_record_moves_a_sum_by_at_most_twice_the_bound(method, trust, clip):
    protocol, leaves, problem, plan = set_up(method, trust, clip=clip)
    bound, moved, asked = WIDTH if clip is None else clip, [], rounds_of(leaves, problem, plan)
    assert sensitivity(protocol.rounds.bound(problem, USERS).norm) == pytest.approx(2 * bound)
    for record, other in neighbours():
        for t, state, inputs, key in asked:
            means = [np.asarray(mean_of(leaves, p, state, inputs, key), np.float64) for p in (problem, other)]
            change = PER_ROUND * np.linalg.norm(means[1] - means[0])
            used = record in plan.samples[t]
            assert (change > 1e-3) == used
            assert change <= 2 * bound * (1 + 1e-4) if used else change == 0
            moved.append(change)
    assert max(moved) > 0.5 * bound


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("trust", sparing(TRUSTS[1:], ["none"]))
def test_and_by_nearly_that_at_worst(trust, clip):
    one, other = opposite()
    _, leaves, _, plan = set_up(UserSGD, trust, clip=clip, problem=one)
    moved = []
    for _, state, inputs, key in rounds_of(leaves, one, plan):
        means = [np.asarray(mean_of(leaves, p, state, inputs, key), np.float64) for p in (one, other)]
        moved.append(PER_ROUND * np.linalg.norm(means[1] - means[0]))
    bound = WIDTH if clip is None else clip
    assert 0.95 * 2 * bound <= max(moved) <= 2 * bound * (1 + 1e-5)


BITS = [(method, clip, levels) for method in (UserSGD, UserAGD) for clip in (None, CLIP) for levels in (None, 3, 8)]


@pytest.mark.parametrize(("method", "clip", "levels"), sparing(BITS, [(UserSGD, CLIP, 3)]))
def test_a_record_moves_the_levels_as_its_rounding_is_coupled(method, clip, levels):
    """By ‖k‖ ≤ g + √d, and in each coordinate by the difference's floor or ceiling; others' levels stay."""
    protocol, leaves, problem, plan = set_up(method, "shuffler", clip=clip, levels=levels)
    g, largest, asked = protocol.vector_sum.levels, 0.0, rounds_of(leaves, problem, plan)
    assert levels in (None, g)
    for record, other in neighbours():
        for t, state, inputs, key in asked:
            rounded = [np.asarray(mean_of(leaves, p, state, inputs, key)) for p in (problem, other)]
            scaled = [np.asarray(gradients_of(leaves, p, state, inputs), np.float64) for p in (problem, other)]
            assert rounded[0].dtype == np.int32
            assert min(map(np.min, rounded)) >= 0
            assert max(map(np.max, rounded)) <= g
            k, difference = rounded[1] - rounded[0], (scaled[1] - scaled[0]) * g / (2 * protocol.vector_sum.bound)
            own = plan.samples[t] == record
            assert not k[~own].any()
            assert np.linalg.norm(k) <= g + FEATURES**0.5
            assert (np.floor(difference - 1e-4) <= k).all()
            assert (k <= np.ceil(difference + 1e-4)).all()
            largest = max(largest, np.linalg.norm(k))
    assert largest > 0.25 * g


@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.slow), CLIP])
def test_and_by_all_levels_at_worst(clip):
    one, other = opposite()
    protocol, leaves, _, plan = set_up(UserSGD, "shuffler", clip=clip, problem=one)
    g, moved = protocol.vector_sum.levels, []
    for _, state, inputs, key in rounds_of(leaves, one, plan):
        rounded = [np.asarray(mean_of(leaves, p, state, inputs, key), np.int64) for p in (one, other)]
        moved.append(np.linalg.norm(rounded[1] - rounded[0]))
    assert 0.95 * g <= max(moved) <= g + FEATURES**0.5


def test_a_bound_beyond_the_stated_one_stays_within_the_levels():
    """A constant that is stated wrongly breaks the proof, yet no bits more are sent."""
    wrong = replace(world(), own_lipschitz=WIDTH / 20)
    protocol, leaves, problem, plan = set_up(UserSGD, "shuffler", problem=wrong)
    assert protocol.vector_sum.bound == WIDTH / 20
    for _, state, inputs, key in rounds_of(leaves, problem, plan):
        rounded = np.asarray(mean_of(leaves, problem, state, inputs, key))
        assert rounded.min() >= 0
        assert rounded.max() <= protocol.vector_sum.levels


# ---- the distribution of the mean's noise

WIDE, FEW, SIGMA, LEVELS = 4000, 6, 0.3, 3
WIDE_X = unit_rows(np.random.default_rng(1), 2 * FEW, WIDE) * np.sqrt(WIDE) / 40  # coordinates of about 1/40
WIDE_Y = np.full(2 * FEW, 100.0, np.float32)
LIMIT = 5.0
WAYS = {"shuffler": ("auto", "normal", "materialised"), "none": ("auto", "materialised")}
EACH_WAY = [(trust, way) for trust in TRUSTS for way in WAYS.get(trust, ("auto",))]


def wide():
    """The gradients at 0 are −C·x/‖x‖, whatever the labels: they saturate the clip."""
    return linear_problem(WIDE_X, WIDE_Y, Huber(1.0), feature_bound=float(np.linalg.norm(WIDE_X[0])) * 1.00001)


def first_step(trust, way, dropouts=0.0):
    """The first round's estimate of the mean gradient in a run, less that mean; and the variance that is stated."""
    problem = wide()
    limit = {"accounting": "gaussian-limit"} if way == "normal" else {}
    protocol = UserSGD(noise_std=SIGMA, step_size=1.0, clip=1.0, trust=trust, **bits_of(trust), **limit)
    participation = Dropouts(OnePass(2 * FEW, FEW), dropouts)
    options = {
        "rounds": 2,
        "seed": 2,
        "order": "stored",
        "eval_every": 2,
        "metrics": ["noise_norm"],
        "noise_method": way,
    }
    start = ready(protocol, problem, participation, **options)
    present = start.plan.schedule.present[0]
    rows = -WIDE_X[start.plan.samples[0].ravel()[present]].astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w1 = 2 * np.asarray(execute(start).params, np.float64)  # the output is (0 + w_1)/2
    n = present.sum()
    added = FEW * SIGMA**2 if trust in ("server", "pan-private") else n * SIGMA**2
    variance = np.full(WIDE, added / n**2)
    if trust == "shuffler":
        fraction = (rows + 1) * LEVELS / 2 % 1
        variance += (2 / LEVELS) ** 2 * (fraction * (1 - fraction)).sum(axis=0) / n**2
    return -w1 - rows.mean(axis=0), variance, start


def bits_of(trust):
    return {"levels": LEVELS} if trust == "shuffler" else {}


def off(numbers, variance):
    """Deviations of mean and variance from the stated values, in standard errors."""
    z = numbers / np.sqrt(variance)
    return abs(z.mean()) * np.sqrt(z.size), abs(z.var() - 1) * np.sqrt(z.size / 2)


@pytest.mark.parametrize(("trust", "way"), sparing(EACH_WAY, [("shuffler", "auto"), ("pan-private", "auto")]))
def test_the_mean_has_the_stated_noise_and_no_other(trust, way):
    """σ√n/n and, behind a shuffler, the rounding; a rounded normal has the lattice's 1/12 more."""
    numbers, variance, start = first_step(trust, way)
    if way == "normal":
        variance = variance + start.protocol.vector_sum.unit**2 / 12 / FEW**2
    assert max(off(numbers, variance)) < LIMIT
    for scale in (2 / 3, 3 / 2):
        assert off(scale * numbers, variance)[1] > LIMIT
    assert np.abs(np.corrcoef(numbers, variance)[0, 1]) < 0.1


@pytest.mark.parametrize("trust", sparing(TRUSTS, ["shuffler"]))
def test_and_with_dropouts_that_of_those_who_take_part(trust):
    numbers, variance, start = first_step(trust, "auto", dropouts=0.5)
    assert start.plan.schedule.present[0].sum() < FEW
    assert max(off(numbers, variance)) < LIMIT


@pytest.mark.parametrize("trust", sparing(["shuffler", "none"], []))
def test_messages_add_up_to_the_mean(trust):
    """A transcript's messages, with all their noise, are what the server steps by."""
    _, _, start = first_step(trust, "materialised")
    state, (queries, sent, *_) = replay(start.arguments, start.plan.size)
    first = np.asarray(queries[0] - queries[1], np.float64)
    np.testing.assert_allclose(np.asarray(sent[0], np.float64).mean(axis=0), first, atol=1e-5)
    seen = start.protocol.rounds.view(FullView(np.asarray(queries), np.asarray(sent), (), 0)).messages
    if trust == "shuffler":
        sums = start.protocol.vector_sum
        counts = seen[0] / sums.unit + FEW * (0.5 * sums.levels + sums.trials * sums.probability)
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-3)  # a number of ones
        assert 0 <= counts.min() <= counts.max() <= FEW * (sums.levels + sums.trials)
    assert np.isfinite(np.asarray(start.protocol.output(state))).all()
