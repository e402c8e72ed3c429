"""Histograms of clients: a metric of every client at the last evaluation."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fedprivjax.engine.client_metrics import CLIENT
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.metrics import known
from fedprivjax.report import drawing
from fedprivjax.report.colours import looks
from fedprivjax.sweeps.results import final, preferred, vector_axes

BINS = 20


def client_metrics(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the names of the recorded metrics that have a value for every client."""
    found = [(str(name), data) for data in best.values() for name in data.data_vars if "round" in data[name].dims]
    return list(dict.fromkeys(name for name, data in found if vector_axes(data[name], data) == [CLIENT]))


def client_histogram(
    best: Mapping[str, xr.Dataset], name: str, point: Mapping[str, float] | None = None, *, iterate: str = OUTPUT
) -> Figure:
    """Plot how many clients have which value of a metric at the last evaluation, one panel per participation.

    A client's value is its mean over seeds. Swept settings have one value each (default: the middle).
    """
    metric, panels = known(name), drawing.panels_of(best)
    recorded = {label: data for label, data in best.items() if name in data}
    chosen = drawing.placed(best, {**drawing.middle_of(best), **(point or {})})
    figure, axes = drawing.panelled(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        parts = {label: drawing.at(data, {**chosen, **panel}) for label, data in recorded.items()}
        values = {label: _of_clients(part, name, iterate) * metric.scale for label, part in parts.items()}
        edges = np.histogram_bin_edges(np.concatenate([*values.values()]), BINS)
        for label, look in looks(best).items():
            if label in values:
                style = {"histtype": "step", "color": look["color"], "ls": look["ls"]}
                axis.hist(values[label], bins=edges.tolist(), label=label, **style)
        axis.set(xlabel=metric.title, title=drawing.point_title({**panel, **chosen}))
    return drawing.finish(figure, axes, replace(metric, unit=""), "clients")


def _of_clients(data: xr.Dataset, name: str, iterate: str) -> np.ndarray:
    """Return the mean over seeds of every client, shape [clients], or no values if a run diverged."""
    found = final(data, name, preferred(data, name, iterate)).mean("seed", skipna=False).values.ravel()
    return found[np.isfinite(found)]
