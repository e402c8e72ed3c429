"""Guarantees of pairwise noise: the authors' accountant, brute force with colluders, dropouts, and all three units."""

import tomllib
from math import sqrt
from typing import Any

import numpy as np
import pytest
from oracles.decor import adjacency, rdp_account, seen_exposure, user_level, worst_exposure
from small_file import FEDERATION

import fedprivjax as fpj
from fedprivjax.experiment.read import parse
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy import coalition
from fedprivjax.privacy.adversaries import Local
from fedprivjax.privacy.gdp import epsilon
from fedprivjax.privacy.views import SentNoise
from fedprivjax.protocols.noisy_sgd import SGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype(np.float32)
TABLE = np.arange(80).reshape(8, 10)
PROBLEM = fpj.linear_problem(X, RNG.integers(0, 2, 80), fpj.Logistic(), constraint=fpj.Ball(1.0), partition_table=TABLE)
RING = fpj.Pairwise("ring", shared=2.0)
GRAPHS = [(name, n) for name in ("ring", "torus", "complete", "random") for n in (4, 9, 16, 25, 36)]
UPDATES = {"unit": "machine", "update_clip": 1.5, "trust": "none", "local_epochs": 1, "batch": 5, "step_size": 0.1}


def everyone(machines, rounds=1):
    return Schedule(machines, np.tile(np.arange(machines, dtype=np.int32), (rounds, 1)))


def sent_by(noise, schedule, own=None, once=False):
    own = np.ones(schedule.machines) if own is None else own
    return SentNoise(own[schedule.participants] ** 2, once, noise.covariance(own), cancels=True)


def exposures(adversary, sent, schedule) -> Any:
    """Return μ·σ/Δ of each machine."""
    return adversary.exposures(sent, schedule)


@pytest.mark.parametrize(("name", "machines"), GRAPHS)
def test_the_guarantee_is_that_of_the_authors_accountant(name, machines):
    matrix, rounds, shared, own, clip = adjacency(name, machines, seed=machines), 7, 3.0, 0.8, 1.5
    schedule = everyone(machines, rounds)
    mu = 2 * clip / own * exposures(Local(), sent_by(fpj.Pairwise(matrix, shared), schedule), schedule).max()
    rdp = rdp_account(own, shared * own, clip, matrix)
    assert mu**2 / 2 == pytest.approx(rounds * rdp, rel=1e-9)
    assert mu**2 / 2 + 2 * sqrt(mu**2 / 2 * np.log(1e5)) == pytest.approx(user_level(rounds, rdp, 1e-5), rel=1e-9)


def test_a_complete_graph_has_a_closed_form_up_to_the_largest_noise():
    """(K⁻¹)_ii = 1/n + (1 − 1/n)/(1 + n·s²)."""
    for n, shared in ((8, 1.0), (60, 1e3)):
        schedule = everyone(n)
        found = exposures(Local(), sent_by(fpj.Pairwise("complete", shared), schedule), schedule)
        np.testing.assert_allclose(found**2, 1 / n + (1 - 1 / n) / (1 + n * shared**2), rtol=1e-7)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("machines", [3, 4, 5])
def test_colluders_are_those_of_brute_force(machines, size):
    path = np.diag(np.ones(machines - 1), 1)
    for matrix in (adjacency("ring", machines), adjacency("complete", machines), path + path.T):
        schedule, noise = everyone(machines), fpj.Pairwise(matrix, shared=1.7)
        for server, summed in ((Local(), False), (fpj.SecureSum(), True)):
            found = exposures(fpj.Coalition(size, server), sent_by(noise, schedule), schedule)
            wanted = [worst_exposure(matrix, 1.7, machine, size, summed) for machine in range(machines)]
            np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_the_bound_for_many_coalitions_is_never_below_the_worst_one(monkeypatch):
    for name, machines, size in (("ring", 12, 1), ("torus", 16, 2), ("random", 10, 3), ("complete", 8, 6)):
        schedule, own = everyone(machines), RNG.uniform(1, 2, machines)
        sent = sent_by(fpj.Pairwise(adjacency(name, machines, seed=1), 2.0), schedule, own)
        adversary = fpj.Coalition(size, Local())
        worst = exposures(adversary, sent, schedule)
        with monkeypatch.context() as patch:
            patch.setattr(coalition, "MOST_COALITIONS", 1)
            bound, known = exposures(adversary, sent, schedule), np.asarray(adversary.known(sent, schedule))
        assert (bound >= worst * (1 - 1e-12)).all()
        assert (bound <= 1 / own * (1 + 1e-12)).all()
        assert known.sum() == size
    np.testing.assert_allclose(bound, worst, rtol=0.01)  # one neighbour is left: the bound is nearly exact


