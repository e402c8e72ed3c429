"""Audits of late answers: several answers of a machine in one buffer add, and a claim that counts them apart fails."""

import pytest
from audited import smaller

import fedprivjax as fpj

METHOD = fpj.FedAvg(unit="machine", update_clip=1.0, epsilon=4.0, local_epochs=1, batch=6, step_size=1.0)
LATE = fpj.Federation(fpj.Buffered(3, 3, delays=fpj.Delays(hours=[1.0, 1.0, 0.1])), rounds=6, records=12)


@pytest.mark.slow
def test_the_guarantee_holds_and_is_attained_and_answers_counted_apart_are_refuted(monkeypatch):
    smaller(monkeypatch)
    found = fpj.audit(METHOD, LATE, runs=4000)
    assert not found.refuted
    assert found.attained == pytest.approx(found.guarantee.mu, rel=0.01)

    def apart(schedule):
        return schedule.participants.ravel(), schedule.late.weights.ravel()

    monkeypatch.setattr(fpj.Schedule, "weights_by_machine", property(apart))
    assert fpj.audit(METHOD, LATE, runs=4000).refuted
