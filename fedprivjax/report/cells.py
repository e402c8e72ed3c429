"""Cells of a metric: means and intervals of every protocol, its baselines, and its best point."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, TypeVar

import xarray as xr

from fedprivjax.engine.metric import Metric
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.privacy import gdp
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.wording import of_axes
from fedprivjax.sweeps.intervals import INTERVAL
from fedprivjax.sweeps.results import alone
from fedprivjax.sweeps.selection import UNACCOUNTED

CHOSEN = " ‡"  # mark of a protocol whose settings were chosen by results
ALONE = "each machine alone"
Point = Mapping[str, float]
Interval = tuple[xr.DataArray, xr.DataArray]  # mean, and half the width of its interval
Values = TypeVar("Values", xr.DataArray, xr.Dataset)


def marked(label: str, data: xr.Dataset) -> str:
    """Return a protocol's label, with a mark if settings were chosen by results and no guarantee covers this.

    >>> marked("ours", xr.Dataset(attrs={UNACCOUNTED: "clip"})), marked("ours", xr.Dataset())
    ('ours ‡', 'ours')
    """
    return label + CHOSEN * (UNACCOUNTED in data.attrs)


def at(values: Values, point: Point) -> Values:
    """Return the values nearest to a point. Axes that they lack are ignored."""
    return values.sel(of_axes(values, point), method="nearest")


def varied(values: xr.DataArray) -> xr.DataArray:
    """Return the values without dimensions of size one, except seeds."""
    return values.squeeze([name for name in values.dims if values.sizes[name] == 1 and name != "seed"], drop=True)


def is_better(value: Any, other: Any, metric: Metric) -> Any:
    """Return True if `value` is better than `other` for the metric. NaN is neither better nor worse."""
    return value > other if metric.better == "higher" else value < other


def target_of(data: xr.Dataset) -> xr.DataArray | None:
    """Return the ε of every value of a swept privacy target, or None if none is swept."""
    for name in (name for name in LEVELS if name in data.dims):
        levels = data[name]
        return levels if name == "epsilon" else levels.copy(data=gdp.epsilon(levels.values, data.attrs["delta"]))
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
    groups: dict[str, list[str]] = {}  # labels of equal means, by the first of them
    for label, (mean, _) in found.items():
        first = next(other for other in found if found[other][0].equals(mean))
        groups.setdefault(first, []).append(label)
    names = {first: f"{ALONE} ({', '.join(labels)})" if len(groups) > 1 else ALONE for first, labels in groups.items()}
    return {name: found[first] for first, name in names.items()}


def along(interval: Interval) -> Interval:
    """Return an interval without the axes along which the mean is constant."""
    mean, half = interval
    for name in mean.dims:
        first = mean.isel({name: 0}, drop=True)
        if all(mean.isel({name: place}, drop=True).equals(first) for place in range(mean.sizes[name])):
            mean, half = first, half.isel({name: 0}, drop=True)
    return mean, half
