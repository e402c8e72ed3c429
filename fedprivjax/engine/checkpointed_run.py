"""Computation of one run with checkpoints, from the last one on."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprivjax.engine.checkpoint import Checkpoint, Stored, plain, restored
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.segments import Done, Segments

SHARE = 20  # checkpoints of a run by default


def computed_in_folder(
    start: ReadyRun, folder: Path, every: int | None, segment: int | None, report: Callable[[Done], Any]
) -> tuple[Any, Any]:
    """Return the reported parameters and metrics of a run, from its checkpoint on if the folder has one.

    Args:
        every: rounds between checkpoints, rounded up to evaluations; None writes about 20.
        segment: evaluations between reports, or None without reports.
        report: function that is called with the state at these evaluations, before the checkpoint is written.
    """
    with ThreadPoolExecutor(1) as worker:
        return _computed(start, Checkpoint(folder, start, worker), every, segment, report)


def _computed(
    start: ReadyRun, checkpoint: Checkpoint, every: int | None, segment: int | None, report: Callable[[Done], Any]
) -> tuple[Any, Any]:
    """Return the result of `computed_in_folder`."""
    stored = checkpoint.load()
    if stored is not None and stored.params:
        return checkpoint.params(stored), jax.tree.map(jax.numpy.asarray, stored.values)
    segments, first = Segments(start), 0
    if stored is not None:
        first = stored.evaluations
        segments.restore(restored(segments.carry, stored.carry, checkpoint), stored.values)
    whole, last = segments.whole, segments.evaluations
    apart = max(1, ceil(whole / SHARE)) if every is None else ceil(every / segments.every)
    kept = {*range(apart, whole, apart), whole}

    def following(evaluations: int) -> int:
        """Return the rounds at the next checkpoint, before which a killed run may have reported."""
        end = min(end for end in kept if end > evaluations)
        return segments.rounds if end == whole else end * segments.every

    ends = sorted({end for end in (*kept, *range(1, last + 1, segment or last + 1), last) if end > first})
    for done in segments.run(ends, kept.__contains__, first):
        if segment:
            checkpoint.wait()  # it holds for the rounds up to the next one only
            report(done)
        if done.carry is not None:
            values = {name: np.asarray(value)[: done.evaluations] for name, value in done.values.items()}
            stored = Stored(done.evaluations, plain(done.carry), values, [])
            if done.evaluations < whole:
                checkpoint.save(stored, following(done.evaluations))
    params, values = jax.block_until_ready(segments.output())
    assert stored is not None
    finished = {name: np.asarray(value) for name, value in values.items()}
    checkpoint.save(stored._replace(values=finished, params=plain(params)), segments.rounds)
    checkpoint.wait()
    return params, values
