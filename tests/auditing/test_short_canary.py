"""Audits of a message that holds a squared norm, which hides a long canary's update."""

import pytest
from audited import SETTINGS, smaller

from fedprivjax import FedAvg, FedExP, LocalEpochs, LocalPrivacy, Protocol, audit
from fedprivjax.auditing.federation import Federation
from fedprivjax.method.local_privacy import NoisyUpdates

WORK = {"work": LocalEpochs(1, 4), "unit": "machine", "update_clip": 0.5}
FEDERATION = Federation(**SETTINGS)


def fedexp(**settings):
    return Protocol(FedExP(), privacy=LocalPrivacy(**WORK, **settings), mu=2.0, step_size=0.1)


def test_the_steps_of_a_short_canary_add_up_to_the_clip():
    assert FEDERATION.shorter(fedexp()).canary == 1 / 3  # 12 records in batches of 4
    short = FEDERATION.shorter(FedAvg(local_epochs=2, batch=5, unit="machine", update_clip=1.0, mu=1.0, step_size=1.0))
    assert short.canary == 1 / 6
    assert short.positive_label(fedexp()) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["server", "none"])
def test_a_private_fedexp_is_audited_and_half_of_its_noise_refuted(trust, monkeypatch):
    smaller(monkeypatch, preparing=1024)
    found = audit(fedexp(trust=trust), FEDERATION, runs=1000)
    assert not found.refuted
    assert 0.5 * 2.0 < found.attained < 1.05 * 2.0
    stated = NoisyUpdates.sensitivity
    monkeypatch.setattr(NoisyUpdates, "sensitivity", lambda self, plan: stated(self, plan) / 2)
    assert audit(fedexp(trust=trust), FEDERATION, runs=1000).refuted
