"""Cost of callbacks at evaluations, and of the checkpoints of one run, over the same run without them."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedprivjax.bench.cell import CLASSES, FEATURES, MACHINES, METRICS, PARTICIPATION, RADIUS, ROUNDS, make
from fedprivjax.bench.timing import Line, ratio_side_by_side
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import execute
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import DPMu2, NoisyMinibatchSGD

EVALUATIONS = 100
LONG = 20_000  # rounds of a run with checkpoints


def lines() -> Iterator[Line]:
    """Yield the costs of a callback at each of 100 evaluations, and of 20 checkpoints of a run of 20,000 rounds."""
    options: dict[str, Any] = {"metrics": METRICS}
    start = ready(DPMu2(mu=8.0), make(), PARTICIPATION, rounds=ROUNDS, eval_every=ROUNDS // EVALUATIONS, **options)
    called = ratio_side_by_side(lambda: execute(start, None, lambda *_: None).params, lambda: execute(start).params)
    yield Line(f"a callback at {EVALUATIONS} evaluations, over none", called, "times", "≤ 1.1")
    protocol = NoisyMinibatchSGD(noise_std=1.0, clip=1.0, step_size=0.01, batch=1, sampler="replacement")
    start = ready(protocol, _owned(), PARTICIPATION, rounds=LONG, eval_every=LONG // EVALUATIONS, **options)
    stored = ratio_side_by_side(lambda: _with_checkpoints(start), lambda: execute(start).params, 5)
    yield Line(f"20 checkpoints of {LONG} rounds, over none", stored, "times", "≤ 1.05")


def _owned() -> Problem:
    """Return the cell with 600 records of each machine, which samples one in a round."""
    pool = make().pool
    rows = np.arange(len(pool.label)).reshape(MACHINES, -1)
    bound = float(np.sqrt(FEATURES))
    options: dict[str, Any] = {"feature_bound": bound, "constraint": Ball(RADIUS), "partition_table": rows}
    return linear_problem(pool.features, pool.label, Softmax(CLASSES), **options)


def _with_checkpoints(start: ReadyRun) -> Any:
    """Return the parameters of a run with checkpoints in a temporary folder."""
    with TemporaryDirectory() as folder:
        return execute(start, folder=folder).params
