"""Pairwise noise as it is sampled: its covariance, its sum, dropouts, and quadratics with a server."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from oracles.decor import adjacency

import fedprivjax as fpj
from fedprivjax.noise.pairwise import PairwiseNoise, edges_of
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import round_keys
from fedprivjax.problem.random_keys import random_key
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.sweeps.execute import run_chunk

NUMBERS = 5000
GRAPH = adjacency("random", 6, seed=2)
NOISE = fpj.Pairwise(GRAPH, shared=2.0)
RELATIVE = np.array([1.0, 1.5, 1.0, 2.0, 1.0, 1.0])


def laplacian(graph):
    return np.diag(graph.sum(axis=1)) - graph


def sampled(noise, schedule, relative, dimension=NUMBERS):
    """Return the noise of a first round's messages, [per_round, dimension]."""
    each = relative[schedule.participants]
    mechanism = noise.mechanism(schedule, each, schedule.divisor, "materialised")
    assert isinstance(mechanism, PairwiseNoise)
    inputs = jax.tree.map(lambda leaf: leaf[0], mechanism.inputs)
    noise_of = jax.jit(lambda inputs, key: mechanism.message_noise((), inputs, key, dimension)[1])
    return np.asarray(noise_of(inputs, random_key(0)), float)


def of_sum(noise, schedule, relative, method):
    """Return the noise in a first round's mean, [NUMBERS]."""
    mechanism = noise.mechanism(schedule, relative[schedule.participants], schedule.divisor, method)
    keys = round_keys(random_key(1), np.arange(1, 2))
    return np.asarray(mechanism.draw(mechanism.init(NUMBERS, keys[0]), mechanism.inputs, keys, NUMBERS)[1][0])


def close(rows, covariance):
    """Assert that rows of independent samples have a covariance, within five standard errors."""
    found, own = rows @ rows.T / rows.shape[1], np.diag(covariance)
    errors = np.sqrt((own[:, None] * own + covariance**2) / rows.shape[1])
    assert (np.abs(found - covariance) < 5 * errors).all()


@pytest.mark.parametrize(
    "order", [pytest.param(np.arange(6), marks=pytest.mark.slow), np.array([3, 0, 5, 1])], ids=["everyone", "some"]
)
def test_messages_have_the_stated_covariance(order):
    schedule = Schedule(6, order[None].astype(np.int32))
    among = GRAPH[np.ix_(order, order)]
    covariance = np.diag(RELATIVE[order] ** 2) + 4 * laplacian(among)
    stated = NOISE.covariance(RELATIVE)(order, np.ones(order.size, bool))
    np.testing.assert_allclose(stated, covariance)
    close(sampled(NOISE, schedule, RELATIVE), covariance)


def test_a_machine_that_drops_out_leaves_the_noise_of_its_neighbours():
    dropped = np.array([[False, False, True, False, True, False]])
    schedule = Schedule(6, np.arange(6, dtype=np.int32)[None], dropped=dropped, expected=5.0)
    rows, left = sampled(NOISE, schedule, RELATIVE), ~dropped[0]
    covariance = (np.diag(RELATIVE**2) + 4 * laplacian(GRAPH))[np.ix_(left, left)]
    close(rows[left], covariance)
    assert (rows[~left] == 0).all()
    for method in ("auto", "materialised"):
        mean = of_sum(NOISE, schedule, RELATIVE, method)
        assert np.var(mean) == pytest.approx(covariance.sum() / 25, rel=0.1)


@pytest.mark.parametrize("method", ["auto", "materialised"])
def test_shared_noise_cancels_in_the_mean(method):
    schedule = Schedule(6, np.arange(6, dtype=np.int32)[None])
    mean = of_sum(fpj.Pairwise(GRAPH, shared=50.0), schedule, RELATIVE, method)
    assert np.var(mean) == pytest.approx(np.sum(RELATIVE**2) / 36, rel=0.1)


@pytest.mark.slow
def test_many_edges_are_sampled_a_chunk_at_a_time(monkeypatch):
    monkeypatch.setattr("fedprivjax.noise.pairwise.CHUNK_FLOATS", 4 * NUMBERS)  # 15 edges in 4 chunks
    noise, schedule = fpj.Pairwise("complete", 1.0), Schedule(6, np.arange(6, dtype=np.int32)[None])
    close(sampled(noise, schedule, np.ones(6)), np.eye(6) + laplacian(adjacency("complete", 6)))


def problem_of(points):
    """Quadratics ½·‖x − a_i‖² of machines with one record each, which they use in every round."""

    def loss(x, record):
        return 0.5 * ((x - record) ** 2).sum()

    start, table = np.zeros(points.shape[1], np.float32), np.arange(len(points))[:, None]
    return fpj.general_problem(loss, points, start, partition_table=table)


@pytest.mark.slow
def test_quadratics_follow_the_recursion_of_the_mean_and_its_variance():
    """A server that averages is gossip with W = 11ᵀ/n: S ← W·((1 − η)²·S + η²·Σ)·Wᵀ."""
    points = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    privacy = fpj.NoisyRecords(clip=1e3, sampler="full", noise=fpj.Pairwise("ring", shared=3.0))
    method = fpj.Protocol(SGD(), privacy=privacy, noise_std=0.5, step_size=0.2)
    found = fpj.sweep(method, problem_of(points), fpj.Full(8), rounds=15, seeds=300, keep=["params"])
    last = np.asarray(found["params"]).reshape(300, 4)
    center, errors = (1 - 0.8**15) * points.mean(axis=0), np.zeros((8, 8))
    covariance, average = 0.25 * (np.eye(8) + 9 * laplacian(adjacency("ring", 8))), np.full((8, 8), 1 / 8)
    for _ in range(15):
        errors = average @ (0.64 * errors + 0.04 * covariance) @ average.T
    np.testing.assert_allclose(last.mean(axis=0), center, atol=4 * np.sqrt(errors[0, 0] / 300))
    assert np.var(last - center) == pytest.approx(errors[0, 0], rel=4 * np.sqrt(2 / 1200))


@pytest.mark.slow
def test_another_shared_noise_does_not_recompile():
    points = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    problem, sizes = problem_of(points), []
    for shared, graph in ((2.0, "ring"), (3.0, "ring"), (3.0, "complete")):
        privacy = fpj.NoisyRecords(clip=1.0, sampler="full", noise=fpj.Pairwise(graph, shared))
        method = fpj.Protocol(SGD(), privacy=privacy, step_size=0.1)
        fpj.sweep(method, problem, fpj.Full(6), over={"mu": [1.0]}, rounds=2, seeds=1)
        sizes.append(run_chunk._cache_size())
    assert sizes[0] == sizes[1] == sizes[2]


def test_edges_are_computed_once_and_cannot_be_changed():
    edges = edges_of(NOISE.graph, 6)
    assert edges is edges_of(fpj.Pairwise(GRAPH).graph, 6)
    with pytest.raises(ValueError, match="read-only"):
        edges[0] = 0
    assert replace(NOISE, shared=1.0).graph == NOISE.graph
