"""What an experiment comes to: a sweep for every protocol at every shape, refused where anything is wrong with it."""

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
    """A sweep to run: a protocol at one combination of what fixes a shape (the swept integers, the batch).

    `prepare` makes it ready: a trial's anew at each call, for many trials' draws at once would not fit in memory.
    `alone` is the problem whose machines train alone as a baseline, if the experiment asks for it.
    """

    label: str
    shape: dict[str, Any]
    runs: int
    prepare: Callable[[], ReadySweep]
    identity: str
    alone: Problem | None = None


def jobs(experiment: Experiment, say: Callable[[str], None] | None = None) -> list[Job]:
    """What there is to run; whatever is wrong with it is refused here, before anything is compiled.

    Of many trials, which differ in their data only, the first is tried.

    Args:
        say: called with what happens, in words: calibrating may take long.
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
    """The metrics that each protocol's runs record: label -> iterate -> names, "output" first."""
    first = {job.label: job.prepare() for job in {job.label: job for job in reversed(todo)}.values()}
    return {label: {name: _recorded(start, name) for name in start.iterates} for label, start in first.items()}


def records(todo: list[Job]) -> dict[str, int]:
    """The fewest records that a protocol's runs have: label -> how many."""
    counts: dict[str, int] = {}
    for job in (job for job in todo if not job.shape.get(TRIAL)):  # all trials have as many
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
    """A protocol's problem at one shape; those that were made before are taken as they are."""
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
    """What makes a protocol's job at one shape, checked but not calibrated; one for each ε if its batch or cohort
    follows from ε."""
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
    """What makes a job; its sizes are checked, and one plan is drawn, before any job's noise is calibrated."""
    trial = shape.get(TRIAL)
    over = {name: values for name, values in experiment.real_axes.items() if name not in settings.own}
    protocol = make_protocol(settings, over)
    drawn = {"order": experiment.participation_of(settings).order, "sampler": protocol.minibatches}
    require_possible(problem, participation, rounds, draws=number_of(experiment.sweep.seeds), **drawn)
    options = _options(experiment, settings, problem, rounds, over, trial)
    check = partial(_check_recorded, experiment, settings, options["metrics"])
    if all(isinstance(one, Metric) or one in METRICS for one in options["metrics"]):
        check()  # else names may be unknown, or reports of the protocol's rounds: `prepare` tells
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
    """What `ready_sweep` is told beside its three objects, and what of it may change a result."""
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
    """Raise Refusal if `[evaluation]` averages a metric, or a grid is chosen from by one, that is not recorded."""
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
    """Text that jobs share only if their runs are the same."""
    given, law = experiment.problem, experiment.participation_of(settings)
    data = [given.model_dump(), repr(problem.model), given.identity]
    drawn = [repr(participation), law.model_dump(), shape.get(TRIAL), shape.get("records")]
    alike = protocol.canonical_equivalent(participation.machines)  # such runs are done once
    parts = [id(part.factory) for part in settings.parts.values()]
    method = settings.name, id(settings.method), parts  # two folders may each have something of that name
    return json.dumps([*data, *drawn, method, repr(alike), options], default=_plain)


def _plain(value: Any) -> list:
    """What JSON takes in the place of a value that tells jobs apart."""
    return [value.name, id(value.function)] if isinstance(value, Metric) else list(value)


def _preparing(
    label: str, shape: dict[str, Any], say: Callable[[str], None] | None
) -> Callable[[str, int, int], None] | None:
    """Text of the current step while a sweep is prepared."""
    if say is None:
        return None
    at = "".join(f", {name} {value:g}" for name, value in shape.items() if name != TRIAL)
    return lambda step, number, total: say(f"{step} of {label}{at} ({number} of {total})")


def _recorded(start: ReadySweep, iterate: str) -> list[str]:
    return [metric.name for metric in start.recipe.metrics if iterate == OUTPUT or metric.of == "params"]


def _of_trial(seeds: int | list[int], trial: int) -> list[Seeds]:
    """A trial's own seeds."""
    return [as_seeds(seed).resample(trial) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]
