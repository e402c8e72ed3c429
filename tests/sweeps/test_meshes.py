"""Sweeps over meshes of simulated devices: equal results, and refused meshes."""

import jax
import numpy as np
import pytest

from fedprivjax import DPMu2, FedAvg, Refusal, Scaffold, Softmax, Uniform, linear_problem, sweep
from fedprivjax.engine import prepare
from fedprivjax.problem import devices
from fedprivjax.sweeps.prepare import ready_sweep

SCHEME = Uniform(6, 3)
OPTIONS = {"over": {"mu": [1.0, 4.0]}, "seeds": 3, "rounds": 4, "eval_every": 2}
BOTH = {"runs": 2, "machines": 2}
LOCAL = {"local_epochs": 1, "batch": 3, "noise_std": 0.0}


@pytest.fixture(scope="module")
def split_problem():
    """Six machines of five records."""
    rng = np.random.default_rng(5)
    rows = np.arange(30).reshape(6, 5)
    return linear_problem(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), Softmax(2), partition_table=rows)


def swept(problem, mesh, protocol=None, **options):
    """Return the variables of a sweep over a mesh."""
    protocol = DPMu2(clip=1.0) if protocol is None else protocol
    data = sweep(protocol, problem, SCHEME, mesh=mesh, **{**OPTIONS, **options}).drop_vars("seconds")
    return {name: np.asarray(values) for name, values in data.data_vars.items()}


def assert_near(one, other):
    assert one.keys() == other.keys()
    for name in one.keys() - {"guarantee"}:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_runs_on_any_number_of_devices_are_equal_bit_for_bit(devices, softmax_problem):
    """Two configurations are divided over two devices. Three seeds are padded for four."""
    one, other = (swept(softmax_problem, {"runs": count}) for count in (1, devices))
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)


@pytest.mark.slow
def test_runs_and_machines_are_divided_together(softmax_problem):
    assert_near(swept(softmax_problem, {"runs": 1}), swept(softmax_problem, BOTH))


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_local_work_and_client_state_are_divided_in_sweeps(method, split_problem):
    options = {"protocol": method(**LOCAL), "over": {"step_size": [0.1, 0.2]}}
    assert_near(swept(split_problem, {"runs": 1}, **options), swept(split_problem, BOTH, **options))


@pytest.mark.slow
def test_data_are_divided_in_sweeps(softmax_problem, monkeypatch):
    one = swept(softmax_problem, {"runs": 1})
    monkeypatch.setattr(prepare, "room_of", lambda devices: 100)
    assert_near(one, swept(softmax_problem, BOTH))


def test_a_device_of_a_sweep_needs_memory_for_its_part_of_the_client_state(split_problem, monkeypatch):
    protocol, run = Scaffold(**LOCAL), {"over": {"step_size": [0.1]}, "rounds": 2, "seeds": 1}
    whole = 6 * 4 * split_problem.dimension
    monkeypatch.setattr(devices, "device_memory", lambda device: whole // 2)
    ready_sweep(protocol, split_problem, SCHEME, mesh=BOTH, **run)
    with pytest.raises(Refusal, match="client state must fit"):
        ready_sweep(protocol, split_problem, SCHEME, mesh={"runs": 2}, **run)


def test_other_axes_are_refused(softmax_problem):
    mesh = jax.make_mesh((2,), ("seeds",), devices=jax.devices()[:2])
    with pytest.raises(
        Refusal, match=r"mesh must have the axes 'runs', 'machines', or both, got the axes \('seeds',\)"
    ):
        swept(softmax_problem, mesh)
