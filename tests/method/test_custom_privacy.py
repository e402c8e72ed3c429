"""Custom privacy objects: their guarantee is printed as theirs, and contract, audit and refusals apply to it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from laplace_messages import LaplaceMessages, clipped
from restating import refused, states
from sign_sgd import FullGradients, OneSign

from fedprivjax import (
    Logistic,
    MessagePrivacy,
    NoisyMessages,
    Protocol,
    Refusal,
    Uniform,
    audit,
    linear_problem,
    ready,
    sweep,
    transcript,
)
from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.momentum_privacy import MomentumPrivacy
from fedprivjax.method.private_mean import PrivateMean
from fedprivjax.method.round import cohort_messages
from fedprivjax.method.work_privacy import WorkPrivacy
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.testing import check_protocol

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3)).astype(np.float32)
PROBLEM = linear_problem(X, (X @ [1, -2, 0.5] > 0).astype(int), Logistic())
SOURCE = "laplace_messages:LaplaceMessages"


def pair(privacy, **settings):
    return Protocol(SGD(), privacy=privacy, **({"epsilon": 2.0, "step_size": 0.1} | settings))


def test_the_guarantee_names_the_class_that_states_it():
    custom, sealed = (
        ready(pair(privacy), PROBLEM, Uniform(12, 6), rounds=12).guarantee
        for privacy in (LaplaceMessages(), NoisyMessages(clip=1.0))
    )
    assert custom.epsilon == pytest.approx(2.0, rel=1e-3)
    assert f"the mechanism is as stated by {SOURCE}, which the package does not prove" in str(custom)
    assert "stated by" not in str(sealed)


@pytest.mark.slow
def test_noise_and_messages_are_those_stated():
    """Messages have L1 norm at most C before their noise, whose mean absolute value is 2C/ε."""

    def messages(**settings):
        seen = transcript(pair(LaplaceMessages(clip=0.5), **settings), PROBLEM, Uniform(12, 6), rounds=40)
        return np.asarray(seen.messages)

    quiet, noisy = messages(epsilon=None, noise_std=0.0), messages()
    assert np.abs(quiet).sum(axis=2).max() <= 0.5 * (1 + 1e-6)
    assert 2 / 3 * 0.5 < np.abs(noisy[0] - quiet[0]).mean() < 3 / 2 * 0.5


@pytest.mark.slow
def test_clip_is_an_axis_of_a_sweep():
    over = {"privacy.clip": [0.5, 1.0]}
    swept = sweep(
        pair(LaplaceMessages()), PROBLEM, Uniform(12, 6), over=over, rounds=2, seeds=1, metrics=["noise_norm"]
    )
    np.testing.assert_allclose(swept["realised_epsilon"], 2.0, rtol=1e-3)
    first, second = swept["noise_norm"].isel(seed=0).values
    np.testing.assert_allclose(second, 2 * first, rtol=1e-2)


@struct.dataclass(kw_only=True)
class Unclipped(LaplaceMessages):
    """Planted: messages are not clipped."""

    def messages(self, problem, message, inputs, noise, limits, key):
        return MessagePrivacy.messages(self, problem, message, inputs, noise, limits, key)


@struct.dataclass(kw_only=True)
class Bare(MessagePrivacy):
    """No event."""


@struct.dataclass(kw_only=True)
class UnclippedByField(LaplaceMessages):
    """Planted: a field without a default is no attribute of its class, and hides a function of the parent."""

    messages: Any = struct.field(pytree_node=False, default_factory=lambda: cohort_messages)


@struct.dataclass(kw_only=True)
class OfAnyNoise(LaplaceMessages):
    """Planted: the event states noise of scale 1, whatever is sampled."""

    def event(self, facts, noise_std):
        return super().event(facts, 1.0)


@struct.dataclass(kw_only=True)
class OfNobody(OneSign):
    """Planted: nothing is protected, so that machines are not kept apart."""

    unit: Any = None
    event = OneSign.event


class NotDecorated(LaplaceMessages):
    pass


@struct.dataclass(kw_only=True)
class BelowAnother(PrivateMean):
    """A base of the package that states an event of its own."""


@struct.dataclass(kw_only=True)
class BelowMomentum(MomentumPrivacy):
    """A direct subclass of an internal base."""


@struct.dataclass(kw_only=True)
class WithoutWork(WorkPrivacy):
    """A subclass without the sampler of its local steps."""


def test_a_subclass_of_a_base_is_told_what_it_must_define():
    with pytest.raises(Undefined, match=r"^BelowMomentum must define rules, descriptions of its noise rules$"):
        BelowMomentum()
    with pytest.raises(Undefined, match=r"^WithoutWork must define work, the sampler of the records of its local"):
        _ = WithoutWork().minibatches


def test_a_subclass_with_other_messages_states_its_event_again():
    def run(privacy):
        return ready(pair(privacy), PROBLEM, Uniform(12, 6), rounds=12)

    for planted in (Unclipped(), UnclippedByField()):
        refused(lambda privacy=planted: run(privacy), "messages", "event", "LaplaceMessages")
    with pytest.raises(Refusal, match=r"Bare must define (event|mechanism)\(facts, "):
        run(Bare())
    with pytest.raises(Refusal, match=r"privacy object NotDecorated must be a flax\.struct\.dataclass"):
        run(NotDecorated())
    with pytest.raises(Refusal, match=r"privacy must be a NoisyMessages or .* with SGD, got "):
        run(BelowAnother())


def test_an_event_depends_on_the_noise_and_on_a_protected_unit():
    def run(algorithm, privacy, noise_std, problem=PROBLEM):
        method = Protocol(algorithm, privacy=privacy, noise_std=noise_std, step_size=0.1)
        return ready(method, problem, Uniform(12, 6), rounds=3)

    assert run(SGD(), LaplaceMessages(), 0.0).guarantee.epsilon == np.inf
    with pytest.raises(Refusal, match=r"epsilon of .*:OfAnyNoise must be infinite without noise, got an event that"):
        run(SGD(), OfAnyNoise(), 0.0)
    with pytest.raises(Refusal, match="unit must be 'record' or 'machine' for a private run, got None with noise_std"):
        run(FullGradients(), OfNobody(), 1.0, linear_problem(X.reshape(12, 20, 3), np.ones((12, 20), int), Logistic()))


@pytest.mark.slow
def test_contract():
    report = check_protocol(pair(LaplaceMessages()), PROBLEM, Uniform(12, 6))
    assert set(report.not_applicable) == {"no message exceeds the stated bound"}


@states("event")
@struct.dataclass(kw_only=True)
class ClippedByCoordinate(LaplaceMessages):
    """Planted: every coordinate is clipped, and the L1 norm is assumed to be C."""

    def messages(self, problem, message, inputs, noise, limits, key):
        rows = MessagePrivacy.messages(self, problem, message, inputs, noise, limits, key)
        return jax.tree.map(lambda leaf: jnp.clip(leaf, -self.clip, self.clip), rows)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_refutes_a_wrong_statement_and_not_a_true_one():
    honest, planted = (
        audit(pair(kind(clip=0.1), epsilon=1.0), runs=4000) for kind in (LaplaceMessages, ClippedByCoordinate)
    )
    assert not honest.refuted
    assert planted.refuted


def test_clip_of_the_example():
    assert float(jnp.sum(jnp.abs(clipped(jnp.array([3.0, -4.0]), 1.0)))) == pytest.approx(1.0)
    assert not clipped(jnp.array([jnp.nan, 1.0]), 1.0).any()
