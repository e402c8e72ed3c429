"""Plans with secret samples: an ε takes none of them, and a run draws those that a plan's seed says."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprivjax import (
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    Uniform,
    draw_plan,
    guarantee,
    linear_problem,
    planner,
)
from fedprivjax.cli import app
from fedprivjax.engine.prepare import ready
from fedprivjax.plan import draw as plans
from fedprivjax.plan.plan import draw_minibatches
from fedprivjax.plan.samplers import Poisson, Subset
from fedprivjax.plan.seeds import as_seeds, samples_rng
from fedprivjax.sweeps.prepare import ready_sweep

ROWS = np.random.default_rng(0).normal(size=(4, 8, 3))
LABELS = (ROWS[..., 0] > 0).astype(int)
PROBLEM = linear_problem(ROWS, LABELS, Logistic())
SECRET = {
    "poisson": NoisyMinibatchSGD(epsilon=2.0, clip=1.0, batch=2, sampler="poisson", step_size=0.1),
    "subset": NoisyMinibatchSGD(epsilon=2.0, clip=1.0, batch=2, sampler="subset", step_size=0.1),
    "local steps": LocalSGD(epsilon=2.0, clip=1.0, batch=2, step_size=0.1),
}
FILE = """
title = "secret samples"
[problem]
dataset = "digits"
partition = { kind = "iid" }
[participation]
kind = "full"
machines = 3
rounds = 5
[[protocol]]
name = "noisy_minibatch_sgd"
sampler = "poisson"
batch = 4
clip = 1.0
step_size = 0.1
[sweep]
epsilon = [2.0]
seeds = 2
"""


@pytest.fixture
def nothing_drawn(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("samples are drawn")

    monkeypatch.setattr(plans, "draw_minibatches", refuse)


@pytest.mark.parametrize("protocol", SECRET.values(), ids=SECRET)
def test_a_guarantee_draws_no_samples(protocol, nothing_drawn):
    plan = draw_plan(PROBLEM, Full(4), 5, sampler=protocol.minibatches)
    assert guarantee(protocol, PROBLEM, plan).epsilon == pytest.approx(2.0, rel=1e-2)
    assert plan.public.samples.shape == (5, 4, 0)
    start = ready(protocol, PROBLEM, Full(4), rounds=5)
    assert start.guarantee.epsilon <= 2.0 * (1 + 1e-6)
    swept = ready_sweep(replace(protocol, epsilon=None), PROBLEM, Full(4), over={"epsilon": [1.0, 2.0]}, rounds=5)
    assert swept.privacy()[0]["realised_epsilon"].shape == (8, 2)


@pytest.mark.slow
def test_the_commands_that_say_what_privacy_is_draw_no_samples(tmp_path, nothing_drawn):
    file = tmp_path / "secret.toml"
    file.write_text(FILE)
    found = CliRunner().invoke(app, ["privacy", str(file)])
    assert (found.exit_code, "poisson" in found.output.lower() or "ε" in found.output) == (0, True), found.exception
    sizes = {"machines": 3, "per_round": 3, "samples": 40, "dimension": 5, "epsilon": 2.0}
    assert planner.plan(**sizes, protocols=["noisy_minibatch_sgd"]).sizes["protocol"] > 0


def test_samples_are_those_of_the_seed_whenever_they_are_drawn():
    law, sampler = Uniform(4, 2), Poisson(3)
    late = draw_plan(PROBLEM, law, 6, 3, sampler=sampler)
    assert not late.drawn
    again = draw_plan(PROBLEM, law, 6, 3, sampler=sampler)
    own = draw_minibatches(sampler, PROBLEM.partition_table.rows, late.schedule, samples_rng(as_seeds(3)))
    assert (late.weights == own.weights).all()
    assert late.drawn
    assert (late.samples == own.samples).all()
    assert (again.samples == own.samples).all()
    assert late.width == own.samples.shape[2] == draw_plan(PROBLEM, law, 6, 3, sampler=sampler).width
    copy = replace(again, secret=False)
    assert copy.drawn
    assert copy.samples is again.samples


def test_secret_samples_of_a_sampler_that_breaks_its_word_are_refused_before_they_are_run():
    class Twice(Subset):
        secret, coupled, occurrences = True, True, Subset.occurrences

        def message(self, sizes, batches, most, width, rng):
            places, counts = super().message(sizes, batches, most, width, rng)
            return np.repeat(places[:, :1], width, axis=1), counts

    start = ready(
        NoisyMinibatchSGD(noise_std=1.0, clip=1.0, sampler=Twice(2), step_size=0.1), PROBLEM, Full(4), rounds=3
    )
    with pytest.raises(Refusal, match="samples must occur once in a message"):
        _ = start.arguments


def test_a_plan_can_be_pickled_before_and_after_it_is_drawn():
    plan = draw_plan(linear_problem(ROWS, LABELS, Logistic()), Full(4), 3, sampler=Poisson(2))
    assert not plan.drawn
    before = pickle.loads(pickle.dumps(plan))
    assert not before.drawn
    np.testing.assert_array_equal(before.samples, plan.samples)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(plan)).weights, before.weights)


@pytest.mark.parametrize("protocol", SECRET.values(), ids=SECRET)
def test_text_of_a_plan_draws_no_samples_and_is_the_same_after_they_are_drawn(protocol, nothing_drawn, monkeypatch):
    start = ready(protocol, PROBLEM, Full(4), rounds=5)
    before = repr(start), repr(start.plan)
    assert not start.plan.drawn
    assert f"records of a message: {protocol.minibatches}, secret" in before[1]
    monkeypatch.undo()
    assert start.plan.samples.shape[2] == start.plan.width
    assert before == (repr(start), repr(start.plan))
