"""Properties of sweeps in a process that clears its programs to make room, and progress of a check."""

import sys

import jax
import numpy as np
import pytest

from fedprivjax import Ball, NoisySGD, Softmax, check_protocol, linear_problem


@pytest.mark.slow
def test_programs_that_are_cleared_at_the_end_of_a_sweep_are_counted_again(monkeypatch):
    cleared = []

    def make_room():
        if not cleared:
            jax.clear_caches()
            cleared.append(True)

    monkeypatch.setattr(sys.modules["fedprivjax.sweeps.sweep"], "make_room", make_room)
    problem = linear_problem(np.eye(24), np.arange(24) % 2, Softmax(2), feature_bound=1.0, constraint=Ball(1.0))
    check_protocol(NoisySGD(mu=1.0), problem, properties=["a sweep equals a loop"])
    assert cleared


def test_progress_counts_the_properties():
    problem, told = linear_problem(np.eye(24), np.arange(24) % 2, Softmax(2), constraint=Ball(1.0)), []
    names = ["the target is met", "the guarantee can be saved and printed"]
    check_protocol(NoisySGD(mu=1.0, clip=1.0), problem, properties=names, progress=lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]
