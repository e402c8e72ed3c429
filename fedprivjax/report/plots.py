"""Plots of an experiment's results, as PNG files and as matplotlib figures for notebooks."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, shown
from fedprivjax.privacy import gdp
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.results import figure as figure_of
from fedprivjax.sweeps.results import has, mean_interval, of_iterate, preferred, rounds_of

TOLERANCE = 0.01  # by which a realised ε may be off its target and still be drawn as it
CURVE = 3  # values of a swept size that make a curve
PANELS = ("machines", "per_round", "rounds", "records")
SIZES = {
    "machines": "machines",
    "records": "records of a machine",
    "rounds": "rounds",
}  # against which curves are drawn


def metric_against_epsilon(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_accuracy",
    *,
    bars: str = "interval",
    realised: bool | None = None,
    iterate: str = OUTPUT,
    rounds: str = "last",
) -> Figure:
    """A metric's last record (or its mean over `rounds`) against ε, a line per protocol, a panel per participation.

    Bars are 95% intervals of the mean, or half the distance of the 5th and 95th `percentiles`. With `realised`, ε is
    what the noise really gives the worst of the runs, rather than the swept target; by default where these differ.

    Non-private protocols are horizontal lines, private ones with a target of their own a point, at their worst run's ε.
    Needs a swept `mu` (or `epsilon`) in at least one protocol; any other swept setting is held at its middle value.
    """
    metric = known(metric)
    missed = misses_target(best)
    realised = missed if realised is None else realised
    epsilon = "realised ε, worst run" if realised else "target ε" if missed else "ε"
    chosen = {name: value for name, value in _middle(best).items() if name not in LEVELS}
    panels = _panels(best)
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    delta = next(iter(best.values())).attrs["delta"]
    for axis, panel in zip(axes, panels, strict=True):
        for index, (label, data) in enumerate(best.items()):
            part = _at(data, {**chosen, **panel})
            _draw_curve(axis, label, part, _figure(part, metric, iterate, rounds), f"C{index}", bars, realised)
        axis.set(
            xscale="log",
            xlabel=f"{epsilon}  (δ = {delta:g}, replace-one)",
            title=_title({**panel, **chosen}),
        )
        low, high = axis.get_xlim()
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(_words(metric, rounds))
    _legend(figure, axes[0], len(panels))
    return figure


def metric_over_rounds(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_loss",
    point: Mapping[str, float] | None = None,
    *,
    iterate: str = OUTPUT,
) -> Figure:
    """A metric over rounds at one value of every swept setting (by default the middle), a panel per participation."""
    metric, panels = known(metric), _panels(best)
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    chosen = {**_middle(best), **(point or {})}
    for axis, panel in zip(axes, panels, strict=True):
        for index, (label, data) in enumerate(best.items()):
            chosen_data = _at(data, {**chosen, **panel})
            if metric.name in chosen_data:
                drawn = preferred(chosen_data, metric.name, iterate)
                _draw_path(axis, label, of_iterate(chosen_data[metric.name], drawn), f"C{index}")
        axis.set(xlabel="round", title=_title({**panel, **chosen}))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(metric.words)
    _legend(figure, axes[0], len(panels))
    return figure


def metric_against_size(
    best: Mapping[str, xr.Dataset],
    size: str = "machines",
    metric: str | Metric = "excess_risk",
    *,
    bars: str = "interval",
    iterate: str = OUTPUT,
    rounds: str = "last",
) -> Figure:
    """A metric's last record (or its mean over `rounds`) against a swept size, "machines", "records" or "rounds".

    Both axes are logarithmic; a line per protocol, a panel per value of the first swept setting beside the size. Bars
    as in `metric_against_epsilon`; other settings are held at their middle.
    """
    metric = known(metric)
    panels, chosen = _beside(best, size)
    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for index, (label, data) in enumerate(best.items()):
            mean, half = _summary(_figure(_at(data, {**chosen, **panel}), metric, iterate, rounds), bars)
            low = np.minimum(half, 0.9 * mean)  # a bar down to below zero would leave the logarithmic axis
            axis.errorbar(data[size], mean, [low, half], color=f"C{index}", marker="o", ms=4, capsize=3, label=label)
        axis.set(xscale="log", yscale="log", xlabel=SIZES[size], title=_title({**panel, **chosen}))
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel(_words(metric, rounds))
    _legend(figure, axes[0], len(panels))
    return figure


def misses_target(best: Mapping[str, xr.Dataset]) -> bool:
    """Whether the ε that the noise gives the worst run is more than 1% off the swept target's anywhere."""
    return any(_off_target(data) > TOLERANCE for data in best.values())


