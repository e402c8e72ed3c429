"""Tree momentum of reduced sensitivity against its literal form; its privacy by brute force."""

from dataclasses import replace
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import FEATURES, MACHINES, PARTIAL, SHARES, X, Y, sparing
from oracles.reduced_momentum import TREES, Literal, asked_nodes, group_of, trajectory

from fedprivjax import Absolute, Ball, Box, Full, ReducedTreeMomentum, Refusal, Softmax, WholeSpace, linear_problem
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute
from fedprivjax.engine.transcript import replay
from fedprivjax.method.clipping import clip
from fedprivjax.method.difference_momentum import LONGEST
from fedprivjax.noise.factors.reduced import ReducedTrees, empty
from fedprivjax.noise.interface import normals
from fedprivjax.noise.windows import node_key
from fedprivjax.plan.seeds import round_keys
from fedprivjax.plan.uses import Uses
from fedprivjax.problem.models import Dense
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.sweeps.memory import chunk_sizes, run_bytes
from fedprivjax.sweeps.sweep import sweep
from fedprivjax.testing.trial import PROBE

EPOCH, ROUNDS, BATCH = 6, 40, 6
EVERYONE = Full(MACHINES)
SETTINGS = {"batch": BATCH, "step_size": 0.05, "alpha": 0.3, "reset_rate": 0.25}


# ---- the identity


