"""A plan's candidates, run on made-up data of its sizes at their own defaults: which does well, without touching data.

No record of anybody's is read, so what one chooses by a pilot costs no privacy. The data are `datasets.clusters`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.datasets.clusters import clusters
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import execute
from fedprivjax.method.planning.bounds import PlannedRun
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.privacy.target import PLAN
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Problem, Table
from fedprivjax.sweeps.results import mean_interval

WARNING = "pilot on synthetic data: no data were touched, no guarantee is spent; yours may differ"
USUAL_CLASSES, TEST_EXAMPLES = 10, 10_000
MOST_NUMBERS = 2 * 10**9  # machines · samples · dimension
MOST_WORK = 3 * 10**10  # numbers that one run computes, roughly
NOISE_VECTORS = 20  # in a round, as many gradients' worth of time, roughly
METRIC = "test_accuracy"
FOUND = {
    "pilot_accuracy": "share of right answers on synthetic data, mean over seeds",
    "pilot_interval": "half the width of its 95 % interval",
    "pilot_seconds": "of the quickest run; with one seed, compiling is in it",
    "pilot_epsilon": "ε that the pilot's noise gives the worst machine, of all seeds",
    "pilot_rounds": "",
    "pilot_step": "",
}
SAID = "pilot_note"

Cell = dict[str, Any]
Told = Callable[[int, int], Any]


@dataclass(frozen=True)
class Pilot:
    """How candidates are tried, and compared by accuracy on ten thousand test examples.

    It is that of what a method reports, and of the last iterate where that is one drawn at random. Methods that use
    records again and again make 40 passes over them, unless the plan's `rounds` are given or theory counts epochs.

    Attributes:
        seeds: runs of each, every one with its own schedule, order of the records and noise, on the same data.
        classes: C of the data, whose features are d/C, or d for two classes. None: ten where that is possible, else
            two.
        accuracy: of the best rule there is on these data.
        clip: of every gradient, or increment, over the feature bound.
        radius: of the ball of parameters, times the feature bound.

    Raises:
        Refusal: a number out of range.

    >>> Pilot(seeds=0)
    Traceback (most recent call last):
    fedprivjax.Refusal: seeds must be at least 1, got 0
    """

    seeds: int = 3
    classes: int | None = None
    accuracy: float = 0.94
    clip: float = 0.2
    radius: float = 100.0

    def __post_init__(self):
        require_at_least("seeds", self.seeds, 1)
        if self.classes is not None:
            require_at_least("classes", self.classes, 2)
        require_between("accuracy", self.accuracy, 1 / (self.classes or 2), 1)
        require_positive("clip", self.clip)
        require_positive("radius", self.radius)

    def shape(self, dimension: int) -> tuple[int, int]:
        """Features and classes of data for a model with so many parameters.

        >>> Pilot().shape(650), Pilot().shape(57), Pilot(classes=3).shape(57)
        ((65, 10), (57, 2), (19, 3))
        """
        usual = dimension % USUAL_CLASSES == 0 and dimension > USUAL_CLASSES**2
        classes = (USUAL_CLASSES if usual else 2) if self.classes is None else self.classes
        features, rest = (dimension, 0) if classes == 2 else divmod(dimension, classes)
        if rest or features <= classes:
            raise Refusal(
                f"dimension must be classes · features for a pilot, with more features than classes ({classes}), "
                f"got {dimension}"
            )
        return features, classes

    def attributes(self, dimension: int) -> dict[str, Any]:
        """What a plan's dataset says of it."""
        features, classes = self.shape(dimension)
        data = f"{classes} classes in {features} dimensions, norms at most 1, the best rule {100 * self.accuracy:g} %"
        runs = f"clip {self.clip:g}, ball of radius {self.radius:g}, {self.seeds} seed{'s' * (self.seeds > 1)}"
        return {"pilot": WARNING, "pilot_seeds": self.seeds, "pilot_data": f"{data}; {runs}"}

    def check(self, setting: Setting) -> None:
        """Refuse sizes that are too large, or no synthetic data's."""
        self.shape(setting.dimension)
        numbers = setting.machines * setting.samples * setting.dimension
        if numbers > MOST_NUMBERS:
            raise Refusal(
                f"machines · samples · dimension must be at most {MOST_NUMBERS:.2g} for a pilot, got {numbers:.3g}: "
                f"with fewer samples it errs towards more noise"
            )

    def problem(self, setting: Setting) -> Problem:
        """Synthetic data of a plan's sizes, with records dealt in order of use."""
        features, classes = self.shape(setting.dimension)
        options = {"accuracy": self.accuracy, "test_examples": TEST_EXAMPLES, "seed": setting.seed}
        data = clusters(setting.machines * setting.samples, features, classes, **options)
        return from_dataset(data, constraint=Ball(self.radius))


