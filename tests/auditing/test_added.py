"""Audits of guarantees for adding or removing one record or machine, on datasets with and without it."""

from dataclasses import replace

import numpy as np
import pytest
from cases import sparing
from faults.noise import scaled
from restating import planted, unsealed

from fedprivjax import AdaptiveClip, FedAvg, LocalPrivacy, NoisyMinibatchSGD
from fedprivjax.auditing.audit import audit
from fedprivjax.auditing.canaries import labels_of
from fedprivjax.auditing.neighbouring import small_federation, worlds
from fedprivjax.privacy.relations import ADD_OR_REMOVE

LOUD = 4  # ratio of the stated noise to the noise in a planted fault
COMMON = {"relation": ADD_OR_REMOVE, "epsilon": 4.0, "batch": 3, "step_size": 0.1}
RECORD = {**COMMON, "clip": 1.0, "sampler": "poisson", "rate": 0.25}
MACHINE = {**COMMON, "unit": "machine", "update_clip": 1.0, "local_epochs": 1}
ADAPTIVE = {**MACHINE, "update_clip": AdaptiveClip(start=1.0)}


def quiet_read(private, total, divisor, noise, bound, facts):
    return LocalPrivacy.read(private, total, divisor, None if noise is None else noise / LOUD, bound, facts)


QUIET_MACHINES = unsealed(read=quiet_read)  # a quarter of the stated noise
CASES = {
    "record": (NoisyMinibatchSGD(**RECORD), planted(NoisyMinibatchSGD(**RECORD), scaled(1 / LOUD)), "fixed", 1),
    "machine": (FedAvg(**MACHINE), planted(FedAvg(**MACHINE), QUIET_MACHINES), "secret", 13),
    "machine with a bit": (FedAvg(**ADAPTIVE), planted(FedAvg(**ADAPTIVE), QUIET_MACHINES), "secret", 13),
}


def small(protocol, participation):
    return small_federation(protocol, 6, participation=participation)


@pytest.mark.parametrize("unit", sparing(list(CASES), ["machine"]))
def test_the_first_dataset_lacks_the_canary(unit):
    protocol, _, participation, rows = CASES[unit]
    pair = worlds(protocol, small(protocol, participation), 0, delta=1e-5)
    without, present = (labels_of(start.problem) for start in pair.starts)
    assert not without.any()
    assert np.flatnonzero(present).tolist() == list(range(rows))
    assert pair.absent
    replaced = replace(protocol, relation="replace-one")
    pair = worlds(replaced, small(replaced, participation), 0, delta=1e-5)
    assert (labels_of(pair.start.problem)[:rows] == -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("unit", CASES)
@pytest.mark.usefixtures("small_audits")
def test_a_guarantee_for_one_more_holds_and_a_quarter_of_its_noise_is_refuted(unit):
    protocol, quiet, participation, _ = CASES[unit]
    found = audit(protocol, small(protocol, participation), runs=4000)
    assert found.guarantee.relation == ADD_OR_REMOVE
    assert found.refuted == ()
    assert found.epsilon_lower > 0.2 * found.guarantee.epsilon
    assert audit(quiet, small(quiet, participation), runs=4000).refuted
