"""Hyper-parameter tuning: the best point of every protocol's grid, on the run itself or on other data by `[tuning]`."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.build import ALONE
from fedprivjax.experiment.participation_section import merged
from fedprivjax.experiment.protocol_section import ProtocolSettings, flattened
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import EvaluationSettings, Experiment, ProblemSettings, TuningSettings
from fedprivjax.problem.problem import Problem
from fedprivjax.sweeps.results import figure, preferred, rounds_of, trials_as_seeds
from fedprivjax.sweeps.selection import POINT, UNACCOUNTED, at_best, best_point, edges

OF_DATA = ("options", "picture")  # keys of `[problem]` that belong to its dataset
DECLARED = ("lipschitz", "distance", "machine_weights")  # declared for one dataset; they may not hold for another
OF_SWEEP = ("common_noise", "noise_method", "precision", "memory_budget", "min_chunks", "mesh")


# ---- the rule


def runs_of(data: xr.Dataset, evaluation: EvaluationSettings) -> xr.DataArray:
    """Return the values that rank the points of a grid: `evaluation.select` of the shown iterate.

    The shape is [..., seed]. The value of a diverged run is NaN.
    """
    metric = evaluation.select
    return figure(data, metric, preferred(data, metric, evaluation.iterate), rounds_of(metric, evaluation.averaged))


# ---- on the run itself


def selected(experiment: Experiment, results: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets with each protocol's own grid reduced to its best point, cell by cell (see `best_point`).

    The chosen values become variables `best_<name>`. The selection uses the results themselves, so no guarantee covers
    it.
    """
    return {
        settings.label: trials_as_seeds(_best(results[settings.label], list(settings.grid), experiment.evaluation))
        for settings in experiment.protocol
    }


def _best(data: xr.Dataset, grid: list[str], evaluation: EvaluationSettings) -> xr.Dataset:
    if not grid:
        return data
    metric = evaluation.select
    return at_best(data, grid, runs_of(data, evaluation), metric, evaluation.known(metric).better)


# ---- on other data: the tuning experiment


