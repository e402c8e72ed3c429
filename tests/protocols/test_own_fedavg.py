"""Contract of a custom client-level DP-FedAvg: an ε without a μ, with a trusted server."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cases import MACHINES, PER_ROUND, SHARES
from dp_fedavg import ClippedUpdates, dp_fedavg
from flax import struct
from restating import planted, states, unsealed

from fedprivjax import GaussianMean, Uniform, UserSGD, check_protocol
from fedprivjax.noise import Fresh
from fedprivjax.testing import PROPERTIES

NOISY = "the noise has the stated distribution"
checked = partial(check_protocol, problem=SHARES, participation=Uniform(MACHINES, PER_ROUND))


@states("event")
@struct.dataclass(kw_only=True)
class Quiet(ClippedUpdates):
    """Planted: the server adds the noise of a mean of messages that carry `noise_std` each."""

    def mechanism(self, facts, method):
        return Fresh(np.full(facts.plan.size.rounds, PER_ROUND**-0.5, np.float32))


def quiet_users(private, facts, method):
    """Return a mechanism of sums with the noise of one message."""
    mechanism = GaussianMean.mechanism(private, facts, method)
    return replace(mechanism, inputs=mechanism.inputs / np.float32(PER_ROUND**0.5))


def test_a_trusted_servers_noise_is_held_against_noise_std_where_only_epsilon_is_stated():
    assert checked(dp_fedavg(noise_std=0.15), properties=[NOISY]).held == (NOISY,)
    with pytest.raises(AssertionError, match=r"noise must have the stated scale 0\.15, got 0\.10"):
        checked(dp_fedavg(Quiet, noise_std=0.15), properties=[NOISY])


def test_a_sums_noise_is_that_of_its_messages():
    right = {"noise_std": 0.4, "step_size": 0.3, "trust": "server", "clip": 0.5}
    checked(UserSGD(**right), properties=[NOISY])
    with pytest.raises(AssertionError, match=r"noise must have the stated scale 0\.2828, got 0\.19"):
        checked(planted(UserSGD(**right), unsealed(mechanism=quiet_users)), properties=[NOISY])


@pytest.mark.slow
def test_client_level_fedavg_keeps_the_contract():
    report = checked(dp_fedavg(epsilon=8.0))
    assert set(report.held) == set(PROPERTIES)
