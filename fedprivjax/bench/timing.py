"""Median times of jobs measured in turn, and a line of the benchmark table."""

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
    """One measurement. `target` is a bound with its direction ("≥ 12"), or None if there is no target."""

    name: str
    value: float
    unit: str
    target: str | None = None

    @property
    def met(self) -> bool | None:
        """True if the target is met, or None without a target.

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
    """Return the number of repetitions: `repeats`, or `$FEDPRIVJAX_BENCH_REPEATS` if that is smaller."""
    return min(repeats, int(os.environ.get(AT_MOST, repeats)))


def side_by_side(jobs: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Return the median seconds of each job after a warm-up, timed in turn so that other load affects all equally."""
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
    """Return the median over turns of job time / other time. The jobs alternate, and the first turn is a warm-up."""
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
    """Return the peak resident memory of this process in MB.

    On Linux it excludes the parent's memory, which `getrusage` would include.
    """
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def in_a_process(module: str, *arguments: object, **environment: str) -> Any:
    """Run `python -m module arguments` in a separate process, and return its last line of output, parsed as JSON."""
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