def test_many_machines_have_a_guarantee_against_a_coalition_of_many():
    schedule = everyone(400)
    sent = sent_by(fpj.Pairwise(fpj.RandomRings(4), 10.0), schedule)
    bound = exposures(fpj.Coalition(3, Local()), sent, schedule)
    assert bound.max() ** 2 <= 1 / (1 + 3 * 100 / 101)  # own noise, and that of three of at least six neighbours
    assert bound.min() ** 2 >= 1 / 6
    np.testing.assert_allclose(exposures(fpj.Coalition(3), sent, schedule) ** 2, 1 / 397)


def test_noise_shared_with_a_machine_that_drops_out_is_not_counted():
    """Stated is the view of an adversary who is told this noise. The view without it never shows more."""
    matrix = adjacency("random", 6)
    schedule = Schedule(6, np.arange(6, dtype=np.int32)[None], dropped=np.arange(6)[None] == 2)
    found = exposures(Local(), sent_by(fpj.Pairwise(matrix, 2.0), schedule), schedule)
    others = [j for j in range(6) if j != 2]
    told = [seen_exposure(matrix[np.ix_(others, others)], 2.0, machine, ()) for machine in range(5)]
    np.testing.assert_allclose(found[others], told, rtol=1e-9)
    assert found[2] == pytest.approx(seen_exposure(matrix, 2.0, 2, ()), rel=1e-9)  # as if its message had been sent
    laplacian = np.diag(matrix.sum(axis=1)) - matrix
    covariance = (np.eye(6) + 4.0 * laplacian)[np.ix_(others, others)]
    assert (found[others] ** 2 > np.diag(np.linalg.inv(covariance)) * (1 - 1e-12)).all()


def test_partial_cohorts_count_edges_between_participants():
    matrix, participants = adjacency("complete", 6), np.array([[0, 1, 2], [0, 4, 5]], np.int32)
    schedule = Schedule(6, participants)
    found = exposures(Local(), sent_by(fpj.Pairwise(matrix, 2.0), schedule), schedule)
    each = seen_exposure(adjacency("complete", 3), 2.0, 0, ())
    np.testing.assert_allclose(found, each * np.sqrt([2, 1, 1, 0, 1, 1]), rtol=1e-9)


def messages(**levels):
    return fpj.Protocol(SGD(), privacy=fpj.NoisyMessages(clip=1.5, noise=RING, batch=2), step_size=0.1, **levels)


def records(sampler="full", batch=None, **levels):
    privacy = fpj.NoisyRecords(clip=1.5, sampler=sampler, batch=batch, noise=RING)
    return fpj.Protocol(SGD(), privacy=privacy, step_size=0.1, **levels)


def updates(**levels):
    return fpj.FedAvg(**UPDATES, noise_schedule=RING, **levels)


WHOLE = sqrt(rdp_account(1.0, 2.0, 1.5, adjacency("ring", 8)) * 2)  # μ of one round for one clipped message


@pytest.mark.parametrize(
    ("method", "mu"),
    [(messages, WHOLE / 2), (records, WHOLE / 10 * sqrt(4)), (updates, WHOLE * sqrt(4))],
    ids=["one message", "all records", "machine"],
)
def test_every_unit_has_the_exact_guarantee_and_meets_its_target(method, mu):
    run = fpj.ready(method(noise_std=1.0), PROBLEM, fpj.Full(8), rounds=4)
    assert run.guarantee.epsilon == pytest.approx(float(epsilon(mu, 1e-5)), rel=1e-4)
    assert run.guarantee.epsilon >= float(epsilon(mu, 1e-5)) * (1 - 1e-9)
    met = fpj.ready(method(epsilon=2.0), PROBLEM, fpj.Full(8), rounds=4)
    assert 1.999 < met.guarantee.epsilon <= 2.0 * (1 + 1e-6)
    assert "DECOR" in str(met.guarantee)
    assert "share a secret seed of noise of 2 times a machine's own" in str(met.guarantee)


