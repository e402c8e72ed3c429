"""Events on plans: custom privacy for one number of machines only."""

import numpy as np
import pytest
from flax import struct
from pairwise_messages import RingMessages

import fedprivjax as fpj
from fedprivjax.auditing.neighbouring import small_federation
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.testing.trial import usual_participation


@struct.dataclass(kw_only=True)
class RingOfFive(RingMessages):
    """A ring of five machines."""

    for_machines = 5


@struct.dataclass(kw_only=True)
class ForThree(RingMessages):
    """Planted: an event for three machines, whatever the plan."""

    sent_noise = RingMessages.sent_noise

    def event(self, facts, noise_std):
        terms = fpj.Terms("none", "the Gaussian mechanism", fpj.USED_ONCE)
        return fpj.GaussianEvent(noise_std, 2.0, fpj.Grouped.of(np.ones(3)), terms)


def method(privacy, adversary=None):
    return fpj.Protocol(SGD(), privacy=privacy, mu=1.0, step_size=0.1, adversary=adversary)


@pytest.fixture(scope="module")
def problem():
    features = np.random.default_rng(0).normal(size=(96, 3))
    return fpj.linear_problem(features, np.arange(96) % 2, fpj.Logistic(), constraint=fpj.Ball(1.0))


def test_privacy_for_one_number_of_machines_is_refused_for_another(problem):
    with pytest.raises(fpj.Refusal, match=r"^machines must be 5, for .* is defined, got 4\. Use 5 machines, or"):
        fpj.ready(method(RingOfFive()), problem, fpj.Full(4), rounds=4)


def test_an_event_for_another_number_of_machines_is_refused(problem):
    wrong = r"^exposure of SGD's event must have a number for each of the 4 machines, got 3\. Compute it for "
    with pytest.raises(fpj.Refusal, match=wrong):
        fpj.ready(method(ForThree()), problem, fpj.Full(4), rounds=4)


def test_audits_and_the_contract_take_its_number_of_machines(problem):
    fixed = method(RingOfFive())
    assert small_federation(fixed).participation == usual_participation(fixed, problem) == fpj.Full(5)
    report = fpj.check_protocol(fixed, problem, properties=["the target is met"])
    assert report.held == ("the target is met",)


def test_an_audit_has_more_machines_than_a_coalition():
    assert small_federation(fpj.NoisySGD(clip=1.0, mu=1.0, adversary=fpj.Coalition(6))).participation.machines == 7
