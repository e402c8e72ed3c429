"""Runs of many machines on eight simulated devices, in a separate process: memory of a device, and equal results."""

import json
import os
import subprocess
import sys

import pytest

RUN = """
import json
import sys

import jax
import numpy as np

from fedprivjax import MLP, FedAvg, Scaffold, Uniform, ready
from fedprivjax.bench import fedavg
from fedprivjax.engine import prepare
from fedprivjax.engine.simulate import run_program

case, rounds = sys.argv[1], int(sys.argv[2])
if case == "network":  # d = 99,910
    fedavg.SIDE = 10
    problem = fedavg.random_problem(100_000, 2, MLP((900,), activation="relu"))
    method, scheme = FedAvg(local_epochs=1, batch=1, step_size=0.1), Uniform(100_000, 64)
else:  # d = 7840
    problem = fedavg.random_problem(25_000, 1)
    method, scheme = Scaffold(local_epochs=1, batch=1, step_size=0.1), Uniform(25_000, 64)


def measured(mesh):
    start = ready(method, problem, scheme, rounds=rounds, metrics=[], mesh=mesh)
    arguments = start.arguments
    program = run_program.lower(arguments, start.static).compile()
    params = run_program(arguments, start.static)[0]
    sizes = program.memory_analysis()
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return flat, sizes.temp_size_in_bytes, sizes.argument_size_in_bytes, start.costs["client_state_bytes"]


alone, *whole, state = measured(None)
prepare.room_of = lambda devices: 1e6  # bytes, so that data are divided, too
divided, *part, _ = measured({"machines": 8})
distance = np.linalg.norm(divided - alone) / np.linalg.norm(alone)
print(json.dumps({"whole": whole, "part": part, "state": state, "distance": float(distance)}))
"""


def measured(case: str, rounds: int) -> dict:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", RUN, case, str(rounds)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_a_network_on_100_000_machines_is_divided():
    """Each device computes 8 of 64 participants and holds 1/8 of the data."""
    found = measured("network", rounds=1)
    assert found["distance"] <= 1e-5
    assert all(part <= 0.2 * whole for part, whole in zip(found["part"], found["whole"], strict=True))


@pytest.mark.slow
def test_client_state_of_196_million_numbers_is_divided():
    """Each device holds 1/8 of the state of SCAFFOLD, and little else."""
    found = measured("state", rounds=20)
    assert found["state"] == 4 * 7840 * 25_000
    assert found["distance"] <= 1e-5
    assert found["state"] / 8 <= found["part"][0] <= 0.15 * found["state"]
