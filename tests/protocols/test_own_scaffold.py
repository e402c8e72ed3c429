"""Contract of a custom SCAFFOLD, which declares itself non-private."""

from functools import partial

import jax.numpy as jnp
import pytest
from cases import MACHINES, PER_ROUND, SHARES
from flax import struct
from restating import planted, states, unsealed
from scaffold import Scaffold

from fedprivjax import NoisyMessages, NoisySGD, Uniform, check_protocol
from fedprivjax.testing import PROPERTIES
from fedprivjax.testing.contract import OF_PRIVACY

STABLE = "stable structure and dtypes"
ABSENT = "absent machines leave no trace"
checked = partial(check_protocol, problem=SHARES, participation=Uniform(MACHINES, PER_ROUND))


@states("event")
@struct.dataclass
class Ghosts(Scaffold):
    """Planted: empty slots are treated as machines."""

    def filled(self, inputs):
        return jnp.ones(inputs.machine.shape)


def test_a_non_private_method_is_not_asked_about_privacy():
    report = checked(Scaffold(), properties=[STABLE, *OF_PRIVACY])
    assert report.held == (STABLE,)
    assert report.skipped == tuple(OF_PRIVACY)
    assert str(report) == (
        f"Scaffold: 1 of {1 + len(OF_PRIVACY)} properties hold\n"
        f"skipped because the protocol declares itself non-private: {', '.join(OF_PRIVACY)}"
    )


def boastful(private, facts, noise_std):
    """Return an event that does not depend on `noise_std`."""
    return NoisyMessages.event(private, facts, 1.0)


def test_a_guarantee_without_noise_is_asked_about_privacy():
    silent = planted(NoisySGD(noise_std=0.0, step_size=0.1, clip=1.0), unsealed(event=boastful))
    with pytest.raises(AssertionError, match="SGD fails 'silent without noise'"):
        checked(silent, properties=OF_PRIVACY)


@pytest.mark.slow
def test_and_keeps_the_rest_of_the_contract():
    report = checked(Scaffold())
    assert {*report.held, *report.skipped} == set(PROPERTIES)
    assert report.skipped == tuple(name for name in PROPERTIES if name in OF_PRIVACY)


@pytest.mark.slow
def test_slots_that_nobody_fills_are_named():
    checked(Scaffold(), properties=[ABSENT])
    with pytest.raises(
        AssertionError, match=r"Ghosts fails .* must not change the state, and did in round .* by inputs\.filled"
    ):
        checked(Ghosts(), properties=[ABSENT])
