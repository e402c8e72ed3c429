"""Machines that see their neighbours' messages: μ between every two, by the covariance of whole views."""

from dataclasses import replace

import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax.experiment import load
from fedprivjax.noise.graphs import Torus
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.views import SentNoise
from fedprivjax.protocols.noisy_sgd import SGD

RNG = np.random.default_rng(0)
PATH = np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1)  # six machines in a row
X, Y = RNG.normal(size=(80, 3)), RNG.integers(0, 2, 80)
PROBLEM = fpj.linear_problem(X, Y, fpj.Logistic(), constraint=fpj.Ball(1.0))


def squared(u, v, graph, schedule, sent, shared, *, once):
    """μ² of machine u against v, from all that v sees: sums, and messages of neighbours, without v's own noise."""
    found = []
    for t, machines in enumerate(schedule.participants):
        own = machines == u
        sends = schedule.present[t] | own
        if not (own & schedule.scheduled[t]).any():
            continue
        others = sends & (machines != v)
        rows = [np.ones(machines.size)] + [(machines == w).astype(float) for w in np.flatnonzero(graph[v])]
        seen = np.array(rows)[:, others]
        noise = np.diag(sent.variances[t])[np.ix_(others, others)]
        if shared is not None:
            noise = shared(machines, others)[np.ix_(others, others)]
        moved = seen @ own[others].astype(float)
        found.append(moved @ np.linalg.pinv(seen @ noise @ seen.T) @ moved)
    return max(found, default=0.0) if once else sum(found)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("graph", [PATH, np.roll(np.eye(6), 1, 0) + np.roll(np.eye(6), -1, 0)], ids=["path", "ring"])
def test_it_is_that_of_the_whole_view(graph, dropped, once):
    participants = np.array([RNG.permutation(6)[:4] for _ in range(5)], np.int32)
    schedule = Schedule(6, participants, dropped=RNG.random((5, 4)) < 0.3 if dropped else None)
    sent = SentNoise(RNG.uniform(0.5, 2.0, (5, 4)), once=once)
    found = fpj.Neighbours(graph).between(sent, schedule) ** 2
    for u in range(6):
        for v in range(6):
            exact = 0.0 if u == v else squared(u, v, graph, schedule, sent, None, once=once)
            assert found[u, v] == pytest.approx(exact, rel=1e-9)
    np.testing.assert_allclose(fpj.Neighbours(graph).exposures(sent, schedule) ** 2, found.max(axis=1))


def test_noise_of_an_edge_is_known_at_its_ends():
    schedule = Schedule(6, np.arange(6, dtype=np.int32)[None])
    shared = fpj.Pairwise(PATH, shared=2.0).covariance(np.ones(6))
    sent = SentNoise(np.ones((1, 6)), True, shared)
    found = fpj.Neighbours(PATH).between(sent, schedule) ** 2
    laplacian = np.diag(PATH.sum(0)) - PATH
    for u, v in ((0, 1), (0, 5), (2, 3), (3, 1)):
        others = np.arange(6) != v
        inner = np.diag(PATH[others][:, others].sum(0)) - PATH[others][:, others]
        assert not np.allclose(inner, laplacian[others][:, others])  # edges at v have known noise

        def covariance(machines, hidden, inner=inner, others=others):
            found = np.zeros((6, 6))
            found[np.ix_(others, others)] = np.eye(5) + 4.0 * inner
            return found

        assert found[u, v] == pytest.approx(squared(u, v, PATH, schedule, sent, covariance, once=True), rel=1e-9)


def method(graph, **options):
    return fpj.Protocol(
        SGD(), privacy=fpj.NoisyMessages(clip=1.0, **options), mu=1.0, step_size=0.3, adversary=fpj.Neighbours(graph)
    )


def test_the_worst_pair_meets_the_target():
    run = fpj.ready(method("ring"), PROBLEM, fpj.Full(8), rounds=4)
    mus = run.protocol.adversary.mus(run)
    assert mus.shape == (8, 8)
    assert (mus.max(), run.guarantee.mu) == pytest.approx((1.0, 1.0))
    assert mus[0, 1] == pytest.approx(1.0)
    assert mus[0, 4] == pytest.approx(1 / np.sqrt(5))  # of eight noises, it knows its own and two neighbours' messages
    assert "messages of its neighbours on the graph (ring)" in str(run.guarantee)
    assert "every other machine but the one that observes adds its noise" in str(run.guarantee)


def test_a_file_names_it(tmp_path):
    text = """title = "a"
[problem]
dataset = "digits"
radius = 1.0
[participation]
machines = 6
rounds = 4
[[protocol]]
name = "noisy_sgd"
mu = 1.0
clip = 1.0
adversary = { kind = "neighbours", graph = { kind = "torus", rows = 2, columns = 3 } }
[evaluation]
"""
    file = tmp_path / "a.toml"
    file.write_text(text)
    assert load(file).protocol[0].make({}).adversary == fpj.Neighbours(Torus(2, 3))


def test_refusals():
    with pytest.raises(fpj.Refusal, match=r"^run must be what fpj.ready returns, .* got None$"):
        fpj.Neighbours("ring").mus(None)
    with pytest.raises(fpj.Refusal, match=r"^graph must be symmetric, got 1 in row 0, column 1$"):
        fpj.Neighbours([[0, 1], [0, 0]])
    with pytest.raises(fpj.Refusal, match=r"^machines must be at most 2000 with neighbours\(graph=ring\), got 2001"):
        fpj.Neighbours("ring").between(SentNoise(np.ones((1, 1))), Schedule(2001, np.zeros((1, 1), np.int32)))
    problem = fpj.linear_problem(
        X, Y, fpj.Logistic(), constraint=fpj.Ball(1.0), partition_table=np.arange(80).reshape(8, 10)
    )
    work = {"unit": "machine", "trust": "none", "update_clip": 1.0, "local_epochs": 1, "batch": 5, "step_size": 0.1}
    encoded = fpj.FedAvg(**work, mu=1.0, adversary=fpj.Neighbours("ring"), encoder=fpj.Quantiser(4))
    run = fpj.ready(encoded, problem, fpj.Full(8), rounds=2)
    with pytest.raises(fpj.Refusal, match=r"^μ between machines must follow from Gaussian messages of known noise"):
        run.protocol.adversary.mus(run)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["independent", fpj.Pairwise("ring", shared=2.0)], ids=["own", "shared"])
@pytest.mark.usefixtures("small_audits")
def test_an_audit_attains_it_and_does_not_refute_it(noise):
    found = fpj.audit(replace(method("ring", noise=noise), mu=2.0), runs=2000)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)
