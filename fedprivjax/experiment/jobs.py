"""The jobs of an experiment: one checked sweep for every protocol and every combination of sizes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax

from fedprivjax.checks.refusal import within
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import METRICS, default_metrics, recorded_name, require_recorded
from fedprivjax.engine.prepare import evaluation_rounds
from fedprivjax.experiment import (
    TRIAL,
    Experiment,
    ProtocolSettings,
    machines_of,
    make_participation,
    make_problem,
    make_protocol,
    points,
    present,
)
from fedprivjax.experiment.baselines import problem_alone
from fedprivjax.experiment.check import check_targets
from fedprivjax.experiment.names import unimported
from fedprivjax.method.interface import Protocol
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.feasibility import require_possible
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, as_seeds
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.draws import number_of
from fedprivjax.sweeps.prepare import ReadySweep, ready_sweep

Progress = Callable[[int, int], None]
Problems = dict[tuple[int | None, ...], Problem]


@dataclass(frozen=True)
class Job:
    """A sweep to run: one protocol at one combination of sizes (the swept integers, the batch).

    Attributes:
        label: label of the protocol.
        shape: sizes by name, the trial included.
        runs: number of runs.
        prepare: function that returns the prepared sweep. With trials it prepares again at each call, because the
            samples of all trials would not fit in memory.
        identity: cache key. Jobs with equal keys have equal runs.
        alone: problem of the baseline "alone", or None without that baseline.
    """

    label: str
    shape: dict[str, Any]
    runs: int
    prepare: Callable[[], ReadySweep]
    identity: str
    alone: Problem | None = None


def jobs(experiment: Experiment, say: Callable[[str], None] | None = None) -> list[Job]:
    """Return the jobs of an experiment, checked and calibrated. Invalid settings raise here, before compilation.

    Trials differ in their data only, so only the first trial is prepared here.

    Args:
        say: progress callback, called with a line of text; calibration may take long.

    Raises:
        Refusal: if settings are invalid.
    """
    check_targets(experiment)
    for one in unimported(experiment):
        one()
    problems: Problems = {}
    drafts = [
        draft
        for settings in experiment.protocol
        for shape in experiment.shapes
        for draft in _drafts(experiment, settings, shape, problems, say)
    ]
    return [draft() for draft in drafts]


def recorded(todo: list[Job]) -> dict[str, dict[str, list[str]]]:
    """Return the metrics that each protocol's runs record: label -> iterate -> names, "output" first."""
    first = {job.label: job.prepare() for job in {job.label: job for job in reversed(todo)}.values()}
    return {label: {name: _recorded(start, name) for name in start.iterates} for label, start in first.items()}


def records(todo: list[Job]) -> dict[str, int]:
    """Return the smallest number of evaluations of each protocol's runs, by label."""
    counts: dict[str, int] = {}
    for job in (job for job in todo if not job.shape.get(TRIAL)):  # all trials have the same number
        count = len(evaluation_rounds(job.prepare().recipe))
        counts[job.label] = min(count, counts.get(job.label, count))
    return counts


def problem_at(
    experiment: Experiment,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    problems: Problems,
    say: Callable[[str], None] | None = None,
) -> Problem:
    """Return a protocol's problem at one combination of sizes. `problems` caches it."""
    machines, trial = machines_of(experiment.participation_of(settings), shape), shape.get(TRIAL)
    records = shape.get("records")
    shares = machines if experiment.problem.partition is not None else None, trial, records
    if shares not in problems:
        if say is not None:
            say(f"reading {experiment.problem.dataset}")
        problems[shares] = make_problem(experiment.problem, machines, trial, records, say)
    return problems[shares]


def _drafts(
    experiment: Experiment,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    problems: Problems,
    say: Callable[[str], None] | None,
) -> list[Callable[[], Job]]:
    """Return functions that make a protocol's jobs at one combination of sizes, checked but not calibrated.

    There is one for each ε if a size depends on ε, see `points`.
    """
    participation = experiment.participation_of(settings)
    problem = problem_at(experiment, settings, shape, problems, say)
    with within(settings.place):
        return [
            _draft(
                experiment,
                *make_participation(participation, point.shape),
                point.problem,
                point.settings,
                {**shape, **point.at},
                say,
                problem_alone(experiment, problem, {**experiment.real_axes, **settings.grid}),
            )
            for point in points(experiment, settings, problem, present(experiment.problem, problem, shape))
        ]


