"""From an experiment to its results: every protocol at every shape, then joined along named axes."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.compiled import make_room
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import METRICS, default_metrics
from fedprivjax.engine.ready import record_rounds
from fedprivjax.experiment import (
    TRIAL,
    Experiment,
    ProblemSettings,
    ProtocolSettings,
    choosing,
    machines_of,
    make_participation,
    make_problem,
    make_protocol,
    points,
    present,
)
from fedprivjax.experiment.protocol import flattened
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import ChooseSettings, RecordSettings
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.plan import fresh_messages, most_rounds
from fedprivjax.plan.seeds import Seeds, as_seeds
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.described import described
from fedprivjax.sweeps.results import figure, preferred, rounds_of
from fedprivjax.sweeps.shapes import joined
from fedprivjax.sweeps.sweep import ReadySweep, execute, ready_sweep

Progress = Callable[[int, int], None]
TINY_RECORDS = 20  # of a machine


@dataclass(frozen=True)
class Job:
    """A sweep to run: a protocol at one combination of what fixes a shape (the swept integers, the batch).

    `prepare` makes it ready: a trial's anew at each call, for many trials' draws at once would not fit in memory.
    """

    label: str
    shape: dict[str, Any]
    runs: int
    prepare: Callable[[], ReadySweep]
    identity: str


def jobs(experiment: Experiment, say: Callable[[str], None] | None = None) -> list[Job]:
    """What there is to run; whatever is wrong with it is refused here, before anything is compiled.

    Of many trials, which differ in their data only, the first is tried.

    Args:
        say: called with what happens, in words: calibrating may take long.
    """
    problems: dict[tuple[int | None, ...], Problem] = {}
    return [
        job
        for settings in experiment.protocol
        for shape in experiment.shapes
        for job in _jobs(experiment, settings, shape, problems, say)
    ]


def recorded(todo: list[Job]) -> dict[str, dict[str, list[str]]]:
    """The metrics that each protocol's runs record: label -> iterate -> names, "output" first."""
    first = {job.label: job.prepare() for job in {job.label: job for job in reversed(todo)}.values()}
    return {label: {name: _recorded(start, name) for name in start.iterates} for label, start in first.items()}


def records(todo: list[Job]) -> dict[str, int]:
    """The fewest records that a protocol's runs have: label -> how many."""
    counts: dict[str, int] = {}
    for job in (job for job in todo if not job.shape.get(TRIAL)):  # all trials have as many
        count = len(record_rounds(job.prepare().recipe))
        counts[job.label] = min(count, counts.get(job.label, count))
    return counts


def run(
    experiment: Experiment,
    progress: Progress | None = None,
    done: dict[str, xr.Dataset] | None = None,
    todo: list[Job] | None = None,
    chunks: Path | None = None,
) -> dict[str, xr.Dataset]:
    """Run an experiment: protocol label -> dataset over the swept axes, `seed` and `round`.

    Args:
        progress: called with (runs finished, runs in all).
        done: sweeps already run in this process, by identity; those are taken as they are, and new ones are added.
        todo: the experiment's `jobs`, where they are prepared already.
        chunks: folder that keeps finished chunks, from which a killed run goes on.
    """
    done = {} if done is None else done
    todo = jobs(experiment) if todo is None else todo
    total = sum(job.runs for job in todo)
    finished = 0
    parts: dict[str, list[tuple[dict[str, Any], xr.Dataset]]] = {}
    for job in todo:
        start = job.prepare()
        if job.identity not in done:
            done[job.identity] = execute(start, _shifted(progress, finished, total), chunks)
            make_room()
        finished += job.runs
        if progress:
            progress(finished, total)
        parts.setdefault(job.label, []).append((job.shape, _as_own(start, done[job.identity])))
    return {label: described(_join(points)) for label, points in parts.items()}


