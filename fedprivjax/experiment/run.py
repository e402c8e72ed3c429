"""Run an experiment: every protocol at every combination of sizes, joined along named axes.

from fedprivjax import experiment
from fedprivjax.experiment.run import run

results = run(experiment.load("quickstart"), Path("results/quickstart"))
"""

from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from uuid import uuid4

import jax
import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.engine.hosts import from_first
from fedprivjax.engine.progress import shifted
from fedprivjax.engine.simulate import alone, machines_of
from fedprivjax.experiment import TRIAL, Experiment
from fedprivjax.experiment import folder as results_folder
from fedprivjax.experiment.jobs import Job, Progress, ReadyExperiment, jobs, ready_experiment
from fedprivjax.experiment.read import IN_TUNING
from fedprivjax.experiment.tuning import at_choices, choices, with_choices
from fedprivjax.problem.program import make_room
from fedprivjax.sweeps.evaluations import OnEvaluation, OnRun, by_evaluation
from fedprivjax.sweeps.execute import execute, execute_together
from fedprivjax.sweeps.part import CLAIM, Part, any_free, claimed
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.sweeps.results import with_alone
from fedprivjax.sweeps.schema import described
from fedprivjax.sweeps.sweep import joined

Done = dict[str, xr.Dataset]
WAIT = 1.0  # seconds between two looks at the other parts' tuning runs


def run(
    experiment: Experiment,
    folder: Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    done: Done | None = None,
) -> dict[str, xr.Dataset]:
    """Run an experiment, and return one xarray dataset of results per protocol, by label.

    The dimensions of a dataset are the swept settings, `seed` and `round`.

    If the experiment has a section `[tuning]`, hyper-parameters are first chosen by runs on the data that this section
    names. The returned datasets then hold only the runs with the chosen hyper-parameters.

    Args:
        experiment: settings, as `experiment.load` returns them.
        folder: results folder to write, for `fedprivjax.load` and `fedprivjax report`; None writes nothing.
        resume: True to resume a stopped run in the folder, or to load its finished results.
        progress: progress callback, called with (finished runs, all runs).
        done: dictionary of sweeps that were already run in this process, for reuse between experiments. The call adds
            its sweeps to this dictionary. None reuses nothing.

    Raises:
        ValueError: if settings are invalid or the folder holds other results. It is raised before anything is compiled.
    """
    if folder is not None:
        from_first(lambda: results_folder.check_settings(folder, experiment, resume=resume))
    return run_ready(ready_experiment(experiment), folder, resume=resume, progress=progress, done=done)


def run_ready(
    ready: ReadyExperiment,
    folder: Path | None = None,
    *,
    resume: bool = False,
    keep: bool = True,
    progress: Progress | None = None,
    done: Done | None = None,
) -> dict[str, xr.Dataset]:
    """Run a prepared experiment.

    Args:
        keep: whether to write every finished chunk to the folder, so that a stopped run can be resumed.
        folder, resume, progress, done: as in `run`.
    """
    done = {} if done is None else done
    if folder is None:
        return _datasets(ready, None, done, progress, resume=False, keep=False)
    loaded = from_first(lambda: _opened(ready, folder, resume=resume, keep=keep))
    return _saved(ready, folder, done, progress, resume=resume, keep=keep) if loaded is None else loaded


def _opened(ready: ReadyExperiment, folder: Path, *, resume: bool, keep: bool) -> dict[str, xr.Dataset] | None:
    """Claim a results folder, and return its results if a run resumes and they are finished, else None.

    A run that keeps no chunks replaces finished results, regardless of their data and code.
    """
    if keep or resume:
        _check_tuning(ready, folder, again=resume)
    inputs = ready.inputs if keep or resume else None
    results_folder.claim(folder, ready.experiment, inputs, ready.source, resume=resume)
    if not (resume and results_folder.finished(folder)):
        return None
    results_folder.remove_chunks(folder)  # a run may have been killed before it removed them
    return results_folder.load(folder)


