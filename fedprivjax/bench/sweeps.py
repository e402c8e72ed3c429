"""Time of a sweep's configuration compared with a separate run, and other compiler options.

A round of a small model is a few short kernels on a GPU, so that their launches take most of the time. Every variant is
a separate program with its own options: settings of the process stay as they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line, in_a_process, side_by_side
from fedprivjax.engine.prepare import ReadyRun, StaticArguments, ready
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.execute import chunk_arguments, execute
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.testing.devices import programs

MU, SEEDS, ROUNDS = [4.0, 8.0, 12.0], 20, 600
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
# the whole list, because a list replaces the default one
COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
BUFFERS, SIZE = "xla_gpu_enable_command_buffer", "xla_gpu_graph_min_graph_size"
SWEEPS = ((2, 5), (10, 10), (10, 100), (100, 100))  # privacy levels and seeds
DEFAULTS = "defaults"


def lines() -> Iterator[Line]:
    """Yield the times of a sweep of 3 privacy levels and 20 seeds."""
    if jax.default_backend() != "cpu":
        yield Line("sweep of 60 configurations, one over a run", per_configuration(), "ratio", "≤ 0.5")
        return
    alone = in_a_process(per_configuration, XLA_FLAGS="")
    yield Line("sweep of 60 configurations, one over a run", alone, "ratio", "≤ 0.5")
    two = in_a_process(per_configuration, XLA_FLAGS=TWO_DEVICES)
    yield Line("the same on two simulated devices", two, "ratio", "≤ 0.45")


def per_configuration() -> float:
    """Return the ratio of a configuration's time to a single run's, both compiled, with the sweep's host work."""
    start = cell.sweep_of(MU, SEEDS, ROUNDS)
    jobs = {"sweep": lambda: execute(replace(start)).to_dict(), "run": cell.run_of(DPMu2(mu=8.0), rounds=ROUNDS)}
    taken = side_by_side(jobs, repeats=3)
    return taken["sweep"] / (len(MU) * SEEDS) / taken["run"]


class Variant(NamedTuple):
    """Compiler options of a program, and the rounds in one step of its loop. None is the package's choice."""

    options: dict[str, Any] | None = None
    unroll: int | None = None

    def of(self, static: StaticArguments) -> StaticArguments:
        """Return a program's static arguments with this variant's rounds in a step."""
        return static if self.unroll is None else static._replace(unroll=self.unroll)


VARIANTS = {
    DEFAULTS: Variant(),
    "loops and branches in command buffers": Variant({BUFFERS: COMMANDS}),
    "command buffers of one kernel": Variant({SIZE: 1}),
    "both": Variant({BUFFERS: COMMANDS, SIZE: 1}),
    "1 round in a step": Variant(unroll=1),
    "2 rounds in a step": Variant(unroll=2),
    "8 rounds in a step": Variant(unroll=8),
}


def launch_lines(rounds: int = cell.ROUNDS) -> Iterator[Line]:
    """Yield times on a GPU of a run and of sweeps with every variant, relative to the defaults; nothing on others."""
    if jax.default_backend() != "gpu":
        return
    options = {"rounds": rounds, "metrics": cell.METRICS, "eval_every": rounds}
    yield from of_run(ready(DPMu2(mu=8.0), cell.make(), cell.PARTICIPATION, **options))
    for levels, seeds in SWEEPS:
        yield from of_sweep(cell.sweep_of(np.linspace(1, 16, levels).tolist(), seeds, rounds))


def of_run(start: ReadyRun) -> Iterator[Line]:
    """Yield the time of a round of one run, and the ratios of the variants to it."""
    arguments = start.arguments

    def job(variant: Variant) -> Callable[[], Any]:
        return partial(programs(variant.options).run, arguments, variant.of(start.static))

    yield from _compared("one run", job, start.static.size.rounds)


def of_sweep(start: ReadySweep) -> Iterator[Line]:
    """Yield the time of a round of a sweep on one device, and the ratios of the variants to it."""
    arguments = chunk_arguments(start, *map(np.arange, start.runs))

    def job(variant: Variant) -> Callable[[], Any]:
        return partial(programs(variant.options).sweep, *arguments, variant.of(start.static))

    yield from _compared(f"{start.runs[0] * start.runs[1]} runs", job, start.static.size.rounds)


def _compared(name: str, job: Callable[[Variant], Callable[[], Any]], rounds: int) -> Iterator[Line]:
    """Yield the lines of a job. A variant that the compiler refuses has no number."""
    jobs = {variant: job(given) for variant, given in VARIANTS.items()}
    taken = side_by_side({variant: each for variant, each in jobs.items() if _runs(each)}, repeats=5)
    yield Line(f"{name}, a round", 1e6 * taken[DEFAULTS] / rounds, "µs")
    for variant in VARIANTS:
        if variant != DEFAULTS:
            ratio = taken[variant] / taken[DEFAULTS] if variant in taken else float("nan")
            yield Line(f"{name}, {variant}, over the defaults", ratio, "ratio")


def _runs(job: Callable[[], Any]) -> bool:
    """Return True if a program can be compiled and run."""
    try:
        jax.block_until_ready(job())
    except jax.errors.JaxRuntimeError:
        return False
    return True
