"""Selection of a configuration by its results: one rule for sweeps and for experiments."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.metrics import known
from fedprivjax.sweeps.results import final, require_scalars
from fedprivjax.sweeps.schema import custom_metrics

POINT = "point"  # axis of a stacked grid
NO_EFFECT = (
    "at these steps step_size · clip and noise_std / clip do not depend on clip: set step_size to see its effect"
)
SELECTED_BY = "selected_by"  # attribute with the metric by which they were chosen
UNACCOUNTED = "unaccounted_choice"  # attribute with the settings that were chosen by results; no guarantee covers this


def best_point(runs: xr.DataArray, over: Sequence[Hashable], better: str) -> xr.DataArray:
    """Return the index along `point` of the point with the fewest diverged runs and, among these, the best mean.

    The result is int, with the remaining axes of `runs`.

    Args:
        over: axes of the runs that are compared together.
        better: "higher" or "lower".

    >>> runs = xr.DataArray([[0.9, np.nan], [0.2, 0.1], [0.3, 0.1]], dims=["point", "seed"])
    >>> best_point(runs, ["seed"], "higher").item(), best_point(runs, ["seed"], "lower").item()
    (2, 1)
    """
    diverged, score = runs.isnull().sum(over), (1 if better == "higher" else -1) * runs.mean(over)
    return score.where(diverged == diverged.min(POINT)).fillna(-np.inf).argmax(POINT)


def select(
    grid: xr.Dataset, over: str | Sequence[str], metric: str = "test_accuracy", *, iterate: str = OUTPUT
) -> xr.Dataset:
    """Return a sweep's dataset with only the best values of some swept settings.

    The best values are chosen separately for each combination of the other swept settings.

    The best value has the fewest diverged runs. Among values with equally few diverged runs, it has the best mean of
    the metric at the last evaluation. For example, the variable `best_clip` of the result has the chosen values of a
    setting `clip`. No guarantee covers the choice.

    Args:
        grid: dataset of a sweep.
        over: name of the swept setting whose best value is chosen, or several names for the best combination.
        metric: name of the metric by which values are compared.
        iterate: name of the iterate at which the metric is evaluated. "output" is the reported parameters.

    Raises:
        Refusal: if a name in `over` is not a swept setting of the dataset, or the metric was not recorded.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem, rounds = from_dataset(datasets.load("digits"), constraint=Ball(8.0)), 2
    >>> grid = sweep(DPMu2(mu=2.0), problem, Uniform(20, 10), over={"clip": [1e-6, 1.6]}, seeds=3, rounds=rounds)
    >>> chosen = select(grid, over="clip", metric="test_loss")
    >>> chosen["best_clip"].item(), chosen.attrs["selected"].split("; ")[0]
    (1.6, 'clip by the best mean test_loss: not accounted for')
    """
    names = [over] if isinstance(over, str) else list(over)
    if not names:
        raise Refusal("over must name an axis of the sweep, got none")
    for name in names:
        require_choice("axis of the sweep", name, [str(each) for each in grid["diverged"].dims if each != "seed"])
    require_scalars(metric, grid)
    better = custom_metrics([grid]).get(metric, known(metric)).better
    return at_best(grid, names, final(grid, metric, iterate), metric, better)


def at_best(data: xr.Dataset, over: list[str], runs: xr.DataArray, metric: str, better: str) -> xr.Dataset:
    """Return the dataset with the axes `over` reduced to the best point by `best_point`, as in `select`.

    Args:
        runs: value of each run by which points are ranked, NaN if it diverged; shape [..., seed].
        better: "higher" or "lower".
    """
    runs = runs.stack({POINT: over})
    best = runs[POINT].isel({POINT: best_point(runs, ["seed"], better)})
    points = {name: best[name].drop_vars([*over, POINT], errors="ignore") for name in over}
    chosen = data.sel(points).drop_vars(over, errors="ignore")
    chosen = chosen.assign({f"best_{name}": value for name, value in points.items()})
    if all(data.sizes[name] == 1 for name in over):
        return chosen
    names, remark = ", ".join(over), edges({name: data[name].values for name in over}, points)
    said = {
        "selected": f"{names} by the best mean {metric}{remark}: not accounted for",
        UNACCOUNTED: names,
        SELECTED_BY: metric,
    }
    if "clip" in over and clip_has_no_effect(data):
        said["selected"] += f"; {NO_EFFECT}"
    return chosen.assign_attrs(data.attrs, **said)


def edges(grid: Mapping[str, ArrayLike], chosen: Mapping[str, ArrayLike]) -> str:
    """Return text that names the settings chosen at an end of three or more values, or "".

    A wider grid may contain a better point.

    Args:
        chosen: chosen value of each setting, or its values, one for each cell.

    >>> edges({"clip": [0.5, 1.0], "step_scale": [1.0, 2.0, 4.0]}, {"clip": 1.0, "step_scale": 4.0})
    ' (step_scale at the edge of its grid)'
    >>> edges({"clip": [0.5, 1.0, 2.0]}, {"clip": [0.5, 1.0]})
    ' (clip at the edge of its grid in 1 of 2 cells)'
    """
    found = []
    for name, values in grid.items():
        cells = cells_at_ends(values, chosen[name])
        if cells is not None:
            found.append(f"{name} at the edge of its grid{cells}")
    return f" ({', '.join(found)})" if found else ""


def cells_at_ends(values: ArrayLike, chosen: ArrayLike) -> str | None:
    """Return text that counts the cells whose chosen value is the smallest or the largest of three or more values.

    The text is "" if there is one cell. Without such a cell, the result is None.

    >>> cells_at_ends([0.5, 1.0, 2.0], [0.5, 1.0]), cells_at_ends([0.5, 1.0], 0.5)
    (' in 1 of 2 cells', None)
    """
    ends = np.isin(np.ravel(chosen), [np.min(values), np.max(values)])
    if np.size(values) < 3 or not ends.any():
        return None
    return f" in {int(ends.sum())} of {ends.size} cells" if ends.size > 1 else ""


def clip_has_no_effect(data: xr.Dataset) -> bool:
    """Return True if step_size · clip and noise_std / clip are constant along a swept clip, as with default steps.

    Clipped gradients then move the parameters equally far, and by equal noise, at every clip below their norms.
    """
    if data.sizes.get("clip", 0) < 2 or "step_size" not in data or "noise_std" not in data:
        return False
    step, noise = data["step_size"] * data["clip"], data["noise_std"] / data["clip"]
    return all(bool((each.max("clip") <= (1 + 1e-3) * each.min("clip")).all()) for each in (step, noise))
