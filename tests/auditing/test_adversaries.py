"""Audits through the view of an adversary: correct guarantees hold, and planted ones are refuted."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from flax import struct
from pairwise_messages import RingMessages, RingNoise
from restating import planted, unsealed

import fedprivjax as fpj
from fedprivjax.privacy.adversaries import Local
from fedprivjax.privacy.coalition import Coalition
from fedprivjax.protocols.noisy_sgd import SGD

UPDATES = {"unit": "machine", "update_clip": 1.0, "trust": "none", "local_epochs": 1, "batch": 5, "step_size": 0.1}
ALL = fpj.Federation(fpj.Full(4), rounds=4, records=12)
RUNS = 4000


@dataclass(frozen=True)
class Pairs(fpj.LinearAdversary):
    """The sums of even and of odd machines."""

    name, sees = "pairs", "the sums of even and of odd machines"

    def rows(self, machines):
        return machines % 2 == np.arange(2)[:, None]


def updates(adversary):
    return fpj.FedAvg(**UPDATES, mu=2.0, adversary=adversary)


def records(adversary):
    return fpj.NoisySGD(clip=1.0, mu=2.0, adversary=adversary)


def ring(adversary, privacy=RingMessages):
    return fpj.Protocol(SGD(), privacy=privacy(), mu=2.0, step_size=0.1, adversary=adversary)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [updates(fpj.SecureSum()), updates(fpj.FinalModel()), records(fpj.Coalition(2)), records(Pairs())],
    ids=lambda method: f"{method.name}-{method.adversary}",
)
@pytest.mark.usefixtures("small_audits")
def test_correct_guarantees_are_attained_and_hold(method):
    rounds = 4 if method.adversary.follows_rounds else 1
    found = fpj.audit(method, replace(ALL, rounds=rounds), runs=RUNS)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)
    assert found.tightness > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("adversary", [None, Pairs()], ids=str)
@pytest.mark.usefixtures("small_audits")
def test_noise_shared_by_machines_is_audited(adversary):
    found = fpj.audit(ring(adversary), ALL, runs=RUNS)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)


def one_noise_too_many(private, facts):
    sent = fpj.LocalPrivacy.sent_noise(private, facts)
    return sent._replace(variances=1.5 * sent.variances)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_a_noise_too_many_is_refuted():
    """Four machines send, and the guarantee counts six noises."""
    method = planted(updates(None), unsealed(sent_noise=one_noise_too_many))
    assert fpj.audit(replace(method, adversary=fpj.SecureSum()), ALL, runs=RUNS).refuted


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_a_coalition_whose_noise_counts_is_refuted(monkeypatch):
    """The guarantee is that against a server alone, and the view that of a coalition."""
    monkeypatch.setattr(Coalition, "exposures", lambda self, *facts: fpj.SecureSum().exposures(*facts))
    assert fpj.audit(updates(fpj.Coalition(2)), ALL, runs=RUNS).refuted


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_a_message_too_many_is_refuted(monkeypatch):
    """The guarantee is that of sums, and the view shows every message."""
    monkeypatch.setattr(fpj.SecureSum, "view", lambda self, full: Local().view(full))
    monkeypatch.setattr(fpj.SecureSum, "senders", Local.senders)
    assert fpj.audit(updates(fpj.SecureSum()), ALL, runs=RUNS).refuted


@struct.dataclass
class SumsToZero(RingNoise):
    """Planted: the noise of all machines cancels in the sum, their own noise included."""

    def message_noise(self, memory, inputs, key, dimension):
        added = super().message_noise(memory, inputs, key, dimension)[1]
        return memory, added - added.mean(axis=0, keepdims=True)


@struct.dataclass(kw_only=True)
class CancelsAll(RingMessages):
    """Planted: its mechanism."""

    event = RingMessages.event
    sent_noise = RingMessages.sent_noise

    def mechanism(self, facts, method):
        return SumsToZero(facts.plan.schedule.present.astype(np.float32), self.shared)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_pairwise_noise_that_cancels_wrongly_is_refuted():
    assert fpj.audit(ring(fpj.SecureSum(), CancelsAll), ALL, runs=RUNS).refuted


@pytest.mark.slow
def test_the_contract_tests_noise_that_machines_share():
    features = np.random.default_rng(0).normal(size=(96, 3))
    problem = fpj.linear_problem(features, np.arange(96) % 2, fpj.Logistic(), constraint=fpj.Ball(1.0))
    names = ["machines relabelled", "the noise has the stated distribution", "the view fits the trust model"]
    report = fpj.check_protocol(ring(fpj.SecureSum()), problem, fpj.Full(4), properties=names)
    assert "depends on which machines send" in report.not_applicable["machines relabelled"]
    with pytest.raises(AssertionError, match="noise must have the stated scale"):
        fpj.check_protocol(ring(None, CancelsAll), problem, fpj.Full(4), properties=names)
