"""Compiled programs are cleared before the process runs out of memory mappings."""

import jax
import jax.numpy as jnp
import pytest

from fedprivjax.problem import program as programs


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
