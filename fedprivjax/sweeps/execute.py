"""Execution of a prepared sweep in chunks: `vmap` over configurations inside `vmap` over draws."""

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from fedprivjax.engine.costs import Stopwatch
from fedprivjax.engine.prepare import Arguments, Recipe
from fedprivjax.engine.progress import OnProgress, wait
from fedprivjax.engine.simulate import trajectory
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit
from fedprivjax.sweeps.chunk_store import ChunkStore, fingerprint, program_text
from fedprivjax.sweeps.devices import Spread, over_devices, spread
from fedprivjax.sweeps.members import stacked
from fedprivjax.sweeps.memory import chunks
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.sweeps.results import sweep_dataset
from fedprivjax.sweeps.variable_descriptions import metric_words


def execute(
    start: ReadySweep,
    progress: OnProgress | None = None,
    folder: Path | None = None,
    mesh: Mesh | None = None,
) -> xr.Dataset:
    """Run a prepared sweep in chunks. Arguments are as in `sweep`."""
    store = None if folder is None else ChunkStore(folder, sweep_fingerprint(start), start.sizes)
    metrics, seconds = _metrics(start, store, progress, mesh)
    return _dataset(start, metrics, seconds)


def _metrics(
    start: ReadySweep, store: ChunkStore | None, progress: OnProgress | None, mesh: Mesh | None
) -> tuple[dict[str, np.ndarray], float]:
    """Return metrics of all runs, each of shape [seeds, configurations, ...], and seconds per computed run.

    The seconds are NaN if all chunks were cached.
    """
    sizes = start.sizes if store is None else store.settle()
    over = spread(mesh, sizes)
    metrics: dict[str, np.ndarray] = {}
    done, timed = 0, Stopwatch()
    for number, (draws, columns) in enumerate(chunks(start.runs, sizes)):
        count = np.unique(draws).size * np.unique(columns).size
        values = store.load(number) if store else None
        if values is None:
            values = timed(count, partial(_chunk, start, draws, columns, over))
            if store:
                store.save(number, values)
        place = (draws // len(start.index))[:, None], start.members_of(draws, columns)
        for name, value in values.items():
            shape = (len(start.seeds), start.index.size, *value.shape[2:])
            metrics.setdefault(name, np.full(shape, np.nan))[place] = value
        done += count
        if progress:
            progress(done, prod(start.runs))
    return metrics, timed.each


def _dataset(start: ReadySweep, metrics: dict[str, np.ndarray], seconds: float) -> xr.Dataset:
    """Return a dataset of the metrics, privacy and costs of all runs, with named axes."""
    (privacy, members), (costs, of_members) = start.privacy(), start.costs()
    members = {**members, **of_members, "seconds": np.full(start.index.size, seconds)}
    values = {**metrics, **privacy, **costs}
    words = metric_words(start.recipe.metrics, start.first.problem)
    return sweep_dataset(values, members, start.coordinates(), start.attributes(), words)


def _chunk(start: ReadySweep, draws: np.ndarray, columns: np.ndarray, over: Spread | None) -> dict[str, np.ndarray]:
    """Return the metrics of a chunk, each of shape [draws, configurations, ...]."""
    values = run_chunk(*chunk_arguments(start, draws, columns), start.recipe, over)
    wait(values)
    return {name: np.asarray(value) for name, value in values.items()}


def chunk_arguments(start: ReadySweep, draws: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """Return the arguments of `run_chunk` before `recipe`, for a chunk's draws and columns of `index`."""
    members = start.members_of(draws, columns)
    leaves = jax.tree.map(lambda leaf: leaf[members], (start.members.protocol, start.members.constraint))
    drawn = [start.starts[draw] for draw in draws]
    host_noises = stacked(
        [stacked([start.host_noise(draw, m) for m in row]) for draw, row in zip(draws, members, strict=True)]
    )
    seeds = (
        stacked([one.mechanism for one in drawn]),
        stacked([one.inputs for one in drawn]),
        jnp.stack([one.key for one in drawn]),
    )
    member_ids = None if start.common_noise else jnp.asarray(columns)
    return leaves, seeds, host_noises, start.first.problem.traced, member_ids


@typed_jit(static_argnames=("recipe", "over"))
def run_chunk(members, drawn, host_noises, problem: Problem, member_ids, recipe: Recipe, over: Spread | None = None):
    """Return metrics with leaves [draws, members, evaluations], where `members` is the axis of configurations.

    Args:
        members: protocol and constraint, leaves [draws, members, ...].
        drawn: mechanism, round inputs and noise key, leaves [draws, ...].
        host_noises: pre-sampled host noise, leaves [draws, members, rounds, ...], or None.
        member_ids: indices [members] if configurations have independent noise, or None.
        over: distribution over devices, or None for one device.
    """

    def run_all(members, drawn, host_noises, problem, member_ids):
        def one(member, host_noise, member_id, drawn):
            (protocol, constraint), (mechanism, inputs, key) = member, drawn
            key = key if member_id is None else jax.random.fold_in(key, member_id)
            arguments = Arguments(protocol, replace(problem, constraint=constraint), mechanism, inputs, host_noise, key)
            params, metrics = trajectory(arguments, recipe)
            finite = jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics))]))
            return {**metrics, "diverged": ~finite}

        over_members = jax.vmap(one, in_axes=(0, 0, None if member_ids is None else 0, None))
        return jax.vmap(over_members, in_axes=(0, 0, None, 0))(members, host_noises, member_ids, drawn)

    return over_devices(run_all, over)(members, drawn, host_noises, problem, member_ids)


def sweep_fingerprint(start: ReadySweep) -> str:
    """Return a digest of everything that a sweep's numbers depend on: its inputs and the text of one program."""
    text = program_text(start.member(0, 0), start.recipe)
    members = start.members.protocol, start.members.constraint, start.index
    drawn = [(one.mechanism, one.inputs, one.seeds) for one in start.starts]
    host_noises = [
        fingerprint(start.host_noise(draw, int(member)))  # one at a time, because all of them may not fit in memory
        for draw in range(len(start.starts))
        for member in start.index[draw % len(start.index)]
    ]
    return fingerprint(text, start.first.problem.traced, members, drawn, host_noises, start.common_noise)
