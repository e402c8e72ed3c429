"""Noise over windows: nodes, ring buffers compared with literal sums, variances, and resulting noise levels."""

from functools import cache
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.reduced_momentum import TREES, Literal, asked_nodes, dyadic, group_of

from fedprivjax.noise.factors import Independent, Tree
from fedprivjax.noise.factors.reduced import Groups, ReducedTrees, empty, optimal_stds
from fedprivjax.noise.factors.tree import compose, window
from fedprivjax.noise.interface import normals
from fedprivjax.noise.windows import WindowInputs, Windows, node_key
from fedprivjax.plan.seeds import round_keys
from fedprivjax.plan.uses import Uses

STDS = Groups(1.0, 0.7, 0.3, 0.2, 0.1)
QUICK = (5, 17, 0.2, 0.3)
EDGES = [(8, 64, 0.125, 0.1), (6, 29, 0.3, 1.0), (4, 30, 0.25, 0.0), (1, 9, 1.0, 0.5), (3, 14, 1.0, 0.4)]
SETTINGS = [QUICK, *EDGES]


def nodes_of(level, index, filled):
    return sorted(((i << k) + 1, (i + 1) << k) for k, i in zip(level[filled], index[filled], strict=True))


@pytest.mark.parametrize("epoch", [1, 5, 8])
def test_slots_are_the_nodes_of_compose(epoch):
    traced = jax.jit(lambda round: window(round, epoch, jnp)[1:])
    for round in range(1, 6 * epoch):
        level, index, filled = window(round, epoch)
        expected = compose(max(round - epoch, 0) + 1, round)
        assert nodes_of(level, index, filled) == expected == dyadic(max(round - epoch, 0) + 1, round)
        for found, expected in zip(traced(round), (index, filled), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("epoch", "rounds"), [(1, 5), (5, 5), (5, 23), (8, 64), (10, 35), (7, 13)])
def test_touched_nodes_are_the_requested_ones(epoch, rounds):
    expected = asked_nodes(epoch, rounds)
    for tree, name in enumerate(TREES[:2]):
        found = set()
        for level in range(epoch.bit_length()):
            node = np.arange(rounds >> level)
            touched = ReducedTrees(epoch).touched(node, level, rounds)[tree]
            found |= {((i << level) + 1, (i + 1) << level) for i in node[touched]}
        assert found == expected[name]


@pytest.mark.parametrize("epoch", [8, 16])
def test_the_number_of_nodes_with_a_record_is_as_specified(epoch):
    rounds, levels = epoch * 8, epoch.bit_length()
    uses = cyclic_uses(epoch, 8)
    counts = ReducedTrees(epoch).squares(uses, rounds, 1e-12, 0.5, 2.0 / epoch).round(6)
    counts[:, 2:] /= 4  # a record changes a difference twice as much
    assert counts[:, 0].max() == 2 * levels
    assert levels * 5 <= counts[:, 1].max() <= levels * 6
    assert counts[:, 2].max() == levels
    np.testing.assert_array_equal(counts[:, 3], counts[:, 1])


