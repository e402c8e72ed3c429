"""Contract of a non-private method, which is not asked about privacy, and of a guarantee without noise, which is."""

from functools import partial

import jax.numpy as jnp
import pytest
from cases import MACHINES, PER_ROUND, SHARES
from restating import planted, unsealed

from fedprivjax import NoisyMessages, NoisySGD, Scaffold, Uniform, check_protocol
from fedprivjax.method.local_rounds import LocalRounds
from fedprivjax.testing import PROPERTIES
from fedprivjax.testing.contract import OF_PRIVACY

STABLE = "stable structure and dtypes"
ABSENT = "absent machines leave no trace"
SCAFFOLD = Scaffold(local_epochs=1, batch=3, step_size=0.3)
checked = partial(check_protocol, problem=SHARES, participation=Uniform(MACHINES, PER_ROUND))


def test_a_non_private_method_is_not_asked_about_privacy():
    report = checked(SCAFFOLD, properties=[STABLE, *OF_PRIVACY])
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
    report = checked(SCAFFOLD)
    assert {*report.held, *report.skipped} == set(PROPERTIES)
    assert report.skipped == tuple(name for name in PROPERTIES if name in OF_PRIVACY)


@pytest.mark.slow
def test_slots_that_nobody_fills_are_named(monkeypatch):
    """Planted in the package: empty slots are treated as machines."""
    checked(SCAFFOLD, properties=[ABSENT])
    honest = LocalRounds.slots

    def ghosts(rounds, inputs, noise, key):
        own, *others = honest(rounds, inputs, noise, key)
        return own._replace(present=jnp.ones_like(own.present)), *others

    monkeypatch.setattr(LocalRounds, "slots", ghosts)
    with pytest.raises(
        AssertionError, match=r"Scaffold fails .* must not change the state, and did in round .* by inputs\.filled"
    ):
        checked(SCAFFOLD, properties=[ABSENT])