def _check_tuning(ready: ReadyExperiment, folder: Path, *, again: bool = True) -> None:
    """Raise Refusal if the folder holds tuning runs of other data or code."""
    if ready.before is not None:
        with within(IN_TUNING):
            results_folder.check_inputs(folder / results_folder.CHOICE, ready.before.inputs, again=again)


def _saved(
    ready: ReadyExperiment, folder: Path, done: Done, progress: Progress | None, *, resume: bool, keep: bool
) -> dict[str, xr.Dataset]:
    """Compute an experiment, write its results to its claimed folder, and return them."""
    begun = perf_counter()
    found = _datasets(ready, folder, done, progress, resume=resume, keep=keep)
    seconds = ready.seconds + perf_counter() - begun
    made = ready.experiment
    from_first(lambda: results_folder.save(found, folder, made.title, seconds, ready.source, made, ready.inputs))
    return found


def run_part(
    ready: ReadyExperiment, folder: Path, part: Part, *, progress: Progress | None = None
) -> dict[str, xr.Dataset] | None:
    """Run a prepared experiment together with other parts, which share the folder.

    The part that finishes the last chunk writes the results. With `[tuning]`, all parts finish the tuning runs first,
    and wait for each other.

    Args:
        folder: results folder.
        part: part of this process.
        progress: as in `run`.

    Returns:
        The results, as in `run`, or None while other parts compute the missing chunks or write the results.
    """
    _check_tuning(ready, folder)
    if jax.process_count() > 1:
        raise Refusal(f"part must be left out in a job of {jax.process_count()} processes that compute together")
    results_folder.claim(folder, ready.experiment, ready.inputs, ready.source, shared=True)
    chunks = folder / results_folder.CHUNKS
    with claimed(chunks / f"{uuid4().hex}{CLAIM}"):  # no process removes the chunks meanwhile
        found = _run_part(ready, folder, chunks, part, progress)
    if found is not None:
        results_folder.remove_chunks(folder, linked=True)
    return found


def _run_part(
    ready: ReadyExperiment, folder: Path, chunks: Path, part: Part, progress: Progress | None
) -> dict[str, xr.Dataset] | None:
    if results_folder.finished(folder):
        return results_folder.load(folder)
    todo, finished = ready.jobs, 0
    if ready.before is not None:
        said = shifted(progress, 0, ready.runs)
        while (found := run_part(ready.before, folder / results_folder.CHOICE, part, progress=said)) is None:
            sleep(WAIT)
        chosen = choices(ready.experiment, ready.before.experiment, found)
        todo, finished = jobs(at_choices(ready.experiment, chosen)), ready.before.runs
    sweeps = {job.prepare: job.runs for job in {job.identity: job for job in todo}.values()}
    reports = _reports(todo, ready.experiment.evaluation.on_evaluation)
    by_sweep = {job.prepare: reports[job.identity] for job in todo}
    all_finished = execute_together(sweeps, part, chunks, shifted(progress, finished, ready.runs), by_sweep)
    writing = chunks / f"results{CLAIM}"
    while all_finished and not results_folder.finished(folder):
        with claimed(writing) as mine:
            if mine:
                return _written(ready, folder)
        if not any_free([writing]):
            return None
    return results_folder.load(folder) if all_finished else None


def _written(ready: ReadyExperiment, folder: Path) -> dict[str, xr.Dataset]:
    """Write the results of finished chunks and return them. Their evaluations are not reported again."""
    evaluation = ready.experiment.evaluation.but(on_evaluation=None)
    silent = replace(ready, experiment=ready.experiment.but(evaluation=evaluation))
    return _saved(silent, folder, {}, None, resume=True, keep=True)


