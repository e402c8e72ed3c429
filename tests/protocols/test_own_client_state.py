"""A custom algorithm with client state: contract, audit, and refusals of states and results of another form."""

from functools import partial

import jax.numpy as jnp
import pytest
from cases import MACHINES, PER_ROUND, SHARES
from client_momentum import ClientMomentum, client_momentum
from dp_fedavg import ClippedUpdates, dp_fedavg
from flax import struct

from fedprivjax import Refusal, Uniform, audit, check_protocol, ready, simulate
from fedprivjax.testing import PROPERTIES

HALF = Uniform(MACHINES, PER_ROUND)
checked = partial(check_protocol, problem=SHARES, participation=HALF)


@struct.dataclass
class Forgets(ClientMomentum):
    """Absent machines lose nothing, but those that come lose their momentum."""

    def keep(self, own, message, work):
        return 0 * message


@struct.dataclass
class Grows(ClientMomentum):
    """The state has another shape after the round."""

    def keep(self, own, message, work):
        return jnp.append(message, 1.0)


@struct.dataclass
class Counts(ClientMomentum):
    """The state has another structure after the round."""

    def keep(self, own, message, work):
        return message, 1


@struct.dataclass
class Rounds(ClientMomentum):
    """The state has other numbers after the round."""

    def keep(self, own, message, work):
        return message.astype(jnp.int32)


@struct.dataclass(kw_only=True)
class Doubled(ClippedUpdates):
    """The message has more numbers than the server's noise."""

    event = ClippedUpdates.event

    def sent(self, message, info, public, noise, facts):
        return message, message


@struct.dataclass(kw_only=True)
class Weighs(ClippedUpdates):
    """A weight for each of several numbers."""

    event = ClippedUpdates.event

    def weight(self, data, facts):
        return jnp.ones(2)


@struct.dataclass(kw_only=True)
class Reports(ClippedUpdates):
    """A reported value that is no scalar."""

    event = ClippedUpdates.event

    def bounded(self, message, public):
        return message, {"norm": jnp.ones(3)}


def test_a_machine_keeps_its_state():
    runs = [
        simulate(client_momentum(algorithm, noise_std=0.0), SHARES, HALF, rounds=8, seed=1, metrics=[])
        for algorithm in (ClientMomentum, Forgets)
    ]
    assert jnp.abs(runs[0].params - runs[1].params).max() > 1e-4


@pytest.mark.slow
def test_contract():
    report = checked(client_momentum(mu=2.0))
    assert not report.skipped
    assert "released numbers determine the server" in report.held
    assert {*report.held, *report.not_applicable} == set(PROPERTIES)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_audit():
    found = audit(client_momentum(mu=2.0), runs=1000)
    assert not found.refuted
    assert found.attained == pytest.approx(found.guarantee.mu, rel=0.05)


STATES = {
    Grows: r"float32\[\d\], got float32\[\d\]",
    Counts: r"float32\[\d\], got \('float32",
    Rounds: "float32.* got int32",
}


@pytest.mark.parametrize("algorithm", STATES)
def test_states_of_another_form_are_refused(algorithm):
    name = algorithm.__name__
    said = rf"^keep must return a state of the form of own in {name}, {STATES[algorithm]}"
    with pytest.raises(Refusal, match=said) as refused:
        ready(client_momentum(algorithm, noise_std=0.1), SHARES, HALF, rounds=2, metrics=[])
    assert "\n" not in str(refused.value)
    assert ready(client_momentum(noise_std=0.1), SHARES, HALF, rounds=2).event.mu > 0


RESULTS = {
    Doubled: r"sent must return 3 numbers in LocalGradientSteps, as noise and costs have, got 6\. ",
    Weighs: r"weight must return one number in LocalGradientSteps, got float32\[2\]",
    Reports: r"bounded must return scalars by name in LocalGradientSteps, got {'norm': 'float32\[3\]'}",
}


@pytest.mark.parametrize("privacy", RESULTS)
def test_results_of_a_privacy_object_of_another_form_are_refused(privacy):
    with pytest.raises(Refusal, match=f"^{RESULTS[privacy]}"):
        simulate(dp_fedavg(privacy, noise_std=0.1), SHARES, HALF, rounds=2, metrics=[])
