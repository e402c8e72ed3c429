"""Baselines next to results: the constant predictor, and protocols without privacy."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fedprivjax.engine.metric import Metric
from fedprivjax.sweeps.results import constant, has, mean_interval

CONSTANT = "constant predictor"
WORSE = " †"  # behind a mean that is worse than the constant predictor's


def constant_of(best: Mapping[str, xr.Dataset], metric: Metric) -> float | None:
    """The constant predictor's value of a metric, or None if it has none."""
    found = (constant(data, metric.name) for data in best.values() if has(data, metric.name))
    return next((value for value in found if value is not None), None)


def is_better(value: float, other: float, metric: Metric) -> bool:
    """Whether a value of the metric is better than another; not if either is NaN."""
    return value > other if metric.better == "higher" else value < other


def draw_constant(axes: Sequence[Axes], value: float | None) -> None:
    """Draw a dotted line at the constant predictor's value, unless it is farther from the curves than they are high."""
    low, high = axes[0].get_ylim()
    if value is not None and 2 * low - high <= value <= 2 * high - low:
        for axis in axes:
            axis.axhline(value, color="0.4", ls=":", lw=1.5, label=CONSTANT)


def above_non_private(best: Mapping[str, xr.Dataset], runs: Mapping[str, xr.DataArray], metric: Metric) -> list[str]:
    """A remark for each pair of protocols of which the private one is better in some cell, by more than both intervals.

    Args:
        runs: what stands for each run, by label; shape [..., seed].
    """
    free = [label for label in runs if np.isinf(best[label]["realised_mu"]).all()]
    lines = []
    for label in (label for label in runs if label not in free):
        for other in free:
            cells = _better_cells(runs[label], runs[other], metric)
            if cells.any():
                where = f"{int(cells.sum())} of {cells.size} cells"
                lines.append(
                    f"{label} is better than {other}, which has no noise, in {where} of {metric.words}: "
                    f"tune the step size, clip and rounds of {other} before reading it as the cost of privacy"
                )
    return lines


def _better_cells(private: xr.DataArray, free: xr.DataArray, metric: Metric) -> np.ndarray:
    """Whether the private mean is better at each cell, beyond the intervals of both; bool, shape [cells]."""
    (mean, half), (level, around) = mean_interval(private), mean_interval(free)
    gap = (mean - level) * (1 if metric.better == "higher" else -1)
    return np.ravel((gap > np.hypot(half.fillna(0), around.fillna(0))).values)