def selected(experiment: Experiment, results: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Each protocol at its best: its own grid reduced to the point with the best mean of `record.select` per cell.

    The chosen values become variables `best_<name>`. Selection looks at the results, so no guarantee covers it.
    """
    return {
        settings.label: _reduced(_best(results[settings.label], list(settings.grid), experiment.record))
        for settings in experiment.protocol
    }


def figures_of(data: xr.Dataset, record: RecordSettings) -> xr.DataArray:
    """What stands for each run where a grid is chosen from: `record.select` of the iterate that is shown."""
    metric = record.select
    return figure(data, metric, preferred(data, metric, record.iterate), rounds_of(metric, record.averaged))


def one_trial(experiment: Experiment) -> Experiment:
    """The same experiment with its first seed and trial only, whose guarantees are every trial's."""
    trials = None if experiment.sweep.trials is None else 1
    return experiment.model_copy(update={"sweep": experiment.sweep.model_copy(update={"trials": trials, "seeds": 1})})


def tiny(experiment: Experiment) -> Experiment:
    """The same experiment made small: two seeds, two trials, ten rounds or what the data allow, the ends of every
    real-valued axis.

    Methods that go through all records of a machine get as many rounds as that takes. Where feature maps take long,
    machines have few records.
    """
    over = {
        name: values if len(values) < 3 or name in STRUCTURAL else [values[0], values[-1]]
        for name, values in experiment.sweep.over.items()
    }
    trials = experiment.sweep.trials
    trials = None if trials is None else min(trials, 2)
    swept = [int(value) for value in over.pop("rounds", [])]
    small = experiment.model_copy(
        update={
            "sweep": experiment.sweep.model_copy(update={"over": over, "seeds": 2, "trials": trials}),
            "record": experiment.record.model_copy(update={"every": 5}),
            "problem": _fewer_mapped(experiment.problem),
            "expected": [],
        }
    )
    planned = [experiment.participation_of(one).planned or 10 for one in experiment.protocol]
    rounds = max(min([10, *planned, *swept, *([] if swept else _most_rounds(small))]), _least_rounds(small))
    enough = experiment.participation.model_copy(update={"rounds": rounds})
    methods = [_without_rounds(one) for one in small.protocol]
    choose = _tiny_choice(experiment)
    return small.model_copy(update={"participation": enough, "protocol": methods, "choose": choose})


def _tiny_choice(experiment: Experiment) -> ChooseSettings | None:
    """`[choose]` of a small experiment: two seeds, and the rounds that the other data set has in small."""
    choose = experiment.choose
    if choose is None:
        return None
    small = tiny(choosing(experiment))
    rounds = {"rounds": small.participation.rounds}
    over = {name: values for name, values in small.sweep.over.items() if name in flattened(choose.sweep)}
    fewer = {"seeds": min(choose.seeds, 2), "participation": choose.participation | rounds, "sweep": over}
    return choose.model_copy(update=fewer)


def _without_rounds(settings: ProtocolSettings) -> ProtocolSettings:
    """With no rounds of its own."""
    own = {key: value for key, value in settings.participation.items() if key != "rounds"}
    return settings.model_copy(update={"participation": own})


def _fewer_mapped(settings: ProblemSettings) -> ProblemSettings:
    """With few records of a machine, where features are worth keeping on disk, and so take long the first time."""
    dealt = settings.partition
    if dealt is None or dealt.records is not None or not any(each.kept for each in settings.maps):
        return settings
    return settings.model_copy(update={"partition": dealt.model_copy(update={"records": TINY_RECORDS})})


def _least_rounds(experiment: Experiment) -> int:
    """What those methods need that use records in several epochs."""
    several = [make_protocol(one, one.grid) for one in experiment.protocol if one.method.several_epochs]
    least = 1
    for shape in experiment.shapes if several else []:
        machines = machines_of(experiment.participation, shape)
        problem = make_problem(experiment.problem, machines, shape.get(TRIAL), shape.get("records"))
        least = max(least, *(protocol.least_rounds(problem) for protocol in several))
    return least


def _most_rounds(experiment: Experiment) -> Iterator[int]:
    """What the data allow every method at every shape, where they set an end."""
    open_ended = [one for one in experiment.protocol if experiment.participation_of(one).model_dump()["rounds"] is None]
    for settings, shape in product(open_ended, experiment.shapes):
        given = experiment.participation_of(settings)
        machines = machines_of(given, shape)
        problem = make_problem(experiment.problem, machines, shape.get(TRIAL), shape.get("records"))
        for point in points(experiment, settings, problem, present(experiment.problem, problem, shape)):
            law, _ = make_participation(given, point.shape)
            with suppress(Refusal):  # there is no end, or what is wrong is said when jobs are made
                sampler = make_protocol(point.settings, experiment.real_axes).minibatches
                law = law.fitted(fresh_messages(problem, sampler, given.order))
                yield most_rounds(problem, law, sampler, given.order)


def _jobs(
    experiment: Experiment,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    problems: dict,
    say: Callable[[str], None] | None,
) -> list[Job]:
    """A protocol's sweep at one shape; where its batch or cohort follows from ε, one for each ε."""
    participation = experiment.participation_of(settings)
    machines, trial, records = machines_of(participation, shape), shape.get(TRIAL), shape.get("records")
    shares = machines if experiment.problem.partition is not None else None, trial, records
    if shares not in problems:
        problems[shares] = make_problem(experiment.problem, machines, trial, records, say)
    problem = problems[shares]
    return [
        _job(
            experiment,
            *make_participation(participation, point.shape),
            point.problem,
            point.settings,
            {**shape, **point.at},
            say,
        )
        for point in points(experiment, settings, problem, present(experiment.problem, problem, shape))
    ]


def _job(
    experiment: Experiment,
    participation: Participation,
    rounds: int | None,
    problem: Problem,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    say: Callable[[str], None] | None,
) -> Job:
    trial = shape.get(TRIAL)
    over = {name: values for name, values in experiment.real_axes.items() if name not in settings.own}
    protocol = make_protocol(settings, over)
    sweep, record, taking_part = experiment.sweep, experiment.record, experiment.participation_of(settings)
    options = {
        "over": {**over, **settings.grid},
        "seeds": sweep.seeds if trial is None else _of_trial(sweep.seeds, trial),
        "rounds": rounds,
        "record": default_metrics(problem) if record.recordable is None else tuple(record.recordable),
        "every": record.every,
        "delta": record.delta,
        "common_noise": sweep.common_noise,
        "resample": [name for name in sweep.resample if name in over or name in settings.grid],
        "order": taking_part.order,
        "noise_method": sweep.noise_method,
    }
    limits = {"memory_budget": sweep.memory_budget, "devices": jax.device_count()}
    prepare = partial(ready_sweep, protocol, problem, participation, **limits, **options)
    if not trial:
        start = prepare(calibrating=_calibrating(settings.label, shape, say))
        prepare = prepare if trial == 0 else lambda: start
    names = [one.name if isinstance(one, Metric) else one for one in options["record"]]
    if settings.grid and record.select not in names:
        raise Refusal(f"record.select must be a recorded metric ({', '.join(names)}), got '{record.select}'")
    alike = protocol.same_law(participation.machines)  # such runs are done once
    given = experiment.problem.model_dump(), repr(problem.model), experiment.problem.identity
    data = [*given, repr(participation), taking_part.model_dump(), trial, shape.get("records")]
    parts = [id(part.factory) for part in settings.parts.values()]
    method = settings.name, id(settings.method), parts  # two folders may each have something of that name
    identity = json.dumps([*data, method, repr(alike), options], default=_plain)
    members = prod(len(values) for values in options["over"].values())
    seeds = sweep.seeds if isinstance(sweep.seeds, int) else len(sweep.seeds)
    return Job(settings.label, shape, seeds * members, prepare, identity)


def _plain(value: Any) -> list:
    """What JSON takes in the place of a value that tells jobs apart."""
    return [value.name, id(value.function)] if isinstance(value, Metric) else list(value)


def _calibrating(label: str, shape: dict[str, Any], say: Callable[[str], None] | None) -> Progress | None:
    """What is said while a sweep's members are calibrated."""
    if say is None:
        return None
    at = "".join(f", {name} {value:g}" for name, value in shape.items() if name != TRIAL)
    return lambda number, total: say(f"calibrating noise of {label}{at} ({number} of {total})")


def _recorded(start: ReadySweep, iterate: str) -> list[str]:
    return [metric.name for metric in start.recipe.record if iterate == OUTPUT or metric.of == "params"]


def _as_own(start: ReadySweep, data: xr.Dataset) -> xr.Dataset:
    """A sweep's dataset under this job's guarantees: one law may have been run under another trust model's name."""
    guarantees = start.privacy()[1]["guarantee"].reshape(data["guarantee"].shape)
    return data.assign(guarantee=(data["guarantee"].dims, guarantees)).assign_attrs(start.attributes())


def _of_trial(seeds: int | list[int], trial: int) -> list[Seeds]:
    """A trial's own seeds."""
    return [as_seeds(seed).resample(trial) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]


def _shifted(progress: Progress | None, offset: int, total: int) -> Progress | None:
    return None if progress is None else lambda finished, _: progress(offset + finished, total)


def _join(parts: list[tuple[dict[str, Any], xr.Dataset]]) -> xr.Dataset:
    """The datasets of all jobs of a protocol; where there are trials, each numbers its seeds from 0."""
    if TRIAL in parts[0][0]:
        parts = [(shape, data.assign_coords(seed=np.arange(data.sizes["seed"]))) for shape, data in parts]
    checksums = dict.fromkeys(str(data.attrs["data"]) for _, data in parts)  # of trials, one each
    return joined(parts).assign_attrs(data="\n".join(checksums))


def _reduced(data: xr.Dataset) -> xr.Dataset:
    """Trials in the place of seeds, each the mean of its runs, and of privacy the worst."""
    if TRIAL not in data.dims:
        return data
    runs = [name for name in data.data_vars if "seed" in data[name].dims]
    means = data[runs].astype(float).mean("seed", skipna=False, keep_attrs=True)
    means["diverged"] = data["diverged"].any("seed")
    for name in {"realised_mu", "realised_epsilon"} & set(runs):  # of privacy, a trial's is its worst run's
        means[name] = data[name].max("seed")
    for metric in (METRICS[name] for name in METRICS if name in means):
        if metric.of_mean is not None:
            means[metric.of_mean.name] = metric.of_mean.function(means[metric.name])
    rest = data.drop_vars([*runs, "seed"])
    reduced = xr.merge([means, rest]).rename({TRIAL: "seed"}).assign_attrs(data.attrs)
    reduced["seed"].attrs["unit"] = "trials"
    return reduced


def _best(data: xr.Dataset, grid: list[str], record: RecordSettings) -> xr.Dataset:
    if not grid:
        return data
    metric = record.select
    mean = figures_of(data, record).mean("seed", skipna=False)  # trial by trial, where there are trials
    score = mean if record.known(metric).better == "higher" else -mean
    flat = score.stack(choice=grid).fillna(-np.inf)
    best = flat["choice"].isel(choice=flat.argmax("choice"))
    points = {name: best[name].drop_vars([*grid, "choice"], errors="ignore") for name in grid}
    chosen = data.sel(points).drop_vars(grid, errors="ignore")
    chosen = chosen.assign({f"best_{name}": value for name, value in points.items()})
    if all(data.sizes[name] == 1 for name in grid):
        return chosen
    return chosen.assign_attrs(data.attrs, selected=f"{', '.join(grid)} by the best mean {metric}: not accounted for")
