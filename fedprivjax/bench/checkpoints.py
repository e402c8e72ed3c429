"""Cost of callbacks at evaluations, and of the checkpoints of one run, over the same run without them."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

from fedprivjax.bench.cell import METRICS, PARTICIPATION, ROUNDS, make
from fedprivjax.bench.timing import Line, ratio_side_by_side
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import execute
from fedprivjax.plan.participation import Uniform
from fedprivjax.protocols import DPMu2, NoisySGD

EVALUATIONS = 100
LONG = 20_000  # rounds of a run with checkpoints: three records a round


def lines() -> Iterator[Line]:
    """Yield the costs of a callback at each of 100 evaluations, and of 20 checkpoints of a run of 20,000 rounds."""
    options: dict[str, Any] = {"metrics": METRICS}
    start = ready(DPMu2(mu=8.0), make(), PARTICIPATION, rounds=ROUNDS, eval_every=ROUNDS // EVALUATIONS, **options)
    called = ratio_side_by_side(lambda: execute(start, None, lambda *_: None).params, lambda: execute(start).params)
    yield Line(f"a callback at {EVALUATIONS} evaluations, over none", called, "times", "≤ 1.1")
    protocol, some = NoisySGD(noise_std=1.0, clip=1.0, step_size=0.01), Uniform(PARTICIPATION.machines, 3)
    start = ready(protocol, make(), some, rounds=LONG, eval_every=LONG // EVALUATIONS, **options)
    stored = ratio_side_by_side(lambda: _with_checkpoints(start), lambda: execute(start).params)
    yield Line(f"20 checkpoints of {LONG} rounds, over none", stored, "times", "≤ 1.05")


def _with_checkpoints(start: ReadyRun) -> Any:
    """Return the parameters of a run with checkpoints in a temporary folder."""
    with TemporaryDirectory() as folder:
        return execute(start, folder=folder).params
