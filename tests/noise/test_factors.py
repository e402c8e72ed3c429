"""Factors: streamed noise compared with the defining sums, and sensitivities to a record."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from cases import sparing

from fedprivjax.noise.factors import FACTORS, Independent, Tree
from fedprivjax.noise.factors.tree import compose
from fedprivjax.plan.uses import Uses

SETTINGS = [(1, 0.5), (7, 0.3), (64, 0.1), (200, 1 / 60_000), (300, 1.0), (1023, 0.001)]


def node_std(factor, size, alpha, epoch):
    """Return the standard deviation of a node as in the docstrings, in a loop."""
    if factor.nodes == "uniform":
        return 1.0
    return sum((1 - alpha) ** (j * epoch) for j in range(int(np.ceil(size / epoch))))


def written_out(factor, rounds, alpha, epoch):
    """Return B, [rounds, rounds]: row t uses the nodes that end at its nonzero columns."""
    matrix = np.zeros((rounds, rounds))
    for t in range(1, rounds + 1):
        for first, last in compose(1, t) if isinstance(factor, Tree) else [(s, s) for s in range(1, t + 1)]:
            std = node_std(factor, last - first + 1, alpha, epoch) if isinstance(factor, Tree) else 1.0
            matrix[t - 1, last - 1] = (1 - alpha) ** (t - last) * std
    return matrix


def streamed(factor, normals, alpha, epoch):
    rounds, dimension = normals.shape

    def one(path, normal):
        path = factor.step(path, normal, alpha, epoch)
        return path, path.last

    return np.asarray(jax.jit(lambda z: jax.lax.scan(one, factor.init(dimension, rounds), z)[1])(normals))


def uses_of_epochs(records, epochs, order, rng):
    once = rng.permutation(records)
    record = np.concatenate([once if order == "cyclic" else rng.permutation(records) for _ in range(epochs)])
    rounds = np.arange(1, record.size + 1)
    sorted_by = np.lexsort((rounds, record))
    return Uses(rounds[sorted_by], record[sorted_by], np.ones(record.size), records)


def test_compose_is_the_fewest_dyadic_nodes():
    for first in range(1, 40):
        for last in range(first, 90):
            nodes = compose(first, last)
            assert nodes[0][0] == first
            assert nodes[-1][1] == last
            assert all(one[1] + 1 == other[0] for one, other in pairwise(nodes))
            for start, end in nodes:
                size = end - start + 1
                assert size & (size - 1) == 0
                assert (start - 1) % size == 0
            if first == 1:
                assert len(nodes) == last.bit_count()


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize(("rounds", "alpha"), sparing(SETTINGS, SETTINGS[:2]))
def test_a_stream_is_its_sum_over_nodes(name, rounds, alpha):
    factor, epoch = FACTORS[name], 9.0
    normals = np.random.default_rng(0).normal(size=(rounds, 3))
    expected = written_out(factor, rounds, alpha, epoch) @ normals
    size = np.sqrt(np.mean(expected**2, axis=1, keepdims=True))
    found = streamed(factor, *(np.asarray(value, np.float32) for value in (normals, alpha, epoch)))
    assert found.dtype == np.float32
    if name != "independent":  # a sum of about 1/α terms, each rounded
        assert np.max(np.abs(found - expected) / size) < 2e-6
    with jax.enable_x64(True):
        found = streamed(factor, normals, np.float64(alpha), np.float64(epoch))
    assert np.max(np.abs(found - expected) / size) < 1e-12 * max(1, rounds / 50)


@pytest.mark.parametrize("name", FACTORS)
def test_variances_are_those_of_the_sum(name):
    factor = FACTORS[name]
    for rounds, alpha in SETTINGS[:5]:
        expected = np.sum(written_out(factor, rounds, alpha, 9.0) ** 2, axis=1)
        np.testing.assert_allclose(factor.variances(rounds, alpha, 9.0), expected, rtol=1e-9)


@pytest.mark.parametrize("order", ["cyclic", "reshuffled"])
@pytest.mark.parametrize("name", FACTORS)
def test_squares_are_the_squared_sensitivity_of_the_releases(name, order):
    """B·(C·g + z) is the momentum A·g with noise B·z, so a record's part of A·g is whitened by B⁻¹."""
    factor, records = FACTORS[name], 6
    for epochs, alpha in ((1, 0.4), (5, 1 / 6), (7, 1.0)):
        rounds = records * epochs
        uses = uses_of_epochs(records, epochs, order, np.random.default_rng(epochs))
        uses = uses._replace(weight=np.random.default_rng(1).uniform(0.2, 1, rounds))
        momentum = np.array([[(1 - alpha) ** (t - s) if s <= t else 0.0 for s in range(rounds)] for t in range(rounds)])
        telling = np.linalg.solve(written_out(factor, rounds, alpha, float(records)), momentum)
        leaves = np.zeros((rounds, records))
        leaves[uses.round - 1, uses.record] = uses.weight
        expected = np.sum((telling @ leaves) ** 2, axis=0)
        np.testing.assert_allclose(factor.squares(uses, rounds, alpha, float(records)), expected, rtol=1e-8)


