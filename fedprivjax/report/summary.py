"""Summary of results: means, intervals, realised ε, baselines and marks, from which all that is shown follows."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, recorded_name, shown
from fedprivjax.experiment import Experiment
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import (
    CHOSEN,
    Point,
    grouped,
    guarantees_in,
    of_axes,
    range_text,
    target_epsilon,
    title_of,
)
from fedprivjax.privacy.rounding import SLACK, up
from fedprivjax.privacy.target import LEVELS
from fedprivjax.privacy.terms import Terms
from fedprivjax.sweeps.intervals import INTERVAL, mean_interval
from fedprivjax.sweeps.results import alone, constant, figure, has, preferred, rounds_of, vector_axes
from fedprivjax.sweeps.schema import custom_metrics
from fedprivjax.sweeps.selection import UNACCOUNTED, at_best

PANELS = ("machines", "per_round", "rounds", "records")
TOLERANCE = 0.01  # largest relative gap of a realised ε below its target for which the target is shown
ALONE = "each machine alone"
Interval = tuple[xr.DataArray, xr.DataArray]  # mean, and half the width of its interval
Values = TypeVar("Values", xr.DataArray, xr.Dataset)


def at(values: Values, point: Point) -> Values:
    """Return the values nearest to a point. Axes that they lack are ignored."""
    return values.sel(of_axes(values, point), method="nearest")


def has_point(values: xr.DataArray, point: Point) -> bool:
    """Return True if the values have a point. Axes that they lack are ignored."""
    return all(value in values[name].values for name, value in of_axes(values, point).items())


def varied(values: xr.DataArray) -> xr.DataArray:
    """Return the values without dimensions of size one, except seeds."""
    return values.squeeze([name for name in values.dims if values.sizes[name] == 1 and name != "seed"], drop=True)


def is_better(value: Any, other: Any, metric: Metric) -> Any:
    """Return True if `value` is better than `other` for the metric. NaN is neither better nor worse."""
    return value > other if metric.better == "higher" else value < other


def as_good(means: Any, best: float, half: float, metric: Metric) -> Any:
    """Return True for every mean within the interval `best ± half` of the best mean. A half-width of NaN is 0."""
    end = best - np.nan_to_num(half) * (1 if metric.better == "higher" else -1)
    return (means == end) | is_better(means, end, metric)


def axes_of(data: xr.Dataset) -> list[str]:
    """Return the names of a dataset's swept settings."""
    return [str(name) for name in data["diverged"].dims if name != "seed"]


def target_of(data: xr.Dataset) -> xr.DataArray | None:
    """Return the ε of every value of a swept privacy target, or None if none is swept."""
    for name in (name for name in LEVELS if name in data.dims):
        levels = data[name]
        return levels.copy(data=target_epsilon(name, levels.values, data.attrs["delta"]))
    return None


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of one metric: a value for each run, and each mean with its interval, by label of the protocol.

    Attributes:
        metric: the metric.
        title, words: texts of the metric with its averaging over rounds, for tables and for axes of plots.
        runs: value of each run: its last evaluation, or the mean over evaluations; shape [..., seed].
        intervals: mean and half-width of the 95% interval (NaN for one seed), without axes of one value.
        floor: value of the constant predictor, or None if it is not shown.
        alone: mean and half-width over machines that train alone, by column header.
        limits: smallest and largest possible value.
    """

    metric: Metric
    title: str
    words: str
    runs: Mapping[str, xr.DataArray]
    intervals: Mapping[str, Interval]
    floor: float | None
    alone: Mapping[str, Interval]
    limits: tuple[float, float]

    @property
    def seeded(self) -> bool:
        """True if there are enough seeds for intervals."""
        return min(values.sizes["seed"] for values in self.runs.values()) >= INTERVAL

    def worse(self, mean: Any) -> Any:
        """Return True for every mean that is worse than the constant predictor's value."""
        return is_better(nan if self.floor is None else self.floor, mean, self.metric)


def tunable(values: xr.DataArray, least: int = 2) -> list[str]:
    """Return the axes of at least so many values that are settings of the method, not privacy levels or sizes."""
    fixed = (*LEVELS, *STRUCTURAL, "seed")
    return [str(name) for name in values.dims if name not in fixed and values.sizes[name] >= least]


