"""Overrides of a client method that change the sensitivity of its messages need an event of their own."""

from dataclasses import replace
from typing import Any

import jax
import pytest
from cases import MACHINES, PER_ROUND, SHARES, sparing
from faults.clients import MACHINE, largest_update
from flax import struct
from sign_sgd import sign_sgd

from fedprivjax import FedAvg, Refusal, Scaffold, Uniform, draw_plan, guarantee, ready
from fedprivjax.checks.restated import require_restated

FACTOR = 3.0


@struct.dataclass
class Weighted(FedAvg):
    """Every message counts three times."""

    def client_weight(self, data):
        return FACTOR


@struct.dataclass
class Encoded(FedAvg):
    """Every message is scaled after it is clipped."""

    def encode(self, message, key):
        return jax.tree.map(lambda leaf: FACTOR * leaf, message)


@struct.dataclass
class WeightedControls(Scaffold):
    """The messages of SCAFFOLD, with a weight."""

    client_weight = Weighted.client_weight


@struct.dataclass
class FromMixin(Encoded, Scaffold):
    """An encoder of another class, before the event."""


@struct.dataclass
class Below(Weighted):
    """A subclass that changes nothing more."""


def unseen(method):
    """Return the method with the inherited event defined again, as if the messages were unchanged."""
    return struct.dataclass(
        type(method.__name__, (method,), {"event": lambda self, *of: super(method, self).event(*of)})
    )


def restated(method):
    """Return the method with an event of the true sensitivity."""

    def event(self, problem, plan):
        stated = super(method, self).event(problem, plan)
        return replace(stated, sensitivity=FACTOR * stated.sensitivity)

    return struct.dataclass(type(method.__name__, (method,), {"event": event}))


SETTINGS: dict[str, Any] = MACHINE | {"noise_std": 1.0}
CASES = {
    Weighted: "client_weight of Weighted and event of FedAvg",
    Encoded: "encode of Encoded and event of FedAvg",
    WeightedControls: "client_weight of WeightedControls and event of Scaffold",
    FromMixin: "encode of Encoded and event of Scaffold",
    Below: "client_weight of Weighted and event of FedAvg",
}


@pytest.mark.parametrize("method", CASES)
def test_an_override_without_an_event_is_refused_before_anything_compiles(method, monkeypatch):
    monkeypatch.setattr(jax, "jit", None)
    said = rf"^(encode|client_weight) must be overridden together with event, .* got {CASES[method]}\. Define event in "
    with pytest.raises(Refusal, match=said) as refusal:
        ready(method(**SETTINGS), SHARES, Uniform(MACHINES, PER_ROUND), rounds=2)
    assert "\n" not in str(refusal.value)
    plan = draw_plan(SHARES, Uniform(MACHINES, PER_ROUND), 2, sampler=method(**SETTINGS).minibatches)
    with pytest.raises(Refusal, match=said):
        guarantee(method(**SETTINGS), SHARES, plan)


@pytest.mark.parametrize("method", sparing([Weighted, Encoded], [Encoded]))
def test_such_an_override_moves_a_sum_by_more_than_the_inherited_event_states(method):
    claimed, moved = largest_update(FedAvg(**SETTINGS))
    assert moved == pytest.approx(claimed, rel=1e-3)
    claimed, moved = largest_update(unseen(method)(**SETTINGS))
    assert moved == pytest.approx(FACTOR * claimed, rel=1e-3)
    claimed, moved = largest_update(restated(method)(**SETTINGS))
    assert moved == pytest.approx(claimed, rel=1e-3)


@pytest.mark.parametrize("method", [FedAvg(**SETTINGS), Scaffold(**SETTINGS), sign_sgd(noise_std=1.0)])
def test_methods_that_state_their_messages_are_run(method):
    require_restated(method)


def test_a_run_without_noise_may_override():
    work: dict[str, Any] = {"local_epochs": 1, "step_size": 0.1}
    assert not ready(Weighted(**work), SHARES, Uniform(MACHINES, PER_ROUND), rounds=2).guarantee.private
