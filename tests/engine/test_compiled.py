"""Compiled programs have one body, and are cleared before the process runs out of memory mappings."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing, unit_rows
from flax import struct

from fedprivjax import DPMu2, FedAvg, NoisySGD, Scaffold, Softmax, Uniform, linear_problem, ready
from fedprivjax.engine import segments
from fedprivjax.engine.simulate import execute, run_program
from fedprivjax.method import local_rounds
from fedprivjax.method import round as round_machinery
from fedprivjax.method.loops import scan_in_chunks
from fedprivjax.noise.covariance import Triangular
from fedprivjax.problem import program as programs

RECORDS = unit_rows(np.random.default_rng(0), 12 * 30, 4)
PROBLEM = linear_problem(
    RECORDS, np.arange(360) % 3, Softmax(3), feature_bound=1.0, partition_table=np.arange(360).reshape(12, 30)
)
NOISE = {"noise_std": 1.0, "clip": 1.0, "step_size": 0.01}
METHODS = {
    "work": FedAvg(local_steps=2, batch=5, step_size=0.1),
    "state": Scaffold(local_steps=2, batch=5, step_size=0.1),
    "server": NoisySGD(**NOISE, trust="server"),
    "covariance": DPMu2(**NOISE),
    "running sum": DPMu2(**NOISE, trust="server"),
    "toeplitz": DPMu2(**NOISE, noise_schedule="toeplitz"),
}


@pytest.mark.slow
@pytest.mark.skipif(not programs.MAPPINGS.exists(), reason="memory mappings are counted on Linux")
def test_programs_are_cleared_if_they_take_half_of_the_mappings(monkeypatch, tmp_path):
    traces = []

    @jax.jit
    def added(x):
        traces.append(x.shape)
        return x + 1

    def run():
        return added(jnp.ones(3)).block_until_ready()

    run()
    assert not programs.make_room()
    run()
    assert len(traces) == 1
    few = tmp_path / "limit"
    few.write_text(str(programs.taken()))
    monkeypatch.setattr(programs, "LIMIT", few)
    assert programs.make_room()
    run()
    assert len(traces) == 2


def test_systems_without_a_count_clear_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "LIMIT", tmp_path / "none")
    assert not programs.make_room()


def test_flags_of_quick_compilation_are_set_once(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=")
    jax.config.update("jax_disable_most_optimizations", False)  # every test sets it
    for _ in range(2):
        programs.compile_quickly()
    assert jax.config.read("jax_disable_most_optimizations")
    quick = [programs.QUICK] if programs.knows_quick() else []
    assert programs.os.environ["XLA_FLAGS"].split(" ") == " ".join([*quick, "--xla_dump_to="]).split(" ")


@pytest.mark.parametrize(("version", "known"), [("0.6.2", False), ("0.7.0", True), ("0.10.1", True), ("0.11.0", False)])
def test_versions_that_know_the_flags_for_it(monkeypatch, version, known):
    monkeypatch.setattr(programs, "version", lambda name: version)
    assert programs.knows_quick() == known


@pytest.fixture
def twos(monkeypatch):
    """Compute two machines' local work at once."""
    monkeypatch.setattr(round_machinery, "CHUNK_FLOATS", 2 * local_rounds.LIVE_VECTORS * PROBLEM.dimension)


def prepared(name, rounds, per_round, **options):
    return ready(METHODS[name], PROBLEM, Uniform(12, per_round), rounds=rounds, **options)


def products(*sizes, **options):
    start = prepared(*sizes, **options)
    return run_program.lower(start.arguments, start.static).as_text().count("dot_general")


@pytest.mark.parametrize("name", sparing(list(METHODS), ["work", "toeplitz"]))
def test_rounds_and_machines_that_do_not_divide_are_no_second_body(twos, name):
    assert products(name, 20, 4, eval_every=5) == products(name, 23, 9, eval_every=5) > 0


def test_noise_with_a_state_is_not_sampled_past_the_end_unless_its_class_says_so():
    @struct.dataclass
    class Sliced(Triangular):
        def draw(self, state, inputs, keys, dimension: int):
            (noise, done), count = state, keys.shape[0]
            return (noise, done + count), jax.lax.dynamic_slice_in_dim(noise, done, count)

    found = []
    for kind in (Triangular, Sliced):
        start = prepared("toeplitz", 23, 9, eval_every=5)
        assert isinstance(start.mechanism, Triangular)
        found.append(execute(replace(start, mechanism=kind(start.mechanism.inputs))).params)
    np.testing.assert_array_equal(*found)

    class Stated(Triangular):
        past_end = False

    assert Triangular(()).may_pass_end
    assert not Sliced(()).may_pass_end
    assert not Stated(()).may_pass_end


def test_blocks_of_noise_that_do_not_divide_an_evaluation_are_no_second_body(monkeypatch):
    monkeypatch.setattr(segments, "BLOCK", 4)
    assert products("server", 20, 4, eval_every=4) == products("server", 20, 4, eval_every=5) > 0


@pytest.mark.parametrize(("name", "block"), sparing([*product(METHODS, (64, 3))], [("state", 64)]))
def test_padding_changes_no_parameter(monkeypatch, twos, name, block):
    monkeypatch.setattr(segments, "BLOCK", block)
    found = []
    for padded in (True, False):
        with monkeypatch.context() as patch:
            if not padded:
                patch.setattr(segments, "_scan", lambda *_, **__: scan_in_chunks)
                patch.setattr(local_rounds, "computed_slots", lambda slots, together: slots)
            run_program.clear_cache()
            found.append(execute(prepared(name, 11, 9, eval_every=5)).params)
    run_program.clear_cache()
    rounding = {"rtol": 1e-5, "atol": 1e-8} if name == "state" else {"rtol": 0}
    np.testing.assert_allclose(*found, **rounding)
