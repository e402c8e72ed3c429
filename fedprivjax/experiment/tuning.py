"""Hyper-parameter tuning: the best point of every protocol's grid, on the run itself or on other data by `[tuning]`."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metrics import METRICS
from fedprivjax.experiment.baselines import ALONE
from fedprivjax.experiment.participation import merged
from fedprivjax.experiment.protocol import ProtocolSettings, flattened
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import TRIAL, EvaluationSettings, Experiment, ProblemSettings, TuningSettings
from fedprivjax.sweeps.results import figure, preferred, rounds_of

POINT = "point"  # of a grid

OF_DATA = ("options", "picture")  # keys of `[problem]` that belong to a data set
DECLARED = ("lipschitz", "distance", "machine_weights")  # numbers of these data, and perhaps of no others
OF_SWEEP = ("common_noise", "noise_method", "memory_budget")


# ---- the rule


def runs_of(data: xr.Dataset, evaluation: EvaluationSettings) -> xr.DataArray:
    """The value by which a grid's point is chosen: `evaluation.select` of the shown iterate; shape [..., seed].

    It is NaN for a diverged run.
    """
    metric = evaluation.select
    return figure(data, metric, preferred(data, metric, evaluation.iterate), rounds_of(metric, evaluation.averaged))


def best_point(runs: xr.DataArray, over: Sequence[Hashable], better: str) -> xr.DataArray:
    """Index along `point` of the point with the fewest diverged runs, among these the best mean; int, the other axes.

    Args:
        over: axes of the runs that are compared together.
        better: "higher" or "lower".

    >>> runs = xr.DataArray([[0.9, np.nan], [0.2, 0.1], [0.3, 0.1]], dims=["point", "seed"])
    >>> best_point(runs, ["seed"], "higher").item(), best_point(runs, ["seed"], "lower").item()
    (2, 1)
    """
    diverged, score = runs.isnull().sum(over), (1 if better == "higher" else -1) * runs.mean(over)
    return score.where(diverged == diverged.min(POINT)).fillna(-np.inf).argmax(POINT)


# ---- on the run itself


def selected(experiment: Experiment, results: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Each protocol at its best: its own grid reduced to the point with the best mean of `evaluation.select` per cell.

    The chosen values become variables `best_<name>`. Selection looks at the results, so no guarantee covers it.
    """
    return {
        settings.label: _reduced(_best(results[settings.label], list(settings.grid), experiment.evaluation))
        for settings in experiment.protocol
    }


def _best(data: xr.Dataset, grid: list[str], evaluation: EvaluationSettings) -> xr.Dataset:
    if not grid:
        return data
    metric = evaluation.select
    runs = runs_of(data, evaluation).stack({POINT: grid})
    best = runs[POINT].isel({POINT: best_point(runs, ["seed"], evaluation.known(metric).better)})  # of each trial
    points = {name: best[name].drop_vars([*grid, POINT], errors="ignore") for name in grid}
    chosen = data.sel(points).drop_vars(grid, errors="ignore")
    chosen = chosen.assign({f"best_{name}": value for name, value in points.items()})
    if all(data.sizes[name] == 1 for name in grid):
        return chosen
    return chosen.assign_attrs(data.attrs, selected=f"{', '.join(grid)} by the best mean {metric}: not accounted for")


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


# ---- on other data: the experiment that `[tuning]` asks for


def choosing_mapping(experiment: Experiment, tuning: TuningSettings, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the experiment that chooses, as a file would say them.

    Args:
        raw: the settings of the one that goes on with what is chosen.

    Raises:
        Refusal: there is nothing to choose from, or an axis that the experiment does not sweep.
    """
    methods = [settings for settings in experiment.protocol if settings.points > 1]
    if not methods:
        raise Refusal("a [[protocol]] must have a grid of several points, got none")
    labels = [settings.label for settings in methods]
    return {
        "title": f"{raw['title']}: the choice of hyper-parameters",
        "problem": _problem(raw["problem"], tuning.problem),
        "participation": merged(experiment.participation, tuning.participation),
        "protocol": [_protocol(one, tuning.participation) for one in raw["protocol"] if one["label"] in labels],
        "sweep": {**{name: raw["sweep"][name] for name in OF_SWEEP}, **_sweep(experiment, tuning, methods)},
        "evaluation": _evaluation(raw["evaluation"]),
    }


def check_other(problem: ProblemSettings, other: ProblemSettings) -> None:
    """Refuse data that are those of the experiment itself.

    Raises:
        Refusal: the same data set with the same options.
    """
    if (problem.dataset, problem.options) == (other.dataset, other.options):
        raise Refusal(f"problem must be of another data set than the experiment's, got {other.dataset!r} again")


def _problem(given: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    lost = set(OF_DATA) if own.get("dataset", given["dataset"]) != given["dataset"] else set()
    lost |= {name for name in DECLARED if not isinstance(given.get(name), str)}  # "sizes" holds for any split
    lost |= {"radius"} if "constraint" in own else set()
    found = {**{key: value for key, value in given.items() if key not in lost}, **own}
    return {key: value for key, value in found.items() if (key, value) != ("partition", {})}


def _evaluation(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is only shown: no plot is drawn of the choice."""
    shown = [name for name in given.get("baselines", ()) if name != ALONE]
    kept = {name: value for name, value in given.items() if name != "at"}
    return kept | ({"baselines": shown} if "baselines" in given else {})


def _protocol(given: Mapping[str, Any], said: Iterable[str]) -> dict[str, Any]:
    """With those keys of its own participation that are not said for all."""
    own = {key: value for key, value in given["participation"].items() if key not in said}
    return {**given, "participation": own}


def _sweep(experiment: Experiment, tuning: TuningSettings, methods: list[ProtocolSettings]) -> dict[str, Any]:
    """The seeds, and the axes that reach these protocols, but for sizes that `[tuning]` fixes."""
    over, fewer = experiment.sweep.over, flattened(tuning.sweep)
    for name in fewer:
        require_choice("key in its sweep", name, over)
    reached = {name for name in over if any(name not in settings.own for settings in methods)}
    axes = {name: values for name, values in over.items() if name in reached and name not in tuning.participation}
    chosen = [name for settings in methods for name in settings.grid]
    resample = [name for name in experiment.sweep.resample if name in (*chosen, *axes) and name not in STRUCTURAL]
    return {**axes, **fewer, "seeds": tuning.seeds, "resample": resample}


# ---- on other data: the chosen points


@dataclass(frozen=True)
class Choice:
    """The point that a protocol goes on with.

    Attributes:
        values: of the settings in its grid.
        score: the mean of `evaluation.select` at it, over all runs that did not diverge.
        points: of its grid.
        diverged: runs at the point that diverged.
        why: the choice in words, and what privacy it has.
    """

    values: dict[str, float]
    score: float
    points: int
    diverged: int
    why: str


def in_words(values: Mapping[str, float]) -> str:
    """A point in words.

    >>> in_words({"clip": 0.5, "step_scale": 2.0})
    'clip = 0.5, step_scale = 2'
    """
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())