def _draft(
    experiment: Experiment,
    participation: Participation,
    rounds: int | None,
    problem: Problem,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    say: Callable[[str], None] | None,
    alone: Problem | None,
) -> Callable[[], Job]:
    """Check the sizes of a job, sample one run plan, and return a function that calibrates and makes the job."""
    trial = shape.get(TRIAL)
    over = {name: values for name, values in experiment.real_axes.items() if name not in settings.fixed}
    protocol = make_protocol(settings, over)
    drawn = {"order": experiment.participation_of(settings).order, "sampler": protocol.minibatches}
    require_possible(problem, participation, rounds, draws=number_of(experiment.sweep.seeds), **drawn)
    options = _options(experiment, settings, problem, rounds, over, trial)
    check = partial(_check_recorded, experiment, settings, options["metrics"])
    if all(isinstance(one, Metric) or one in METRICS for one in options["metrics"]):
        check()  # other names may be unknown or reported by the protocol's rounds; `prepare` checks them
    if not trial:
        draw_plan(problem, participation, rounds, **drawn)
    limits = {"memory_budget": experiment.sweep.memory_budget, "devices": jax.device_count()}
    prepare = partial(ready_sweep, protocol, problem, participation, **limits, **options)

    def job() -> Job:
        with within(settings.place):
            start = None if trial else prepare(preparing=_preparing(settings.label, shape, say))
            check()
        again = prepare if start is None or trial == 0 else lambda: start
        identity = _identity(experiment, settings, shape, problem, participation, protocol, options)
        members = prod(len(values) for values in options["over"].values())
        return Job(settings.label, shape, members * number_of(experiment.sweep.seeds), again, identity, alone)

    return job


def _options(
    experiment: Experiment,
    settings: ProtocolSettings,
    problem: Problem,
    rounds: int | None,
    over: dict[str, list[float]],
    trial: int | None,
) -> dict[str, Any]:
    """Return the keyword arguments of `ready_sweep` that may change a result."""
    sweep, evaluation = experiment.sweep, experiment.evaluation
    return {
        "over": {**over, **settings.grid},
        "seeds": sweep.seeds if trial is None else _of_trial(sweep.seeds, trial),
        "rounds": rounds,
        "metrics": default_metrics(problem) if evaluation.chosen_metrics is None else tuple(evaluation.chosen_metrics),
        "eval_every": evaluation.every,
        "delta": evaluation.delta,
        "common_noise": sweep.common_noise,
        "resample": [name for name in sweep.resample if name in over or name in settings.grid],
        "order": experiment.participation_of(settings).order,
        "noise_method": sweep.noise_method,
    }


def _check_recorded(experiment: Experiment, settings: ProtocolSettings, recorded: tuple[str | Metric, ...]) -> None:
    """Raise Refusal if a metric of `averaged`, or the metric that tunes a grid, is not recorded."""
    names = [one.name if isinstance(one, Metric) else one for one in recorded]
    for metric in experiment.evaluation.averaged:
        require_recorded(recorded_name(metric), names, "metric in evaluation.averaged")
    if settings.grid:
        require_recorded(experiment.evaluation.select, names, "evaluation.select")


def _identity(
    experiment: Experiment,
    settings: ProtocolSettings,
    shape: dict[str, Any],
    problem: Problem,
    participation: Participation,
    protocol: Protocol,
    options: dict[str, Any],
) -> str:
    """Return the cache key of a job. Jobs with equal keys have equal runs."""
    given, scheme = experiment.problem, experiment.participation_of(settings)
    data = [given.model_dump(), repr(problem.model), given.identity]
    drawn = [repr(participation), scheme.model_dump(), shape.get(TRIAL), shape.get("records")]
    canonical = protocol.canonical_equivalent(participation.machines)  # equal runs are computed once
    parts = [id(part.factory) for part in settings.parts.values()]
    method = settings.name, id(settings.method), parts  # two folders may each have an object of that name
    return json.dumps([*data, *drawn, method, repr(canonical), options], default=_plain)


def _plain(value: Any) -> list:
    """Return a JSON-serialisable list that identifies a value, for `_identity`."""
    return [value.name, id(value.function)] if isinstance(value, Metric) else list(value)


def _preparing(
    label: str, shape: dict[str, Any], say: Callable[[str], None] | None
) -> Callable[[str, int, int], None] | None:
    """Return a callback that reports the current step of a sweep's preparation as text, or None."""
    if say is None:
        return None
    at = "".join(f", {name} {value:g}" for name, value in shape.items() if name != TRIAL)
    return lambda step, number, total: say(f"{step} of {label}{at} ({number} of {total})")


def _recorded(start: ReadySweep, iterate: str) -> list[str]:
    return [metric.name for metric in start.recipe.metrics if iterate == OUTPUT or metric.of == "params"]


def _of_trial(seeds: int | list[int], trial: int) -> list[Seeds]:
    """Return the seeds of one trial."""
    return [as_seeds(seed).resample(trial) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]