def save_all(
    best: Mapping[str, xr.Dataset],
    folder: Path,
    bars: str = "interval",
    averaged: Collection[str] = (),
    iterate: str = OUTPUT,
) -> list[Path]:
    """Every plot that the results allow, written to `folder`.

    Args:
        averaged: metrics of which the mean over rounds is drawn, not the last record.
        iterate: what is drawn of protocols that have it; else the output.
    """
    figures: dict[str, Figure] = {}
    of: dict[str, Any] = {"bars": bars, "iterate": iterate}
    recorded = [name for name in shown("against_epsilon") if all(has(data, name) for data in best.values())]
    over = {name: rounds_of(name, averaged) for name in recorded}
    if any(name in data.dims for data in best.values() for name in LEVELS):
        for metric, rounds in over.items():
            figures[f"{metric}_against_epsilon.png"] = metric_against_epsilon(best, metric, **of, rounds=rounds)
            if misses_target(best):
                figure = metric_against_epsilon(best, metric, **of, rounds=rounds, realised=False)
                figures[f"{metric}_against_target_epsilon.png"] = figure
    for size in (size for size in SIZES if all(data.sizes.get(size, 1) >= CURVE for data in best.values())):
        for metric, rounds in over.items():
            if all((_figure(data, known(metric), iterate, rounds).mean("seed") > 0).all() for data in best.values()):
                figure = metric_against_size(best, size, metric, **of, rounds=rounds)
                figures[f"{metric}_against_{size}.png"] = figure
    for metric in shown("over_rounds"):
        if all(metric in data and _has_path(data[metric]) for data in best.values()):
            figures[f"{metric}_over_rounds.png"] = metric_over_rounds(best, metric, iterate=iterate)
    for name, figure in figures.items():
        with matplotlib.rc_context({"savefig.dpi": 130}):
            figure.savefig(folder / name)
    return [folder / name for name in figures]


def _figure(data: xr.Dataset, metric: Metric, iterate: str, rounds: str) -> xr.DataArray:
    """What stands for each run, of the iterate where the protocol has it."""
    return figure_of(data, metric.name, preferred(data, metric.name, iterate), rounds)


def _legend(figure: Figure, axis, panels: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 2 * panels), fontsize=9)


def _draw_curve(axis, label: str, data: xr.Dataset, runs: xr.DataArray, colour: str, bars: str, realised: bool) -> None:
    mean, half = _summary(runs, bars)
    swept = next((name for name in LEVELS if name in mean.dims), None)
    worst = data["realised_epsilon"].max("seed", skipna=False)
    if swept is None and np.isfinite(worst):
        axis.errorbar(float(worst), float(mean), float(half), color=colour, marker="s", ms=5, capsize=3, label=label)
        return
    if swept is None:
        axis.axhline(float(mean), color=colour, ls="--", label=label)
        return
    epsilon = worst.values if realised else _target_epsilon(data, swept).values
    axis.errorbar(epsilon, mean, half, color=colour, marker="o", ms=4, capsize=3, label=label)


def _summary(runs: xr.DataArray, bars: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Means, and what the bars are."""
    mean, half = mean_interval(runs)
    if bars == "percentiles":
        half = (runs.quantile(0.95, "seed") - runs.quantile(0.05, "seed")) / 2
    return mean, half


def _has_path(values: xr.DataArray) -> bool:
    """Whether any run has more than one record."""
    return bool((values.notnull().sum("round") > 1).any())


def _beside(best: Mapping[str, xr.Dataset], size: str) -> tuple[list[dict[str, float]], dict[str, float]]:
    """A panel for each value of the first swept setting but the size; the middle value of the others."""
    dims = next(iter(best.values()))["diverged"].dims
    name = next((str(n) for n in dims if n not in (size, "seed")), None)
    values = [] if name is None else next(iter(best.values()))[name].values.tolist()
    chosen = _middle(best, but=(size, str(name)))
    return [{str(name): value} for value in values] or [{}], chosen


def _target_epsilon(data: xr.Dataset, swept: str) -> xr.DataArray:
    """The ε of every value of a swept target."""
    values = data[swept]
    return values if swept == "epsilon" else values.copy(data=gdp.epsilon(values.values, data.attrs["delta"]))


def _off_target(data: xr.Dataset) -> float:
    """By what part of the target the worst run's ε is off it, at most; 0 where no target is swept."""
    swept = next((name for name in LEVELS if name in data.dims), None)
    if swept is None:
        return 0.0
    off = abs(data["realised_epsilon"].max("seed", skipna=False) / _target_epsilon(data, swept) - 1)
    return float(off.fillna(0.0).max())  # ∞ for ∞ is on target


def _draw_path(axis, label: str, values: xr.DataArray, colour: str) -> None:
    values = values.dropna("round", how="all")
    mean, half = mean_interval(values)
    axis.plot(mean["round"], mean, color=colour, label=label)
    if values.sizes["seed"] > 1:
        axis.fill_between(mean["round"], mean - half, mean + half, color=colour, alpha=0.2, lw=0)


def _panels(best: Mapping[str, xr.Dataset]) -> list[dict[str, float]]:
    data = next(iter(best.values()))
    points: list[dict[str, float]] = [{}]
    for name in PANELS:
        if name in data.dims:
            points = [{**point, name: value} for point in points for value in data[name].values.tolist()]
    return points


def _middle(best: Mapping[str, xr.Dataset], but: Collection[str] = PANELS) -> dict[str, float]:
    """The middle value of every swept setting but some."""
    chosen = {}
    for data in best.values():
        for name in data["diverged"].dims:
            if name not in (*but, "seed"):
                chosen[str(name)] = float(data[name].values[data.sizes[name] // 2])
    return chosen


def _at(data: xr.Dataset, point: Mapping[str, float]) -> xr.Dataset:
    return data.sel({name: value for name, value in point.items() if name in data.dims}, method="nearest")


def _words(metric: Metric, rounds: str) -> str:
    return metric.words + (", mean over rounds" if rounds == "mean" else "")


def _title(point: Mapping[str, float]) -> str:
    words = {"machines": "M", "per_round": "m", "rounds": "T", "records": "n", "mu": "μ"}
    return ", ".join(f"{words.get(name, name)} = {value:g}" for name, value in point.items())
