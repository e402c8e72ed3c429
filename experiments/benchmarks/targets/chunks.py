"""Time lost between the chunks of a sweep, from a profiler's trace."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np

from fedprivjax.bench import cell
from fedprivjax.bench.sweeps import MU, ROUNDS
from fedprivjax.bench.timing import Line, in_a_process
from fedprivjax.sweeps.chunk_store import ChunkStore
from fedprivjax.sweeps.execute import computed_chunks

TRACED = 8  # seeds of the traced sweep
PROGRAM = "ThunkExecutor::Execute"  # in traces of XLA on a CPU


def lines() -> Iterator[Line]:
    """Yield the percentage of time in which no program executes on a CPU, and nothing on an accelerator."""
    if jax.default_backend() != "cpu":
        return
    idle = in_a_process(idle_between_chunks, XLA_FLAGS="")
    yield Line(f"no program executes, in a sweep of {TRACED} chunks with files", idle, "%", "≤ 5")


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
    return 100 * idle_share(np.array([(event.start_ns, event.end_ns) for event in events if event.name == PROGRAM]))


def idle_share(spans: np.ndarray) -> float:
    """Return the share of the time from the first start to the last end that no span covers; spans [n, 2]."""
    spans = spans[np.argsort(spans[:, 0])]
    ends = np.maximum.accumulate(spans[:, 1])
    return float(np.maximum(spans[1:, 0] - ends[:-1], 0).sum() / (ends[-1] - spans[0, 0]))
