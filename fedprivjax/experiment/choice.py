"""What `[choose]` came to: each protocol's best point of its grid on other data, and the experiment at these points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from fedprivjax import datasets
from fedprivjax.experiment import Experiment, ProtocolSettings, choosing, folder
from fedprivjax.experiment.selection import figures_of


@dataclass(frozen=True)
class Choice:
    """The point that a protocol goes on with.

    Attributes:
        values: of the settings in its grid.
        score: the mean of `record.select` at it, over all runs that did not diverge.
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


def choices(experiment: Experiment, results: Mapping[str, xr.Dataset]) -> dict[str, Choice]:
    """What the experiment's protocols go on with, by label.

    Args:
        results: of `choosing(experiment)`.
    """
    other = choosing(experiment)
    return {one.label: _choice(experiment, other, one, results[one.label]) for one in other.protocol}


def choices_in(results: Path, experiment: Experiment) -> dict[str, Choice]:
    """The choices whose runs a results folder holds; nothing where it holds none."""
    kept = results / folder.CHOICE
    if experiment.choose is None or not (kept / folder.RESULTS).is_file():
        return {}
    return choices(experiment, folder.load(kept))


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
    metric = other.record.select
    sign = 1 if other.record.known(metric).better == "higher" else -1
    runs = figures_of(data, other.record).stack(point=list(settings.grid))
    each = [name for name in runs.dims if name != "point"]
    diverged, score = runs.isnull().sum(each), runs.mean(each)
    fewest = diverged == diverged.min()
    best = (sign * score).where(fewest).fillna(-np.inf).argmax("point")
    values = {name: float(runs[name].isel(point=best)) for name in settings.grid}
    points = f"{settings.points}{_edges(settings.grid, values)}"
    how = _how(metric, points, score.where(fewest), fewest)
    return Choice(
        values=values,
        score=float(score.isel(point=best)),
        points=settings.points,
        diverged=int(diverged.isel(point=best)),
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
