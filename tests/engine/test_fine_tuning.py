"""Local fine-tuning: models of clients against a NumPy loop, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from client_data import CLIENTS, client_data

import fedprivjax as fpj
from fedprivjax import Refusal, datasets

STEPS, STEP = 4, 0.7


def by_hand(given, owner, start, radius, steps):
    """Projected gradient steps of every client on its own rows, and its test loss and accuracy."""
    models, losses, right = [], [], []
    for client in range(CLIENTS):
        x, y = given.features[owner == client], 2 * given.labels[owner == client] - 1
        w = np.array(start, float)
        for _ in range(steps):
            w = w + STEP * np.mean((y / (1 + np.exp(y * (x @ w))))[:, None] * x, axis=0)
            w = w * min(1, radius / np.linalg.norm(w))
        mine = given.test_machine_of == client
        signs = 2 * given.test_labels[mine] - 1
        margins = signs * (given.test_features[mine] @ w)
        models.append(w)
        losses.append(np.logaddexp(0, -margins).mean())
        right.append((margins > 0).mean())
    return np.array(models), np.array(losses), np.array(right)


def test_models_are_those_of_steps_on_each_clients_own_rows():
    given, radius = client_data(), 0.8
    problem = fpj.from_dataset(given, constraint=fpj.Ball(radius))
    owner = np.full(len(given.labels), -1)
    for client, rows in enumerate(problem.partition_table.rows):
        owner[rows[rows >= 0]] = client
    start = np.array([0.3, -0.2, 0.1, 0.4], np.float32)
    for steps in (STEPS, 0):  # the same program
        found = fpj.fine_tuned(start, problem, steps=steps, step_size=STEP)
        models, losses, right = by_hand(given, owner, start, radius, steps)
        np.testing.assert_allclose(found.models, models, atol=1e-5)
        np.testing.assert_allclose(found.loss, losses, atol=1e-5)
        np.testing.assert_allclose(found.accuracy, right, atol=1e-6)
    assert np.linalg.norm(found.models - models[0], axis=1).max() < 1e-6
    assert np.ptp(np.bincount(owner)) > 0


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({}, {"steps": -1}, "steps must be at least 0, got -1"),
        ({}, {"step_size": 0.0}, "step_size must be positive, got 0.0"),
        (
            {"partition_table": None},
            {},
            r"problem must have records of each machine \(partition_table\) for fine-tuning",
        ),
        ({"test_clients": None}, {}, "problem must have the client of every test example"),
        ({}, {"params": np.zeros(3)}, r"params must have the shapes of the problem's start, \(4,\), got \(3,\)"),
    ],
)
def test_refusals(changes, settings, message):
    problem = replace(fpj.from_dataset(client_data()), **changes)
    given = {"params": problem.start, "steps": 1, "step_size": 0.1} | settings
    with pytest.raises(Refusal, match=message):
        fpj.fine_tuned(given.pop("params"), problem, **given)


def test_values_of_regression_have_no_accuracy():
    clients = {"machine_of": [0, 0, 1, 1], "test_machine_of": [0, 1, 0, 1], "feature_bound": 1.0}
    given = datasets.from_arrays(np.eye(4), np.arange(4.0), np.eye(4), np.ones(4), **clients)
    problem = fpj.from_dataset(given, loss=fpj.Squared())
    found = fpj.fine_tuned(problem.start, problem, steps=1, step_size=1.0)
    assert found.accuracy is None
    np.testing.assert_allclose(found.models[:, :4], [[0, 0.5, 0, 0], [0, 0, 1, 1.5]], atol=1e-6)
