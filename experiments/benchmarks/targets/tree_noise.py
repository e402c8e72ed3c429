"""Time and memory of a tree's noise compared with independent noise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from measures import peak_of_run

from fedprivjax.bench.timing import Line, compiled_run, in_a_process, side_by_side
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.plan.participation import Full
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.losses import Softmax
from fedprivjax.protocols import TreeMomentum

RECORDS, FEATURES, CLASSES = 60_000, 785, 10


def lines() -> Iterator[Line]:
    """Yield the ratios of time and of peak memory with a tree to those with independent noise."""
    yield Line("tree over independent noise, a round of 60,000", in_a_process(ratio), "ratio", "≤ 1.2")
    with ThreadPoolExecutor() as both:  # memory does not depend on other load
        peaks = list(both.map(partial(in_a_process, peak), ("tree", "independent")))
    yield Line("the same, peak memory of the process", peaks[0] / peaks[1], "ratio", "≤ 1.05")


def make(factor: str) -> ReadyRun:
    """Return a prepared run with a noise factor."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, RECORDS, FEATURES), np.float32) / np.float32(FEATURES**0.5)
    problem = linear_problem(features, rng.integers(0, CLASSES, (1, RECORDS)), Softmax(CLASSES))
    protocol = TreeMomentum(epsilon=2.0, alpha=1 / RECORDS, clip=1.0, factor=factor)
    return ready(protocol, problem, Full(1), rounds=RECORDS, metrics=(), eval_every=RECORDS)


def ratio() -> float:
    """Return the ratio of the time with a tree to that with independent noise."""
    taken = side_by_side({factor: compiled_run(make(factor)) for factor in ("tree", "independent")}, repeats=3)
    return taken["tree"] / taken["independent"]


def peak(factor: str) -> float:
    """Return the peak memory of this process after one run, in MB."""
    return peak_of_run(make(factor))[1]
