"""Execution of a prepared sweep in chunks: `vmap` over configurations inside `vmap` over draws."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.hosts import local, on_all, replicated, require_equal, together
from fedprivjax.engine.pipeline import in_turn, one_ahead
from fedprivjax.engine.prepare import Arguments, StaticArguments
from fedprivjax.engine.progress import OnProgress, shifted
from fedprivjax.engine.simulate import trajectory
from fedprivjax.method.loops import vmapped
from fedprivjax.plan.seeds import configuration_key
from fedprivjax.problem.program import make_room, typed_jit
from fedprivjax.sweeps.chunk_store import SECONDS, ChunkStore, agreed_fingerprint, open_store, sweep_fingerprint
from fedprivjax.sweeps.configurations import stacked
from fedprivjax.sweeps.evaluations import OnRun, report_chunk
from fedprivjax.sweeps.memory import Spread, chunks, over_devices, require_room, spread
from fedprivjax.sweeps.part import Part, any_free, claimed
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.sweeps.results import sweep_dataset
from fedprivjax.sweeps.schema import (
    PARAMS,
    PREDICTOR,
    STRUCTURE,
    described,
    expected_words,
    flat,
    metric_words,
    structure_of,
)

Indices = tuple[np.ndarray, np.ndarray]  # draws and columns of a chunk


def execute(
    start: ReadySweep,
    progress: OnProgress | None = None,
    folder: Path | None = None,
    on_run: OnRun | None = None,
) -> xr.Dataset:
    """Run a prepared sweep in chunks. Arguments are as in `sweep`.

    Args:
        on_run: function that gets every run of a chunk when it arrives, or None.
    """
    if together(start.mesh):  # every process is given a callback, or none is
        require_equal({"on_evaluation": "None" if on_run is None else "a callable"})
    found = "" if folder is None and not together(start.mesh) else agreed_fingerprint(start)
    _require_room(start)
    store = None if folder is None else open_store(folder, start, found)
    sizes = start.sizes if store is None else store.settle()
    metrics: dict[str, np.ndarray] = {}  # each of shape [seeds, configurations, ...]
    done, seconds = 0, 0.0
    for (draws, columns), values in computed_chunks(start, store, sizes):
        count = np.unique(draws).size * np.unique(columns).size
        seconds += float(values.pop(SECONDS))
        place = (draws // len(start.index))[:, None], start.configurations_of(draws, columns)
        _require_alike(metrics, values, folder)
        for name, value in values.items():
            shape = (len(start.seeds), start.index.size, *value.shape[2:])
            dtype = np.float32 if name == PARAMS else float
            metrics.setdefault(name, np.full(shape, np.nan, dtype))[place] = value
        done += count
        if progress:
            progress(done, prod(start.runs))
        report_chunk(on_run, start, (draws, columns), values)
    (privacy, by_configuration), (costs, once) = start.privacy(), start.costs()
    by_configuration |= {**once, "seconds": np.full(start.index.size, seconds / done)}
    coordinates, attributes = start.coordinates(), start.attributes()
    axes = {}
    for metric in start.static.metrics:
        count = metrics[metric.name].ndim - 3 - start.has_iterates(metric)
        axes[metric.name] = (metric.axis,) if metric.axis else tuple(f"{metric.name}_{place}" for place in range(count))
    by_configuration |= start.methods()
    data = sweep_dataset({**metrics, **privacy, **costs}, by_configuration, coordinates, attributes, axes)
    words = metric_words(start.static.metrics, start.first.problem) | expected_words(start.first.published.expected)
    return described(_with_structure(start, data), words)


def _require_alike(metrics: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray], folder: Path | None) -> None:
    """Raise Refusal unless a chunk has the metrics of the chunks before."""
    one, other = ({name: value.shape[2:] for name, value in each.items()} for each in (metrics, values))
    if metrics and one != other:
        raise Refusal(f"chunks in {folder} must be those of one run, got arrays of other names or shapes. Delete them")


def _with_structure(start: ReadySweep, data: xr.Dataset) -> xr.Dataset:
    """Return the dataset with the structure of kept parameters and their predictor, if any."""
    if not start.keep:
        return data
    data[PARAMS].attrs[STRUCTURE] = structure_of(start.first.problem)
    return data if start.predictor is None else data.assign({PREDICTOR: start.predictor})


def computed_chunks(
    start: ReadySweep, store: ChunkStore | None, sizes: tuple[int, int]
) -> Iterator[tuple[Indices, dict[str, np.ndarray]]]:
    """Yield indices and values of every chunk, loaded from the store, or computed and stored.

    Several processes take all steps in the same order, as those need that send numbers to each other.
    """
    in_order = in_turn if together(start.mesh) else one_ahead
    every, over = list(enumerate(chunks(start.runs, sizes))), spread(start.mesh, sizes)

    def load_or_dispatch(chunk: tuple[int, Indices]) -> dict[str, Any]:
        draws, columns = chunk[1]
        stored = store.load(chunk[0], (draws.size, columns.size)) if store else None
        return _dispatched(start, over, chunk[1]) if stored is None else stored

    for (number, indices), (found, seconds) in zip(every, in_order(load_or_dispatch, every), strict=True):
        values = found if SECONDS in found else _copied(found, seconds)
        if store and values is not found:
            store.save(number, values)
        yield indices, values


def execute_together(
    sweeps: Mapping[Callable[[], ReadySweep], int],
    part: Part,
    folder: Path,
    progress: OnProgress | None = None,
    reports: Mapping[Callable[[], ReadySweep], OnRun | None] = MappingProxyType({}),
) -> bool:
    """Compute the chunks of sweeps together with other parts, and return True if all are finished.

    A part computes its share of every sweep first, then the chunks that no other part has claimed. It waits until each
    missing chunk's part has shown that it runs, and computes the chunks of parts that have ended. False means that
    other parts compute the missing chunks, so that one of them will find all finished.

    Args:
        sweeps: number of runs of every sweep, by the function that prepares it.
        folder: folder of finished chunks, which all parts share.
        progress: as in `sweep`.
        reports: function that gets every run that this part computes, by the function that prepares the sweep.
    """
    total = sum(sweeps.values())
    while True:  # others may have finished or lost their chunks meanwhile
        computed, missing, before = 0, [], 0
        for prepare, runs in sweeps.items():
            callbacks = shifted(progress, before, total), reports.get(prepare)
            own, others = _execute_part(prepare(), part, folder, *callbacks)
            computed, missing, before = computed + own, missing + others, before + runs
            make_room()
        if not (computed or any_free(missing)):
            return not missing


def _execute_part(
    start: ReadySweep, part: Part, folder: Path, progress: OnProgress | None, on_run: OnRun | None = None
) -> tuple[int, list[Path]]:
    """Return the number of chunks that this part has computed now, and the claims of the chunks that are missing."""
    _require_room(start)
    store = ChunkStore(folder, sweep_fingerprint(start), start.sizes)
    sizes = store.settle()
    every, over = list(enumerate(chunks(start.runs, sizes))), spread(start.mesh, sizes)
    computed = 0
    with ExitStack() as claims:

        def claim_and_dispatch(chunk: tuple[int, Indices]) -> tuple[int, dict[str, jax.Array], ExitStack] | None:
            claim = _claim(store, chunk[0], claims)
            return None if claim is None else (chunk[0], _dispatched(start, over, chunk[1]), claim)

        for found, seconds in one_ahead(claim_and_dispatch, part.in_order(every)):
            if found is not None:
                number, values, claim = found
                arrays = _copied(values, seconds)
                store.save(number, arrays)
                claim.close()
                computed += 1
                report_chunk(on_run, start, every[number][1], arrays)
            if progress:
                finished = len(every) - len(_missing(store, every))
                progress(finished * prod(start.runs) // len(every), prod(start.runs))
    return computed, _missing(store, every)


def _claim(store: ChunkStore, number: int, claims: ExitStack) -> ExitStack | None:
    """Return the claim of a chunk, which `claims` closes too, or None if the chunk is finished or claimed."""
    claim = claims.enter_context(ExitStack())
    if not store.has(number) and claim.enter_context(claimed(store.claim(number))) and not store.has(number):
        return claim
    claim.close()
    return None


def _missing(store: ChunkStore, every: Sequence) -> list[Path]:
    """Return the files of the claims of the chunks that are missing in a store."""
    return [store.claim(number) for number in range(len(every)) if not store.has(number)]


def _require_room(start: ReadySweep) -> None:
    """Raise Refusal if a chunk does not fit in the free memory of the devices, of all processes if they are several."""
    check = partial(require_room, start, partial(_compiled, start))
    if together(start.mesh):
        on_all(check)
    else:
        check()


def _compiled(start: ReadySweep, sizes: tuple[int, int]) -> Any:
    """Return the compiled program of a chunk."""
    over = spread(start.mesh, sizes)
    return run_chunk.lower(*_program_arguments(start, over, next(chunks(start.runs, sizes)))).compile()


def _dispatched(start: ReadySweep, over: Spread | None, indices: Indices) -> dict[str, jax.Array]:
    """Return the metrics of a chunk, each of shape [draws, configurations, ...], which devices may still compute."""
    values = local(run_chunk(*_program_arguments(start, over, indices)))
    draws, columns = (one.size for one in indices)
    return values if over is None else {name: value[:draws, :columns] for name, value in values.items()}


def _program_arguments(start: ReadySweep, over: Spread | None, indices: Indices) -> tuple[Any, ...]:
    """Return the arguments of `run_chunk` for a chunk, with the last run repeated so that it divides over devices."""
    keep = PARAMS in start.keep
    if over is None:
        return *chunk_arguments(start, *indices), start.static, over, keep
    return *replicated(chunk_arguments(start, *over.padded(*indices)), start.mesh), start.static, over, keep


def _copied(values: Mapping[str, jax.Array], seconds: float) -> dict[str, np.ndarray]:
    """Return a chunk's metrics as host arrays, and its seconds."""
    return {name: np.asarray(value) for name, value in values.items()} | {SECONDS: np.asarray(seconds)}


