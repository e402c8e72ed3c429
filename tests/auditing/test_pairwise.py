"""Audits of pairwise noise: correct guarantees are attained, and noise that is not as stated is refuted."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import fedprivjax as fpj
from fedprivjax.noise.pairwise import EdgeCovariance, Pairwise, PairwiseNoise
from fedprivjax.protocols.noisy_sgd import SGD

ALL = fpj.Federation(fpj.Full(4), rounds=4, records=12)
LOST = fpj.Federation(fpj.Dropouts(fpj.Full(4), 0.6), rounds=4, records=12)
RUNS = 1000


def messages():
    privacy = fpj.NoisyMessages(clip=1.0, noise=fpj.Pairwise("complete", shared=3.0))
    return fpj.Protocol(SGD(), privacy=privacy, mu=2.0, step_size=0.1)


@struct.dataclass(kw_only=True)
class Balanced(PairwiseNoise):
    """Planted: shared noise cancels together with the machines' own noise, so that the sum has none."""

    def message_noise(self, memory, inputs, key, dimension):
        added = super().message_noise(memory, inputs, key, dimension)[1]
        return memory, added - jnp.mean(added, axis=0, keepdims=True)


@struct.dataclass(kw_only=True)
class TakenBack(PairwiseNoise):
    """Survivors take back the noise that they share with machines that drop out."""

    def message_noise(self, memory, inputs, key, dimension):
        sends = jnp.where(inputs.relative > 0, inputs.machine, self.machines)
        return super().message_noise(memory, inputs._replace(machine=sends), key, dimension)


def plant(monkeypatch, kind):
    """Sample the noise of messages by another class."""
    correct = Pairwise.mechanism

    def mechanism(self, *arguments):
        found = correct(self, *arguments)
        return kind(**vars(found)) if isinstance(found, PairwiseNoise) else found

    monkeypatch.setattr(Pairwise, "mechanism", mechanism)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_the_guarantee_holds_and_is_attained():
    found = fpj.audit(messages(), ALL, runs=RUNS)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_noise_that_cancels_wrongly_is_refuted(monkeypatch):
    plant(monkeypatch, Balanced)
    assert fpj.audit(messages(), ALL, runs=RUNS).refuted


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_noise_shared_with_a_machine_that_drops_out_is_not_counted(monkeypatch):
    """The guarantee holds if survivors take this noise back. One that counts it is refuted."""
    plant(monkeypatch, TakenBack)
    assert not fpj.audit(messages(), LOST, runs=RUNS).refuted
    correct = EdgeCovariance.__call__

    def all_counted(self, machines, hidden):
        return correct(self, np.arange(len(self.own)), np.ones(len(self.own), bool))[np.ix_(machines, machines)]

    monkeypatch.setattr(EdgeCovariance, "__call__", all_counted)
    assert fpj.audit(messages(), LOST, runs=RUNS).refuted
