"""A custom algorithm in one file: sweeps, guarantee, transcript, contract, and planted faults by name."""

from dataclasses import fields, replace
from pathlib import Path

import heavy_ball
import jax
import numpy as np
import pytest
from flax import struct
from heavy_ball import HeavyBall
from restating import planted, unsealed

from fedprivjax import (
    Grouped,
    NoisyMessages,
    Protocol,
    Refusal,
    Uniform,
    calibrate,
    check_protocol,
    draw_plan,
    guarantee,
    guarantee_of,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.testing import PROPERTIES

HALF = Uniform(4, 2)


def heavy(algorithm=HeavyBall, step_size=0.1, beta=0.5, **target):
    """Return SGD with momentum on messages clipped to 1, and a target or the noise."""
    return Protocol(algorithm(beta=beta), privacy=NoisyMessages(clip=1.0), step_size=step_size, **target)


def exposed(private, facts, noise_std):
    """Return an event that states three times the exposure of a sample."""
    event = NoisyMessages.event(private, facts, noise_std)
    return replace(event, exposure=Grouped.of(3.0 * (facts.plan.schedule.total > 0)))


def solved(private, facts, target):
    """Return None, for the smallest noise with which the event meets the target."""


def quiet(private, facts, method):
    """Return a mechanism whose messages have half of the claimed noise."""
    mechanism = NoisyMessages.mechanism(private, facts, method)
    return replace(mechanism, inputs=jax.tree.map(lambda relative: 0.5 * relative, mechanism.inputs))


def bare(private, facts, method):
    """Return a mechanism of the aggregate's noise, even for materialised messages, which are plain gradients."""
    return NoisyMessages.mechanism(private, facts, "auto")


SOLVED, EXPOSED = unsealed(needed_noise=solved), unsealed(needed_noise=solved, event=exposed)
OVERSHOOTING = unsealed(event=exposed)  # the rule for the noise ignores the exposure
QUIET, BARE = unsealed(mechanism=quiet), unsealed(mechanism=bare)


@struct.dataclass
class Rerun(HeavyBall):
    """Planted: a program that depends on the value of a number."""

    scale: float = struct.field(pytree_node=False, default=1.0)

    def planned(self, rounds, step):
        return replace(self, scale=step)


@pytest.mark.slow
def test_its_contract(softmax_problem):
    check_protocol(heavy(mu=1.0, beta=0.7), softmax_problem)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            planted(heavy(mu=1.0), QUIET),
            "HeavyBall fails 'the noise has the stated distribution': noise must have the stated scale 2, got 1.0",
        ),
        (
            planted(heavy(mu=1.0), BARE),
            "HeavyBall fails 'the view fits the trust model': HeavyBall's noise must be sampled separately for every",
        ),
        (heavy(Rerun, mu=1.0), "Rerun fails 'a sweep equals a loop'"),
        (
            planted(heavy(noise_std=2.0), OVERSHOOTING),
            "HeavyBall fails 'the target is met': HeavyBall.* must give at most μ = 1",
        ),
    ],
    ids=["quiet", "bare", "rerun", "overshooting"],
)
def test_faults_are_named(protocol, message, softmax_problem):
    named = [name for name in PROPERTIES if name in message]
    assert named
    with pytest.raises(AssertionError, match=message):
        check_protocol(protocol, softmax_problem, properties=named)


def test_an_unknown_property_is_refused(softmax_problem):
    with pytest.raises(Refusal, match="unknown property 'the target is mt', did you mean 'the target is met'"):
        check_protocol(heavy(mu=1.0), softmax_problem, properties=["the target is mt"])


@pytest.mark.slow
def test_momentum_is_swept(softmax_problem):
    settings = {"rounds": 8, "eval_every": 4}
    over = {"algorithm.beta": [0.0, 0.9]}
    grid = sweep(heavy(mu=4.0), softmax_problem, HALF, over=over, seeds=2, **settings)
    one, other = (grid.sel({"algorithm.beta": beta}) for beta in over["algorithm.beta"])
    for beta, found in zip(over["algorithm.beta"], (one, other), strict=True):
        alone = simulate(heavy(mu=4.0, beta=beta), softmax_problem, HALF, seed=1, **settings)
        np.testing.assert_allclose(found.test_loss.sel(seed=1), alone.metrics["test_loss"], rtol=1e-5)
    assert np.abs(one.test_loss - other.test_loss).min() > 1e-4
    assert guarantee_of(other).mu == pytest.approx(4.0, rel=1e-5)


def test_its_steps_are_the_textbooks(softmax_problem):
    """From the messages that an adversary sees."""
    view = transcript(heavy(mu=4.0, beta=0.7, step_size=0.05), softmax_problem, HALF, rounds=10)
    w, v = np.zeros(15), np.zeros(15)
    for query, messages in zip(view.queries, view.messages, strict=True):
        np.testing.assert_allclose(query, w, atol=1e-5)
        v = 0.7 * v + messages.mean(axis=0)
        w = w - 0.05 * v
        w = w * min(1.0, 1.0 / np.linalg.norm(w))
    np.testing.assert_allclose(np.ravel(view.params), w, atol=1e-5)


@pytest.mark.parametrize(("copy", "exposure"), [(SOLVED, 1.0), (EXPOSED, 3.0)], ids=["once", "exposed"])
def test_solved_noise_meets_the_target(copy, exposure, softmax_problem):
    plan, method = draw_plan(softmax_problem, HALF, 10), planted(heavy(), copy)
    ready = calibrate(method, softmax_problem, plan, mu=1.0)
    assert ready.noise_std == pytest.approx(2.0 * exposure, rel=1e-5)
    assert 0.99999 < guarantee(ready, softmax_problem, plan).mu <= 1 + 1e-6
    ready = calibrate(method, softmax_problem, plan, epsilon=2.0, delta=1e-5)
    assert 1.9999 < guarantee(ready, softmax_problem, plan).epsilon <= 2 * (1 + 1e-6)


def test_noise_that_misses_the_target_is_refused(softmax_problem):
    message = "HeavyBall.* must give at most μ = 1, and its noise on this plan gives 3-GDP"
    with pytest.raises(Refusal, match=message):
        simulate(planted(heavy(mu=1.0), OVERSHOOTING), softmax_problem, HALF)


def test_it_is_written_on_public_names_alone():
    assert "fedprivjax." not in Path(heavy_ball.__file__).read_text(encoding="utf-8")
    assert [field.name for field in fields(HeavyBall)] == ["beta", "nesterov"]