def choices(experiment: Experiment, other: Experiment, results: Mapping[str, xr.Dataset]) -> dict[str, Choice]:
    """The chosen point of each protocol, by label.

    Args:
        other: `choosing(experiment)`.
        results: of `other`.
    """
    return {one.label: _choice(experiment, other, one, results[one.label]) for one in other.protocol}


def at_choices(experiment: Experiment, chosen: Mapping[str, Choice]) -> Experiment:
    """The experiment with the chosen points alone."""
    return experiment.model_copy(update={"protocol": [_at(one, chosen) for one in experiment.protocol]})


def at_first(experiment: Experiment) -> Experiment:
    """The experiment with the first point of every grid alone, which costs as much as the one that will be chosen."""
    firsts = [{name: values[:1] for name, values in one.grid.items()} for one in experiment.protocol]
    methods = [one.model_copy(update={"grid": grid}) for one, grid in zip(experiment.protocol, firsts, strict=True)]
    return experiment.model_copy(update={"protocol": methods})


def marked(results: Mapping[str, xr.Dataset], chosen: Mapping[str, Choice]) -> dict[str, xr.Dataset]:
    """The datasets with how their hyper-parameters were chosen."""
    said = {label: {"selected": one.why, "grid_points": one.points} for label, one in chosen.items()}
    return {label: data.assign_attrs(said.get(label, {})) for label, data in results.items()}


def _at(settings: ProtocolSettings, chosen: Mapping[str, Choice]) -> ProtocolSettings:
    if settings.label not in chosen:
        return settings
    grid = {name: [value] for name, value in chosen[settings.label].values.items()}
    return settings.model_copy(update={"grid": grid})


def _choice(experiment: Experiment, other: Experiment, settings: ProtocolSettings, data: xr.Dataset) -> Choice:
    """The point with the fewest diverged runs, of those the one with the best mean over cells and seeds."""
    metric = other.evaluation.select
    runs = runs_of(data, other.evaluation).stack({POINT: list(settings.grid)})
    each = [name for name in runs.dims if name != POINT]
    diverged, score = runs.isnull().sum(each), runs.mean(each)
    fewest = diverged == diverged.min()
    best = best_point(runs, each, other.evaluation.known(metric).better)
    values = {name: float(runs[name].isel({POINT: best})) for name in settings.grid}
    points = f"{settings.points}{_edges(settings.grid, values)}"
    how = _how(metric, points, score.where(fewest), fewest)
    return Choice(
        values=values,
        score=float(score.isel({POINT: best})),
        points=settings.points,
        diverged=int(diverged.isel({POINT: best})),
        why=f"{in_words(values)}: {how} on {_where(experiment, other)}",
    )


def _how(metric: str, points: str, score: xr.DataArray, fewest: xr.DataArray) -> str:
    """The rule by which a point was chosen."""
    if score.isnull().all():
        return f"the first of {points}, for every run diverged,"
    if fewest.all():
        return f"the best mean {metric} of {points}"
    return f"the best mean {metric} of those of {points} that diverged least,"


def _edges(grid: Mapping[str, Sequence[float]], values: Mapping[str, float]) -> str:
    """Which settings lie at an end of their three or more values, in words: a wider grid may hold a better point.

    >>> _edges({"clip": [0.5, 1.0], "step_scale": [1.0, 2.0, 4.0]}, {"clip": 1.0, "step_scale": 4.0})
    ' (step_scale at the edge of its grid)'
    """
    several = {name: along for name, along in grid.items() if len(along) > 2}
    ends = [name for name, along in several.items() if values[name] in (min(along), max(along))]
    return f" ({', '.join(ends)} at the edge of its grid)" if ends else ""


def _where(experiment: Experiment, other: Experiment) -> str:
    """The data that chose, and what that is for the privacy of those that are run."""
    name, own = other.problem.dataset, experiment.problem.dataset
    if datasets.may_share(name, own):
        return f"{name}, which may share data with this run: not accounted for"
    return f"{name}; no data of this run had a part, so it costs them no privacy"
