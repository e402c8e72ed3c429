"""A million machines compared with a hundred, on examples that are computed on demand."""

import json
import sys
from collections.abc import Iterator
from functools import partial

import jax

from fedprivjax import datasets
from fedprivjax.bench.timing import Line, in_a_process, peak_megabytes, side_by_side
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.constraints import Ball
from fedprivjax.protocols import DPMu2

PER_ROUND, ROUNDS, TIMED_ROUNDS, MILLION = 50, 1200, 300, 10**6


def lines() -> Iterator[Line]:
    """Yield the ratio of times of a round by noise method, and peak memory with the automatic method."""
    ratios = in_a_process(__name__, "time")
    for method, value in ratios.items():
        target = "≤ 1.3" if method == "replayed" else None
        yield Line(f"10⁶ machines over 100, a round, {method} noise on both", value, "times", target)
    peak = in_a_process(__name__, "memory")
    yield Line(f"10⁶ machines, peak memory, {peak['noise']} noise (chosen)", peak["megabytes"], "MB", "≤ 1000")


def runner(machines: int, method: str, rounds: int = ROUNDS):
    """Return a function that runs the compiled program, and the name of its noise mechanism."""
    problem = from_dataset(datasets.load("stream", features=785), constraint=Ball(0.05))
    options = {"rounds": rounds, "metrics": ("test_loss",), "eval_every": rounds, "noise_method": method}
    start = ready(DPMu2(mu=8.0), problem, Uniform(machines, PER_ROUND), **options)
    return partial(run_program, start.arguments, start.static), start.mechanism.name


def ratios() -> dict[str, float]:
    """Return the ratio of the time with a million machines to that with a hundred, by noise method."""
    ratios_by_method = {}
    for method in ("replayed", "covariance"):
        jobs = {str(machines): runner(machines, method, TIMED_ROUNDS)[0] for machines in (100, MILLION)}
        taken = side_by_side(jobs, repeats=3)
        ratios_by_method[method] = taken[str(MILLION)] / taken["100"]
    return ratios_by_method


def memory() -> dict[str, object]:
    """Return the noise mechanism's name and the peak resident memory of this process after one run."""
    job, noise = runner(MILLION, "auto")
    jax.block_until_ready(job())
    return {"noise": noise, "megabytes": peak_megabytes()}


if __name__ == "__main__":
    json.dump({"time": ratios, "memory": memory}[sys.argv[1]](), sys.stdout)