@pytest.mark.parametrize(
    ("epoch", "alpha", "reset_rate"), [(5, 0.2, 0.3), (8, 0.125, 0.0), (4, 0.3, 1.0), (1, 1.0, 0.5)]
)
@pytest.mark.parametrize(("kind", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_three_gradients_a_round_are_the_momentum_in_cyclic_order(epoch, alpha, reset_rate, kind, tolerance):
    assert misfit(epoch, alpha, reset_rate, kind) < tolerance


def test_in_another_order_they_are_not():
    assert misfit(5, 0.2, 0.3, np.float64, reshuffle=True) > 0.1


def misfit(epoch, alpha, reset_rate, kind, *, reshuffle=False):
    """The largest error of the literal estimator, over the largest momentum, for gradients that are drawn."""
    rng, d, rounds = np.random.default_rng(4), 3, 7 * epoch + 2
    table = rng.normal(size=(rounds + 1, epoch, d)).astype(kind)
    orders = [rng.permutation(epoch) if reshuffle else np.arange(epoch) for _ in range(9)]
    trees = Literal(epoch, kind(alpha), kind(reset_rate), lambda *_: kind(0))
    momentum, errors, sizes = np.zeros(d), [], []
    for t in range(rounds):
        number, place = divmod(t, epoch)
        record = orders[number][place]
        before = table[(number - 1) * epoch, record] if number else None
        trees.add(table[t, record], table[number * epoch, record], before)
        momentum = (1 - alpha) * momentum + alpha * table[t, record]
        errors.append(np.abs(trees.estimate() - momentum).max())
        sizes.append(np.abs(momentum).max())
    return max(errors) / max(sizes)


# ---- a run against the literal method


def mean_gradient(protocol, plan, turned=()):
    """The mean gradient of a round's records, with some of the labels turned."""
    features, labels = X.reshape(-1, FEATURES).astype(float), Y.ravel().astype(float)
    labels[list(turned)] = 1 - labels[list(turned)]

    def gradient(w, t, slots=slice(None)):
        at = plan.samples[t - 1, slots].ravel()
        g = (1 / (1 + np.exp(-features[at] @ w)) - labels[at])[:, None] * features[at]
        if protocol.clip is not None:
            g = g * np.minimum(1, protocol.clip / np.linalg.norm(g, axis=1, keepdims=True))
        return g.mean(axis=0)

    return gradient


draw = jax.jit(normals, static_argnums=1)


def noise_of(start, place=None):
    """A node's noise, of the server's trees or of the machine's at a place."""
    protocol, d = start.protocol, start.problem.dimension
    nodes, rounds = jax.random.fold_in(start.key, 0), round_keys(start.key, np.arange(1, ROUNDS + 1))
    if place is not None:
        nodes, rounds = (jax.random.fold_in(nodes, place), jax.vmap(lambda k: jax.random.fold_in(k, place))(rounds))

    @cache
    def noise(tree, first, last):
        if tree == "residuals":
            silent = first == last and empty(last, EPOCH)
            return (
                0.0
                if silent
                else protocol.noise_std * protocol.stds.residuals * np.asarray(draw(rounds[last - 1], (d,)))
            )
        size, number = last - first + 1, TREES.index(tree)
        key = node_key(nodes, number, size.bit_length() - 1, (first - 1) // size)
        std = protocol.stds[2 * number + int(last > 2 * EPOCH)]
        return protocol.noise_std * std * np.asarray(draw(key, (d,)), np.float64)

    return noise


def literal_of(start, noise):
    protocol, radius = start.protocol, start.problem.constraint.radius
    known = {"epoch": EPOCH, "alpha": protocol.alpha, "reset_rate": protocol.reset_rate, "noise": noise}
    project = lambda w: w * min(1.0, radius / np.linalg.norm(w))  # noqa: E731
    gradient = mean_gradient(protocol, start.plan)
    return trajectory(gradient, np.zeros(FEATURES), ROUNDS, protocol.step_size, project, **known)


CASES = {
    "silent": ReducedTreeMomentum(noise_std=0.0, **SETTINGS),
    "server": ReducedTreeMomentum(noise_std=0.02, **SETTINGS),
    "clipped": ReducedTreeMomentum(noise_std=0.02, clip=0.3, **SETTINGS),
    "machines": ReducedTreeMomentum(noise_std=0.02, trust="none", **SETTINGS),
}


@pytest.mark.parametrize("name", sparing(list(CASES), ["machines"]))
def test_a_run_is_the_literal_method(name):
    options = {"rounds": ROUNDS, "eval_every": ROUNDS, "noise_method": "materialised"}
    start = ready(CASES[name], SHARES, EVERYONE, **options)
    if name == "machines":
        each = [noise_of(start, place) for place in range(MACHINES)]
        noise = lambda *node: np.mean([own(*node) for own in each], axis=0)  # noqa: E731
    else:
        noise = (lambda *_: 0.0) if name == "silent" else noise_of(start)
    points, estimates, _ = literal_of(start, noise)
    queries, sent, *_ = replay(start.arguments, start.plan.size)[1]
    np.testing.assert_allclose(queries, points, atol=2e-5)
    added = estimates - (1 - start.protocol.alpha) * np.concatenate([np.zeros((1, FEATURES)), estimates[:-1]])
    if name == "machines":
        np.testing.assert_allclose(np.mean(sent, axis=1), added, atol=2e-5 * np.abs(estimates).max())
    assert np.linalg.norm(points[-1] - points[0]) > 0.2


def test_the_mean_of_machines_trees_is_one_tree_in_law():
    one = ReducedTreeMomentum(noise_std=0.3, **SETTINGS)
    each = replace(one, trust="none")
    spread = []
    for protocol in (one, each):
        start = ready(protocol, SHARES, EVERYONE, rounds=ROUNDS)
        drawn = start.protocol.noise_variances(start.plan.size) / np.sum(np.square(start.protocol.stds))
        spread.append((start.protocol, drawn, np.square(start.mechanism.inputs.relative)))
    np.testing.assert_allclose(spread[1][2], 1 / MACHINES, rtol=1e-6)
    np.testing.assert_allclose(spread[1][1], spread[0][1] / MACHINES, rtol=1e-9)
    assert spread[0][0].stds == spread[1][0].stds


# ---- privacy by brute force


def contributions(leaves, asked, epoch, alpha):
    """`Σ (what two worlds' nodes differ by)²` of every group, from the leaves' differences by tree."""
    trees, squares = Literal(epoch, alpha, 0.5, lambda *_: 0.0), np.zeros(5)
    trees.leaves = leaves
    for tree in TREES:
        for first, last in asked.get(tree, ()):
            squares[group_of(tree, last, epoch)] += np.sum((trees.node(tree, first, last) / alpha) ** 2)
    return squares


def world_differences(gradient, points, record, epoch):
    """The leaves of every tree in one world, less those where the record's loss has the opposite sign."""
    trees = Literal(epoch, 0.5, 0.5, lambda *_: 0.0)
    for t, w in enumerate(points):
        number, place = divmod(t, epoch)
        moved = 2 * float(place == record)
        before = moved * gradient(points[(number - 1) * epoch]) if number else None
        trees.add(moved * gradient(w), moved * gradient(points[number * epoch]), before)
    return trees.leaves


def walks(rounds, step):
    """Steps of one length: along a line, near the origin and far from it, and in directions that are drawn."""
    rng, along = np.random.default_rng(5), np.array([1.0, 0.0])
    line = step * (np.arange(rounds)[:, None] - rounds // 2) * along
    turns = rng.normal(size=(8, rounds, 2)) + along
    return [line, line + 1e6 * along, *np.cumsum(step * turns / np.linalg.norm(turns, axis=2, keepdims=True), axis=1)]


@pytest.mark.parametrize(("epoch", "rounds"), sparing([(4, 30), (5, 23), (8, 40)], [(5, 23)]))
def test_no_record_moves_nodes_by_more_than_is_accounted_for_and_some_do_by_as_much(epoch, rounds):
    alpha, step, smooth, bound = 1.2 / epoch, 0.1, 0.5, 1.0
    round = np.arange(1, rounds + 1)
    order = np.lexsort((round, (round - 1) % epoch))
    uses = Uses(round[order], (round[order] - 1) % epoch, np.ones(rounds), epoch)
    accounted = 4 * bound**2 * ReducedTrees(epoch).squares(uses, rounds, alpha, 0.3, step * smooth / bound)
    asked = asked_nodes(epoch, rounds)
    most = np.zeros((epoch, 5))
    for points, curve, record in product(walks(rounds, step), (smooth, -0.4 * smooth), range(epoch)):

        def gradient(w, curve=curve):
            return curve * w * min(1.0, bound / max(np.linalg.norm(curve * w), 1e-30))

        found = contributions(world_differences(gradient, points, record, epoch), asked, epoch, alpha)
        assert (found <= accounted[record] * (1 + 1e-9) + 1e-12).all()
        most[record] = np.maximum(most[record], found)
    assert (most >= 0.95**2 * accounted).all()
    assert (accounted.max(axis=0) > 0).all()


@pytest.mark.parametrize("trust", ["server", "none"])
def test_a_record_that_turns_a_clipped_gradient_round_has_the_exposure_stated(trust):
    """Of the anchors' nodes, for a gradient that is clipped everywhere differs nowhere."""
    start = ready(ReducedTreeMomentum(noise_std=0.02, clip=0.05, trust=trust, **SETTINGS), SHARES, EVERYONE, rounds=22)
    protocol, plan, worst = start.protocol, start.plan, 0.0
    stds = protocol.stds._replace(differences=np.inf, later_differences=np.inf, residuals=np.inf)
    asked = asked_nodes(EPOCH, 22)
    for record in plan.samples[:EPOCH, 0, 0]:
        one, other = (mean_gradient(protocol, plan, turned) for turned in ((), (record,)))
        slots = slice(None) if trust == "server" else slice(0, 1)  # the record is of machine 0
        leaves = {t: one(np.zeros(FEATURES), t, slots) - other(np.zeros(FEATURES), t, slots) for t in range(1, 23)}
        squares = contributions({TREES[0]: leaves}, {TREES[0]: asked[TREES[0]]}, EPOCH, protocol.alpha)
        worst = max(worst, np.sum(protocol.alpha**2 * squares / np.square(stds)) / protocol.noise_std**2)
    assert replace(protocol, stds=stds).event(SHARES, plan).mu == pytest.approx(np.sqrt(worst), rel=1e-5)


# ---- settings


def test_defaults_are_theorem_9s_at_the_rounds_given():
    start = ready(ReducedTreeMomentum(mu=1.0, batch=BATCH), SHARES, EVERYONE, rounds=60)
    protocol = start.protocol
    assert protocol.step_size == pytest.approx((EPOCH * 60) ** -0.5)
    assert protocol.reset_rate == pytest.approx(EPOCH * protocol.step_size)
    assert protocol.alpha == pytest.approx(1.7 / EPOCH)
    assert start.event.mu == pytest.approx(1.0, rel=1e-6)
    short = ready(ReducedTreeMomentum(mu=1.0, batch=BATCH), SHARES, EVERYONE, rounds=EPOCH).protocol
    assert short.reset_rate == 0.5


def test_the_paper_s_noise_is_enough_and_its_allocation_worse():
    settings = {"mu": 1.0, "batch": 3, "alpha": 0.2}
    best = ready(ReducedTreeMomentum(**settings), SHARES, EVERYONE, rounds=96)
    shared = ready(ReducedTreeMomentum(allocation="paper", **settings), SHARES, EVERYONE, rounds=96)
    claimed = ready(
        ReducedTreeMomentum(allocation="paper", noise_rule="paper", **settings), SHARES, EVERYONE, rounds=96
    )
    assert best.event.mu == pytest.approx(1.0)
    assert shared.event.mu == pytest.approx(1.0)
    assert 0.4 < claimed.event.mu < 0.7
    rms = [start.protocol.noise_variances(start.plan.size).mean() ** 0.5 for start in (best, shared, claimed)]
    assert 1.3 * rms[0] < rms[1] < 0.7 * rms[2]


@pytest.mark.slow
def test_members_differ_in_discount_and_reset():
    over, options = (
        {"alpha": [0.2, 0.5], "reset_rate": [0.1, 1.0]},
        {"rounds": 12, "eval_every": 12, "metrics": (PROBE,)},
    )
    protocol = ReducedTreeMomentum(mu=1.0, batch=BATCH, step_size=0.05)
    grid = sweep(protocol, SHARES, EVERYONE, over=over, seeds=[3], **options)["probe"]
    for alpha in over["alpha"]:
        alone = replace(protocol, alpha=alpha, reset_rate=0.1)
        run = execute(ready(alone, SHARES, EVERYONE, seed=3, **options))
        member = of_iterate(grid.sel(alpha=alpha, reset_rate=0.1, seed=3))
        np.testing.assert_allclose(member.values[-1], run.metrics["probe"][-1], rtol=1e-4)
    assert np.unique(of_iterate(grid).values.round(6)).size == 4


ROUGH = linear_problem(X, Y.astype(float), Absolute(), feature_bound=1.0, constraint=Ball(1.0))
ONES, ZEROS = np.ones((1, 3000, 1), np.float32), np.zeros((1, 3000), int)
LARGE = linear_problem(ONES, ZEROS, Softmax(100_000), feature_bound=1.0)


REFUSALS = {
    "sampler must be 'cyclic'": lambda: ReducedTreeMomentum(mu=1.0, sampler="reshuffled"),
    "reset_rate must be between 0 and 1": lambda: ReducedTreeMomentum(mu=1.0, reset_rate=1.5),
    "alpha must be above 0": lambda: ReducedTreeMomentum(mu=1.0, alpha=1.5),
    "alpha must be at least 1/6": lambda: made(alpha=0.1),
    "rounds must be at least those of one epoch": lambda: made(rounds=5),
    "participation must be Full": lambda: made(participation=PARTIAL),
    "allocation must be 'paper'": lambda: ReducedTreeMomentum(mu=1.0, noise_rule="paper"),
    "smoothness must be known": lambda: made(problem=ROUGH),
    "100000 numbers must be at most 2 GiB, got 2.24 GiB": lambda: made(LARGE, Full(1), 3000, batch=1),
}


def made(problem=SHARES, participation=EVERYONE, rounds=12, **settings):
    return ready(ReducedTreeMomentum(**{"mu": 1.0, "batch": BATCH, **settings}), problem, participation, rounds=rounds)


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals_are_one_clear_line(words):
    with pytest.raises(Refusal) as refused:
        REFUSALS[words]()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_sweep_counts_rings_and_the_nodes_of_a_block():
    d, epoch, rounds = 1000, 36, 72
    wide = linear_problem(ONES[:, :epoch], ZEROS[:, :epoch], Softmax(d), feature_bound=1.0)
    per_draw, per_configuration = run_bytes(made(wide, Full(1), rounds, batch=1))
    assert per_configuration > 4 * 2 * epoch * d
    assert per_draw > 4 * 64 * 2 * 2 * epoch.bit_length() * d
    with pytest.raises(Refusal, match="memory_budget must be at least"):
        chunk_sizes(made(wide, Full(1), rounds, batch=1), (1, 1), per_draw)


def drift(start):
    """Largest change of a gradient between two rounds, divided by the gradient bound."""
    return start.protocol.privacy.drift(start.protocol.rounds.facts(start.problem, start.plan))


def test_a_start_on_the_edge_up_to_rounding_moves_further_than_a_step():
    edge = np.float32(1 + 9e-7)
    boxed = replace(SHARES, constraint=Box(-1.0, 1.0).of(SHARES.start), start=np.full(SHARES.start.shape, edge))
    settings = {"mu": None, "noise_std": 1.0, "step_size": 1e-9, "alpha": 0.3, "reset_rate": 0.25}
    start = made(boxed, rounds=12, **settings)
    assert boxed.constraint.contains(boxed.start)
    moved = np.linalg.norm(boxed.constraint.project(boxed.start) - boxed.start)
    assert drift(start) > moved * SHARES.smoothness / SHARES.lipschitz > 0


def test_steps_that_rounding_lengthens_are_accounted_for():
    """Far from 0, a step in float32 is longer than η, and so what a record moves between two points is more."""
    space = replace(SHARES, constraint=WholeSpace())
    far = replace(space, start=space.start + 3e4)
    settings = {"mu": None, "noise_std": 1.0, "step_size": 0.002, "alpha": 0.3, "reset_rate": 0.25}
    starts = [made(problem, rounds=18, **settings) for problem in (space, far)]
    near, other = (drift(start) for start in starts)
    w, step = np.float32(4e4), np.float32(0.002)
    moved = np.abs((w - step) - w)
    assert moved > 1.9 * step
    assert near < 0.002 * SHARES.smoothness / SHARES.lipschitz * 1.001
    assert other > moved * SHARES.smoothness / SHARES.lipschitz


def test_the_guarantee_assumes_gradients_whose_norm_does_not_overflow():
    """Clipping is a projection up to that norm. Beyond it a gradient counts as 0, which no smoothness bounds."""
    below, beyond = (Dense(jnp.array([factor * LONGEST, 0.0], jnp.float32)) for factor in (0.99, 1.01))
    assert [float(clip(one, 1.0).norm()) for one in (below, beyond)] == [1.0, 0.0]
    said = "-smooth, with gradients shorter than 1.8e+19"
    assert [said in str(made(clip=bound).guarantee) for bound in (1.0, None)] == [True, False]
