"""Time of a sweep's configuration compared with a separate run, and time lost between chunks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line, in_a_process, side_by_side
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.chunk_store import ChunkStore
from fedprivjax.sweeps.execute import computed_chunks, execute

MU, SEEDS, ROUNDS = [4.0, 8.0, 12.0], 20, 600
TRACED = 8  # seeds of the traced sweep
PROGRAM = "ThunkExecutor::Execute"  # in traces of XLA on a CPU
TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def lines() -> Iterator[Line]:
    """Yield the times of a sweep of 3 privacy levels and 20 seeds."""
    if jax.default_backend() != "cpu":
        yield Line("sweep of 60 configurations, one over a run", per_configuration(), "times", "≤ 0.5")
        return
    alone = in_a_process(per_configuration, XLA_FLAGS="")
    yield Line("sweep of 60 configurations, one over a run", alone, "times", "≤ 0.5")
    two = in_a_process(per_configuration, XLA_FLAGS=TWO_DEVICES)
    yield Line("the same on two simulated devices", two, "times", "≤ 0.45")
    idle = in_a_process(idle_between_chunks, XLA_FLAGS="")
    yield Line(f"no program executes, in a sweep of {TRACED} chunks with files", idle, "%", "≤ 5")


def per_configuration() -> float:
    """Return the ratio of a configuration's time to a single run's, both compiled, with the sweep's host work."""
    start = cell.sweep_of(MU, SEEDS, ROUNDS)
    jobs = {"sweep": lambda: execute(replace(start)).to_dict(), "run": cell.run_of(DPMu2(mu=8.0), rounds=ROUNDS)}
    taken = side_by_side(jobs, repeats=3)
    return taken["sweep"] / (len(MU) * SEEDS) / taken["run"]


def idle_between_chunks() -> float:
    """Return the percentage of time in which no program executes while a sweep's chunks are computed and written.

    Each chunk is one seed. The time is that from the first program's start to the last one's end in a profiler's trace.
    """
    start = replace(cell.sweep_of(MU, TRACED, ROUNDS), sizes=(1, len(MU)))
    with TemporaryDirectory() as folder:
        for place in ("warm-up", "traced"):
            store, options = ChunkStore(Path(folder), place, start.sizes), jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            with jax.profiler.trace(Path(folder, place), profiler_options=options):
                list(computed_chunks(start, store, start.sizes))
        (file,) = Path(folder, "traced").rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    events = (event for plane in data.planes for line in plane.lines for event in line.events)
    return 100 * _idle(np.array([(event.start_ns, event.end_ns) for event in events if event.name == PROGRAM]))


def _idle(spans: np.ndarray) -> float:
    """Return the share of the time from the first start to the last end that no span covers; spans [n, 2].

    >>> _idle(np.array([[0.0, 4.0], [1.0, 2.0], [6.0, 8.0]]))
    0.25
    """
    spans = spans[np.argsort(spans[:, 0])]
    ends = np.maximum.accumulate(spans[:, 1])
    return float(np.maximum(spans[1:, 0] - ends[:-1], 0).sum() / (ends[-1] - spans[0, 0]))
