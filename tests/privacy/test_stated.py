"""Guarantees depend only on the current protocol, plan and problem, not on earlier calls."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from restating import planted, unsealed

from fedprivjax import (
    USED_ONCE,
    Ball,
    Full,
    LocalSGD,
    MessagePrivacy,
    NoisyMessages,
    NoisySGD,
    Protocol,
    Softmax,
    Terms,
    Uniform,
    draw_plan,
    guarantee,
    linear_problem,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.protocol import as_leaves
from fedprivjax.noise import Fresh, PerMachine
from fedprivjax.noise.interface import MessageInputs
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.protocols.released import ReleasedMinibatchSGD

RNG = np.random.default_rng(1)
PROBLEM = linear_problem(
    RNG.random((24, 3)) / 2,
    RNG.integers(0, 2, 24),
    Softmax(2),
    feature_bound=1.0,
    constraint=Ball(1.0),
    partition_table=np.arange(24).reshape(4, 6),
)
WEIGHTED = replace(PROBLEM, machine_weights=(0.1, 0.3, 0.3, 0.3))


@struct.dataclass(kw_only=True)
class Louder(MessagePrivacy):
    """Clipped messages with β times the noise."""

    clip: Any = 1.0
    beta: Any = 1.0

    def mechanism(self, facts, method):
        return PerMachine(MessageInputs(np.ones(facts.plan.schedule.participants.shape, np.float32)))

    def round_noise(self, state, drawn, noise_std, reads, host_noise):
        return super().round_noise(state, drawn, self.beta * noise_std, reads, host_noise)

    def event(self, facts, noise_std):
        used = Grouped.of(np.minimum(facts.plan.schedule.total, 1))
        return GaussianEvent(self.beta * noise_std, 2 * self.clip, used, Terms("none", "Gaussian mechanism", USED_ONCE))


@pytest.mark.parametrize("order", [(0.5, 2.0), (2.0, 0.5)])
def test_a_custom_privacy_object_states_its_own_event_for_each_member(order):
    over = {"privacy.beta": order}
    method = Protocol(SGD(), privacy=Louder(), noise_std=1.0, step_size=0.1)
    data = sweep(method, PROBLEM, Uniform(4, 2), over=over, seeds=1, rounds=4)
    np.testing.assert_allclose(data.realised_mu.squeeze(), [2.0 / beta for beta in order], rtol=1e-12)


def unknown(private, facts, noise_std):
    return replace(NoisyMessages.event(private, facts, noise_std), exposure=Grouped.of(np.full(4, np.nan)))


def test_an_event_that_is_no_number_meets_no_target():
    with pytest.raises(Refusal, match="SGD must give at most μ = 1, and its noise on this plan gives nan-GDP"):
        ready(planted(NoisySGD(mu=1.0, clip=1.0, step_size=0.1), unsealed(event=unknown)), PROBLEM, Full(4), rounds=2)


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        (LocalSGD(batch=2, noise_std=1.0, clip=1.0, step_size=0.1), "machine_weights must not be set for LocalSGD"),
        (
            ReleasedMinibatchSGD(batch=2, noise_std=1.0, clip=1.0, step_size=0.1, clip_at="message"),
            "machine_weights must go with clip_at 'record'",
        ),
    ],
)
def test_a_problem_that_no_guarantee_covers_is_refused_where_one_is_asked_for(protocol, says):
    plan = draw_plan(WEIGHTED, Full(4), 3, sampler=protocol.minibatches)
    with pytest.raises(Refusal, match=says):
        guarantee(protocol, WEIGHTED, plan)
    with pytest.raises(Refusal, match=says):
        simulate(protocol, WEIGHTED, Full(4), rounds=3)
    assert guarantee(protocol, PROBLEM, draw_plan(PROBLEM, Full(4), 3, sampler=protocol.minibatches)).private


def bare(private, facts, method):
    """Return a mechanism of noise for the sum alone."""
    return Fresh(np.full(facts.plan.size.rounds, 0.5, np.float32))


def test_messages_are_not_shown_without_the_noise_that_they_carry():
    settings: dict[str, Any] = {"noise_std": 1.0, "clip": 1.0, "step_size": 0.1}
    copy = unsealed(mechanism=bare)
    with pytest.raises(Refusal, match="SGD's noise must be sampled separately for every message of a transcript"):
        transcript(planted(NoisySGD(**settings), copy), PROBLEM, Full(4), rounds=2)
    assert transcript(planted(NoisySGD(**settings, trust="server"), copy), PROBLEM, Full(4), rounds=2).messages is None
    assert transcript(NoisySGD(**settings), PROBLEM, Full(4), rounds=2).messages is not None


def test_integers_stay_integers_on_the_device():
    leaves = as_leaves({"scalar": np.int32(2**24 + 1), "jax": jnp.int32(5), "array": np.arange(3), "number": 3})
    assert [leaf.dtype.kind for leaf in jax.tree.leaves(leaves)] == ["i", "i", "f", "i"]
    assert leaves["scalar"] == 2**24 + 1
