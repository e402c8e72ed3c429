"""Means over seeds and slopes along an axis, with the half-widths of their Student-t intervals."""

import numpy as np
import scipy
import xarray as xr

from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import OUTPUT

INTERVAL = 3  # smallest number of seeds with an interval; for two, its half-width is 12.7 times their standard error


def of_iterate(values: xr.DataArray, iterate: str = OUTPUT) -> xr.DataArray:
    """Return a metric of one iterate, without the `iterate` dimension. Without that dimension only "output" exists.

    >>> of_iterate(xr.DataArray([1.0, 2.0], {"iterate": ["output", "last"]}), "last").item()
    2.0
    """
    if "iterate" not in values.dims:
        require_choice("iterate", iterate, [OUTPUT])
        return values
    require_choice("iterate", iterate, values["iterate"].values.tolist())
    return values.sel(iterate=iterate, drop=True)


def mean_interval(
    values: xr.DataArray, level: float = 0.95, iterate: str = OUTPUT
) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean of a metric over seeds, and the half-width of its Student-t confidence interval.

    The half-width is NaN for one seed. If a run diverged, mean and half-width are NaN, because the mean of the other
    runs would be too optimistic. Mean and half-width have the dimensions of `values` without `seed` and `iterate`.

    Args:
        values: values of the metric, with a dimension `seed`.
        level: confidence level.
        iterate: name of the iterate to use, if `values` has a dimension `iterate`.

    >>> mean, half = mean_interval(xr.DataArray([0.0, 1.0, 2.0], dims="seed"))
    >>> float(mean), round(float(half), 2)
    (1.0, 2.48)
    """
    values = of_iterate(values, iterate)
    count = values.sizes["seed"]
    if count == 1:
        return values.mean("seed", skipna=False), values.isel(seed=0, drop=True) * np.nan
    width = scipy.stats.t.ppf(0.5 + level / 2, count - 1) / np.sqrt(count)
    return values.mean("seed", skipna=False), width * values.std("seed", ddof=1, skipna=False)


def exponent(runs: xr.DataArray, axis: str) -> tuple[float, float, float]:
    """Return the exponent of the seeds' mean in an axis, half its 95% interval, and its standard error.

    The exponent is the least-squares slope of `log mean` on `log axis`, `Σ_i c_i·log m_i`. To first order a seed with
    the values v_i contributes `Σ_i c_i·v_i/m_i`. The interval is that of the mean of these contributions. It therefore
    includes the correlation of a seed's values along the axis, but not the curvature. All three are NaN if a mean is
    not positive.

    >>> runs = xr.DataArray([[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]], {"machines": [1, 2, 4]}, ["machines", "seed"])
    >>> exponent(runs, "machines")
    (-1.0, 0.0, 0.0)
    """
    x = np.log(runs[axis])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    means = runs.mean("seed", skipna=False)
    slope = (weights * np.log(means.where(means > 0))).sum(skipna=False)
    moved = (weights * runs / means).sum(axis, skipna=False)
    error = moved.std("seed", ddof=1) / runs.sizes["seed"] ** 0.5 if runs.sizes["seed"] > 1 else np.nan
    return float(slope), float(mean_interval(moved)[1]), float(error)
