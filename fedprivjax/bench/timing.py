"""Median times of jobs measured in turn, a line of the benchmark table, and a description of this machine."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.simulate import run_program

AT_MOST = "FEDPRIVJAX_BENCH_REPEATS"  # environment variable: largest number of repetitions


class Line(NamedTuple):
    """One measurement. `target` is a bound with its direction ("≥ 12"), or None if there is no target."""

    name: str
    value: float
    unit: str
    target: str | None = None

    @property
    def met(self) -> bool | None:
        """True if the target is met, or None without a target.

        >>> Line("a", 13.0, "ratio", "≥ 12").met, Line("a", 1.3, "ratio", "≤ 1.25").met, Line("a", 1.0, "s").met
        (True, False, None)
        """
        if self.target is None:
            return None
        sense, bound = self.target.split()
        return self.value >= float(bound) if sense == "≥" else self.value <= float(bound)

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "met": self.met}


def side_by_side(jobs: Mapping[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Return the median seconds of each job after a warm-up, timed in turn so that other load affects all equally."""
    return {name: float(np.median(seconds)) for name, seconds in seconds_by_turn(jobs, repeats).items()}


def seconds_by_turn(jobs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Return the seconds of each job in every turn after a warm-up turn, [turns] each. The jobs alternate."""
    turns = at_most(repeats)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(turns + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            jax.block_until_ready(job())
            seconds[name].append(time.perf_counter() - began)
    return {name: np.array(each[1:]) for name, each in seconds.items()}


def at_most(repeats: int) -> int:
    """Return the number of repetitions, limited by the environment."""
    return min(repeats, int(os.environ.get(AT_MOST, repeats)))


def compiled_run(start: ReadyRun, **changes: Any) -> Callable[[], Any]:
    """Return a function that runs a prepared run's compiled program, with changes of its arguments."""
    return partial(run_program, start.arguments._replace(**changes), start.static)


def in_a_process(function: Callable[..., Any], *arguments: str, **environment: str) -> Any:
    """Call a module's function in a new process, with these environment variables, and return its value, from JSON.

    The process looks for modules where this one does.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-m", "fedprivjax.bench", function.__module__, function.__name__, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{function.__module__} failed: {answer.stderr.strip().splitlines()[-1]}")
    return json.loads(answer.stdout.strip().splitlines()[-1])


def machine() -> dict[str, Any]:
    """Return a description of this computer, by name: platform, processor, device, library versions."""
    device = jax.devices()[0]
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("fedprivjax", "jax", "jaxlib", "numpy")},
    }
