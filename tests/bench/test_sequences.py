"""Both rounds by hand of recurrent and attention networks compute the parameters of the engine."""

import jax
import numpy as np
import pytest

from fedprivjax.bench import clients, sequences
from fedprivjax.bench.convolutions import make
from fedprivjax.engine.simulate import run_program


@pytest.mark.slow
@pytest.mark.parametrize("network", [sequences.Recurrent(4), sequences.Transformer(8)], ids=["lstm", "attention"])
def test_the_rounds_by_hand_are_the_engines(network, monkeypatch):
    monkeypatch.setattr(clients, "SIDE", 4)
    start = make(2, sequences.STEPS, network)
    ours = run_program(start.arguments, start.static)[0]
    for over in (sequences.at_once, sequences.in_turn):
        theirs = sequences.by_hand(start, over)(*sequences.arguments(start))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), ours, theirs)
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), ours, start.problem.start)
        assert max(jax.tree.leaves(moved)) > 1e-3
