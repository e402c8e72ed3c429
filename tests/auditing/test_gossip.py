"""Audits of gossip: the guarantee is attained. Half the noise, or steps along messages without noise, are refuted."""

import jax
import pytest

import fedprivjax as fpj
from fedprivjax.method import gossip_rounds
from fedprivjax.noise.interface import EachMessage

ALL = fpj.Federation(fpj.Full(4), rounds=4, records=12)
RUNS = 1000


def audited(noise="independent"):
    privacy = fpj.NoisyMessages(clip=1.0, noise=noise)
    return fpj.audit(fpj.Protocol(fpj.Gossip(), privacy=privacy, mu=2.0, step_size=0.1), ALL, runs=RUNS)


@pytest.fixture
def fault(monkeypatch):
    """A patch for programs that are compiled in this test, and in no other."""
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise", ["independent", fpj.Pairwise("complete", shared=3.0)], ids=["independent", "pairwise"]
)
def test_the_guarantee_holds_and_is_attained(noise):
    found = audited(noise)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow
def test_half_the_noise_is_refuted(fault):
    correct = EachMessage.message_noise

    def half(self, *arguments):
        memory, noise = correct(self, *arguments)
        return memory, noise / 2

    fault.setattr(EachMessage, "message_noise", half)
    assert audited().refuted


@pytest.mark.slow
def test_steps_along_messages_without_noise_are_refuted(fault):
    """What neighbours receive tells the messages, which have their noise in the transcript."""
    fault.setattr(gossip_rounds, "add_noise", lambda problem, message, noise: message)
    assert audited().refuted
