"""Each protocol at its best: one point of its own grid, by what is recorded."""

import numpy as np
import xarray as xr

from fedprivjax.engine.metrics import METRICS
from fedprivjax.experiment import TRIAL, Experiment
from fedprivjax.experiment.settings import RecordSettings
from fedprivjax.sweeps.results import figure, preferred, rounds_of


def selected(experiment: Experiment, results: dict[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Each protocol at its best: its own grid reduced to the point with the best mean of `record.select` per cell.

    The chosen values become variables `best_<name>`. Selection looks at the results, so no guarantee covers it.
    """
    return {
        settings.label: _reduced(_best(results[settings.label], list(settings.grid), experiment.record))
        for settings in experiment.protocol
    }


def figures_of(data: xr.Dataset, record: RecordSettings) -> xr.DataArray:
    """What stands for each run where a grid is chosen from: `record.select` of the iterate that is shown."""
    metric = record.select
    return figure(data, metric, preferred(data, metric, record.iterate), rounds_of(metric, record.averaged))


def _best(data: xr.Dataset, grid: list[str], record: RecordSettings) -> xr.Dataset:
    if not grid:
        return data
    metric = record.select
    mean = figures_of(data, record).mean("seed", skipna=False)  # trial by trial, where there are trials
    score = mean if record.known(metric).better == "higher" else -mean
    flat = score.stack(choice=grid).fillna(-np.inf)
    best = flat["choice"].isel(choice=flat.argmax("choice"))
    points = {name: best[name].drop_vars([*grid, "choice"], errors="ignore") for name in grid}
    chosen = data.sel(points).drop_vars(grid, errors="ignore")
    chosen = chosen.assign({f"best_{name}": value for name, value in points.items()})
    if all(data.sizes[name] == 1 for name in grid):
        return chosen
    return chosen.assign_attrs(data.attrs, selected=f"{', '.join(grid)} by the best mean {metric}: not accounted for")


def _reduced(data: xr.Dataset) -> xr.Dataset:
    """Trials in the place of seeds, each the mean of its runs, and of privacy the worst."""
    if TRIAL not in data.dims:
        return data
    runs = [name for name in data.data_vars if "seed" in data[name].dims]
    means = data[runs].astype(float).mean("seed", skipna=False, keep_attrs=True)
    means["diverged"] = data["diverged"].any("seed")
    for name in {"realised_mu", "realised_epsilon"} & set(runs):  # of privacy, a trial's is its worst run's
        means[name] = data[name].max("seed")
    for metric in (METRICS[name] for name in METRICS if name in means):
        if metric.of_mean is not None:
            means[metric.of_mean.name] = metric.of_mean.function(means[metric.name])
    rest = data.drop_vars([*runs, "seed"])
    reduced = xr.merge([means, rest]).rename({TRIAL: "seed"}).assign_attrs(data.attrs)
    reduced["seed"].attrs["unit"] = "trials"
    return reduced
