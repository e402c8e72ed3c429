"""Throughput of sweeps on an accelerator, compared with its limits, and results of a device compared with the CPU's.

The limits are those of its memory and random numbers. `fedprivjax bench --check-device` compares this process's device.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from fedprivjax.bench import cell, fedavg
from fedprivjax.bench.timing import Line, compiled_run, machine, side_by_side
from fedprivjax.layout.drawing import panelled
from fedprivjax.noise.interface import normals
from fedprivjax.problem.program import FLOAT32, PRECISIONS, TF32, products
from fedprivjax.problem.random_keys import random_key
from fedprivjax.protocols import DPMu2
from fedprivjax.report.verdicts import VERDICTS
from fedprivjax.sweeps.execute import execute
from fedprivjax.testing import devices
from fedprivjax.testing.device_cases import cases

RUNS = {10: (2, 5), 100: (5, 20), 1_000: (20, 50), 10_000: (100, 100), 100_000: (1_000, 100)}  # privacy levels, seeds
GOAL = 10_000  # runs of the sweep that has targets
RATE = 300_000  # its runs a minute on an H100, predicted before it was measured
WARMED = 10_000  # largest number of runs of a sweep with a warm-up
MEMORY = 32 * 2**30
FEDAVG_ROUNDS = 20
COPIED, NORMALS = 2**28, (1024, cell.CLASSES * cell.FEATURES)  # numbers of a copy, and of a sample
SWEEP, LIMIT = "sweep of {}", "sweep of {}, limit by {}"
KINDS = (devices.RUNS, devices.SWEEP, devices.NOISE)
ONLY_CPU = "jax found no accelerator. Optimised programs on the CPU are compared with unoptimised ones"


def lines() -> Iterator[Line]:
    """Yield absolute rates on an accelerator, and nothing on a CPU."""
    if jax.default_backend() == "cpu":
        return
    yield Line("single runs", 60 / side_by_side({"run": cell.run_of(DPMu2(mu=8.0))})["run"], "runs/minute")
    yield from throughput(RUNS)
    yield from fedavg_rates(FEDAVG_ROUNDS)


def throughput(runs: dict[int, tuple[int, int]], rounds: int = cell.ROUNDS) -> Iterator[Line]:
    """Yield the rates of a copy and of normal numbers, and of sweeps with the limits that follow from them.

    Args:
        runs: privacy levels and seeds of each sweep, by its number of runs.
    """
    bandwidth, drawn = copy_bandwidth(), normals_per_second()
    yield Line("copy bandwidth, read and written", bandwidth / 1e9, "GB/s")
    yield Line("normal numbers", drawn / 1e9, "10⁹/s")
    for count, (levels, seeds) in runs.items():
        rate = 60 * count / _sweep_seconds(levels, seeds, rounds)
        moved, sampled = cost(count, seeds, rounds)
        memory, random = moved / bandwidth, sampled / drawn
        limit = 60 * count / max(memory, random)
        bound = "memory" if memory > random else "random numbers"
        aimed = count == GOAL and "H100" in jax.devices()[0].device_kind
        yield Line(SWEEP.format(count), rate, "runs/minute", f"≥ {RATE}" if aimed else None)
        yield Line(LIMIT.format(count, bound), limit, "runs/minute")
        yield Line(f"sweep of {count}, over its limit", 100 * rate / limit, "%", "≥ 50" if count == GOAL else None)


def cost(runs: int, seeds: int, rounds: int) -> tuple[int, int]:
    """Return the bytes that a benchmark sweep must move, and the normal numbers that it must sample.

    The benchmark trains softmax regression by DP-μ²-FL (`DPMu2`), with d = 7850 parameters and 50 machines per round.
    In each round, every run reads and writes the four state vectors x, x_previous, w and q of DP-μ²-FL in float32. Runs
    with the same seed share records and noise.

    Args:
        runs: number of runs in the sweep: privacy levels times seeds.
        seeds: number of seeds.
        rounds: number of rounds of a run.
    """
    d = cell.CLASSES * cell.FEATURES
    state, gathered = 4 * d * 4, 4 * cell.PER_ROUND * cell.FEATURES
    return rounds * (2 * state * runs + gathered * seeds), rounds * d * seeds


def fedavg_rates(rounds: int) -> Iterator[Line]:
    """Yield the rounds per second of FedAvg with a network of 2·10⁵ parameters, and of the same job by hand.

    Both have products of the same precision.
    """
    for precision in PRECISIONS:
        start = fedavg.make(rounds, precision)
        by_hand = partial(fedavg.by_hand, *fedavg.arguments(start))
        with products(precision):
            taken = side_by_side({"here": compiled_run(start), "by hand": by_hand}, repeats=5)
        yield Line(f"FedAvg 2NN, 10 machines of 60 steps, {precision}", rounds / taken["here"], "rounds/s")
        yield Line(f"the same by hand in JAX, {precision}", rounds / taken["by hand"], "rounds/s")


def plot(lines: Iterable[Line], device: str) -> Figure:
    """Return a plot of the speed of sweeps, in runs per minute, against the number of runs in a sweep.

    A second curve is an upper limit on the speed. This limit follows from the device's memory bandwidth, and from the
    number of random numbers that the device samples per second.

    Args:
        lines: speeds of sweeps and limits on these speeds, as `fedprivjax.bench.measure(["accelerator"])` yields them.
        device: name of the device, the title of the plot.
    """
    (figure, (axis,)), rates, limits = panelled(1), {}, {}
    for line in lines:
        if found := re.fullmatch(r"sweep of (\d+)(, limit by .*)?", line.name):
            (limits if found[2] else rates)[int(found[1])] = line.value
    axis.loglog(list(rates), list(rates.values()), "o-", label="measured")
    axis.loglog(list(limits), list(limits.values()), "--", color="0.4", label="limit by memory or random numbers")
    axis.set(xlabel="runs in the sweep", ylabel="runs per minute", title=device)
    axis.legend(fontsize="small")
    return figure


def copy_bandwidth() -> float:
    """Return the bytes per second read and written by a large copy."""
    data = jnp.arange(COPIED, dtype=jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return 2 * data.nbytes / side_by_side({"copy": partial(copy, data)})["copy"]


def normals_per_second() -> float:
    """Return the number of normal numbers sampled per second, in vectors of the cell's size."""
    count, width = NORMALS
    keys = jax.random.split(random_key(0), count)
    draw = jax.jit(jax.vmap(lambda key: normals(key, (width,))))
    return count * width / side_by_side({"draw": partial(draw, keys)})["draw"]


