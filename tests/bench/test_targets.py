"""`python experiments/benchmarks/targets`: its rounds by hand go where runs go, and every group is measured."""

import json
import runpy
import sys
from pathlib import Path

import chunks
import clipped_records
import cohorts
import convolutions
import federation
import jax
import jax.numpy as jnp
import local_work
import measures
import network
import numpy as np
import pytest
import sequences
import tree_noise

from fedprivjax.bench import cell, fedavg
from fedprivjax.engine.simulate import run_program
from fedprivjax.noise import Silent
from fedprivjax.problem.networks import MLP

pytestmark = pytest.mark.optimised
TARGETS = Path(network.__file__).parent
LINES = {
    "a round by component": 3,
    "chunks of a sweep": 1,
    "a million machines": 3,
    "a network": 2,
    "clipped records": 4,
    "local work": 4,
    "convolutions": 3,
    "recurrence and attention": 2,
    "cohorts and samples": 5,
    "a tree's noise": 2,
    "checkpoints": 2,
}
SMALL = {  # sizes of all groups, which are measured in this process here
    cell: {"FEATURES": 40},
    fedavg: {"SIDE": 8},
    federation: {"TIMED_ROUNDS": 30, "ROUNDS": 100, "MILLION": 10**5},
    network: {"ROUNDS": 20, "TIMED_ROUNDS": 10},
    local_work: {"TWOS": (100, 100), "MANY": 1000},
    tree_noise: {"RECORDS": 2000},
    clipped_records: {"RECORDS": 128},
    cohorts: {"FITTED": 200, "TARGETS": [1.0, 2.0], "SCALES": [0.5, 1.0]},
    convolutions: {"LARGE": (2, 3)},
    chunks: {"ROUNDS": 100},
}
CACHED = cell.make, fedavg.make, network.make  # problems of these sizes
DIFFERENCES = (  # of two times or sizes, either of which may be the larger one
    "the gather, over the floor",
    "the same, peak memory beyond a run without a clip",
)


def require_same(ours, theirs, start, rtol=1e-4, atol=1e-6, moved=1e-4):
    """Raise unless the parameters agree, and all of them moved."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), ours, theirs)
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), ours, start))) > moved


@pytest.mark.slow
def test_the_round_of_dp_mu2_by_hand_is_the_engines(monkeypatch):
    monkeypatch.setattr(fedavg, "SIDE", 5)
    for name, value in {"MACHINES": 6, "COHORT": 3, "HIDDEN": (4,), "CLIP": 0.5}.items():
        monkeypatch.setattr(network, name, value)
    start = network.make.__wrapped__(4)
    ours = run_program(start.arguments._replace(mechanism=Silent()), start.static)[0]
    step, samples = jnp.float32(start.protocol.step_size), jnp.asarray(start.plan.samples)
    theirs = network.by_hand(start.problem.start, start.problem.pool, samples, step)
    require_same(ours, theirs, start.problem.start)


@pytest.mark.parametrize("name", [pytest.param("by_scan", marks=pytest.mark.slow), "by_vmap", "by_ghost"])
def test_the_clipped_rounds_by_hand_are_the_engines(name, monkeypatch):
    monkeypatch.setattr(fedavg, "SIDE", 5)
    monkeypatch.setattr(clipped_records, "RECORDS", 20)
    start = clipped_records.make(MLP((4,)), 6)
    ours = run_program(start.arguments, start.static)[0]
    theirs = getattr(clipped_records, name)(start.problem)(*clipped_records.arguments(start))
    require_same(ours, theirs, start.problem.start)


@pytest.mark.slow
def test_the_loop_of_jitted_steps_is_the_engines_round(monkeypatch):
    monkeypatch.setattr(fedavg, "SIDE", 4)
    start = convolutions.make(2, 2, convolutions.Network((2, 3), 4))
    ours, theirs = run_program(start.arguments, start.static)[0], convolutions.by_hand(start)
    require_same(ours, theirs, start.problem.start)


@pytest.mark.slow
@pytest.mark.parametrize("model", [sequences.Recurrent(4), sequences.Transformer(8)], ids=["lstm", "attention"])
def test_the_rounds_of_sequences_by_hand_are_the_engines(model, monkeypatch):
    monkeypatch.setattr(fedavg, "SIDE", 4)
    start = convolutions.make(2, sequences.STEPS, model)
    ours = run_program(start.arguments, start.static)[0]
    for over in (sequences.at_once, sequences.in_turn):
        theirs = sequences.by_hand(start, over)(*sequences.arguments(start))
        require_same(ours, theirs, start.problem.start, rtol=1e-3, atol=1e-5, moved=1e-3)


def test_time_without_a_span_is_idle():
    assert chunks.idle_share(np.array([[0.0, 4.0], [1.0, 2.0], [6.0, 8.0]])) == 0.25


def test_a_ratio_has_a_warm_up():
    count: list[int] = []
    assert measures.ratio_side_by_side(lambda: count.append(1), lambda: count.append(2), repeats=3) > 0
    assert count == [1, 2] * 4


@pytest.fixture
def small(measured_once):
    """Measure every group once, at the sizes of `SMALL`."""
    measured_once(SMALL, CACHED)


@pytest.mark.slow
@pytest.mark.parametrize("group", list(LINES))
def test_every_group_is_measured(group, small, monkeypatch, tmp_path):
    file = tmp_path / "lines.json"
    monkeypatch.setattr(sys, "argv", ["targets", "--only", group, "--json", str(file)])
    runpy.run_path(str(TARGETS / "__main__.py"), run_name="__main__")
    lines = json.loads(file.read_text())["results"]
    assert len(lines) == LINES[group]
    assert np.isfinite([line["value"] for line in lines]).all()
    assert all(line["value"] > 0 or line["name"] in DIFFERENCES for line in lines)
