"""Ratios of times, processor times and peak memory."""

import re
import resource
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import jax
import numpy as np

from fedprivjax.bench.timing import at_most, compiled_run, seconds_by_turn
from fedprivjax.engine.prepare import ReadyRun


def ratio_side_by_side(job: Callable[[], Any], other: Callable[[], Any], repeats: int = 7) -> float:
    """Return the median over turns of job time / other time. The jobs alternate, and the first turn is a warm-up."""
    seconds = seconds_by_turn({"job": job, "other": other}, repeats)
    return float(np.median(seconds["job"] / seconds["other"]))


def processor_seconds(*jobs: Callable[[], Any], repeats: int = 7) -> list[float]:
    """Return the median processor seconds of each job, over all threads. The jobs alternate, after a warm-up."""
    seconds = []
    for _ in range(at_most(repeats) + 1):
        for job in jobs:
            began = process_time()
            jax.block_until_ready(job())
            seconds.append(process_time() - began)
    return np.median(np.reshape(seconds, (-1, len(jobs)))[1:], axis=0).tolist()


def peak_of_run(start: ReadyRun) -> tuple[str, float]:
    """Return the noise mechanism's name and the peak resident memory of this process in MB, after one run."""
    jax.block_until_ready(compiled_run(start)())
    return start.mechanism.name, peak_megabytes()


def peak_megabytes() -> float:
    """Return the peak resident memory of this process in MB.

    On Linux it excludes the parent's memory, which `getrusage` would include.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS
