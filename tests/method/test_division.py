"""Machines divided over four simulated devices: equal runs, divided states, one sum a round, and refused meshes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ROUNDS
from client_momentum import ClientMomentum, client_momentum
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
from fedprivjax.engine import chunked_sums, prepare
from fedprivjax.engine.simulate import run_program
from fedprivjax.method.local_algorithm import mul
from fedprivjax.method.local_rounds import LocalRounds, whole_state
from fedprivjax.problem import devices
from fedprivjax.problem.devices import as_mesh, mapped_with_carry

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
    """200 machines of three records, and a record that none holds; 100 parameters."""
    features, labels = RNG.normal(size=(601, 100)).astype(np.float32), RNG.integers(0, 2, 601)
    return linear_problem(features, labels, Logistic(), partition_table=np.arange(600).reshape(200, 3))


@struct.dataclass
class Remembering(ClientMomentum):
    """A machine also keeps a switch and its own key, and moves only while the switch is on."""

    def own(self, public):
        return super().own(public), jnp.array(True), jax.random.key(3)

    def leave(self, carry, received, own, work):
        momentum, on, stream = own
        return mul(on * jax.random.uniform(stream), super().leave(carry, received, momentum, work))

    def keep(self, own, message, work):
        _, on, stream = own
        return message, jnp.logical_not(on), jax.random.split(stream)[0]


def assert_equal_on(mesh, protocol, problem, participation, **options):
    run = {"participation": participation, "rounds": 20, "seed": 2, **options}
    alone, divided = simulate(protocol, problem, **run), simulate(protocol, problem, **run, mesh=mesh)
    one, other = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)]) for run in (alone, divided))
    assert np.linalg.norm(one) > 0.01
    assert np.linalg.norm(other - one) <= 1e-5 * np.linalg.norm(one)
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(divided.metrics[name], values, rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_custom_method_is_equal_on_four_devices(many):
    """With a state of numbers, a truth value and a key. No device computes equally many of the 7 slots."""
    remembering = client_momentum(Remembering, noise_std=0.0)
    assert_equal_on(machines(4), remembering, many, Uniform(200, 7), rounds=100, metrics=[])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "protocol",
    [FedAvg(**LOCAL), Scaffold(**LOCAL), Scaffold(**{**LOCAL, **PRIVATE}), client_momentum(noise_std=0.1)],
    ids=["FedAvg", "SCAFFOLD", "noise in local steps", "noise of the server"],
)
@pytest.mark.parametrize("together", [1, 100])
def test_methods_are_equal_on_any_number_of_devices(protocol, count, together, unequal, monkeypatch):
    """Machines of unequal sizes that drop out. Each device computes its slots one after another, or together."""
    monkeypatch.setattr(LocalRounds, "together", lambda rounds, problem, per_round, width: together)
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
    rows = []

    def initial(key):
        state = start.protocol.init(unequal, start.plan.size, key)
        rows.extend(leaf.shape[0] for leaf in jax.tree.leaves(state.own))
        return [leaf.shape[0] for leaf in jax.tree.leaves(whole_state(state, start.plan.size).own)]

    each = mapped_with_carry(lambda key, carry: (carry, jnp.array(initial(key))), start.static.mesh)
    on_mesh = lambda key: each(key, ())[1]  # noqa: E731
    assert jax.eval_shape(on_mesh, start.key).shape == (1,)
    assert rows == [3]


def test_a_device_needs_memory_for_its_part_of_the_client_state_only(many, monkeypatch):
    run = {"problem": many, "participation": Uniform(200, 6), "rounds": 3}
    protocol, part = Scaffold(local_epochs=1, batch=2, step_size=0.3), 200 * 100 * 4 // 4
    monkeypatch.setattr(devices, "device_memory", lambda device: part)
    assert ready(protocol, **run, mesh=machines(4)).costs["client_state_bytes"] == 4 * part
    for mesh in (None, machines(2)):
        with pytest.raises(Refusal, match="client state must fit"):
            ready(protocol, **run, mesh=mesh)
    monkeypatch.setattr(devices, "device_memory", lambda device: part - 1)
    with pytest.raises(Refusal, match=rf"got {part} bytes for 50 machines .* on one device"):
        ready(protocol, **run, mesh=machines(4))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("names", [("runs", "machines"), ("machines", "runs")])
def test_meshes_are_rebuilt_with_two_axes(kind, names):
    mesh = as_mesh(jax.make_mesh((2, 1), names, axis_types=(kind, kind), devices=jax.devices()[:2]))
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert dict(mesh.shape) == {"runs": 1, "machines": 1, names[0]: 2}
    assert set(mesh.devices.flat) == set(jax.devices()[:2])


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (jax.make_mesh((2,), ("clients",), devices=jax.devices()[:2]), r"both, got the axes \('clients',\)\. Give"),
        (4, r"both, got 4\. Give"),
        ({}, r"both, got \{\}\. Give"),
        ({"machines": 64}, r"at most as many devices as jax finds, \d+, got \{'machines': 64\}"),
        ({"machines": 0}, r"mesh\.machines must be at least 1, got 0"),
        ({"runs": 2, "machines": 2}, r"mesh must have the axis 'machines' alone for one run, got \{'runs': 2, "),
    ],
    ids=["other name", "a number", "no axis", "too many", "zero", "runs"],
)
def test_other_meshes_are_refused(mesh, message, unequal):
    with pytest.raises(Refusal, match=message):
        simulate(FedAvg(**LOCAL), unequal, Uniform(9, 3), mesh=mesh)


@pytest.mark.slow
def test_methods_without_local_work_are_divided(many):
    """With noise, clipped messages, and scalars that are means over records. The 7 slots are cut into 4 parts."""
    protocol = DPMu2(noise_std=0.1, step_size=0.1, clip=0.3, trust="server")
    metrics = ["train_loss", "clipped_share", "message_norm"]
    assert_equal_on(machines(4), protocol, many, Uniform(200, 7), metrics=metrics, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", {type(case.protocol): name for name, case in CASES.items()}.values())
def test_every_method_is_equal_on_four_devices(name):
    case = CASES[name]
    own = case.protocol.minibatches  # of records that may be used again
    rounds = None if own is None or own.one_pass or own.pooled else ROUNDS
    assert_equal_on(machines(4), case.protocol, case.problem, case.participation, metrics=[], rounds=rounds)


@pytest.fixture
def little_memory(monkeypatch):
    """Devices of little memory, so that data are divided. Client states are not checked."""
    monkeypatch.setattr(prepare, "room_of", lambda devices: 100)


@pytest.mark.slow
def test_data_that_do_not_fit_are_divided(many, little_memory):
    start = ready(DPMu2(noise_std=0.1, step_size=0.1, clip=0.3), many, Uniform(200, 7), rounds=2, mesh=machines(3))
    features = start.arguments.problem.pool.rows.features
    assert features.shape == (603, 100)  # 601 records and two added rows
    assert {shard.data.shape for shard in features.addressable_shards} == {(201, 100)}
    assert_equal_on(
        machines(3), start.protocol, many, Uniform(200, 7), rounds=4, metrics=["train_loss", "train_accuracy"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", {type(case.protocol): name for name, case in CASES.items()}.values())
def test_every_method_is_equal_on_divided_data(name, little_memory):
    test_every_method_is_equal_on_four_devices(name)


@pytest.mark.slow
def test_metrics_of_divided_data(unequal, little_memory, monkeypatch):
    """Machines of unequal sizes. The 65 records are evaluated in several chunks on every device."""
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", 200)
    metrics = ["train_loss", "train_accuracy", "gradient_norm"]
    assert_equal_on(machines(4), FedAvg(**LOCAL), unequal, Uniform(9, 7), metrics=metrics, eval_every=5)


@pytest.mark.slow
def test_a_divided_run_shows_its_progress(many):
    told = []
    protocol = FedAvg(local_epochs=1, batch=2, step_size=0.3)
    run = {"rounds": 6, "eval_every": 2, "metrics": [], "mesh": machines(2)}
    simulate(protocol, many, Uniform(200, 4), **run, progress=lambda *done: told.append(done))
    assert sorted(told) == [(2, 6), (4, 6), (6, 6)]  # once, not once a device
