"""A million machines compared with a hundred, and their peak memory."""

from collections.abc import Iterator

from measures import peak_of_run

from fedprivjax import datasets
from fedprivjax.bench.timing import Line, compiled_run, in_a_process, side_by_side
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.constraints import Ball
from fedprivjax.protocols import DPMu2

PER_ROUND, ROUNDS, TIMED_ROUNDS, MILLION = 50, 1200, 300, 10**6


def lines() -> Iterator[Line]:
    """Yield the ratio of times of a round by noise method, and peak memory with the automatic method."""
    for method, target in (("replayed", "≤ 1.3"), ("covariance", None)):
        value = in_a_process(ratio_of_methods, method)
        yield Line(f"10⁶ machines over 100, a round, {method} noise on both", value, "ratio", target)
    noise, megabytes = in_a_process(peak)
    yield Line(f"10⁶ machines, peak memory, {noise} noise (chosen)", megabytes, "MB", "≤ 1000")


def make(machines: int, method: str, rounds: int) -> ReadyRun:
    """Return a prepared run of this many machines."""
    problem = from_dataset(datasets.load("stream", features=785), constraint=Ball(0.05))
    options = {"rounds": rounds, "metrics": ("test_loss",), "eval_every": rounds, "noise_method": method}
    return ready(DPMu2(mu=8.0), problem, Uniform(machines, PER_ROUND), **options)


def ratio_of_methods(method: str) -> float:
    """Return the ratio of the time with a million machines to that with a hundred, by a noise method."""
    jobs = {str(machines): compiled_run(make(machines, method, TIMED_ROUNDS)) for machines in (100, MILLION)}
    taken = side_by_side(jobs, repeats=3)
    return taken[str(MILLION)] / taken["100"]


def peak() -> tuple[str, float]:
    """Return the chosen noise mechanism's name and the peak memory of this process after one run, in MB."""
    return peak_of_run(make(MILLION, "auto", ROUNDS))
