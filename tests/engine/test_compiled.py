"""Programs are forgotten before there is no room for more."""

import jax
import jax.numpy as jnp
import pytest

from fedprivjax.engine import compiled


@pytest.mark.skipif(not compiled.MAPPINGS.exists(), reason="memory mappings are counted on Linux")
def test_programs_are_forgotten_where_they_take_half_of_the_mappings(monkeypatch, tmp_path):
    traces = []

    @jax.jit
    def program(x):
        traces.append(x.shape)
        return x + 1

    def run():
        return program(jnp.ones(3)).block_until_ready()

    run()
    assert not compiled.make_room()
    run()
    assert len(traces) == 1
    few = tmp_path / "limit"
    few.write_text(str(compiled.taken()))
    monkeypatch.setattr(compiled, "LIMIT", few)
    assert compiled.make_room()
    run()
    assert len(traces) == 2


def test_systems_without_a_count_go_on(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "LIMIT", tmp_path / "none")
    assert not compiled.make_room()
