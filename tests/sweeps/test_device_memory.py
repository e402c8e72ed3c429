"""Chunk sizes on an accelerator, simulated by CPU devices that report memory."""

import logging
import re
from functools import cache
from math import prod

import numpy as np
import pytest

from fedprivjax import Ball, DPMu2, Refusal, Softmax, Uniform, linear_problem
from fedprivjax.sweeps import device_memory, execute
from fedprivjax.sweeps.device_memory import fitted, fitted_sizes, peak_bytes
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

RNG = np.random.default_rng(52)
PROBLEM = linear_problem(RNG.normal(size=(60, 5)), RNG.integers(0, 3, 60), Softmax(3), constraint=Ball(1.0))
OVER = {"mu": [1.0, 2.0, 3.0, 4.0]}


@cache
def prepared(budget=2**31, devices=1, seeds=8):
    options = {"over": OVER, "seeds": seeds, "rounds": 6, "eval_every": 6, "mesh": {"runs": devices}}
    return ready_sweep(DPMu2(clip=1.0, step_size=0.1), PROBLEM, Uniform(10, 4), memory_budget=budget, **options)


def linear(start, factor, devices=1):
    """Return a measurement that is `factor` times the estimate."""
    per_draw, per_configuration = run_bytes(start.first)
    return lambda sizes: int(factor * sizes[0] * (per_draw + sizes[1] * per_configuration) / devices)


@pytest.mark.parametrize(("factor", "devices"), [(0.1, 1), (1.0, 1), (3.0, 2), (10.0, 1)])
def test_chunks_fit_the_budget_and_use_it(factor, devices):
    whole = linear(prepared(), factor, devices)((8, 4))
    budget = whole // 3
    start = prepared(max(budget, sum(run_bytes(prepared().first))), devices)
    measure = linear(start, factor, devices)
    sizes, taken = fitted_sizes(start, budget, measure)
    assert taken == measure(sizes) <= budget
    assert taken > budget / 4
    assert any(size % devices == 0 for size in sizes)


def test_a_sweep_that_fits_is_measured_once():
    start, seen = prepared(), []
    assert fitted_sizes(start, 2**31, lambda sizes: seen.append(sizes) or 1000) == ((8, 4), 1000)
    assert seen == [(8, 4)]


def test_memory_that_does_not_shrink_as_estimated_still_fits():
    start = prepared()
    sizes, taken = fitted_sizes(start, 1000, lambda sizes: 900 + 50 * prod(sizes))
    assert (sizes, taken) == ((1, 1), 950)


def test_one_run_above_the_budget_is_refused():
    with pytest.raises(Refusal, match=r"^memory_budget must be at least 5000 bytes for one run on each device, got 10"):
        fitted_sizes(prepared(), 10, lambda sizes: 5000)


@pytest.fixture
def card(monkeypatch):
    """Return a function that makes every device report free memory, and the log's messages."""

    def make(free):
        monkeypatch.setattr(device_memory, "free_memory", lambda device: free)

    return make


def test_a_cpu_keeps_the_estimate():
    start = prepared()
    assert fitted(start, lambda sizes: pytest.fail("nothing is compiled")) is start


@pytest.mark.slow
def test_a_sweep_on_a_card_runs_in_chunks_of_the_compiled_program(card, caplog, monkeypatch):
    expected = execute.execute(prepared())
    start, compiled = prepared(), []
    whole = peak_bytes(execute._compiled(start, start.sizes), start)
    card(whole // 2 / device_memory.USABLE)
    own = execute._compiled
    monkeypatch.setattr(execute, "_compiled", lambda *args: compiled.append(own(*args)) or compiled[-1])
    with caplog.at_level(logging.INFO, "fedprivjax"):
        found = execute.execute(start)
    assert compiled
    assert peak_bytes(compiled[-1], start) < whole
    (message,) = caplog.messages
    assert re.match(r"DPMu2: [2-9] chunks of \d × \d runs need \S+ GiB on each of 1 devices", message)
    np.testing.assert_allclose(found["noise_norm"], expected["noise_norm"], rtol=1e-5)


@pytest.mark.slow
def test_the_peak_grows_with_the_chunk():
    start = prepared()
    few, many = (peak_bytes(execute._compiled(start, sizes), start) for sizes in ((1, 1), (8, 4)))
    assert few < many