def _sweep_seconds(levels: int, seeds: int, rounds: int) -> float:
    """Return the seconds of a sweep, after a warm-up unless it is so large that compilation takes little of them."""
    budget = {"memory_budget": MEMORY, "min_chunks": 1}
    start = cell.sweep_of(np.linspace(1, 16, levels).tolist(), seeds, rounds, **budget)
    if levels * seeds <= WARMED:
        return side_by_side({"sweep": lambda: execute(start).to_dict()}, repeats=1)["sweep"]
    began = perf_counter()
    execute(start)
    return perf_counter() - began


def findings() -> Iterator[tuple[devices.Finding, int]]:
    """Yield the findings of all cases on the default device, each with their expected total number.

    Raises:
        Refusal: if jax was started without a CPU.
    """
    reference, chosen = devices.cpu(), cases()
    total = len(chosen) * len(KINDS) + 2
    for finding in devices.compare(chosen, devices.Computer(jax.devices()[0]), reference, workers=os.cpu_count() or 1):
        yield finding, total


def description() -> dict[str, Any]:
    """Return the machine, the device, the precision of products and the largest error of a product, by name."""
    computer = devices.Computer(jax.devices()[0])
    errors = {f"{name} product error": f"{devices.product_error(computer, name):.1e}" for name in (FLOAT32, TF32)}
    return {**machine(), "backend": jax.default_backend(), "precision": FLOAT32, **errors}


def table(found: Iterable[devices.Finding]) -> Table:
    """Return a table of the differences between results on this device and on the CPU, one row per case.

    A case is a method or algorithm with certain settings. The column "run" has the largest difference in the results of
    a run, the column "sweep" has the largest difference in the results of a sweep, and the column "noise" has the
    largest difference in the covariance of the noise. If a difference exceeds its limit, the cell shows the difference
    and the limit, such as "2.0e-04 > 1e-05". A cell "error" stands for a comparison that raised an exception. The
    column "met" is "ok" if all differences of the row are within their limits.

    Args:
        found: comparisons, each with a difference and its limit (`fedprivjax.testing.devices.Finding`).
    """
    found = list(found)
    by_label: dict[str, dict[str, devices.Finding]] = {}
    for one in found:
        by_label.setdefault(one.label, {})[one.kind] = one
    table = Table(title="Differences from the CPU, as fractions of the largest value (noise: in standard errors)")
    for name in ("case", *KINDS, "met"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for label, each in by_label.items():
        given = [each[kind] for kind in KINDS if kind in each] or list(each.values())
        cells = [_cell(each[kind]) if kind in each else "" for kind in KINDS]
        if given[0].kind not in KINDS:
            cells[0] = _cell(given[0])
        table.add_row(label, *cells, VERDICTS[all(one.met for one in given)])
    return table


def _cell(finding: devices.Finding) -> str:
    if finding.error:
        return "error"
    mark = "" if finding.met else f" > {finding.limit:g}"
    return f"{finding.value:.1e}{mark}" if finding.limit < 1 else f"{finding.value:.1f}{mark}"


def as_json(found: Iterable[devices.Finding], described: dict[str, Any]) -> dict[str, Any]:
    """Return the description and the findings as JSON values. An infinite difference is None."""
    rows = [{**one._asdict(), "met": one.met} for one in found]
    rows = [{**row, "value": row["value"] if math.isfinite(row["value"]) else None} for row in rows]
    return {"machine": described, "results": rows}
