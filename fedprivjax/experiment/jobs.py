"""Preparation of an experiment: one checked sweep for every protocol and every combination of sizes."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import default_metrics, recorded_name, require_recorded
from fedprivjax.engine.prepare import evaluation_rounds
from fedprivjax.experiment import TRIAL, Experiment, ProtocolSettings, build, to_mapping, tuning_experiment, verdict
from fedprivjax.experiment.build import Problems
from fedprivjax.experiment.inputs import Inputs, inputs_of
from fedprivjax.experiment.names import code_of
from fedprivjax.experiment.participation_section import AnyKind
from fedprivjax.experiment.protocol_section import MOMENTS
from fedprivjax.experiment.read import IN_TUNING, check_targets
from fedprivjax.experiment.section import THEORY
from fedprivjax.experiment.tuning import at_first, check_classes
from fedprivjax.method.theory import require_choice_of
from fedprivjax.plan.draw import draw_plan, require_possible
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.seeds import Seeds, as_seeds, distinct_resamples
from fedprivjax.privacy.calibration import target_of
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.problem.models import LinearModel
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.smoothing import Moreau
from fedprivjax.sweeps.configurations import number_of
from fedprivjax.sweeps.prepare import ReadySweep, ready_sweep
from fedprivjax.sweeps.schema import print_size

Progress = Callable[[int, int], None]
Say = Callable[[str], None] | None


@dataclass(frozen=True, eq=False)
class Job:
    """A sweep to run: one protocol at one combination of sizes, and at one ε if a size or the smoothing depends on ε.

    Attributes:
        experiment: experiment of the protocol.
        settings: settings of the protocol, with this ε.
        shape: swept sizes by name. Also the trial, and ε if the job has one.
        sizes: `shape`, with the sizes that follow from the data or from ε.
        problem: problem that the protocol solves, with the smoothed loss.
        alone: problem of the baseline "alone", or None without that baseline.
        start: prepared sweep, or None to prepare it at each call of `prepare`. The samples of all trials would not fit
            in memory.
    """

    experiment: Experiment
    settings: ProtocolSettings
    shape: dict[str, Any]
    sizes: Mapping[str, Any]
    problem: Problem
    alone: Problem | None = None
    start: ReadySweep | None = None

    @property
    def label(self) -> str:
        """Label of the protocol."""
        return self.settings.label

    @cached_property
    def scheme(self) -> AnyKind:
        """Settings of the participation."""
        return self.experiment.participation_of(self.settings)

    @cached_property
    def participation(self) -> Participation:
        """Participation scheme."""
        return build.make_participation(self.scheme, self.sizes)[0]

    @property
    def rounds(self) -> int | None:
        """Number of rounds, or None for as many as the samples allow."""
        return self.sizes.get("rounds", self.scheme.planned)

    @cached_property
    def protocol(self) -> Any:
        """The protocol at the first swept values."""
        return build.make_protocol(self.settings, self.experiment.real_axes)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return prod(len(values) for values in self.options["over"].values()) * number_of(self.options["seeds"])

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `ready_sweep` that may change a result."""
        sweep, evaluation, trial = self.experiment.sweep, self.experiment.evaluation, self.shape.get(TRIAL)
        over, metrics = self.settings.axes(self.experiment.real_axes), evaluation.chosen_metrics
        return {
            "over": over,
            "seeds": sweep.seeds if trial is None else _of_trial(sweep.seeds, trial),
            "rounds": self.rounds,
            "metrics": default_metrics(self.problem) if metrics is None else tuple(metrics),
            "eval_every": evaluation.every,
            "delta": evaluation.delta,
            "resample": [name for name in sweep.resample if name in over],
            "order": self.scheme.order,
            **sweep.model_dump(include={"common_noise", "noise_method", "precision", "keep"}),
        }

    def check(self) -> None:
        """Check the sizes, and sample one run plan."""
        sampler, order = self.protocol.minibatches, self.scheme.order
        if sampler is not None and not sampler.pooled and self.problem.partition_table is None:
            raise Refusal("problem.partition must be given, because machines sample minibatches from their own records")
        run = self.problem, self.participation, self.rounds
        require_possible(*run, order=order, sampler=sampler, draws=number_of(self.experiment.sweep.seeds))
        if not self.shape.get(TRIAL):
            draw_plan(*run, order=order, sampler=sampler)

    def check_recorded(self) -> None:
        """Raise Refusal if a metric of `averaged` or `rounds_to`, or the metric that tunes a grid, is not recorded."""
        names = [one.name if isinstance(one, Metric) else one for one in self.options["metrics"]]
        evaluation = self.experiment.evaluation
        for metric in evaluation.averaged:
            require_recorded(recorded_name(metric), names, "metric in evaluation.averaged")
        for metric in evaluation.rounds_to:
            require_recorded(recorded_name(metric), names, "metric in evaluation.rounds_to")
        if self.settings.grid:
            require_recorded(evaluation.select, names, "evaluation.select")

    def calibrated(self, say: Say) -> "Job":
        """Return the job with its prepared sweep, or with trials without it. Of these, only the first is prepared."""
        with self.settings.within(self.experiment):
            start = None if self.shape.get(TRIAL) else self._prepared(_preparing(self.label, self.shape, say))
            self.check_recorded()
        return self if TRIAL in self.shape else replace(self, start=start)

    def prepare(self) -> ReadySweep:
        """Return the prepared sweep."""
        return self._prepared() if self.start is None else self.start

    def _prepared(self, preparing: Callable[[str, int, int], None] | None = None) -> ReadySweep:
        limits = self.experiment.sweep.model_dump(include={"memory_budget", "min_chunks", "mesh"})
        return ready_sweep(
            self.protocol, self.problem, self.participation, preparing=preparing, **limits, **self.options
        )

    @cached_property
    def identity(self) -> str:
        """Cache key. Jobs with equal keys have equal runs."""
        raw, folder = to_mapping(self.experiment), self.experiment.context["folder"]
        own, settings = code_of(raw, folder), self.settings.model_dump(exclude={"label"})
        written = [str(folder), own, settings, raw["evaluation"]] if own else []  # of objects whose texts may be equal
        data = [self.experiment.problem.model_dump(), repr(self.problem.model)]
        drawn = [repr(self.participation), self.scheme.model_dump(), self.shape, dict(self.sizes)]
        # equal runs are computed once
        canonical = self.protocol.theory.equivalent(self.protocol, self.participation.machines)
        return json.dumps([written, *data, *drawn, self.settings.name, repr(canonical), self.options], default=_plain)