def chunk_arguments(start: ReadySweep, draws: np.ndarray, columns: np.ndarray) -> tuple[Any, ...]:
    """Return the arguments of `run_chunk` before `static`, for a chunk's draws and columns of `index`."""
    places = start.configurations_of(draws, columns)
    leaves = jax.tree.map(lambda leaf: leaf[places], start.configurations.leaves)
    drawn = [start.starts[draw] for draw in draws]
    host_noises = stacked(
        [stacked([start.host_noise(draw, place) for place in row]) for draw, row in zip(draws, places, strict=True)]
    )
    mechanisms, inputs = stacked([one.mechanism for one in drawn]), stacked([one.inputs for one in drawn])
    keys = jnp.stack([one.key for one in drawn])
    ids = None if start.common_noise else jnp.asarray(places)
    return leaves, (mechanisms, inputs, keys), host_noises, start.problem, ids


@typed_jit(static_argnames=("static", "over", "keep"))
def run_chunk(
    configurations,
    drawn,
    host_noises,
    problem,
    ids,
    static: StaticArguments,
    over: Spread | None = None,
    keep: bool = False,
):
    """Return metrics, leaves [draws, configurations, evaluations], and parameters if they are kept.

    Args:
        configurations: protocol and constraint, leaves [draws, configurations, ...].
        drawn: mechanism, round inputs and noise key, leaves [draws, ...].
        host_noises: pre-sampled host noise, leaves [draws, configurations, rounds, ...], or None.
        problem: problem of all configurations, apart from their constraints.
        ids: indices in the grid, [draws, configurations], if configurations have independent noise, or None.
        over: distribution over devices, or None for one device.
        keep: whether to return `params`, the parameters as vectors, shape [draws, configurations, parameter].
    """

    def run_all(configurations, drawn, host_noises, problem, ids):
        def one(configuration, host_noise, own_id, drawn):
            (protocol, constraint), (mechanism, inputs, key) = configuration, drawn
            key = key if own_id is None else configuration_key(key, own_id)
            arguments = Arguments(protocol, replace(problem, constraint=constraint), mechanism, inputs, host_noise, key)
            params, metrics = trajectory(arguments, static)
            finite = jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics))]))
            kept = {PARAMS: flat(params, problem)} if keep else {}
            return {**metrics, **kept, "diverged": ~finite}

        one_draw = vmapped(one, (0, 0, None if ids is None else 0, None))
        all_draws = vmapped(one_draw, (0, 0, None if ids is None else 0, 0))
        return all_draws(configurations, host_noises, ids, drawn)

    return over_devices(run_all, over)(configurations, drawn, host_noises, problem, ids)
