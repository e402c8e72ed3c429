"""Processor time of samples of records on the host."""

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np

from fedprivjax.bench.timing import Line
from fedprivjax.plan.samplers import Subset

MACHINES, RECORDS, STEPS, BATCH, ROUNDS = 10, 60_000, 20, 20, 20  # of subsets


def lines() -> Iterator[Line]:
    """Yield the processor time of a round's subsets."""
    yield Line("subsets of 10 × 60,000 records, a round of 20 × 20", 1e3 * subset_seconds(), "ms", "≤ 5")


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
