"""Processor time of samples of records, and of the calibration of a sweep, on the host."""

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line
from fedprivjax.plan.samplers import Subset
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.prepare import ready_sweep

MACHINES, RECORDS, STEPS, BATCH, ROUNDS = 10, 60_000, 20, 20, 20  # of subsets
TARGETS, SCALES = np.linspace(1, 16, 50).tolist(), np.geomspace(0.1, 10, 100).tolist()  # of a sweep


def lines() -> Iterator[Line]:
    """Yield the processor times of a round's subsets and of a sweep's preparation."""
    yield Line("subsets of 10 × 60,000 records, a round of 20 × 20", 1e3 * subset_seconds(), "ms", "≤ 5")
    yield Line("a sweep of 5,000 configurations with 50 targets is prepared", prepared_seconds(), "CPU-s", "≤ 1.5")


def processor_seconds(job: Callable[[], Any], repeats: int = 7) -> float:
    """Return the median processor time of a job in seconds, over all threads, after a warm-up."""
    seconds = []
    for _ in range(repeats + 1):
        began = process_time()
        job()
        seconds.append(process_time() - began)
    return float(np.median(seconds[1:]))


def subset_seconds() -> float:
    """Return the processor time of one round's subsets: 20 local steps of 20 records on each machine."""
    sizes, sampler = np.full(MACHINES * STEPS, RECORDS), Subset(BATCH)
    batches, rng = sampler.batches(sizes), np.random.default_rng(0)
    return processor_seconds(lambda: sampler.message(sizes, batches, RECORDS, BATCH, rng), ROUNDS)


def prepared_seconds() -> float:
    """Return the processor time of the preparation of a sweep over privacy levels and steps, on one schedule."""
    options = {"metrics": cell.METRICS, "eval_every": cell.ROUNDS, "rounds": cell.ROUNDS}
    over, problem, method = {"mu": TARGETS, "step_scale": SCALES}, cell.make(), DPMu2(clip=1.6)
    return processor_seconds(lambda: ready_sweep(method, problem, cell.PARTICIPATION, over=over, **options), repeats=3)
