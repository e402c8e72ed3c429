"""Machines divided over four simulated devices: equal runs, divided states, one sum a round, and refused meshes."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from client_momentum import ClientMomentum
from flax import struct
from jax.sharding import AxisType

from fedprivjax import (
    DPMu2,
    Dropouts,
    FedAvg,
    Logistic,
    Refusal,
    Scaffold,
    Softmax,
    Uniform,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.engine.simulate import run_program
from fedprivjax.method.client_method import ClientMethod
from fedprivjax.method.division import machines_mesh
from fedprivjax.plan import size_limits

RNG = np.random.default_rng(3)
SIZES = (4, 9, 2, 0, 3, 30, 1, 8, 8)  # 9 machines: no mesh of 2 or 4 devices divides them
LOCAL = {"local_epochs": 2, "batch": 3, "step_size": 0.3}
PRIVATE = {"noise_std": 0.1, "unit": "record", "clip": 1.0, "batch": 2}


def machines(count: int, **options):
    return jax.make_mesh((count,), ("machines",), devices=jax.devices()[:count], **options)


@pytest.fixture(scope="module")
def unequal():
    ends, rows = np.cumsum(SIZES), np.full((len(SIZES), max(SIZES)), -1)
    for i, (end, size) in enumerate(zip(ends, SIZES, strict=True)):
        rows[i, :size] = np.arange(end - size, end)
    features = RNG.normal(size=(sum(SIZES), 20)).astype(np.float32)
    return linear_problem(features, RNG.integers(0, 3, sum(SIZES)), Softmax(3), partition_table=rows)


@pytest.fixture(scope="module")
def many():
    """200 machines of two records, 100 parameters."""
    features, labels = RNG.normal(size=(400, 100)).astype(np.float32), RNG.integers(0, 2, 400)
    return linear_problem(features, labels, Logistic(), partition_table=np.arange(400).reshape(200, 2))


@struct.dataclass
class Remembering(ClientMomentum):
    """A machine also keeps a switch and its own key, and moves only while the switch is on."""

    noise_std: Any = 0.0

    def client_init(self, problem):
        return super().client_init(problem), jnp.array(True), jax.random.key(3)

    def client(self, server, own, data, noise, key):
        momentum, on, stream = own
        stream, draw = jax.random.split(stream)
        message, momentum, info = super().client(server, momentum, data, noise, key)
        message = jax.tree.map(lambda leaf: leaf * on * jax.random.uniform(draw), message)
        return message, (momentum, ~on, stream), info


def assert_equal_on(mesh, protocol, problem, participation, **options):
    run = {"participation": participation, "rounds": 20, "seed": 2, **options}
    alone, divided = simulate(protocol, problem, **run), simulate(protocol, problem, **run, mesh=mesh)
    size = np.linalg.norm(alone.params)
    assert size > 0.05
    assert np.linalg.norm(divided.params - alone.params) <= 1e-5 * size
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(divided.metrics[name], values, rtol=1e-4, err_msg=name)


def test_a_custom_method_is_equal_on_four_devices(many):
    """With a state of numbers, a truth value and a key. No device computes equally many of the 7 slots."""
    assert_equal_on(machines(4), Remembering(), many, Uniform(200, 7), rounds=100, metrics=[])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "protocol",
    [FedAvg(**LOCAL), Scaffold(**LOCAL), Scaffold(**{**LOCAL, **PRIVATE}), ClientMomentum(noise_std=0.1)],
    ids=["FedAvg", "SCAFFOLD", "noise in local steps", "noise of the server"],
)
@pytest.mark.parametrize("together", [1, 100])
def test_methods_are_equal_on_any_number_of_devices(protocol, count, together, unequal, monkeypatch):
    """Machines of unequal sizes that drop out. Each device computes its slots one after another, or together."""
    monkeypatch.setattr(ClientMethod, "slots_together", lambda method, problem, per_round: together)
    assert_equal_on(machines(count), protocol, unequal, Dropouts(Uniform(9, 7), 0.3), eval_every=5)


def test_each_device_holds_its_part_of_the_client_state_and_sums_cross_once(many):
    """The program's memory on a device is the state's part and at most 20% of the state."""
    protocol, rounds = Scaffold(local_epochs=1, batch=2, step_size=0.3), 3
    start = ready(protocol, many, Uniform(200, 6), rounds=rounds, metrics=[], mesh=machines(4))
    program = run_program.lower(start.arguments, start.static).compile()
    whole = start.costs["client_state_bytes"]
    assert whole == 200 * 100 * 4
    assert whole / 4 <= program.memory_analysis().temp_size_in_bytes <= (1 / 4 + 0.2) * whole
    assert len(re.findall(r" all-reduce\(", program.as_text())) == 1


def test_states_are_divided_with_rows_added(unequal):
    start = ready(Scaffold(**LOCAL), unequal, Uniform(9, 7), rounds=2, metrics=[], mesh=machines(4))
    protocol = start.protocol.on_mesh(start.static.mesh)
    state = jax.jit(lambda key: protocol.init(unequal, start.plan.size, key))(start.key)
    leaves = jax.tree.leaves(state.own)
    assert {shard.data.shape[0] for leaf in leaves for shard in leaf.addressable_shards} == {3}
    assert all(len(leaf.addressable_shards) == 4 for leaf in leaves)


def test_a_device_needs_memory_for_its_part_of_the_client_state_only(many, monkeypatch):
    run = {"problem": many, "participation": Uniform(200, 6), "rounds": 3}
    protocol, part = Scaffold(local_epochs=1, batch=2, step_size=0.3), 200 * 100 * 4 // 4
    monkeypatch.setattr(size_limits, "device_memory", lambda device: part)
    assert ready(protocol, **run, mesh=machines(4)).costs["client_state_bytes"] == 4 * part
    for mesh in (None, machines(2)):
        with pytest.raises(Refusal, match="client state must fit"):
            ready(protocol, **run, mesh=mesh)
    monkeypatch.setattr(size_limits, "device_memory", lambda device: part - 1)
    with pytest.raises(Refusal, match=rf"got {part} bytes for 50 machines .* on one device"):
        ready(protocol, **run, mesh=machines(4))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_meshes_of_both_types_of_axes_are_rebuilt(kind):
    mesh = machines_mesh(machines(2, axis_types=(kind,)))
    assert mesh.axis_types == (AxisType.Auto,)
    assert mesh.size == 2


@pytest.mark.parametrize(
    ("mesh", "got"),
    [
        (jax.make_mesh((2,), ("runs",), devices=jax.devices()[:2]), r"the axes \('runs',\)"),
        (jax.make_mesh((2, 2), ("runs", "machines")), r"the axes \('runs', 'machines'\)"),
        (4, "4"),
    ],
    ids=["other name", "two axes", "a number"],
)
def test_other_meshes_are_refused(mesh, got, unequal):
    with pytest.raises(Refusal, match=rf"mesh must have one axis, 'machines', got {got}\. Use jax\.make_mesh"):
        simulate(FedAvg(**LOCAL), unequal, Uniform(9, 3), mesh=mesh)


def test_methods_without_local_work_are_refused(unequal):
    protocol = DPMu2(noise_std=0.1, step_size=0.1, clip=1.0)
    with pytest.raises(Refusal, match=r"mesh must be left out with DPMu2, .* got a mesh of 2 devices"):
        simulate(protocol, unequal, Uniform(9, 3), mesh=machines(2))


def test_a_divided_run_shows_its_progress(many):
    told = []
    protocol = FedAvg(local_epochs=1, batch=2, step_size=0.3)
    run = {"rounds": 6, "eval_every": 2, "metrics": [], "mesh": machines(2)}
    simulate(protocol, many, Uniform(200, 4), **run, progress=lambda *done: told.append(done))
    assert sorted(told) == [(2, 6), (4, 6), (6, 6)]
