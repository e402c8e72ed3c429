"""Preparation of an experiment: one checked sweep for every protocol and every combination of sizes."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from math import prod
from time import perf_counter
from typing import Any

from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import METRICS, default_metrics, recorded_name, require_recorded
from fedprivjax.engine.prepare import evaluation_rounds
from fedprivjax.experiment import TRIAL, Experiment, ProtocolSettings, build, tuning_experiment, verdict
from fedprivjax.experiment.build import Point, Problems
from fedprivjax.experiment.inputs import Inputs, inputs_of
from fedprivjax.experiment.read import IN_TUNING, check_targets
from fedprivjax.experiment.tuning import at_first, check_classes
from fedprivjax.plan.draw import draw_plan, require_possible
from fedprivjax.plan.seeds import Seeds, as_seeds, distinct_resamples
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.configurations import number_of
from fedprivjax.sweeps.prepare import ReadySweep, ready_sweep
from fedprivjax.sweeps.schema import print_size

Progress = Callable[[int, int], None]
Say = Callable[[str], None] | None


@dataclass(frozen=True, eq=False)
class Job:
    """A sweep to run: one protocol at one combination of sizes (the swept integers, the batch).

    Attributes:
        point: protocol, problem and participation.
        shape: sizes by name, the trial included.
        alone: problem of the baseline "alone", or None without that baseline.
        start: prepared sweep, or None to prepare it at each call of `prepare`. The samples of all trials would not fit
            in memory.
    """

    point: Point
    shape: dict[str, Any]
    alone: Problem | None = None
    start: ReadySweep | None = None

    @property
    def label(self) -> str:
        """Label of the protocol."""
        return self.point.settings.label

    @property
    def problem(self) -> Problem:
        """Problem that the protocol solves."""
        return self.point.problem

    @property
    def runs(self) -> int:
        """Number of runs."""
        return prod(len(values) for values in self.options["over"].values()) * number_of(self.options["seeds"])

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `ready_sweep` that may change a result."""
        point, trial = self.point, self.shape.get(TRIAL)
        sweep, evaluation = point.experiment.sweep, point.experiment.evaluation
        over, metrics = point.settings.axes(point.experiment.real_axes), evaluation.chosen_metrics
        return {
            "over": over,
            "seeds": sweep.seeds if trial is None else _of_trial(sweep.seeds, trial),
            "rounds": point.rounds,
            "metrics": default_metrics(point.problem) if metrics is None else tuple(metrics),
            "eval_every": evaluation.every,
            "delta": evaluation.delta,
            "common_noise": sweep.common_noise,
            "resample": [name for name in sweep.resample if name in over],
            "order": point.scheme.order,
            "noise_method": sweep.noise_method,
            "precision": sweep.precision,
            "keep": sweep.keep,
        }

    def check(self) -> None:
        """Check the sizes, and sample one run plan."""
        point, sampler = self.point, self.point.protocol.minibatches
        if sampler is not None and not sampler.pooled and point.problem.partition_table is None:
            raise Refusal("problem.partition must be given, because machines sample minibatches from their own records")
        seeds, order = number_of(point.experiment.sweep.seeds), point.scheme.order
        require_possible(point.problem, point.participation, point.rounds, order=order, sampler=sampler, draws=seeds)
        if all(isinstance(one, Metric) or one in METRICS for one in self.options["metrics"]):
            self.check_recorded()  # other names may be unknown or reported by the protocol's rounds: see `calibrated`
        if not self.shape.get(TRIAL):
            draw_plan(point.problem, point.participation, point.rounds, order=order, sampler=sampler)

    def check_recorded(self) -> None:
        """Raise Refusal if a metric of `averaged` or `rounds_to`, or the metric that tunes a grid, is not recorded."""
        names = [one.name if isinstance(one, Metric) else one for one in self.options["metrics"]]
        for metric in self.point.experiment.evaluation.averaged:
            require_recorded(recorded_name(metric), names, "metric in evaluation.averaged")
        for metric in self.point.experiment.evaluation.rounds_to:
            require_recorded(recorded_name(metric), names, "metric in evaluation.rounds_to")
        if self.point.settings.grid:
            require_recorded(self.point.experiment.evaluation.select, names, "evaluation.select")

    def calibrated(self, say: Say) -> "Job":
        """Return the job with its prepared sweep, or with trials without it. Of these, only the first is prepared."""
        with self.point.settings.within(self.point.experiment):
            start = None if self.shape.get(TRIAL) else self._prepared(_preparing(self.label, self.shape, say))
            self.check_recorded()
        return self if TRIAL in self.shape else replace(self, start=start)

    def prepare(self) -> ReadySweep:
        """Return the prepared sweep."""
        return self._prepared() if self.start is None else self.start

    def _prepared(self, preparing: Callable[[str, int, int], None] | None = None) -> ReadySweep:
        point, sweep = self.point, self.point.experiment.sweep
        limits = {"memory_budget": sweep.memory_budget, "min_chunks": sweep.min_chunks, "mesh": sweep.mesh}
        run = point.protocol, point.problem, point.participation
        return ready_sweep(*run, preparing=preparing, **limits, **self.options)

    @cached_property
    def identity(self) -> str:
        """Cache key. Jobs with equal keys have equal runs."""
        point, settings, given = self.point, self.point.settings, self.point.experiment.problem
        data = [given.model_dump(), repr(point.problem.model), given.identity]
        sizes = [self.shape.get(TRIAL), self.shape.get("records")]
        drawn = [repr(point.participation), point.scheme.model_dump(), *sizes]
        # equal runs are computed once
        canonical = point.protocol.theory.equivalent(point.protocol, point.participation.machines)
        parts = [_objects(part) for part in settings.parts.values()]
        method = settings.name, id(settings.method), parts  # two folders may each have an object of that name
        return json.dumps([*data, *drawn, method, repr(canonical), self.options], default=_plain)


