"""Layout of tables and plots: axes in order, the value that represents a run, targets, notes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import known, shown
from fedprivjax.experiment import Experiment
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.results import rounds_of


@dataclass(frozen=True)
class Layout:
    """Layout of results in tables and plots.

    Attributes:
        axes: names and values of swept settings, the rows of tables. The last axis changes fastest.
        delta: δ at which ε is stated.
        iterate: iterate to show, if a protocol has it, else its output.
        averaged: metrics shown as the mean over rounds instead of the last evaluation.
        rounds_to: values of metrics by name; a table shows the rounds to each.
        bars: meaning of error bars in plots, "interval" or "percentiles".
        at: values of swept settings in plots over rounds and costs, if not the default ones.
        targets: privacy target of each protocol, "mu" or "epsilon", by label.
        targeted: whether any protocol has a privacy target.
        title, notes: title and notes of the experiment.
        own: user-defined metrics.
        baselines: baselines to show, see `[evaluation] baselines`.
    """

    axes: Mapping[str, list[float]]
    delta: float
    iterate: str = OUTPUT
    averaged: tuple[str, ...] = ()
    rounds_to: Mapping[str, float] = field(default_factory=dict)
    bars: str = "interval"
    at: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targeted: bool = True
    title: str = ""
    notes: str = ""
    own: tuple[Metric, ...] = ()
    baselines: tuple[str, ...] = ("constant",)

    @property
    def varied(self) -> dict[str, list[float]]:
        """Axes with more than one value."""
        return {name: values for name, values in self.axes.items() if len(values) > 1}

    def rounds(self, metric: str) -> str:
        """Return the value that represents a run: "last" or "mean" over rounds."""
        return rounds_of(metric, self.averaged)


def layout(experiment: Experiment) -> Layout:
    """Return an experiment's layout."""
    evaluation = experiment.evaluation
    return Layout(
        axes=experiment.sweep.over,
        delta=evaluation.delta,
        iterate=evaluation.iterate,
        averaged=tuple(evaluation.averaged),
        rounds_to=evaluation.rounds_to,
        bars=evaluation.bars,
        at=evaluation.at,
        targets={p.label: {n: p.settings[n] for n in LEVELS if n in p.settings} for p in experiment.protocol},
        targeted=any(set(LEVELS) & {*experiment.real_axes, *p.settings, *p.grid} for p in experiment.protocol),
        title=experiment.title,
        notes=" ".join(experiment.notes.split()),
        own=tuple(evaluation.custom_metrics.values()),
        baselines=tuple(evaluation.baselines),
    )


def shown_in(place: str, own: Collection[Metric] = ()) -> list[Metric]:
    """Return the metrics that are shown in a place (see `Metric.shown`): built-in ones first, then those in `own`."""
    return [*map(known, shown(place)), *(metric for metric in own if place in metric.shown)]


def layout_of(datasets: Mapping[str, xr.Dataset], iterate: str = OUTPUT) -> Layout:
    """Return the layout of sweeps' datasets, by label, with every axis of any of them."""
    axes: dict[str, list[float]] = {}
    for data in datasets.values():
        for name in (str(dim) for dim in data["diverged"].dims if dim != "seed"):
            axes.setdefault(name, data[name].values.tolist())
    targets = {label: _target_of(data) for label, data in datasets.items()}
    targeted = any(np.isfinite(data["target_epsilon"]).any() for data in datasets.values())
    delta = next(iter(datasets.values())).attrs["delta"]
    return Layout(axes, delta, iterate, targets=targets, targeted=targeted)


def _target_of(data: xr.Dataset) -> dict[str, float]:
    """Return the target ε if there is exactly one and no target is swept, else an empty dict."""
    asked = np.unique(data["target_epsilon"].values)
    own = asked.size == 1 and np.isfinite(asked[0]) and not any(name in data.dims for name in LEVELS)
    return {"epsilon": float(asked[0])} if own else {}
