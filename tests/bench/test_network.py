"""The rounds by hand that networks' runs are timed beside go where the runs go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax.bench import clients, clipped_records
from fedprivjax.engine.simulate import run_program
from fedprivjax.noise import Silent
from fedprivjax.problem.networks import MLP


def test_the_round_by_hand_is_the_engines(monkeypatch):
    for name, value in {
        "NETWORK_MACHINES": 6,
        "NETWORK_COHORT": 3,
        "SIDE": 5,
        "NETWORK_HIDDEN": (4,),
        "CLIP": 0.5,
    }.items():
        monkeypatch.setattr(clients, name, value)
    start = clients.make_network.__wrapped__(4)
    ours = run_program(start.arguments._replace(mechanism=Silent()), start.static)[0]
    step, samples = jnp.float32(start.protocol.step_size), jnp.asarray(start.plan.samples)
    theirs = clients.network_by_hand(start.problem.start, start.problem.pool, samples, step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    assert not np.allclose(ours["Dense_0"]["kernel"], start.problem.start["Dense_0"]["kernel"], atol=1e-4)


@pytest.mark.parametrize("name", ["by_scan", "by_vmap", "by_ghost"])
def test_the_clipped_rounds_by_hand_are_the_engines(name, monkeypatch):
    monkeypatch.setattr(clients, "SIDE", 5)
    monkeypatch.setattr(clipped_records, "RECORDS", 20)
    start = clipped_records.make(MLP((4,)), 6)
    ours = run_program(start.arguments, start.static)[0]
    theirs = getattr(clipped_records, name)(start.problem)(*clipped_records.arguments(start))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    assert not np.allclose(ours["Dense_0"]["kernel"], start.problem.start["Dense_0"]["kernel"], atol=1e-4)