TABLE = {  # N, epochs, αN, order: exact ρ of the paper's noise by 4αG and by node; rms of both, `Tree`, independent
    (256, 1, 1, "cyclic"): (0.093, 0.37, 22.8, 11.4, 9.8, 17.1),
    (256, 8, 1, "cyclic"): (0.086, 0.34, 71.2, 36.5, 29.5, 62.0),
    (256, 8, 1, "reshuffled"): (0.067, 0.26, 71.2, 36.5, 25.8, 62.0),
    (256, 64, 1, "reshuffled"): (0.059, 0.22, 203.8, 105.3, 69.5, 180.5),
    (1024, 16, 1, "cyclic"): (0.092, 0.36, 124, 63.5, 53.1, 178.2),
    (1024, 16, 64, "cyclic"): (0.033, 0.13, 82, 41, 21.0, 23.0),
    (1000, 10, 1000, "cyclic"): (0.011, 0.043, 43, 21.5, 6.3, 6.3),
}


def row(records, epochs, weight, order):
    """Return a row of the table at ρ = 1/2, α·C = 1."""
    rounds, alpha = records * epochs, weight / records
    uses = uses_of_epochs(records, epochs, order, np.random.default_rng(5))
    low, depth = records.bit_length() - 1, rounds.bit_length() - 1
    count = (min(low, depth) + 1) * epochs + sum(rounds >> j for j in range(low + 1, depth + 1))

    def rms(factor):
        return np.sqrt(factor.variances(rounds, alpha, records).mean())

    def exposed(factor):
        return 4 * factor.squares(uses, rounds, alpha, records).max()

    tree, by_node, fresh = Tree(), Tree("sensitivity"), Independent()
    noises = {tree: 4 * np.sqrt(count), by_node: 2 * np.sqrt(count)}
    claims = [exposed(factor) / noise**2 / 2 for factor, noise in noises.items()]
    paper = [noise * rms(factor) for factor, noise in noises.items()]
    return (*claims, *paper, *(np.sqrt(exposed(factor)) * rms(factor) for factor in (tree, fresh)))


@pytest.mark.parametrize(
    ("records", "epochs", "weight", "order"), sparing(list(TABLE), [s for s in TABLE if s[1] < 64])
)
def test_noise_against_epochs(records, epochs, weight, order):
    found, expected = row(records, epochs, weight, order), TABLE[records, epochs, weight, order]
    for place, (ours, stated) in enumerate(zip(found, expected, strict=True)):
        drawn = 0.06 if place < 2 else 0.03  # ρ is a square
        digits = len(str(stated).partition(".")[2])
        tolerance = 0.5001 * 10.0**-digits if order == "cyclic" else drawn * stated
        assert abs(ours - stated) <= tolerance
