"""A custom privacy object that randomises signs: guarantee, messages, contract, and audits of planted faults."""

import jax
import numpy as np
import pytest
from flax import struct
from restating import states
from sign_sgd import OneSign, sign_sgd

from fedprivjax import (
    Federation,
    Full,
    Grouped,
    Logistic,
    PureEvent,
    Uniform,
    audit,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.auditing.neighbouring import small_federation
from fedprivjax.testing import PROPERTIES, check_protocol

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 3)).astype(np.float32)
Y = (X @ [1, -2, 0.5] > 0).astype(int)
PROBLEM = linear_problem(X, Y, Logistic(), partition_table=np.arange(48).reshape(6, 8))
ONE_MESSAGE = Federation(Full(1), rounds=1, records=1, dimension=4)


@states("event")
@struct.dataclass(kw_only=True)
class LiesTooRarely(OneSign):
    """Planted: randomised response with 2·ε₀."""

    def probability_of_a_lie(self, noise_std):
        return jax.nn.sigmoid(-2 / noise_std)


@struct.dataclass(kw_only=True)
class CountedOnce(OneSign):
    """Planted: all messages of a machine are counted as one."""

    def event(self, facts, noise_std):
        terms = super().event(facts, noise_std).terms
        return PureEvent(noise_std, Grouped.of(np.minimum(facts.plan.schedule.total, 1)), terms)


def test_a_run_meets_its_target_and_counts_one_bit():
    run = simulate(sign_sgd(epsilon=4.0), PROBLEM, Uniform(6, 3), rounds=12, metrics=[])
    assert 3.99 < run.guarantee.epsilon <= 4.0
    assert run.guarantee.unit == "all records of one machine"
    assert "the mechanism is as stated by sign_sgd:OneSign" in str(run.guarantee)
    assert run.costs["sent_bits"] == 1


@pytest.mark.slow
def test_a_transcript_has_one_sign_of_every_machine():
    seen = transcript(sign_sgd(noise_std=0.5), PROBLEM, Full(6), rounds=40)
    assert seen.messages is not None
    np.testing.assert_array_equal(np.sort(np.abs(seen.messages), axis=2), np.broadcast_to([0, 0, 1], (40, 6, 3)))


def test_messages_lie_with_the_claimed_odds():
    """Steps are so short that the true signs do not change, and the statistic rejects 2/3 and 3/2 of ε₀."""

    def signs(noise_std):
        return np.asarray(
            transcript(sign_sgd(noise_std=noise_std, step_size=1e-6), PROBLEM, Full(6), rounds=400).messages
        )

    lies = np.mean(np.any(signs(1.0) != signs(0.0), axis=2))
    error = np.sqrt(lies * (1 - lies) / 2400)
    claimed, quieter, louder = (1 / (1 + np.exp(level)) for level in (1.0, 1.5, 2 / 3))
    assert abs(lies - claimed) < 4 * error < min(claimed - quieter, louder - claimed)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_is_below_the_claim():
    found = audit(sign_sgd(noise_std=1.0), ONE_MESSAGE, runs=4000)
    assert not found.refuted
    assert 0.7 < found.epsilon_lower <= found.guarantee.epsilon


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_refutes_randomised_response_with_twice_the_level():
    found = audit(sign_sgd(LiesTooRarely, noise_std=1.0), ONE_MESSAGE, runs=4000)
    assert found.refuted
    assert found.epsilon_lower > found.guarantee.epsilon


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_the_default_audit_sees_the_level_of_one_message():
    assert audit(sign_sgd(LiesTooRarely, noise_std=1.0), runs=4000).refuted
    found = audit(sign_sgd(noise_std=1.0), runs=4000)
    assert not found.refuted
    assert 0.7 < found.epsilon_lower <= found.guarantee.epsilon


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_over_rounds_sees_that_levels_add_up():
    federation = small_federation(sign_sgd(noise_std=1.0), 12)
    assert federation.rounds == 12
    assert audit(sign_sgd(CountedOnce, noise_std=1.0), federation, runs=4000).refuted
    assert not audit(sign_sgd(noise_std=1.0), federation, runs=4000).refuted


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_of_a_single_machine_with_several_records():
    found = audit(sign_sgd(noise_std=1.0), Federation(Full(1), rounds=1, records=12, dimension=4), runs=1000)
    assert not found.refuted
    assert found.epsilon_lower > 0.5


@pytest.mark.slow
def test_contract():
    report = check_protocol(sign_sgd(noise_std=0.7), PROBLEM, Uniform(6, 3))
    assert set(report.not_applicable) == {
        "order within a round",
        "the noise has the stated distribution",
        "no message exceeds the stated bound",
    }
    assert set(report.held) | set(report.not_applicable) == set(PROPERTIES)
    assert "'order within a round' does not apply: machines have randomness of their own" in str(report)
