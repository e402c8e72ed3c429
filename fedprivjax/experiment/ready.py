"""Preparation of an experiment: all settings, those of `[tuning]` included, are validated before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.experiment import Experiment, tuning_experiment, verdict
from fedprivjax.experiment.jobs import Job, jobs, recorded, records
from fedprivjax.experiment.tuning import at_first


@dataclass(frozen=True)
class ReadyExperiment:
    """Prepared experiment, not yet compiled.

    Attributes:
        experiment: settings.
        jobs: sweeps to run. With `[tuning]`, the first point of each grid represents the point that will be chosen.
        seconds: time of the preparation in seconds, without that of `before`.
        before: prepared tuning experiment, which runs first, or None without `[tuning]`.
    """

    experiment: Experiment
    jobs: list[Job]
    seconds: float
    before: "ReadyExperiment | None" = None

    @property
    def runs(self) -> int:
        """Number of runs, tuning runs included."""
        return sum(job.runs for job in self.jobs) + (0 if self.before is None else self.before.runs)


def ready_experiment(
    experiment: Experiment, say: Callable[[str], None] | None = None, *, judge: bool = False
) -> ReadyExperiment:
    """Validate, calibrate and prepare an experiment.

    Args:
        say: progress callback, called with a line of text; calibration may take long.
        judge: whether the results will be compared with `[[expected]]`, whose metrics must then be recorded.

    Raises:
        ValueError: if settings are invalid.
    """
    begun, chooses = perf_counter(), experiment.tuning is not None
    todo = jobs(at_first(experiment) if chooses else experiment, say)
    if judge or experiment.evaluation.iterate != OUTPUT:
        judged = experiment if judge else experiment.but(expected=[])
        verdict.check_recorded(judged, recorded(todo), records(todo))
    took = perf_counter() - begun
    before = ready_experiment(tuning_experiment(experiment), say) if chooses else None
    return ReadyExperiment(experiment, todo, took, before)