def tuning_mapping(experiment: Experiment, tuning: TuningSettings, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the tuning experiment, in the form of a file.

    Args:
        experiment: experiment that uses the chosen points.
        tuning: its section `[tuning]`.
        raw: its settings, in the form of a file.

    Raises:
        Refusal: if no grid has several points, or `tuning.sweep` has an axis that the experiment does not sweep.
    """
    methods = [settings for settings in experiment.protocol if settings.points > 1]
    if not methods:
        raise Refusal("a [[protocol]] must have a grid of several points, got none")
    labels = [settings.label for settings in methods]
    protocols = [one for one in raw["protocol"] if one["label"] in labels]
    for one in protocols:
        own = one["participation"]
        one["participation"] = {key: own[key] for key in own if key not in tuning.participation}
    evaluation = {name: value for name, value in raw["evaluation"].items() if name != "callback"}
    baselines = [name for name in evaluation["baselines"] if name != ALONE]
    return {
        "title": f"{raw['title']}: the choice of hyper-parameters",
        "problem": _problem(raw["problem"], tuning.problem),
        "participation": merged(experiment.participation, tuning.participation, experiment.context),
        "protocol": protocols,
        "sweep": {
            **{name: raw["sweep"][name] for name in OF_SWEEP if name in raw["sweep"]},
            **_sweep(experiment, tuning, methods),
        },
        "evaluation": {**evaluation, "at": {}, "baselines": baselines},
    }


def check_other_data(problem: ProblemSettings, other: ProblemSettings) -> None:
    """Raise Refusal if the tuning data are the experiment's own: the same dataset with the same options."""
    if (problem.dataset, problem.options) == (other.dataset, other.options):
        raise Refusal(f"problem must have another dataset than the experiment, got {other.dataset!r} again")


def check_classes(problem: Problem, other: ProblemSettings) -> None:
    """Raise Refusal if synthetic tuning data have their default number of classes, and the experiment's have another.

    Args:
        problem: problem of the experiment.
        other: problem of the tuning experiment.
    """
    info, loss = datasets.DATASETS.get(other.dataset), getattr(problem.model, "loss", None)
    known = {} if info is None else inspect.signature(info.loader).parameters
    if "classes" not in known or "classes" in other.options or not getattr(loss, "classifies", False):
        return
    default, wanted = known["classes"].default, loss.outputs or 2  # type: ignore[union-attr]
    if default != wanted:
        needed = f"problem.options must have classes for {other.dataset!r}, which has {default} classes by default"
        raise Refusal(f"{needed} and the experiment's data {wanted}, got none. Set classes = {wanted}")


def _problem(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    lost = set(OF_DATA) if own.get("dataset", given["dataset"]) != given["dataset"] else set()
    lost |= {name for name in DECLARED if not isinstance(given.get(name), str)}  # "sizes" holds for any split
    lost |= {"radius"} if "constraint" in own else set()
    found = {**{key: value for key, value in given.items() if key not in lost}, **own}
    return {key: value for key, value in found.items() if (key, value) != ("partition", {})}


def _sweep(experiment: Experiment, tuning: TuningSettings, methods: list[ProtocolSettings]) -> dict[str, Any]:
    """Return the tuning experiment's seeds and axes: those that affect `methods` and that `[tuning]` does not fix."""
    over, fewer = experiment.sweep.over, flattened(tuning.sweep)
    for name in fewer:
        require_choice("key in its sweep", name, over)
    reached = {name for name in over if any(name not in settings.fixed for settings in methods)}
    axes = {name: values for name, values in over.items() if name in reached and name not in tuning.participation}
    chosen = [name for settings in methods for name in settings.grid]
    resample = [name for name in experiment.sweep.resample if name in (*chosen, *axes) and name not in STRUCTURAL]
    return {**axes, **fewer, "seeds": tuning.seeds, "resample": resample}


# ---- on other data: the chosen points


@dataclass(frozen=True)
class Choice:
    """Hyper-parameters that were chosen for a protocol among the combinations (points) of its grid.

    Attributes:
        values: chosen values of the settings in the grid, by name.
        score: mean of a metric over the runs with the chosen values, except diverged runs. The key `select` in the
            section `[evaluation]` of the experiment file names the metric. Among the combinations with the fewest
            diverged runs, the one with the best mean is chosen.
        points: number of combinations in the grid.
        diverged: number of runs with the chosen values that diverged.
        why: text that states the chosen values, the rule and the data by which they were chosen, and the privacy cost.
        on_other_data: True if the values were chosen by runs on data that the experiment itself does not use. The
            choice then costs the experiment's data no privacy.
    """

    values: dict[str, float]
    score: float
    points: int
    diverged: int
    why: str
    on_other_data: bool = False


def formatted(values: Mapping[str, float]) -> str:
    """Return a point as text.

    >>> formatted({"clip": 0.5, "step_scale": 2.0})
    'clip = 0.5, step_scale = 2'
    """
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())


def choices(experiment: Experiment, other: Experiment, results: Mapping[str, xr.Dataset]) -> dict[str, Choice]:
    """Return the chosen point of each protocol, by label.

    Args:
        other: tuning experiment, `tuning_experiment(experiment)`.
        results: results of `other`.
    """
    return {one.label: _choice(experiment, other, one, results[one.label]) for one in other.protocol}


def at_choices(experiment: Experiment, chosen: Mapping[str, Choice]) -> Experiment:
    """Return the experiment with each tuned grid reduced to its chosen point."""
    grids = {label: {name: [value] for name, value in one.values.items()} for label, one in chosen.items()}
    return experiment.but(protocol=[one.but(grid=grids.get(one.label, one.grid)) for one in experiment.protocol])


def at_first(experiment: Experiment) -> Experiment:
    """Return the experiment with every grid reduced to its first point. It costs as much as the chosen point will."""
    firsts = [{name: values[:1] for name, values in one.grid.items()} for one in experiment.protocol]
    return experiment.but(protocol=[one.but(grid=grid) for one, grid in zip(experiment.protocol, firsts, strict=True)])


def with_choices(results: Mapping[str, xr.Dataset], chosen: Mapping[str, Choice]) -> dict[str, xr.Dataset]:
    """Return the datasets with attributes that describe the choice of hyper-parameters."""
    attributes = {
        label: {"selected": one.why, "grid_points": one.points}
        | ({} if one.on_other_data else {UNACCOUNTED: ", ".join(one.values)})
        for label, one in chosen.items()
    }
    return {label: data.assign_attrs(attributes.get(label, {})) for label, data in results.items()}


def _choice(experiment: Experiment, other: Experiment, settings: ProtocolSettings, data: xr.Dataset) -> Choice:
    """Return the point with the fewest diverged runs and, among these, the best mean over cells and seeds."""
    metric = other.evaluation.select
    runs = runs_of(data, other.evaluation).stack({POINT: list(settings.grid)})
    each = [name for name in runs.dims if name != POINT]
    diverged, score = runs.isnull().sum(each), runs.mean(each)
    fewest = diverged == diverged.min()
    best = best_point(runs, each, other.evaluation.known(metric).better)
    values = {name: float(runs[name].isel({POINT: best})) for name in settings.grid}
    how = _rule(metric, f"{settings.points}{edges(settings.grid, values)}", score.where(fewest), fewest)
    tuned, run = other.problem, experiment.problem
    shared = datasets.may_share(tuned.dataset, run.dataset, tuned.options, run.options)
    if shared:
        note = ", which may share data with this run: not accounted for"
    else:
        note = "; no data of this run had a part, so it costs them no privacy"
    return Choice(
        values=values,
        score=float(score.isel({POINT: best})),
        points=settings.points,
        diverged=int(diverged.isel({POINT: best})),
        why=f"{formatted(values)}: {how} on {tuned.dataset}{note}",
        on_other_data=not shared,
    )


def _rule(metric: str, points: str, score: xr.DataArray, fewest: xr.DataArray) -> str:
    """Return the rule by which a point was chosen, as text."""
    if score.isnull().all():
        return f"the first of {points}, for every run diverged,"
    if fewest.all():
        return f"the best mean {metric} of {points}"
    return f"the best mean {metric} of those of {points} that diverged least,"
