"""Pilot runs: the candidates of a method comparison, run at their defaults on synthetic data of the same sizes.

The data are `datasets.clusters`. No private record is read, so choosing a method by a pilot costs no privacy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.datasets.stream import clusters
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import execute
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, PlannedRun, Use
from fedprivjax.method.seen import costs_of
from fedprivjax.privacy.target import PLAN
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.intervals import mean_interval

WARNING = "pilot on synthetic data: reads no private data, costs no privacy. Results on real data may differ"
USUAL_CLASSES, TEST_EXAMPLES = 10, 10_000
MOST_NUMBERS = 2 * 10**9  # machines · samples · dimension
MOST_WORK = 3 * 10**10  # largest estimate of `Trial.work`
NOISE_VECTORS = 20  # approximate cost of a round's noise, in gradients
METRIC = "test_accuracy"
VARIABLES = {
    "pilot_accuracy": "test accuracy on synthetic data, mean over seeds",
    "pilot_interval": "half the width of the 95% interval of pilot_accuracy",
    "pilot_place": "1 + number of methods whose 95% interval of pilot_accuracy lies wholly above this one's",
    "pilot_seconds": "wall time of the fastest run; with one seed it includes compilation",
    "pilot_epsilon": "realised ε of the worst machine, over all seeds",
    "pilot_rounds": "rounds of the pilot",
    "pilot_clip": "clip of the pilot, of gradients or of machines' updates",
    "pilot_step": "step size of the pilot",
}
NOTE = "pilot_note"

Cell = dict[str, Any]
OnProgress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Pilot:
    """Settings of pilot runs, in which `plan` tries methods on synthetic data.

    Methods are compared by the accuracy of their reported parameters on ten thousand test examples. If a method reports
    an iterate chosen at random, its last iterate is used instead.

    If `plan` is called with `rounds`, every method makes this number of rounds. Otherwise, a method makes the number of
    rounds that `plan` reports for it, except methods whose theory asks for an impractical number. Such methods make 40
    passes over the records. Methods that protect whole machines use the best of twelve pairs of clip and step size.

    Attributes:
        seeds: number of runs of each method. The runs differ in participants, order of records and noise, and use the
            same data.
        classes: number of classes, or None. For a model with d parameters, None takes ten classes if d/10 is a whole
            number above ten, otherwise two.
        accuracy: accuracy of the best linear classifier on the data.
        clip: norm to which gradients, or changes of gradients, are clipped. The synthetic features have norms of at
            most 1. On data with features of norm at most B, the corresponding clip is B·`clip`.
        radius: radius of the ball that constrains the parameters. On data with features of norm at most B, the
            corresponding radius is `radius`/B.

    Raises:
        Refusal: if a number is out of range.

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
        """Return (features, classes) of the synthetic data, for a model with `dimension` parameters.

        With two classes, a linear predictor has one parameter per feature, otherwise one per feature and class. If the
        field `classes` is None, there are ten classes if possible, otherwise two.

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
        """Return texts and numbers that describe the pilot, for the attributes of the result of `plan`.

        A pilot is a short run of each method on synthetic data. The names are `pilot` (a warning that the data are
        synthetic), `pilot_seeds` (number of runs of each method) and `pilot_data` (a description of the data).

        Args:
            dimension: number of parameters of the model.
        """
        features, classes = self.shape(dimension)
        data = (
            f"{classes} classes in {features} dimensions, norms at most 1, best linear rule {100 * self.accuracy:g} %"
        )
        runs = f"clip {self.clip:g}, ball of radius {self.radius:g}, {self.seeds} seed{'s' * (self.seeds > 1)}"
        return {"pilot": WARNING, "pilot_seeds": self.seeds, "pilot_data": f"{data}; {runs}"}

    def check(self, setting: Setting) -> None:
        """Raise Refusal if synthetic data of these sizes cannot be made, or would be too large.

        Args:
            setting: sizes of the federation and of the model.
        """
        self.shape(setting.dimension)
        numbers = setting.machines * setting.samples * setting.dimension
        if numbers > MOST_NUMBERS:
            raise Refusal(
                f"machines · samples · dimension must be at most {MOST_NUMBERS:.2g} for a pilot, got {numbers:.3g}. "
                f"Use fewer samples: the pilot then overstates the noise"
            )

    def problem(self, setting: Setting) -> Problem:
        """Return a training problem with synthetic data, of the sizes for which methods are compared.

        The records have no owners: a record is assigned to a machine when the machine uses it.

        Args:
            setting: sizes of the federation and of the model.
        """
        features, classes = self.shape(setting.dimension)
        options = {"accuracy": self.accuracy, "test_examples": TEST_EXAMPLES, "seed": setting.seed}
        data = clusters(setting.machines * setting.samples, features, classes, **options)
        return from_dataset(data, constraint=Ball(self.radius))


@dataclass(frozen=True)
class Trial:
    """Candidate in a comparison of methods by `plan`: pilot runs try it on synthetic data.

    Attributes:
        use: the way in which the method is used, such as one pass over the data or several.
        run: the candidate's calibrated protocol and its run plan, as the comparison planned them.
        draft: the protocol's class and its settings before calibration.
    """

    use: Use
    run: PlannedRun
    draft: Draft

    @property
    def setting(self) -> Setting:
        return self.run.setting

    @property
    def rounds(self) -> int:
        """Number of rounds of the pilot run.

        Usually, it is the number of rounds that `plan` reports for the method. Some methods, however, make a fixed
        number of passes over the records in pilots, because their theory asks for an impractical number. Their rounds
        follow from these passes, unless `plan` was called with `rounds`.
        """
        if self.use.passes is None or self.setting.rounds is not None:
            return self.run.plan.size.rounds
        return self.use.passes * ceil(self.setting.samples / self.run.batch)

    @property
    def work(self) -> float:
        """Approximate number of gradient components and noise components that a pilot run computes."""
        per_use = costs_of(self.run.protocol).costs(self.run.problem)["gradients_per_use"]
        gradients = per_use * (self.setting.per_round * self.run.batch + NOISE_VECTORS)
        return float(self.rounds) * gradients * self.setting.dimension

    @property
    def note(self) -> str:
        """Text that says how the pilot's number of rounds differs from the comparison's, or "" if it does not."""
        planned = self.run.plan.size.rounds
        return "" if self.rounds == planned else f"{self.rounds} rounds, theory has {planned}"

    def options(self, pilot: Pilot) -> dict[str, dict[str, Any]]:
        """Return the settings with which the pilot tries the method. The pilot keeps the best of them.

        A pilot is a set of short runs on synthetic data. In the result, a key is a text that describes the settings,
        and a value has the settings by name. If no settings are to be compared, there is one entry with the key "": the
        method's default settings, with the clip of `pilot`.

        Args:
            pilot: settings of the pilot.
        """
        # clipped runs have a default step, so the draft's step size is not needed
        settings = {name: value for name, value in self.draft.settings.items() if name != "step_size"}
        return self.draft.tuned or {"": {**settings, "clip": pilot.clip}}

    def ready(self, settings: dict[str, Any], problem: Problem, seed: int) -> ReadyRun:
        """Return one prepared run of the pilot, with noise calibrated to the target ε.

        The calibration uses the sampled participants and records of this run.

        Args:
            settings: arguments of the protocol, except its privacy target.
            problem: problem with the synthetic data.
            seed: seed of participation, order of records and noise.
        """
        s = self.setting
        protocol = self.draft.method(**settings, epsilon=s.epsilon, calibrate_to=PLAN)
        if self.draft.problem.partition_table is not None:
            problem = replace(problem, partition_table=s.owned.partition_table)
        options = {"rounds": self.rounds, "eval_every": self.rounds, "metrics": [METRIC], "delta": s.delta}
        order = self.draft.plan.order
        return ready(protocol, problem, s.participation, order=order, seed=seed, **options)


def run_pilots(cells: Sequence[Cell], pilot: Pilot, on_progress: OnProgress | None = None) -> Iterator[Cell]:
    """Run the pilots. Yield the outcome of each cell in order, empty for a cell without a `Trial`.

    Args:
        cells: cells of a method comparison.
        pilot: settings.
        on_progress: progress callback, called with (finished runs, all runs).
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
        if on_progress is not None:
            on_progress(done, total)