@pytest.mark.slow
def test_sampled_records_are_amplified_with_the_noise_that_hides_their_message():
    """A message counts as one with the noise 1/√(K⁻¹)_ii of its own."""
    method = records(sampler="poisson", batch=2, noise_std=2.0)
    alone = fpj.NoisyMinibatchSGD(clip=1.5, sampler="poisson", batch=2, step_size=0.1, noise_std=2.0 * 3 / WHOLE)
    found = [fpj.ready(one, PROBLEM, fpj.Full(8), rounds=4).guarantee.epsilon for one in (method, alone)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_noise_of_machines_with_unequal_noises_is_that_of_brute_force():
    """Machines with fewer records have more noise of their own, and the shared noise is the same on all edges."""
    own, noise, schedule = np.array([1.0, 2.0, 1.5, 1.0]), fpj.Pairwise("ring", 2.0), everyone(4)
    found = exposures(Local(), sent_by(noise, schedule, own), schedule)
    ring = adjacency("ring", 4)
    wanted = np.linalg.inv(np.diag(own**2) + 4.0 * (np.diag(ring.sum(axis=1)) - ring))
    np.testing.assert_allclose(found**2, np.diag(wanted), rtol=1e-9)


def test_sums_and_colluders_have_the_noise_that_the_page_prints():
    for adversary, exposure in (
        (None, seen_exposure(adjacency("ring", 8), 2.0, 0, ())),
        (Local(), seen_exposure(adjacency("ring", 8), 2.0, 0, ())),
        (fpj.Coalition(2, Local()), 1.0),  # both neighbours
        (fpj.SecureSum(), 8**-0.5),
        (fpj.Coalition(2), 6**-0.5),
    ):
        privacy = fpj.NoisyMessages(clip=1.5, noise=RING)
        method = fpj.Protocol(SGD(), privacy=privacy, mu=1.0, step_size=0.1, adversary=adversary)
        run = fpj.ready(method, PROBLEM, fpj.Full(8), rounds=4)
        assert run.protocol.noise_std == pytest.approx(3 * exposure, rel=1e-6)
        assert run.guarantee.mu == pytest.approx(1.0, rel=1e-6)


def test_a_large_cohort_is_refused_where_messages_are_seen():
    schedule = everyone(4001)
    with pytest.raises(fpj.Refusal, match=r"must be at most 4000 .* got 4001\. Use smaller cohorts"):
        exposures(Local(), sent_by(RING, schedule), schedule)
    np.testing.assert_allclose(exposures(fpj.SecureSum(), sent_by(RING, schedule), schedule), 4001**-0.5)


LOCAL = {"trust": "none", "local_epochs": 1, "batch": 5, "step_size": 0.1}
REFUSED = {
    "server": (lambda: fpj.NoisyMessages(noise=RING, trust="server"), "trust must be 'none' with Pairwise"),
    "shuffler": (lambda: fpj.NoisyRecords(batch=1, noise=RING, trust="shuffler"), "trust must be 'none' with Pairwise"),
    "shares": (lambda: fpj.NoisyMessages(noise=RING, relative_privacy=(1, 2)), "relative_privacy must be left out"),
    "rule": (lambda: fpj.NoisyRecords(batch=1, noise=RING, noise_rule="advanced"), "noise_rule must be left out"),
    "record": (
        lambda: fpj.FedAvg(**{**UPDATES, "unit": "record", "update_clip": None}, noise_schedule=RING),
        "unit mus",
    ),
    "bits": (lambda: fpj.FedAvg(**{**UPDATES, "update_clip": fpj.AdaptiveClip()}, noise_schedule=RING), "update_clip"),
    "encoder": (
        lambda: fpj.FedAvg(**UPDATES, encoder=fpj.Quantiser(4), noise_schedule=RING),
        "encoder must be left out",
    ),
    "other": (lambda: fpj.NoisyRecords(batch=1, noise="uniform"), "noise must be 'independent' or a Pairwise"),
    "key": (
        lambda: fpj.NoisyMessages(noise={"kind": "pairwise", "share": 1}),
        "unknown key of noise 'pairwise'",
    ),
    "dp_mu2": (lambda: fpj.DPMu2(noise_schedule=RING), "noise_schedule must be"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_proof_covers_is_refused_in_one_line(make, message):
    with pytest.raises(fpj.Refusal, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_graph_of_another_size_is_refused():
    privacy = fpj.NoisyMessages(clip=1.0, noise=fpj.Pairwise(fpj.Torus(4, 4)))
    with pytest.raises(fpj.Refusal, match=r"^machines must be 16, for .*, got 8\. Use 16 machines"):
        fpj.ready(fpj.Protocol(SGD(), privacy=privacy, mu=1.0, step_size=0.1), PROBLEM, fpj.Full(8), rounds=2)


def test_a_file_names_the_graph():
    table = """
[[protocol]]
name = "sgd"
step_size = 0.1
[protocol.privacy]
kind = "messages"
clip = 1.0
noise = { kind = "pairwise", graph = { kind = "torus", rows = 2, columns = 3 }, shared = 3.0 }
[[protocol]]
name = "fedavg"
step_size = 0.1
unit = "machine"
trust = "none"
update_clip = 1.0
local_epochs = 1
batch = 5
noise_schedule = { kind = "pairwise", graph = "ring" }
[sweep]
epsilon = [2.0]
"""
    first, second = parse(tomllib.loads(f'title = "graphs"\n{FEDERATION}\n{table}')).protocol
    assert first.make({"epsilon": 2.0}).privacy.noise == fpj.Pairwise(fpj.Torus(2, 3), shared=3.0)
    assert second.make({"epsilon": 2.0}).privacy.noise == fpj.Pairwise("ring")
