"""A custom method with client state: contract, audit, and refusals of a state or a result of another form."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from cases import MACHINES, PER_ROUND, SHARES
from client_momentum import ClientMomentum
from flax import struct
from restating import states

from fedprivjax import Refusal, Uniform, audit, check_protocol, ready, simulate
from fedprivjax.testing import PROPERTIES

checked = partial(check_protocol, problem=SHARES, participation=Uniform(MACHINES, PER_ROUND))


@states("event")
@struct.dataclass
class Forgets(ClientMomentum):
    """Absent machines lose nothing, but those that come lose their momentum."""

    def client(self, server, own, data, noise, key):
        message, _, info = super().client(server, own, data, noise, key)
        return message, jax.tree.map(jnp.zeros_like, own), info


@states("event")
@struct.dataclass
class Grows(ClientMomentum):
    """The state has another shape after the round."""

    def client(self, server, own, data, noise, key):
        message, own, info = super().client(server, own, data, noise, key)
        return message, jnp.append(own, 1.0), info


@states("event")
@struct.dataclass
class Counts(ClientMomentum):
    """The state has another structure after the round."""

    def client(self, server, own, data, noise, key):
        message, own, info = super().client(server, own, data, noise, key)
        return message, (own, 1), info


@states("event")
@struct.dataclass
class Rounds(ClientMomentum):
    """The state has other numbers after the round."""

    def client(self, server, own, data, noise, key):
        message, own, info = super().client(server, own, data, noise, key)
        return message, own.astype(jnp.int32), info


@states("event")
@struct.dataclass
class Doubled(ClientMomentum):
    """The message has more numbers than the server's noise."""

    def client(self, server, own, data, noise, key):
        message, own, info = super().client(server, own, data, noise, key)
        return (message, message), own, info


@struct.dataclass
class Weighs(ClientMomentum):
    """A weight for each of several numbers."""

    def client_weight(self, data):
        return jnp.ones(2)

    def event(self, problem, plan):
        return super().event(problem, plan)


@states("event")
@struct.dataclass
class Reports(ClientMomentum):
    """A reported value that is no scalar."""

    def client(self, server, own, data, noise, key):
        message, own, _ = super().client(server, own, data, noise, key)
        return message, own, {"message_norm": jnp.ones(3)}


@states("event")
@struct.dataclass
class Pairs(ClientMomentum):
    """Two results instead of three."""

    def client(self, server, own, data, noise, key):
        return super().client(server, own, data, noise, key)[:2]


def test_a_machine_keeps_its_state():
    runs = [
        simulate(method(noise_std=0.0), SHARES, Uniform(MACHINES, PER_ROUND), rounds=8, seed=1, metrics=[])
        for method in (ClientMomentum, Forgets)
    ]
    assert jnp.abs(runs[0].params - runs[1].params).max() > 1e-4


@pytest.mark.slow
def test_contract():
    report = checked(ClientMomentum(mu=2.0))
    assert set(report.not_applicable) == {"released numbers determine the server"}
    assert set(report.held) == set(PROPERTIES) - set(report.not_applicable)


@pytest.mark.slow
def test_audit():
    found = audit(ClientMomentum(mu=2.0, step_size=0.1), runs=1000)
    assert not found.refuted
    assert found.attained == pytest.approx(found.guarantee.mu, rel=0.05)


OTHER_FORMS = {
    Grows: r"client must return a state of the form of client_init in Grows, float32\[\d\], got float32\[\d\]",
    Counts: r"client must return a state of the form of client_init in Counts, float32\[\d\], got \('float32",
    Rounds: r"client must return a state of the form of client_init in Rounds, float32\[\d\], got int32",
    Pairs: r"client must return \(message, state, scalars by name\) in Pairs, got",
    Doubled: r"client must return a message of message_dimension\(problem\) = (\d+) numbers in Doubled, got \d+",
    Weighs: r"client_weight must return one number in Weighs, got float32\[2\]",
    Reports: r"client must return scalars by name in Reports, got {'message_norm': 'float32\[3\]'}",
}


@pytest.mark.parametrize("method", OTHER_FORMS)
def test_results_of_another_form_are_refused(method):
    with pytest.raises(Refusal, match=OTHER_FORMS[method]) as refused:
        simulate(method(noise_std=0.1), SHARES, Uniform(MACHINES, PER_ROUND), rounds=2, metrics=[])
    assert "\n" not in str(refused.value)
    assert ready(ClientMomentum(noise_std=0.1), SHARES, Uniform(MACHINES, PER_ROUND), rounds=2).event.mu > 0