def alone_of(best: Mapping[str, xr.Dataset], name: str) -> dict[str, Interval]:
    """Return a metric of machines that train alone, by column header. Protocols with different data have separate ones.

    Axes along which the metric is constant are dropped.
    """
    computed = {label: alone(data, name) for label, data in best.items()}
    found = {label: along(interval) for label, interval in computed.items() if interval is not None}
    equal = [tuple(label for label in found if found[label][0].equals(mean)) for mean, _ in found.values()]
    groups = dict.fromkeys(equal)
    return {f"{ALONE} ({', '.join(group)})" if len(groups) > 1 else ALONE: found[group[0]] for group in groups}


def along(interval: Interval) -> Interval:
    """Return an interval without the axes along which the mean is constant."""
    mean, half = interval
    for name in mean.dims:
        first = mean.isel({name: 0}, drop=True)
        if all(mean.isel({name: place}, drop=True).equals(first) for place in range(mean.sizes[name])):
            mean, half = first, half.isel({name: 0}, drop=True)
    return mean, half


@dataclass(frozen=True, eq=False)
class Summary:
    """Results as all tables and plots show them.

    Attributes:
        best: datasets by label, each protocol's grid reduced to its best point.
        axes: names and values of swept settings, the rows of tables. The last axis changes fastest.
        evaluation: section `[evaluation]`: δ, the iterate, averaged metrics and baselines.
        title, notes: title and notes of the experiment.
        tuned: table of the points tuned on other data, or None.
        grids: datasets by label with the protocols' own grids, or None if they have none.
        fixed: settings that a figure does not draw, with their values as text.
        chosen: those of `fixed` with several values, each chosen for a protocol and a point of the figure.
    """

    best: Mapping[str, xr.Dataset]
    axes: Mapping[str, list[float]] = field(default_factory=dict)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    title: str = ""
    notes: str = ""
    tuned: Sheet | None = None
    grids: Mapping[str, xr.Dataset] | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    _cells: dict[str, Cells] = field(default_factory=dict, init=False, repr=False)

    @property
    def varied(self) -> dict[str, list[float]]:
        """Axes with more than one value."""
        return {name: values for name, values in self.axes.items() if len(values) > 1}

    @property
    def whole(self) -> Mapping[str, xr.Dataset]:
        """Datasets by label, with the protocols' own grids."""
        return self.best if self.grids is None else self.grids

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels by label, with a mark if settings were chosen by results, a choice that no guarantee covers."""
        return {label: label + CHOSEN * (UNACCOUNTED in data.attrs) for label, data in self.best.items()}

    @cached_property
    def terms(self) -> list[Terms]:
        """Guarantee statements of the private configurations."""
        return [one.terms for data in self.best.values() for one in guarantees_in(data) if one.private]

    @cached_property
    def epsilon(self) -> dict[str, xr.DataArray]:
        """Realised ε of the worst run at each point, by label."""
        return {label: data["realised_epsilon"].max("seed", skipna=False) for label, data in self.best.items()}

    @property
    def private(self) -> list[str]:
        """Labels of the protocols with a finite realised ε."""
        return [label for label, epsilon in self.epsilon.items() if np.isfinite(epsilon).any()]

    @cached_property
    def target_epsilon(self) -> dict[str, xr.DataArray]:
        """Target ε at each point by label, recorded or else swept; NaN if the noise was given."""
        found = {label: data.get("target_epsilon", target_of(data)) for label, data in self.best.items()}
        return {label: xr.DataArray(np.nan) if target is None else target for label, target in found.items()}

    @cached_property
    def common_target(self) -> str:
        """Target ε as text if it is the same at every point of every private protocol and met, else an empty string."""
        if self.above_target:
            return ""
        found = {up(float(value), 4) for label in self.private for value in np.ravel(self.target_epsilon[label])}
        return found.pop() if len(found) == 1 and found.isdisjoint({"nan", "inf"}) else ""

    @cached_property
    def above_target(self) -> dict[str, float]:
        """Largest realised ε that is above its target by more than calibration may leave, by label; no others."""
        most = {label: (1 + SLACK) * target for label, target in self.target_epsilon.items()}
        above = {label: self.epsilon[label].where(self.epsilon[label] > target) for label, target in most.items()}
        return {label: float(epsilon.max()) for label, epsilon in above.items() if epsilon.notnull().any()}

    @cached_property
    def misses_target(self) -> bool:
        """True if the worst run's realised ε is above its target anywhere, or below it by more than `TOLERANCE`."""
        return bool(self.above_target or self.below_target)

    @property
    def below_target(self) -> list[str]:
        """Labels of the protocols whose worst run is below a target by more than `TOLERANCE`."""
        least = {label: (1 - TOLERANCE) * target for label, target in self.target_epsilon.items()}
        return [label for label, target in least.items() if (self.epsilon[label] < target).any()]

    @property
    def hides_sizes(self) -> bool:
        """True if the guarantee of a private configuration hides numbers of records."""
        return any(terms.hides_sizes for terms in self.terms)

    @property
    def over(self) -> str:
        """Numbers of runs that means are taken over as text, such as "3 seeds or 8 seeds"."""
        return " or ".join(dict.fromkeys(map(runs_text, self.best.values())))

    @property
    def fewest(self) -> int:
        """Smallest number of runs that a mean is taken over."""
        return min(data.sizes["seed"] for data in self.best.values())

    def metric(self, metric: str | Metric) -> Metric:
        """Return a metric given itself or its name, custom metrics included."""
        if isinstance(metric, Metric):
            return metric
        own = {one.name: one for one in self.evaluation.custom_metrics.values()}
        return {**custom_metrics(self.best.values()), **own}.get(metric) or known(metric)

    def recorded(self, name: str) -> bool:
        """Return True if a protocol recorded the metric."""
        return any(has(data, name) for data in self.best.values())

    @property
    def recorded_axes(self) -> dict[str, list[str]]:
        """Names of all recorded metrics, each with the axes of an array, or none for a scalar (see `vector_axes`)."""
        every = [(name, data) for data in self.best.values() for name in data.data_vars if "round" in data[name].dims]
        return {str(name): vector_axes(data[name], data) for name, data in every}

    def shown_in(self, place: str) -> list[Metric]:
        """Return the metrics that are shown in a place (see `Metric.shown`): built-in ones first, then custom ones."""
        own = self.evaluation.custom_metrics.values()
        return [*map(known, shown(place)), *(metric for metric in own if place in metric.shown)]

    @cached_property
    def tabulated(self) -> list[Cells]:
        """Cells of the metrics that have a table."""
        return [self.cells(metric) for metric in self.shown_in("table") if self.recorded(metric.name)]

    def cells(self, metric: str | Metric) -> Cells:
        """Return the cells of a metric of the protocols that recorded it.

        They are those of the summary's iterate if a protocol has it, else of the output.
        """
        metric = self.metric(metric)
        if metric.name not in self._cells:
            self._cells[metric.name] = self._summarised(metric)
        return self._cells[metric.name]

    def _summarised(self, metric: Metric) -> Cells:
        name, wanted = metric.name, self.evaluation.iterate
        rounds = rounds_of(name, self.evaluation.averaged)
        having = {label: data for label, data in self.best.items() if has(data, name)}
        runs = {label: figure(data, name, preferred(data, name, wanted), rounds) for label, data in having.items()}
        floors = [constant(data, name) for data in having.values()] if "constant" in self.evaluation.baselines else []
        return Cells(
            metric,
            title_of(metric, wanted, rounds),
            metric.words + (", mean over rounds" if rounds == "mean" else ""),
            runs,
            {label: mean_interval(varied(values)) for label, values in runs.items()},
            next((value for value in floors if value is not None), None),
            alone_of(self.best, name),
            (self._limit(metric, "valid_min", -np.inf, min), self._limit(metric, "valid_max", np.inf, max)),
        )

    def _limit(self, metric: Metric, name: str, none: float, widest) -> float:
        """Return a limit of a metric. For a function of a mean, it is the function's value at the limit of the mean."""
        held = (data.get(recorded_name(metric.name), data.get(metric.name)) for data in self.best.values())
        limit = widest([float(values.attrs.get(name, none)) for values in held if values is not None], default=none)
        return float(metric.function(limit)) if metric.of == "mean" and np.isfinite(limit) else limit

    def drawn(self, metric: str | Metric, axes: Collection[str]) -> "Summary":
        """Return the summary at one value of every swept setting except those in `axes`, for a figure with these axes.

        They have the values of `evaluation.at`, or the nearest ones. Of the others, a privacy level or a size has its
        middle value. Settings of the methods are chosen by the rule of `select` for each protocol, at every value of
        `axes`: by `evaluation.select`, or by the metric if it was not recorded.
        """
        cells, select = self.cells(metric), self.evaluation.select
        reduced: dict[str, xr.Dataset] = {}
        values: dict[str, list[float]] = {}
        by_results: set[str] = set()
        for label, data in self.best.items():
            free = [name for name in axes_of(data) if name not in axes]
            given = {name: value for name, value in self.evaluation.at.items() if name in free}
            chosen = [name for name in tunable(data["diverged"]) if name in free and name not in given]
            middle = {name: float(data[name].values[data.sizes[name] // 2]) for name in free if name not in chosen}
            one = at(data, {**middle, **given})
            if label in cells.runs:
                ranked = self.cells(select) if has(data, select) else cells
                runs = at(ranked.runs[label], {**middle, **given})
                runs = runs.mean(vector_axes(runs, data))
                one = at_best(one, chosen, runs, ranked.metric.name, ranked.metric.better) if chosen else one
                by_results.update(chosen)
                for name in free:
                    own = one[f"best_{name}" if name in chosen else name]
                    values.setdefault(name, []).extend(own.values.ravel().tolist())
            reduced[label] = one
        fixed = {name: range_text(*each) for name, each in values.items()}
        if "mu" in values:
            delta = next(iter(self.best.values())).attrs["delta"]
            low, high = (up(target_epsilon("mu", pick(values["mu"]), delta), 4) for pick in (min, max))
            fixed["mu"] += f" (ε = {low if low == high else f'{low} to {high}'})"
        several = frozenset(name for name in by_results if len(set(values[name])) > 1)
        return replace(self, best=reduced, fixed=fixed, chosen=several)


def summary(experiment: Experiment, best: Mapping[str, xr.Dataset]) -> Summary:
    """Return the summary of an experiment's selected results, as its settings say."""
    return Summary(
        best,
        axes=experiment.sweep.over,
        evaluation=experiment.evaluation,
        title=experiment.title,
        notes=" ".join(experiment.notes.split()),
    )


def summary_of(datasets: Mapping[str, xr.Dataset]) -> Summary:
    """Return the summary of sweeps' datasets, by label, with every axis of any of them and all its values.

    Raises:
        Refusal: if a dataset is not a sweep's, or the ε of two private ones holds at different δ.
    """
    for label, data in datasets.items():
        lacking = [name for name in ("diverged", "realised_epsilon", "guarantee") if name not in data]
        lacking += [name for name in ("delta", "non_private_metrics") if name not in data.attrs]
        if lacking:
            raise Refusal(f"dataset of {label!r} must be a sweep's, got one without {', '.join(lacking)}")
    axes, delta = _joined_axes(datasets), _common_delta(datasets)
    datasets = {label: _on_axes(data, axes).assign_attrs(delta=delta) for label, data in datasets.items()}
    return Summary(datasets, axes, EvaluationSettings(delta=delta))


def _joined_axes(datasets: Mapping[str, xr.Dataset]) -> dict[str, list[float]]:
    """Return the axes of any of the datasets. One whose values differ between datasets has all values, in order.

    A single value counts only if no dataset has another one.
    """
    axes: dict[str, list[float]] = {}
    pairs = [(name, data[name].values.tolist()) for data in datasets.values() for name in axes_of(data)]
    for name, each in grouped(pairs).items():
        several = [values for values in each if len(values) > 1] or each
        if all(values == several[0] for values in several):
            axes[name] = several[0]
        elif len(several[0]) > 1:
            axes[name] = sorted(set().union(*several))
    return axes


def _on_axes(data: xr.Dataset, axes: Mapping[str, list[float]]) -> xr.Dataset:
    """Return the dataset without axes of a single value that are not among `axes` with this value alone.

    Such a value is a fixed setting. It does not belong to the rows that the other datasets have.
    """
    single = [name for name in axes_of(data) if data.sizes[name] == 1 and data[name].values.tolist() != axes.get(name)]
    return data.squeeze(single, drop=True)


def _common_delta(datasets: Mapping[str, xr.Dataset]) -> float:
    """Return the δ of the private protocols' datasets, or that of the first dataset if no protocol is private.

    Raises:
        Refusal: if two private protocols have different δ.
    """
    every = {label: float(data.attrs["delta"]) for label, data in datasets.items()}
    private = [label for label, data in datasets.items() if np.isfinite(data["realised_epsilon"]).any()]
    first = next(iter(private or every))
    for label in private:
        if every[label] != every[first]:
            wanted = f"delta of {label!r} must be that of {first!r}, {every[first]:g}"
            raise Refusal(f"{wanted}, got {every[label]:g}. Run their sweeps with one delta")
    return every[first]


def runs_text(data: xr.Dataset) -> str:
    """Return the number of seeds, or of what else a dataset's axis of runs counts, as text."""
    count, unit = data.sizes["seed"], str(data["seed"].attrs.get("unit", "seeds"))
    return f"{count} {unit if count > 1 else unit.removesuffix('s')}"
