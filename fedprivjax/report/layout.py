"""Layout of tables and plots: axes in order, the value that represents a run, targets, notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, shown
from fedprivjax.experiment import Experiment
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.results import rounds_of


@dataclass(frozen=True)
class Layout:
    """Layout of results in tables and plots.

    Attributes:
        axes: names and values of swept settings, the rows of tables. The last axis changes fastest.
        evaluation: section `[evaluation]`: δ, the iterate, metrics that are averaged, baselines and error bars.
        targets: privacy target of each protocol, "mu" or "epsilon", by label.
        targeted: whether any protocol has a privacy target.
        title, notes: title and notes of the experiment.
    """

    axes: Mapping[str, list[float]]
    evaluation: EvaluationSettings
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    targeted: bool = True
    title: str = ""
    notes: str = ""

    @property
    def varied(self) -> dict[str, list[float]]:
        """Axes with more than one value."""
        return {name: values for name, values in self.axes.items() if len(values) > 1}

    def rounds(self, metric: str) -> str:
        """Return the value that represents a run: "last" or "mean" over rounds."""
        return rounds_of(metric, self.evaluation.averaged)

    def shown_in(self, place: str) -> list[Metric]:
        """Return the metrics that are shown in a place (see `Metric.shown`): built-in ones first, then custom ones."""
        own = self.evaluation.custom_metrics.values()
        return [*map(known, shown(place)), *(metric for metric in own if place in metric.shown)]


def layout(experiment: Experiment) -> Layout:
    """Return an experiment's layout."""
    return Layout(
        axes=experiment.sweep.over,
        evaluation=experiment.evaluation,
        targets={p.label: {n: p.settings[n] for n in LEVELS if n in p.settings} for p in experiment.protocol},
        targeted=any(set(LEVELS) & {*experiment.real_axes, *p.settings, *p.grid} for p in experiment.protocol),
        title=experiment.title,
        notes=" ".join(experiment.notes.split()),
    )


def layout_of(datasets: Mapping[str, xr.Dataset]) -> Layout:
    """Return the layout of sweeps' datasets, by label, with every axis of any of them."""
    axes: dict[str, list[float]] = {}
    for data in datasets.values():
        for name in (str(dim) for dim in data["diverged"].dims if dim != "seed"):
            axes.setdefault(name, data[name].values.tolist())
    targets = {label: _target_of(data) for label, data in datasets.items()}
    targeted = any(np.isfinite(data["target_epsilon"]).any() for data in datasets.values())
    delta = float(next(iter(datasets.values())).attrs["delta"])
    return Layout(axes, EvaluationSettings(delta=delta), targets, targeted)


def _target_of(data: xr.Dataset) -> dict[str, float]:
    """Return the target ε if there is exactly one and no target is swept, else an empty dict."""
    asked = np.unique(data["target_epsilon"].values)
    own = asked.size == 1 and np.isfinite(asked[0]) and not any(name in data.dims for name in LEVELS)
    return {"epsilon": float(asked[0])} if own else {}