def jobs_at(job: Job) -> list[Job]:
    """Return one job for each swept ε if a size depends on ε, else the job itself.

    The batch "moments" and the values "theory" of `per_round`, `rounds` and `smoothing` depend on ε.
    """
    experiment, settings = job.experiment, job.settings
    batch, given = settings.settings.get("batch"), job.scheme.model_dump()
    left = [name for name in ("per_round", "rounds") if given.get(name) == THEORY and name not in job.sizes]
    smoothed = experiment.problem.loss is not None and experiment.problem.loss.smoothing == THEORY
    depends = isinstance(batch, str) or left or smoothed
    over = experiment.sweep.over.get("epsilon", []) if depends and "epsilon" not in settings.fixed else []
    found = []
    for at in [{"epsilon": epsilon} for epsilon in over] or [{}]:
        own = {**settings.settings, **at}
        if isinstance(batch, str):
            own["batch"] = _moments(batch, at, job.rounds, job.problem)
        one = replace(job, settings=settings.but(settings=own), shape={**job.shape, **at})
        found.append(_by_theory(one, left, smoothed=smoothed) if left or smoothed else one)
    return found


def _by_theory(job: Job, left: Sequence[str], *, smoothed: bool) -> Job:
    """Return the job with the smoothed loss and the sizes in `left` that the protocol's theory chooses."""
    protocol, scheme, problem = job.protocol, job.scheme, job.problem
    machines = build.machines_of(scheme, job.sizes)
    target = target_of(protocol, delta=job.experiment.evaluation.delta)
    smoothing = protocol.theory.choices(protocol, problem).smoothing if smoothed else None
    strength = None if smoothing is None else smoothing(machines, target, scheme.one_pass)
    if strength is not None:
        model: Any = problem.model
        problem = replace(problem, model=LinearModel(Moreau(model.loss, strength)))
    theory, phases = protocol.theory.choices(protocol, problem), scheme.kind == "phases"
    if phases and "per_round" in left and theory.cohorts is None:
        raise Refusal(f"kind must not be 'phases' for {protocol.name}, which has none")
    choices: dict[str, Any] = {"per_round": theory.cohorts if phases else theory.per_round, "rounds": theory.rounds}
    sizes = {name: require_choice_of(choices[name], name, protocol.name)(machines, target) for name in left}
    return replace(job, problem=problem, sizes={**job.sizes, **sizes})


def _moments(batch: str, at: Mapping[str, float], rounds: int | None, problem: Problem) -> int:
    """Return the batch of the rule "moments" at an ε."""
    require_choice("batch", batch, (MOMENTS,))
    if not at or rounds is None or problem.partition_table is None:
        raise Refusal(f"batch {MOMENTS!r} must go with a swept epsilon, given rounds and machines of their own records")
    return moments_batch(records=int(problem.partition_table.sizes.min()), rounds=rounds, **at)


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
        tuned: sweeps at the points that `before` chose. The run adds them.
        source: name and command of the experiment for the provenance, keys "experiment" and "command"; empty if it is
            not run by the command line.
    """

    experiment: Experiment
    jobs: list[Job]
    seconds: float
    before: "ReadyExperiment | None" = None
    tuned: list[Job] = field(default_factory=list)
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
        for job in jobs_at(Job(experiment, settings, shape, sizes, problem, alone)):
            job.check()
            yield job


def _plain(value: Any) -> Any:
    """Return a JSON-serialisable value that identifies another one."""
    return np.asarray(value).tolist() if hasattr(value, "__array__") else repr(value)


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
