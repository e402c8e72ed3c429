"""An experiment that is ready to run: whatever is wrong with it, and with what chooses for it, has been refused."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.experiment import Experiment, choosing, verdict
from fedprivjax.experiment.jobs import Job, jobs, recorded, records
from fedprivjax.experiment.tuning import at_first


@dataclass(frozen=True)
class ReadyExperiment:
    """What there is to run of an experiment, nothing compiled yet.

    Attributes:
        jobs: its sweeps; with `[tuning]`, each grid's first point stands for the one that will be chosen.
        seconds: what making it ready took.
        before: the experiment that `[tuning]` asks for, ready; None without one.
    """

    experiment: Experiment
    jobs: list[Job]
    seconds: float
    before: "ReadyExperiment | None" = None

    @property
    def runs(self) -> int:
        """Runs in all, those that choose among them."""
        return sum(job.runs for job in self.jobs) + (0 if self.before is None else self.before.runs)


def ready_experiment(
    experiment: Experiment, say: Callable[[str], None] | None = None, *, judge: bool = False
) -> ReadyExperiment:
    """Everything of an experiment that happens before it runs.

    Args:
        say: called with what happens, in words: calibrating may take long.
        judge: whether the results are held against what is expected, which must be recorded for that.

    Raises:
        ValueError: settings that cannot be run.
    """
    begun, chooses = perf_counter(), experiment.tuning is not None
    todo = jobs(at_first(experiment) if chooses else experiment, say)
    if judge or experiment.evaluation.iterate != OUTPUT:
        judged = experiment if judge else experiment.model_copy(update={"expected": []})
        verdict.check_recorded(judged, recorded(todo), records(todo))
    took = perf_counter() - begun
    return ReadyExperiment(experiment, todo, took, ready_experiment(choosing(experiment), say) if chooses else None)
