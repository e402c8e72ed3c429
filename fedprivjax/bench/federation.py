"""Time and memory of a million machines over those of a hundred, and of a tree's noise over independent noise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from fedprivjax import datasets
from fedprivjax.bench.timing import Line, compiled_run, in_a_process, peak_of_run, side_by_side
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Full, Uniform
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.protocols import DPMu2, TreeMomentum

PER_ROUND, ROUNDS, TIMED_ROUNDS, MILLION = 50, 1200, 300, 10**6
RECORDS, FEATURES, CLASSES = 60_000, 785, 10


def lines() -> Iterator[Line]:
    """Yield the ratio of times of a round by noise method, and peak memory with the automatic method."""
    for method, target in (("replayed", "≤ 1.3"), ("covariance", None)):
        value = in_a_process(ratio, method)
        yield Line(f"10⁶ machines over 100, a round, {method} noise on both", value, "times", target)
    noise, megabytes = in_a_process(peak)
    yield Line(f"10⁶ machines, peak memory, {noise} noise (chosen)", megabytes, "MB", "≤ 1000")


def make(machines: int, method: str, rounds: int) -> ReadyRun:
    """Return a prepared run of this many machines."""
    problem = from_dataset(datasets.load("stream", features=785), constraint=Ball(0.05))
    options = {"rounds": rounds, "metrics": ("test_loss",), "eval_every": rounds, "noise_method": method}
    return ready(DPMu2(mu=8.0), problem, Uniform(machines, PER_ROUND), **options)


def ratio(method: str) -> float:
    """Return the ratio of the time with a million machines to that with a hundred, by a noise method."""
    jobs = {str(machines): compiled_run(make(machines, method, TIMED_ROUNDS)) for machines in (100, MILLION)}
    taken = side_by_side(jobs, repeats=3)
    return taken[str(MILLION)] / taken["100"]


def peak() -> tuple[str, float]:
    """Return the chosen noise mechanism's name and the peak memory of this process after one run, in MB."""
    return peak_of_run(make(MILLION, "auto", ROUNDS))


def tree_lines() -> Iterator[Line]:
    """Yield the ratios of time and of peak memory with a tree to those with independent noise."""
    yield Line("tree over independent noise, a round of 60,000", in_a_process(tree_ratio), "times", "≤ 1.2")
    with ThreadPoolExecutor() as both:  # memory does not depend on other load
        peaks = list(both.map(partial(in_a_process, tree_peak), ("tree", "independent")))
    yield Line("the same, peak memory of the process", peaks[0] / peaks[1], "times", "≤ 1.05")


def make_tree(factor: str) -> ReadyRun:
    """Return a prepared run with a noise factor."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, RECORDS, FEATURES), np.float32) / np.float32(FEATURES**0.5)
    problem = linear_problem(features, rng.integers(0, CLASSES, (1, RECORDS)), Softmax(CLASSES))
    protocol = TreeMomentum(epsilon=2.0, alpha=1 / RECORDS, clip=1.0, factor=factor)
    return ready(protocol, problem, Full(1), rounds=RECORDS, metrics=(), eval_every=RECORDS)


def tree_ratio() -> float:
    """Return the ratio of the time with a tree to that with independent noise."""
    taken = side_by_side({factor: compiled_run(make_tree(factor)) for factor in ("tree", "independent")}, repeats=3)
    return taken["tree"] / taken["independent"]


def tree_peak(factor: str) -> float:
    """Return the peak memory of this process after one run, in MB."""
    return peak_of_run(make_tree(factor))[1]