def paths(epoch, rounds, alpha, reset_rate, dimension=3):
    """Return the noise of the ring form and of the literal method with equal node noise, [rounds, d] each."""
    key, reduced = jax.random.key(3), ReducedTrees(epoch)
    source = Windows(WindowInputs(np.arange(1, rounds + 1), np.ones(rounds)), epoch)
    keys = round_keys(key, source.inputs.round)
    memory = source.init(dimension, key)
    drawn = source.draw(memory, source.inputs, keys, dimension)[1]
    later = dict(zip(TREES, (STDS[:2], STDS[2:4]), strict=False))

    def step(rings, drawn):
        rings = reduced.step(rings, drawn, alpha, reset_rate, STDS)
        return rings, rings.last

    @cache
    def noise(tree, first, last):
        if tree == "residuals":
            return STDS.residuals * normal(keys[last - 1]) * (not empty(last, epoch) or last > first)
        size = last - first + 1
        own = node_key(memory, TREES.index(tree), size.bit_length() - 1, (first - 1) // size)
        return later[tree][int(last > 2 * epoch)] * normal(own)

    one = jax.jit(lambda key: normals(key, (dimension,)))

    def normal(key):
        return np.asarray(one(key), np.float64)

    rings = jax.lax.scan(step, reduced.init(dimension, rounds), drawn)[1]
    trees, literal = Literal(epoch, alpha, reset_rate, noise), []
    for t in range(1, rounds + 1):
        trees.add(np.zeros(dimension), np.zeros(dimension), np.zeros(dimension) if t > epoch else None)
        literal.append(trees.estimate())
    return np.asarray(rings), np.array(literal)


@pytest.mark.slow
@pytest.mark.parametrize(("epoch", "rounds", "alpha", "reset_rate"), SETTINGS)
def test_rings_are_the_literal_sum_of_the_same_noises(epoch, rounds, alpha, reset_rate):
    with jax.enable_x64(True):
        rings, literal = paths(epoch, rounds, alpha, reset_rate)
    assert rings.dtype == np.float64
    np.testing.assert_allclose(rings, literal, rtol=1e-12, atol=1e-12 * np.abs(literal).max())


@pytest.mark.slow  # whole runs are compared with the literal method in float32 too
@pytest.mark.parametrize(("epoch", "rounds", "alpha", "reset_rate"), SETTINGS)
def test_rings_are_the_literal_sum_in_float32(epoch, rounds, alpha, reset_rate):
    rings, literal = paths(epoch, rounds, alpha, reset_rate)
    assert rings.dtype == np.float32
    np.testing.assert_allclose(rings, literal, rtol=1e-5, atol=1e-5 * np.abs(literal).max())


@pytest.mark.parametrize(("epoch", "rounds", "alpha", "reset_rate"), SETTINGS)
def test_variances_are_the_squares_of_what_nodes_are_multiplied_by(epoch, rounds, alpha, reset_rate):
    nodes = [(tree, *node) for tree, own in asked_nodes(epoch, rounds).items() for node in sorted(own)]
    place = dict(zip(nodes, np.eye(len(nodes)), strict=True))
    group = [group_of(tree, last, epoch) for tree, _, last in nodes]
    silent = [tree == "residuals" and first == last and empty(last, epoch) for tree, first, last in nodes]
    trees = Literal(epoch, alpha, reset_rate, lambda *node: place[node])
    variances = ReducedTrees(epoch).variances(rounds, alpha, reset_rate)
    for t in range(1, rounds + 1):
        trees.add(0.0, 0.0, 0.0 if t > epoch else None)
        squares = np.where(silent, 0.0, trees.estimate() ** 2)
        np.testing.assert_allclose(variances[t - 1], np.bincount(group, squares, minlength=5), rtol=1e-10, atol=1e-12)


def test_a_node_has_one_noise_sample_per_machine():
    epoch, rounds, d = 6, 20, 4
    place = np.tile(np.arange(3), (rounds, 1))
    inputs = WindowInputs(np.arange(1, rounds + 1), np.ones(place.shape), place)
    source, seen = Windows(inputs, epoch), {}
    memory = source.message_memory(d, jax.random.key(0))
    keys = round_keys(jax.random.key(0), inputs.round)
    mean = source.draw(memory, inputs, keys, d)[1]
    own_noise = jax.jit(lambda inputs, key: source.message_noise(memory, inputs, key, d)[1])
    for t in range(rounds):
        own = own_noise(jax.tree.map(lambda leaf, t=t: leaf[t], inputs), keys[t])
        np.testing.assert_allclose(np.mean(own.nodes, axis=0), mean.nodes[t], rtol=1e-5, atol=1e-6)
        level, index, filled = window(t + 1, epoch)
        for slot in np.flatnonzero(filled):
            drawn = np.asarray(own.nodes[:, :, slot])
            before = seen.setdefault((level[slot], index[slot]), drawn)
            np.testing.assert_array_equal(before, drawn)
    different = np.concatenate([drawn.ravel() for drawn in seen.values()])
    assert np.unique(different).size == different.size
    assert abs(different.std() - 1) < 5 / np.sqrt(2 * different.size)


# ---- resulting noise levels


def cyclic_uses(epoch, epochs):
    """Return the uses of one record per round, in cyclic order."""
    round = np.arange(1, epoch * epochs + 1).reshape(epochs, epoch).T.ravel()
    return Uses(round, (round - 1) % epoch, np.ones(round.size), epoch)


def table_row(epoch, epochs, multiple=1.0):
    """Return the noise rms in m̂/(α·G) at ρ = 1/2 with L = G, for Algorithm 2, Algorithm 1 and independent noise."""
    rounds, alpha = epoch * epochs, multiple / epoch
    uses, step = cyclic_uses(epoch, epochs), 1 / sqrt(epoch * rounds)
    reset_rate, trees = min(1.0, step * epoch), ReducedTrees(epoch)
    squares = trees.squares(uses, rounds, alpha, reset_rate, step)
    variances = trees.variances(rounds, alpha, reset_rate)
    stds = np.array(optimal_stds(squares, variances))
    reduced = 2 * sqrt((squares / stds**2).sum(axis=1).max() * (variances @ stds**2).mean())
    plain = [
        2 * sqrt(f.squares(uses, rounds, alpha).max() * f.variances(rounds, alpha).mean())
        for f in (Tree(), Independent())
    ]
    return reduced, *plain


TABLE = {
    (64, 16): (43.5, 30.9, 45.4),
    (64, 256): (90.6, 124, 182),
    (64, 1024): (127, 248, 364),
    (64, 1024, 1.7): (91, 215, 279),
    (64, 4096): (179, 499, 727),
    (16, 16384): (174, 677, 736),
}


@pytest.mark.parametrize(
    "row", [row if row[0] * row[1] < 1e5 else pytest.param(row, marks=pytest.mark.slow) for row in TABLE]
)
def test_the_table_of_noises_at_one_privacy(row):
    np.testing.assert_allclose(table_row(*row), TABLE[row], rtol=0.05)


def test_the_best_allocation_is_better_than_its_neighbours():
    uses, trees = cyclic_uses(8, 6), ReducedTrees(8)
    squares, variances = trees.squares(uses, 48, 0.2, 0.3, 0.05), trees.variances(48, 0.2, 0.3)
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)

    def noise(stds):
        return np.sum(exposed / stds**2) * np.sum(weight * stds**2)

    best = np.array(optimal_stds(squares, variances))
    for group in range(5):
        for factor in (0.9, 1.1):
            assert noise(best) < noise(np.where(np.arange(5) == group, factor * best, best))
