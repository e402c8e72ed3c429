"""A custom protocol in one file: sweeps, guarantee, transcript, contract, and experiments."""

from dataclasses import fields, replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import struct
from momentum_sgd import MomentumSGD
from restating import states
from small_file import FEDERATION

from fedprivjax import (
    Grouped,
    Refusal,
    Uniform,
    calibrate,
    check_protocol,
    draw_plan,
    experiment,
    guarantee,
    guarantee_of,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.tuning import selected
from fedprivjax.method.interface import Protocol
from fedprivjax.privacy.of_protocol import privacy_of
from fedprivjax.testing import PROPERTIES

SOURCE = Path(__file__).parents[1] / "momentum_sgd.py"
HALF = Uniform(4, 2)


@states("event")
@struct.dataclass
class Exposed(MomentumSGD):
    """The same, with an event that states three times the exposure of a sample."""

    def exposure(self, plan):
        return Grouped.of(3.0 * (plan.schedule.total > 0))


@states("event")
@struct.dataclass
class Overshooting(Exposed):
    """The same, with custom noise that ignores that exposure."""

    def calibrate(self, problem, plan, target):
        return self.with_noise(problem, plan, 2 * self.clip / target.largest_mu, target)


@states("event")
@struct.dataclass
class Quiet(MomentumSGD):
    """Planted: messages have half of the claimed noise."""

    def mechanism(self, problem, plan, method="auto"):
        mechanism = MomentumSGD.mechanism(self, problem, plan, method)
        return replace(mechanism, inputs=jax.tree.map(lambda relative: 0.5 * relative, mechanism.inputs))


@states("event")
@struct.dataclass
class Bare(MomentumSGD):
    """Planted: only the aggregate has noise, even with materialised messages, which are plain gradients."""

    def mechanism(self, problem, plan, method="auto"):
        return MomentumSGD.mechanism(self, problem, plan, "auto")


@states("event")
@struct.dataclass
class Rerun(MomentumSGD):
    """Planted: a program that depends on the value of a number."""

    scale: float = struct.field(pytree_node=False, default=1.0)

    @property
    def traced(self):
        return replace(self, scale=float(self.noise_std))


@pytest.mark.slow
def test_its_contract(softmax_problem):
    check_protocol(MomentumSGD(mu=1.0, beta=0.7), softmax_problem)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            Quiet(mu=1.0),
            "Quiet fails 'the noise has the stated distribution': noise must have the stated scale 2, got 1.0",
        ),
        (
            Bare(mu=1.0),
            "Bare fails 'the view fits the trust model': Bare's noise must be sampled separately for every message",
        ),
        (Rerun(mu=1.0), "Rerun fails 'a sweep equals a loop'"),
        (Overshooting(noise_std=2.0), "Overshooting fails 'the target is met': Overshooting must give at most μ = 1"),
    ],
    ids=["quiet", "bare", "rerun", "overshooting"],
)
def test_faults_are_named(protocol, message, softmax_problem):
    named = [name for name in PROPERTIES if name in message]
    assert named
    with pytest.raises(AssertionError, match=message.replace("(", "[(]")):
        check_protocol(protocol, softmax_problem, properties=named)


def test_an_unknown_property_is_refused(softmax_problem):
    with pytest.raises(Refusal, match="unknown property 'the target is mt', did you mean 'the target is met'"):
        check_protocol(MomentumSGD(mu=1.0), softmax_problem, properties=["the target is mt"])


@pytest.mark.slow
def test_momentum_is_swept(softmax_problem):
    settings = {"rounds": 8, "eval_every": 4}
    grid = sweep(MomentumSGD(mu=4.0), softmax_problem, HALF, over={"beta": [0.0, 0.9]}, seeds=2, **settings)
    for beta in (0.0, 0.9):
        alone = simulate(MomentumSGD(mu=4.0, beta=beta), softmax_problem, HALF, seed=1, **settings)
        np.testing.assert_allclose(grid.test_loss.sel(beta=beta, seed=1), alone.metrics["test_loss"], rtol=1e-5)
    assert np.abs(grid.test_loss.sel(beta=0.0) - grid.test_loss.sel(beta=0.9)).min() > 1e-4
    assert guarantee_of(grid.sel(beta=0.9)).mu == pytest.approx(4.0, rel=1e-5)


def test_its_steps_are_the_textbooks(softmax_problem):
    """From the messages that an adversary sees."""
    protocol = MomentumSGD(mu=4.0, beta=0.7, step_size=0.05)
    view = transcript(protocol, softmax_problem, HALF, rounds=10)
    w, v = np.zeros(15), np.zeros(15)
    for query, messages in zip(view.queries, view.messages, strict=True):
        np.testing.assert_allclose(query, w, atol=1e-5)
        v = 0.7 * v + messages.mean(axis=0)
        w = w - 0.05 * v
        w = w * min(1.0, 1.0 / np.linalg.norm(w))
    np.testing.assert_allclose(np.ravel(view.params), w, atol=1e-5)


@pytest.mark.parametrize(("method", "exposure"), [(MomentumSGD, 1.0), (Exposed, 3.0)])
def test_solved_noise_meets_the_target(method, exposure, softmax_problem):
    plan = draw_plan(softmax_problem, HALF, 10)
    ready = calibrate(method(), softmax_problem, plan, mu=1.0)
    assert ready.noise_std == pytest.approx(2.0 * exposure, rel=1e-5)
    assert 0.99999 < guarantee(ready, softmax_problem, plan).mu <= 1 + 1e-6
    ready = calibrate(method(), softmax_problem, plan, epsilon=2.0, delta=1e-5)
    assert 1.9999 < guarantee(ready, softmax_problem, plan).epsilon <= 2 * (1 + 1e-6)


def test_noise_that_misses_the_target_is_refused(softmax_problem):
    message = "Overshooting must give at most μ = 1, and its noise on this plan gives 3-GDP"
    with pytest.raises(Refusal, match=message):
        simulate(Overshooting(mu=1.0), softmax_problem, HALF)


EXPERIMENT = (
    """
title = "momentum"
"""
    + FEDERATION
    + """
[[protocol]]
name = "momentum_sgd:MomentumSGD"
label = "momentum"
clip = 0.5
grid = { beta = [0.0, 0.9] }

[sweep]
mu = [1, 4]
seeds = 2

[evaluation]
metrics = ["test_loss"]
select = "test_loss"
every = 4
"""
)


def test_an_experiment_names_it(tmp_path):
    (tmp_path / "momentum_sgd.py").write_text(SOURCE.read_text())
    (tmp_path / "momentum.toml").write_text(EXPERIMENT)
    settings = experiment.load(tmp_path / "momentum.toml")
    results = runner.run(settings)
    assert dict(results["momentum"].test_loss.sizes) == {"mu": 2, "beta": 2, "seed": 2, "round": 2}
    best = selected(settings, results)["momentum"]
    assert set(np.ravel(best["best_beta"])) <= {0.0, 0.9}
    assert guarantee_of(results["momentum"].sel(mu=4.0, beta=0.9)).mu == pytest.approx(4.0, rel=1e-5)


def test_it_is_written_on_public_names_alone():
    source = SOURCE.read_text()
    assert "fedprivjax." not in source
    assert [field.name for field in fields(MomentumSGD)] == [
        "calibrate_to",
        "mu",
        "noise_std",
        "step_size",
        "clip",
        "beta",
    ]


def test_a_field_that_a_protocol_lacks_is_read_with_its_default():
    assert privacy_of(Protocol()).clip is None
    assert "clip" not in {field.name for field in fields(struct.dataclass(type("Bare", (Protocol,), {})))}