def jobs(experiment: Experiment, say: Say = None) -> list[Job]:
    """Return the jobs of an experiment, checked and calibrated. Invalid settings raise here, before compilation.

    Trials differ in their data only, so only the first trial is prepared here.

    Args:
        say: progress callback, called with a line of text; calibration may take long.

    Raises:
        Refusal: if settings are invalid.
    """
    check_targets(experiment)
    problems: Problems = {}
    found = [  # all are checked before any is calibrated
        job
        for settings in experiment.protocol
        for shape in experiment.shapes
        for job in _checked(experiment, settings, shape, problems, say)
    ]
    return [job.calibrated(say) for job in found]


@dataclass(frozen=True)
class ReadyExperiment:
    """Prepared experiment, not yet compiled.

    Attributes:
        experiment: settings.
        jobs: sweeps to run. With `[tuning]`, the first point of each grid represents the point that will be chosen.
        seconds: time of the preparation in seconds, without that of `before`.
        before: prepared tuning experiment, which runs first, or None without `[tuning]`.
        source: name and command of the experiment for the provenance, keys "experiment" and "command"; empty if it is
            not run by the command line.
    """

    experiment: Experiment
    jobs: list[Job]
    seconds: float
    before: "ReadyExperiment | None" = None
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """Number of runs, tuning runs included."""
        return sum(job.runs for job in self.jobs) + (0 if self.before is None else self.before.runs)

    @cached_property
    def inputs(self) -> Inputs:
        """Data, user code and versions that the results depend on, without those of `before`."""
        return inputs_of(self.experiment, self.jobs)


def ready_experiment(experiment: Experiment, say: Say = None, *, judge: bool = False) -> ReadyExperiment:
    """Validate, calibrate and prepare an experiment.

    Args:
        say: progress callback, called with a line of text; calibration may take long.
        judge: whether the results will be compared with `[[expected]]`, whose metrics must then be recorded.

    Raises:
        ValueError: if settings are invalid.
    """
    begun, chooses = perf_counter(), experiment.tuning is not None
    todo = jobs(at_first(experiment) if chooses else experiment, say)
    first = [job for job in todo if not job.shape.get(TRIAL)]  # all trials record the same
    if experiment.evaluation.iterate != OUTPUT:
        known = {iterate for job in first for iterate in job.prepare().iterates}
        require_choice("evaluation.iterate", experiment.evaluation.iterate, known)
    for job in first if judge else ():
        start = job.prepare()
        evaluations = len(evaluation_rounds(start.static))
        verdict.check_recorded(experiment.expected, job.label, recorded(start), evaluations)
    if experiment.sweep.keep:
        print_size({job.identity: (job.runs, job.problem.dimension) for job in todo}.values())
    took = perf_counter() - begun
    if not chooses:
        return ReadyExperiment(experiment, todo, took)
    other = tuning_experiment(experiment)
    with within(IN_TUNING):
        check_classes(todo[0].problem, other.problem)
        return ReadyExperiment(experiment, todo, took, ready_experiment(other, say))


def recorded(start: ReadySweep) -> dict[str, list[str]]:
    """Return the names of the metrics that a sweep records of each iterate, "output" first."""
    metrics = start.static.metrics
    return {
        iterate: [metric.name for metric in metrics if iterate == OUTPUT or metric.of == "params"]
        for iterate in start.iterates
    }


def _checked(
    experiment: Experiment, settings: ProtocolSettings, shape: dict[str, Any], problems: Problems, say: Say
) -> Iterator[Job]:
    """Yield a protocol's jobs at one combination of sizes, checked: one for each ε if a size depends on ε."""
    problem, sizes = build.problem_at(experiment, shape, problems, say)
    with settings.within(experiment):
        alone = build.problem_alone(experiment, problem, {**experiment.real_axes, **settings.grid})
        for point in build.points(experiment, settings, problem, sizes):
            job = Job(point, {**shape, **point.at}, alone)
            job.check()
            yield job


def _objects(part: Any) -> list[int]:
    """Return the `id` of the class and factory of a protocol's part, and of those of the parts in its fields."""
    held = [getattr(part, one.name) for one in fields(part)] if is_dataclass(part) else []
    inside = [number for each in held if is_dataclass(each) for number in _objects(each)]
    return [id(type(part)), id(getattr(part, "factory", None)), *inside]


def _plain(value: Any) -> list:
    """Return a JSON-serialisable list that identifies a value, for `_identity`."""
    return [value.name, id(value.function)] if isinstance(value, Metric) else list(value)


def _preparing(label: str, shape: dict[str, Any], say: Say) -> Callable[[str, int, int], None] | None:
    """Return a callback that reports the current step of a sweep's preparation as text, or None."""
    if say is None:
        return None
    at = "".join(f", {name} {value:g}" for name, value in shape.items() if name != TRIAL)
    return lambda step, number, total: say(f"{step} of {label}{at} ({number} of {total})")


def _of_trial(seeds: int | list[int], trial: int) -> list[Seeds]:
    """Return the seeds of one trial."""
    each = [as_seeds(seed) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]
    found = distinct_resamples(each, range(trial + 1))
    return [found[seed, trial] for seed in each]