def _outcome(trial: Trial, pilot: Pilot, problem: Problem) -> Cell:
    """Return the pilot's variables of one candidate, or only `pilot_note` with the reason if it was not run."""
    if trial.work > MOST_WORK:
        return {NOTE: f"too long for a pilot: {trial.rounds} rounds"}
    iterate, options = trial.use.iterate or OUTPUT, trial.options(pilot)
    try:
        chosen = next(iter(options))
        if len(options) > 1:  # on a seed of its own
            tried = {name: _run(trial.ready(one, problem, pilot.seeds), iterate)[0] for name, one in options.items()}
            chosen = max(tried, key=lambda name: np.nan_to_num(tried[name], nan=-1.0))
        starts = [trial.ready(options[chosen], problem, seed) for seed in range(pilot.seeds)]
    except Refusal as refusal:
        return {NOTE: f"not tried: {refusal}"}
    accuracies, seconds = zip(*(_run(start, iterate) for start in starts), strict=True)
    best = f"{chosen}, the best of {len(options)} on a seed of its own" if chosen else ""
    mean, half = mean_interval(xr.DataArray(list(accuracies), dims="seed"))
    return {
        "pilot_accuracy": float(mean),
        "pilot_interval": float(half),
        "pilot_seconds": min(seconds),
        "pilot_epsilon": max(start.guarantee.epsilon for start in starts),
        "pilot_rounds": trial.rounds,
        "pilot_clip": _clip(options[chosen]),
        "pilot_step": float(starts[0].protocol.step_size),
        NOTE: "; ".join(filter(None, (best, trial.note))),
    }


def _clip(settings: dict[str, Any]) -> float:
    """Return the clip of gradients or updates among a protocol's settings, or of its privacy object."""
    for name in ("clip", "update_clip"):
        if name in settings:
            return float(settings[name])
    return float(getattr(settings.get("privacy"), "update_clip", nan))


def places(mean: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return the place of each method: 1 + number of the others whose interval lies wholly above; NaN if diverged.

    Without intervals, all methods have place 1.

    Args:
        mean, half: mean accuracy and half its 95% interval (NaN for one seed), shape [methods, epsilons].

    >>> places(np.array([[92.4], [92.5], [90.0]]), np.array([[0.3], [0.8], [0.1]])).ravel()
    array([1., 1., 3.])
    """
    half = np.nan_to_num(half, nan=np.inf)
    above = ((mean - half)[None] > (mean + half)[:, None]).sum(axis=1)
    return np.where(np.isnan(mean), np.nan, 1.0 + above)


def _run(start: ReadyRun, iterate: str) -> tuple[float, float]:
    """Execute a run. Return (accuracy of an iterate, or NaN if the run diverged, wall time in seconds)."""
    run = execute(start)
    accuracy = float(run.iterates[iterate][METRIC][-1])
    return np.nan if run.diverged else accuracy, run.costs["seconds"]
