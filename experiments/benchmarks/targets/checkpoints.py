"""Costs of a callback at evaluations and of checkpoints, in runs of the cell of `fedprivjax bench`."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from measures import ratio_side_by_side

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import execute
from fedprivjax.protocols import DPMu2, NoisyMinibatchSGD

EVALUATIONS = 100
LONG = 20_000  # rounds of a run with checkpoints


def lines() -> Iterator[Line]:
    """Yield the costs of a callback at each of 100 evaluations, and of 20 checkpoints of a run of 20,000 rounds."""
    problem, options = cell.make(), {"metrics": cell.METRICS, "eval_every": cell.ROUNDS // EVALUATIONS}
    start = ready(DPMu2(mu=8.0), problem, cell.PARTICIPATION, rounds=cell.ROUNDS, **options)
    called = ratio_side_by_side(lambda: execute(start, None, lambda *_: None).params, lambda: execute(start).params)
    yield Line(f"a callback at {EVALUATIONS} evaluations, over none", called, "ratio", "≤ 1.1")
    protocol = NoisyMinibatchSGD(noise_std=1.0, clip=1.0, step_size=0.01, batch=1, sampler="replacement")
    options["eval_every"] = LONG // EVALUATIONS
    start = ready(protocol, cell.owned(), cell.PARTICIPATION, rounds=LONG, **options)
    stored = ratio_side_by_side(lambda: _with_checkpoints(start), lambda: execute(start).params, 5)
    yield Line(f"20 checkpoints of {LONG} rounds, over none", stored, "ratio", "≤ 1.05")


def _with_checkpoints(start: ReadyRun) -> Any:
    """Return the parameters of a run with checkpoints in a temporary folder."""
    with TemporaryDirectory() as folder:
        return execute(start, folder=folder).params
