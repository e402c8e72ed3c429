"""Medians of things timed in turn, and a line of the table."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class Line(NamedTuple):
    """One figure; `target` is a bound and its sense ("≥ 12"), or None for a figure that is only shown."""

    name: str
    value: float
    unit: str
    target: str | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met.

        >>> Line("a", 13.0, "times", "≥ 12").met, Line("a", 1.3, "times", "≤ 1.25").met, Line("a", 1.0, "s").met
        (True, False, None)
        """
        if self.target is None:
            return None
        sense, bound = self.target.split()
        return self.value >= float(bound) if sense == "≥" else self.value <= float(bound)

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "met": self.met}


AT_MOST = "FEDPRIVJAX_BENCH_REPEATS"


def turns(repeats: int) -> int:
    """How often to time: `repeats`, or as often as the environment says at most, for a look at the figures' form."""
    return min(repeats, int(os.environ.get(AT_MOST, repeats)))


def side_by_side(jobs: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Median seconds of each job, after a warm-up, all in turn so that they share what else the machine does."""
    for job in jobs.values():
        jax.block_until_ready(job())
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(turns(repeats)):
        for name, job in jobs.items():
            began = time.perf_counter()
            jax.block_until_ready(job())
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def ratio_side_by_side(job: Callable[[], Any], other: Callable[[], Any], repeats: int = 7) -> float:
    """The median, over turns, of a job's time over another's in the same turn, after a warm-up."""
    ratios = []
    for turn in range(turns(repeats) + 1):
        began = time.perf_counter()
        jax.block_until_ready(job())
        between = time.perf_counter()
        jax.block_until_ready(other())
        if turn:
            ratios.append((between - began) / (time.perf_counter() - between))
    return float(np.median(ratios))


def peak_megabytes() -> float:
    """Peak resident memory of this process; on Linux without that of its parent, which `getrusage` counts in."""
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def in_a_process(module: str, *arguments: object, **environment: str) -> Any:
    """What `python -m module arguments` prints last, as JSON: for figures that need a process of their own."""
    answer = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"{module} failed: {answer.stderr.strip().splitlines()[-1]}")
    return json.loads(answer.stdout.strip().splitlines()[-1])
