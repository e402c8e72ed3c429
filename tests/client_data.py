"""A small federation whose clients disagree, with test rows of every client, and the plan of a run for NumPy loops."""

from dataclasses import replace

import numpy as np

from fedprivjax import datasets
from fedprivjax.engine.prepare import round_inputs

CLIENTS = 12


def client_data(clients: int = CLIENTS, tests: int = 90, **options):
    """Return 120 records of clients with a truth each, and test rows in no order of clients."""
    rng = np.random.default_rng(0)
    owner, tested = (np.r_[np.arange(clients), rng.integers(0, clients, size - clients)] for size in (120, tests))
    x, t = (rng.normal(size=(len(of), 4)) / 4 for of in (owner, tested))
    truth = rng.normal(size=(clients, 4))
    y, s = (np.einsum("nd,nd->n", rows, truth[of]) > 0 for rows, of in ((x, owner), (t, tested)))
    given = {"machine_of": owner, "test_machine_of": tested, "feature_bound": 3.0, "classes": 2} | options
    made = datasets.from_arrays(x, y.astype(int), t, s.astype(int), **given)
    return replace(made, machine_names=tuple(f"client {one}" for one in range(clients)))


def plan_of(run):
    """Return the machines of each round's slots, whether they are present, their samples and their weights."""
    inputs = round_inputs(run.plan)
    return list(zip(inputs.machine, inputs.present, inputs.samples, inputs.weights, strict=True))
