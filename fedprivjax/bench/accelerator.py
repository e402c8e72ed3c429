"""Throughput of large sweeps on an accelerator, compared with the limits of its memory and random numbers."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line, side_by_side
from fedprivjax.noise.normals import normals
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.execute import execute

RUNS = {100: (5, 20), 1_000: (20, 50), 10_000: (100, 100)}  # runs: (privacy levels, seeds)
MEMORY = 32 * 2**30


def lines() -> Iterator[Line]:
    """Yield absolute rates on an accelerator, and nothing on a CPU."""
    if jax.default_backend() == "cpu":
        return
    yield Line("single runs", 60 / side_by_side({"run": cell.run_of(DPMu2(mu=8.0))})["run"], "runs/minute")
    bandwidth = _copy_bandwidth()
    yield Line("copy bandwidth, read and written", bandwidth / 1e9, "GB/s")
    vector = _normals_per_second()
    yield Line("normal numbers", vector / 1e9, "10⁹/s")
    for runs, (levels, seeds) in RUNS.items():
        seconds = _sweep_seconds(levels, seeds)
        yield Line(f"sweep of {runs}", 60 * runs / seconds, "runs/minute", "≥ 10000" if runs == 10_000 else None)
        rounds = cell.ROUNDS * runs
        state = 4 * cell.CLASSES * cell.FEATURES * 4  # x, x_previous, w, q in float32
        gathered = 4 * cell.PER_ROUND * cell.FEATURES * cell.ROUNDS * seeds
        moved = 2 * state * rounds + gathered  # each round reads and writes the state; configurations share a gather
        drawn = cell.CLASSES * cell.FEATURES * cell.ROUNDS * seeds
        floor = max(moved / bandwidth, drawn / vector)
        bound = "memory" if moved / bandwidth > drawn / vector else "random numbers"
        target = "≥ 50" if runs == 10_000 else None
        yield Line(f"sweep of {runs}, of the floor set by {bound}", 100 * floor / seconds, "%", target)


def _copy_bandwidth() -> float:
    """Return the bytes per second read and written by a large copy."""
    data = jnp.arange(2**28, dtype=jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return 2 * data.nbytes / side_by_side({"copy": partial(copy, data)})["copy"]


def _normals_per_second() -> float:
    count, width = 1024, cell.CLASSES * cell.FEATURES
    keys = jax.random.split(jax.random.key(0), count)
    draw = jax.jit(jax.vmap(lambda key: normals(key, (width,))))
    return count * width / side_by_side({"draw": partial(draw, keys)})["draw"]


def _sweep_seconds(levels: int, seeds: int) -> float:
    start = cell.sweep_of(np.linspace(1, 16, levels).tolist(), seeds, memory_budget=MEMORY)
    return side_by_side({"sweep": lambda: execute(start).to_dict()}, repeats=1)["sweep"]
