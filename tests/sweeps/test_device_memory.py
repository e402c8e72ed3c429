"""Memory of a chunk on an accelerator, simulated by CPU devices that report memory."""

import logging
import re
from functools import cache

import numpy as np
import pytest

from fedprivjax import Ball, DPMu2, Refusal, Softmax, Uniform, linear_problem
from fedprivjax.sweeps import execute, memory
from fedprivjax.sweeps.memory import peak_bytes, require_room, run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

RNG = np.random.default_rng(52)
PROBLEM = linear_problem(RNG.normal(size=(60, 5)), RNG.integers(0, 3, 60), Softmax(3), constraint=Ball(1.0))
OVER = {"mu": [1.0, 2.0, 3.0, 4.0]}


@cache
def prepared(budget=2**31, devices=1, seeds=8, min_chunks=1):
    options = {"over": OVER, "seeds": seeds, "rounds": 6, "eval_every": 6, "mesh": {"runs": devices}}
    options |= {"memory_budget": budget, "min_chunks": min_chunks}
    return ready_sweep(DPMu2(clip=1.0, step_size=0.1), PROBLEM, Uniform(10, 4), **options)


@pytest.fixture
def card(monkeypatch):
    """Return a function that makes every device report free memory, and a chunk's program need bytes."""

    def make(free, taken):
        monkeypatch.setattr(memory, "free_memory", lambda device: free)
        monkeypatch.setattr(memory, "peak_bytes", lambda program, start: taken)

    return make


def test_a_cpu_keeps_the_estimate():
    require_room(prepared(), lambda sizes: pytest.fail("nothing is compiled"))


@pytest.mark.parametrize("min_chunks", [1, 8])
def test_a_chunk_above_the_free_memory_is_refused_with_a_budget_that_fits(card, min_chunks):
    """The sizes of chunks never follow the free memory, with which the last bits of results would change."""
    start = prepared(min_chunks=min_chunks)
    card(1000, 3600)
    with pytest.raises(
        Refusal, match=r"^memory_budget must be at most \d+ bytes for 900 free ones, got 2147483648:"
    ) as e:
        require_room(start, lambda sizes: None)
    smaller = prepared(int(re.findall(r"\d+", str(e.value))[0]), min_chunks=min_chunks)
    assert np.prod(smaller.sizes) <= np.prod(start.sizes) / 4
    card(1000, 900)
    require_room(start, lambda sizes: None)


def test_one_run_above_the_free_memory_is_refused(card):
    card(1000, 901)
    with pytest.raises(
        Refusal, match=r"^memory_budget must leave room for one run on each device, got .* needs 901 bytes"
    ):
        require_room(prepared(sum(run_bytes(prepared().first))), lambda sizes: None)


def test_the_memory_of_a_chunk_is_logged(card, caplog):
    card(2**32, 2**30)
    with caplog.at_level(logging.INFO, "fedprivjax"):
        require_room(prepared(), lambda sizes: None)
    (message,) = caplog.messages
    assert re.match(r"DPMu2: 1 chunks of 8 × 4 runs need 1 GiB on each of 1 devices \(.*, 4 GiB free\)", message)


@pytest.mark.slow
def test_the_peak_grows_with_the_chunk():
    start = prepared()
    few, many = (peak_bytes(execute._compiled(start, sizes), start) for sizes in ((1, 1), (8, 4)))
    assert few < many
