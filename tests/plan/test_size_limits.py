"""Sizes that cannot work are refused by arithmetic alone: in one line, before anything is drawn or calibrated."""

import re
from time import process_time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from fedprivjax import (
    Ball,
    Box,
    DPMu2,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    Simplex,
    Uniform,
    datasets,
    linear_problem,
    procedural_problem,
    simulate,
    sweep,
)
from fedprivjax.cli import app
from fedprivjax.engine.prepare import ready
from fedprivjax.plan import draw as plans
from fedprivjax.privacy import calibration
from fedprivjax.problem import devices
from fedprivjax.sweeps import prepare as sweeps

X = np.random.default_rng(0).normal(size=(4, 6, 3))
OWN = linear_problem(X, (X[..., 0] > 0).astype(int), Logistic(), constraint=Ball(1.0))
COMPUTED = procedural_problem(
    lambda key, machine: jax.random.normal(key, (3,)), jnp.vdot, start=jnp.zeros(3), constraint=Ball(1.0), lipschitz=1.0
)
METHOD = DPMu2(mu=2.0, clip=1.0, step_size=0.1)
BATCHES = NoisyMinibatchSGD(epsilon=2.0, clip=1.0, batch=2, sampler="poisson", step_size=0.1)
GIB_8 = 8 * 2**30


@pytest.fixture
def nothing_happens(monkeypatch):
    """A computer of 8 GiB on which nothing is drawn or calibrated."""

    def refuse(*_, **__):
        raise AssertionError("something is drawn or calibrated")

    monkeypatch.setattr(devices, "memory", lambda: GIB_8)
    monkeypatch.setattr(plans, "draw_schedule", refuse)
    monkeypatch.setattr(calibration, "cached_min_noise", refuse)
    monkeypatch.setattr(sweeps, "grid", refuse)


IMPOSSIBLE = {
    "int32 rounds": (COMPUTED, Uniform(100, 10), 10**12, METHOD, r"rounds must be below 2³¹, .*, got 1000000000000"),
    "machines": (COMPUTED, Uniform(10**9, 10), 5, METHOD, r"plans must fit .* got machines = 1000000000, .*"),
    "slots": (COMPUTED, Full(10**5), 10**5, METHOD, r"plans must fit .*per_round = 100000, rounds = 100000, .*"),
    "batches": (OWN, Full(4), 10**8, BATCHES, r"plans must fit in this computer's 8 GiB of memory, .*batch = 2, .*"),
}


