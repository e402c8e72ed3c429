"""The loop of jitted steps that a convolutional network's round is timed beside computes the same parameters."""

import jax
import numpy as np

from fedprivjax.bench import clients, convolutions
from fedprivjax.engine.simulate import run_program


def test_the_round_by_hand_is_the_engines(monkeypatch):
    monkeypatch.setattr(clients, "SIDE", 4)
    start = convolutions.make(2, 2, convolutions.Network((2, 3), 4))
    ours, theirs = run_program(start.arguments, start.static)[0], convolutions.by_hand(start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    assert not np.allclose(ours["Dense_0"]["kernel"], start.problem.start["Dense_0"]["kernel"], atol=1e-4)
