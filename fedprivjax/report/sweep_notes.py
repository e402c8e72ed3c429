"""Footnotes on swept settings: an axis without effect, and best cells at the edge of a grid."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import Metric
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.privacy.target import LEVELS
from fedprivjax.sweeps.selection import NO_EFFECT, clip_has_no_effect


def sweep_notes(best: Mapping[str, xr.Dataset], runs: Mapping[str, xr.DataArray], metric: Metric) -> list[str]:
    """Return a line for each protocol whose swept clip has no effect, and for each whose best value is at an edge.

    Args:
        runs: value of each run by which cells are compared, by label; shape [..., seed].
    """
    without_effect = [label for label, data in best.items() if clip_has_no_effect(data)]
    lines = [f"{label}: {NO_EFFECT}" for label in without_effect]
    for label, values in runs.items():
        for axis in _tunable(values):
            if axis == "clip" and label in without_effect:
                continue
            at_edge = _at_edge(values, axis, metric)
            if at_edge.any():
                cells = "" if at_edge.size == 1 else f" in {int(at_edge.sum())} of {at_edge.size} cells"
                lines.append(f"{label}: the best cell is at the edge of the swept {axis}{cells}, by {metric.words}")
    return lines


def _tunable(values: xr.DataArray) -> list[str]:
    """Return the axes of three or more values that are settings of the method, not privacy levels or sizes."""
    fixed = (*LEVELS, *STRUCTURAL, "seed")
    return [str(name) for name in values.dims if name not in fixed and values.sizes[name] > 2]


def _at_edge(values: xr.DataArray, axis: str, metric: Metric) -> np.ndarray:
    """Return whether the best mean along the axis is at an end; bool, one for each cell of the other axes."""
    score = (1 if metric.better == "higher" else -1) * values.mean("seed", skipna=False)
    place = score.sortby(axis).fillna(-np.inf).argmax(axis).values
    return np.ravel((place == 0) | (place == values.sizes[axis] - 1))