@pytest.mark.parametrize(("problem", "law", "rounds", "method", "why"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_sizes_are_refused_by_every_way_in(problem, law, rounds, method, why, nothing_happens):
    for start in (ready, simulate, sweep):
        begun = process_time()
        with pytest.raises(Refusal, match=f"^{why}$"):
            start(method, problem, law, rounds=rounds)
        assert process_time() - begun < 1


@pytest.mark.parametrize("seeds", [10**7, 10**11])
def test_more_seeds_than_memory_holds_are_refused(seeds, nothing_happens):
    with pytest.raises(Refusal, match=rf"^plans must fit .*, seeds = {seeds}, .* Lower the largest of these$"):
        sweep(METHOD, COMPUTED, Uniform(100, 10), rounds=5, seeds=seeds)


def test_a_swept_size_is_refused_before_the_first_of_them_is_made_ready(nothing_happens):
    with pytest.raises(Refusal, match=r"^machines must be below 2³¹"):
        sweep(METHOD, COMPUTED, Uniform(100, 10), rounds=5, over={"machines": [100, 10**10]})


@pytest.mark.parametrize("machines", [10**6, 2 * 10**7])
def test_many_computed_machines_stay_possible(machines):
    plans.require_possible(COMPUTED, Uniform(machines, 10), 100, draws=2)


def test_a_million_machines_are_made_ready():
    start = ready(METHOD, COMPUTED, Uniform(10**6, 10), rounds=3)
    assert start.plan.size == (10**6, 10, 3)
    assert start.guarantee.mu == pytest.approx(2.0)


def test_a_set_beyond_float32_is_refused():
    for make in (lambda: Ball(1e300), lambda: Box(-1e300, 1.0), lambda: Box(0.0, 1e300), lambda: Simplex(1e300)):
        with pytest.raises(Refusal, match=r"^(radius|low|high|scale) must be at most 1e\+18, .*, got -?1e\+300$"):
            make()
    assert Box(-np.inf, 1.0).low == -np.inf
    assert Ball(1e17).diameter == 2e17
    with pytest.raises(Refusal, match=r"^radius must be at most 1e\+18"):
        sweep(METHOD, COMPUTED, Full(4), rounds=2, over={"radius": [1.0, 1e300]})


LINES = {
    "sweep.seeds=1000000000": "plans must fit in this computer's 8 GiB of memory, .*, seeds = 1000000000, .*",
    "sweep.seeds=100000000000": "plans must fit in this computer's 8 GiB of memory, .*, seeds = 100000000000, .*",
    "participation.machines=1000000000": "plans must fit .* got machines = 1000000000, .*",
    "participation.machines=1000000000000": "machines must be below 2³¹, as int32 counts them, got 1000000000000",
    "problem.radius=1e300": r"radius must be at most 1e\+18, whose square float32 holds, got 1e\+300",
    "participation.rounds=5000": r".*at most the 1437 examples, got 10 · 5000 = 50000. Use at most 143 rounds",
    "participation.rounds=100000": r".*at most the 1437 examples, got 10 · 100000 = 1000000. Use at most 143 rounds",
}


@pytest.mark.parametrize(
    ("command", "change", "line"),
    [(name, *both) for both in LINES.items() for name in ("run", "privacy") if name == "run" or "seeds" not in both[0]],
)
def test_the_command_line_refuses_them_in_one_line(command, change, line, tmp_path, monkeypatch, nothing_happens):
    monkeypatch.chdir(tmp_path)
    begun = process_time()
    answer = CliRunner().invoke(app, [command, "quickstart", "--set", change])
    assert process_time() - begun < 2
    assert isinstance(answer.exception, Refusal)
    assert re.fullmatch(rf"(\[(\[protocol\]|participation)\] .*: )?{line}", str(answer.exception))


LATE = """
title = "records for five rounds"
[problem]
dataset = "digits"
partition = { kind = "iid" }
[participation]
kind = "full"
machines = 100
rounds = 5000
[[protocol]]
name = "noisy_minibatch_sgd"
sampler = "poisson"
batch = 4
clip = 1.0
[[protocol]]
name = "dp_mu2"
clip = 1.0
[sweep]
epsilon = [2.0]
"""


def test_no_noise_is_calibrated_where_a_later_protocol_has_too_few_records(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("noise is calibrated")

    monkeypatch.setattr(sweeps, "calibrated", refuse)
    monkeypatch.setattr(sweeps, "ready_after", refuse)
    file = tmp_path / "late.toml"
    file.write_text(LATE)
    answer = CliRunner().invoke(app, ["privacy", str(file)])
    assert isinstance(answer.exception, Refusal)
    assert str(answer.exception).endswith(
        "got 100 · 5000 = 500000. Use at most 14 rounds, because the smallest machine has 14 records"
    )


@pytest.mark.parametrize(
    "made", [datasets.least_squares, datasets.logistic, datasets.least_absolute, datasets.clusters]
)
@pytest.mark.parametrize("sizes", [(10**12, 20), (20, 10**12), (10**400, 20)])
def test_sampled_data_must_fit_in_memory(made, sizes):
    """Also when `report` reads the settings of results from elsewhere."""
    with pytest.raises(Refusal, match=r"data must fit in this computer's \S+ GiB of memory, got .*Lower the larger"):
        made(*sizes)


def test_streamed_data_must_fit_in_memory():
    with pytest.raises(Refusal, match=r"data must fit in this computer's \S+ GiB of memory, got 1010 examples of"):
        datasets.stream(10**12, 10)
