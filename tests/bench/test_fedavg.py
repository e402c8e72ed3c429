"""The hand-written FedAvg that a run is timed beside computes the same parameters."""

import jax
import numpy as np
import pytest

from fedprivjax.bench import fedavg
from fedprivjax.engine.simulate import run_program


@pytest.mark.slow
def test_the_round_by_hand_is_the_engines(monkeypatch):
    for name, value in {"MACHINES": 3, "RECORDS": 8, "SIDE": 5, "HIDDEN": (4, 3), "BATCH": 2}.items():
        monkeypatch.setattr(fedavg, name, value)
    start = fedavg.make.__wrapped__(2)
    ours, theirs = run_program(start.arguments, start.static)[0], fedavg.by_hand(*fedavg.arguments(start))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    assert not np.allclose(ours["Dense_0"]["kernel"], start.problem.start["Dense_0"]["kernel"], atol=1e-3)