def _reports(todo: list[Job], on_evaluation: OnEvaluation | None) -> dict[str, OnRun | None]:
    """Return the report of every distinct sweep by its identity, which is made for all jobs that share its runs."""
    places: dict[str, list[dict[str, Any]]] = {}
    for job in todo:
        places.setdefault(job.identity, []).append({"protocol": job.label, **job.shape})
    return {
        identity: by_evaluation(on_evaluation, each, number_seeds=TRIAL in each[0]) for identity, each in places.items()
    }


def run_jobs(
    todo: list[Job],
    *,
    progress: Progress | None = None,
    done: Done | None = None,
    chunks: Path | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> dict[str, xr.Dataset]:
    """Run jobs and return one dataset for each label.

    Args:
        chunks: folder of finished chunks, from which a killed run resumes, or None.
        on_evaluation: as in `sweep`. The index begins with "protocol", its label, and the sizes of the job.
        progress, done: as in `run`.
    """
    done = {} if done is None else done
    total = sum(job.runs for job in todo)
    finished = 0
    parts: dict[str, list[tuple[dict[str, Any], xr.Dataset]]] = {}
    baselines: dict[int, dict[str, np.ndarray]] = {}
    reports = _reports(todo, on_evaluation)
    for job in todo:
        start = job.prepare()
        if job.identity not in done:
            done[job.identity] = execute(start, shifted(progress, finished, total), chunks, reports[job.identity])
            make_room()
        finished += job.runs
        if progress:
            progress(finished, total)
        data = _with_guarantees(start, done[job.identity])
        if job.alone is not None:
            if id(job.alone) not in baselines:
                baselines[id(job.alone)] = alone(job.alone, start.static.metrics)
            data = with_alone(data, baselines[id(job.alone)], machines_of(job.alone))
        parts.setdefault(job.label, []).append((job.shape, data))
    return {label: described(_join(points)) for label, points in parts.items()}


def _datasets(
    ready: ReadyExperiment, folder: Path | None, done: Done, progress: Progress | None, *, resume: bool, keep: bool
) -> dict[str, xr.Dataset]:
    """Return the datasets by label. With `[tuning]`, run the tuning first and use its chosen points."""
    chunks = folder / results_folder.CHUNKS if folder is not None and keep else None
    shared = {"done": done, "chunks": chunks, "on_evaluation": ready.experiment.evaluation.on_evaluation}
    if ready.before is None:
        return run_jobs(ready.jobs, progress=progress, **shared)
    into = None if folder is None else folder / results_folder.CHOICE
    again = resume and into is not None and from_first(lambda: results_folder.begun(into))
    first = shifted(progress, 0, ready.runs)
    found = run_ready(ready.before, into, resume=again, keep=keep, progress=first, done=done)
    chosen = choices(ready.experiment, ready.before.experiment, found)
    ready.tuned[:] = todo = jobs(at_choices(ready.experiment, chosen))
    rest = shifted(progress, ready.before.runs, ready.runs)
    return with_choices(run_jobs(todo, progress=rest, **shared), chosen)


def _with_guarantees(start: ReadySweep, data: xr.Dataset) -> xr.Dataset:
    """Return a sweep's dataset with this job's guarantees.

    The sweep may have been run for a protocol that is equal in distribution but has another trust model.
    """
    texts = {"guarantee": start.privacy()[1]["guarantee"], **start.methods()}
    shaped = {name: (data[name].dims, values.reshape(data[name].shape)) for name, values in texts.items()}
    return data.assign(shaped).assign_attrs(start.attributes())


def _join(parts: list[tuple[dict[str, Any], xr.Dataset]]) -> xr.Dataset:
    """Join the datasets of all jobs of a protocol. With trials, the seeds of each trial are numbered from 0."""
    if TRIAL in parts[0][0]:
        parts = [(shape, data.assign_coords(seed=np.arange(data.sizes["seed"]))) for shape, data in parts]
    checksums = dict.fromkeys(str(data.attrs["data"]) for _, data in parts)  # one for each trial
    return joined(parts).assign_attrs(data="\n".join(checksums))
