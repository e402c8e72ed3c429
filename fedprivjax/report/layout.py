"""What tables and plots need to know beside the datasets: axes in order, what stands for a run, targets, notes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, shown
from fedprivjax.experiment import Experiment
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.results import rounds_of


@dataclass(frozen=True)
class Layout:
    """How results are laid out.

    Attributes:
        axes: swept names and values, the rows of tables; the last changes fastest.
        delta: at which ε is stated.
        iterate: what is shown of protocols that have it; else the output.
        averaged: metrics of which the mean over rounds is shown, not the last record.
        bars: of plots, "interval" or "percentiles".
        at: values of swept settings at which the course of runs is drawn, where not the usual ones.
        targets: a protocol's own privacy target, "mu" or "epsilon", by label.
        targeted: whether any privacy was asked for.
        title, notes: the experiment's.
        own: metrics beside the library's.
        baselines: those that are shown, see `[evaluation] baselines`.
    """

    axes: Mapping[str, list[float]]
    delta: float
    iterate: str = OUTPUT
    averaged: tuple[str, ...] = ()
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
        """The axes of more than one value."""
        return {name: values for name, values in self.axes.items() if len(values) > 1}

    def rounds(self, metric: str) -> str:
        """What stands for a run, "last" or "mean"."""
        return rounds_of(metric, self.averaged)


def layout(experiment: Experiment) -> Layout:
    """An experiment's own."""
    evaluation = experiment.evaluation
    return Layout(
        axes=experiment.sweep.over,
        delta=evaluation.delta,
        iterate=evaluation.iterate,
        averaged=tuple(evaluation.averaged),
        bars=evaluation.bars,
        at=evaluation.at,
        targets={p.label: {n: p.settings[n] for n in LEVELS if n in p.settings} for p in experiment.protocol},
        targeted=any(set(LEVELS) & {*experiment.real_axes, *p.settings, *p.grid} for p in experiment.protocol),
        title=experiment.title,
        notes=" ".join(experiment.notes.split()),
        own=tuple(evaluation.own.values()),
        baselines=tuple(evaluation.baselines),
    )


def shown_in(place: str, own: Collection[Metric] = ()) -> list[Metric]:
    """The metrics that are shown in a place (see `Metric.shown`): the library's, then others."""
    return [*map(known, shown(place)), *(metric for metric in own if place in metric.shown)]


def layout_of(datasets: Mapping[str, xr.Dataset], iterate: str = OUTPUT) -> Layout:
    """That of datasets of sweeps, by label: every axis of any of them."""
    axes: dict[str, list[float]] = {}
    for data in datasets.values():
        for name in (str(dim) for dim in data["diverged"].dims if dim != "seed"):
            axes.setdefault(name, data[name].values.tolist())
    targets = {label: _target_of(data) for label, data in datasets.items()}
    targeted = any(np.isfinite(data["target_epsilon"]).any() for data in datasets.values())
    delta = next(iter(datasets.values())).attrs["delta"]
    return Layout(axes, delta, iterate, targets=targets, targeted=targeted)


def _target_of(data: xr.Dataset) -> dict[str, float]:
    """The one ε that was asked for, where it is one."""
    asked = np.unique(data["target_epsilon"].values)
    own = asked.size == 1 and np.isfinite(asked[0]) and not any(name in data.dims for name in LEVELS)
    return {"epsilon": float(asked[0])} if own else {}