@dataclass(frozen=True)
class Trial:
    """A candidate of a plan, to be run.

    Attributes:
        use: the way of using the protocol.
        run: as it is planned.
        draft: what of it is not calibrated.
    """

    use: Use
    run: PlannedRun
    draft: Draft

    @property
    def setting(self) -> Setting:
        return self.run.setting

    @property
    def rounds(self) -> int:
        """The plan's, but for methods whose passes a pilot chooses."""
        if self.use.passes is None or self.setting.rounds is not None:
            return self.run.plan.size.rounds
        return self.use.passes * ceil(self.setting.samples / self.run.batch)

    @property
    def work(self) -> float:
        """Numbers that a run computes, roughly."""
        gradients = self.run.protocol.gradients_per_use * (self.setting.per_round * self.run.batch + NOISE_VECTORS)
        return float(self.rounds) * gradients * self.setting.dimension

    @property
    def note(self) -> str:
        """What is run otherwise than it is planned."""
        planned = self.run.plan.size.rounds
        return "" if self.rounds == planned else f"{self.rounds} rounds, theory has {planned}"

    def protocol(self, pilot: Pilot) -> Any:
        """The method at its defaults, clipped, with the least noise for the ε on the schedule that is drawn."""
        s = self.setting  # a clipped run has a default step where the plan's own needs one that stands in
        settings = {name: value for name, value in self.draft.settings.items() if name != "step_size"}
        return self.draft.method(**{**settings, "clip": pilot.clip}, epsilon=s.epsilon, calibrate_to=PLAN)

    def ready(self, pilot: Pilot, problem: Problem, seed: int) -> ReadyRun:
        """One run of it."""
        s = self.setting
        if self.draft.problem.partition_table is not None:
            rows = np.arange(s.machines * s.samples, dtype=np.int32).reshape(s.machines, s.samples)
            problem = replace(problem, partition_table=Table(rows))
        options = {
            "rounds": self.rounds,
            "eval_every": self.rounds,
            "metrics": [METRIC],
            "delta": s.delta,
            "seed": seed,
        }
        return ready(self.protocol(pilot), problem, s.participation, order=self.draft.plan.order, **options)


def tried(cells: Sequence[Cell], pilot: Pilot, told: Told | None = None) -> Iterator[Cell]:
    """What a pilot finds of every cell that has a `Trial`, in the order of the cells; nothing of others.

    Args:
        told: called with (runs done, runs in all).
    """
    trials = [cell["trial"] for cell in cells if "trial" in cell]
    problem = pilot.problem(trials[0].setting)
    done, total = 0, len(trials) * pilot.seeds
    for cell in cells:
        if "trial" not in cell:
            yield {}
            continue
        yield _outcome(cell["trial"], pilot, problem)
        done += pilot.seeds
        if told is not None:
            told(done, total)


def _outcome(trial: Trial, pilot: Pilot, problem: Problem) -> Cell:
    """The numbers of one candidate, or why there are none."""
    if trial.work > MOST_WORK:
        return {SAID: f"too long for a pilot: {trial.rounds} rounds"}
    try:
        starts = [trial.ready(pilot, problem, seed) for seed in range(pilot.seeds)]
    except Refusal as refusal:
        return {SAID: f"not tried: {refusal}"}
    accuracies, seconds = zip(*(_run(start, trial.use.iterate or OUTPUT) for start in starts), strict=True)
    mean, half = mean_interval(xr.DataArray(list(accuracies), dims="seed"))
    return {
        "pilot_accuracy": float(mean),
        "pilot_interval": float(half),
        "pilot_seconds": min(seconds),
        "pilot_epsilon": max(start.guarantee.epsilon for start in starts),
        "pilot_rounds": trial.rounds,
        "pilot_step": float(starts[0].protocol.step_size),
        SAID: trial.note,
    }


def _run(start: ReadyRun, iterate: str) -> tuple[float, float]:
    """Accuracy of an iterate of a run, NaN where it diverged, and seconds."""
    run = execute(start)
    accuracy = float(run.iterates[iterate][METRIC][-1])
    return np.nan if run.diverged else accuracy, run.costs["seconds"]
