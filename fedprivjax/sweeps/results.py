"""Results with named axes: the dataset of a sweep, and functions to read it, such as the cost to reach a value."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.client_metrics import CLIENT
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.metrics import METRICS, TRIAL, known, recorded_name
from fedprivjax.privacy.composed_guarantee import NOISE, PARTICIPATION, SAMPLES, Streams
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.sweeps.intervals import INTERVAL, mean_interval, of_iterate
from fedprivjax.sweeps.schema import ALONE, CONSTANT, HALF, PARAMETER, PARAMS, custom_metrics


def sweep_dataset(
    values: Mapping[str, np.ndarray],
    configurations: Mapping[str, np.ndarray],
    coordinates: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
    axes: Mapping[str, tuple[str, ...]] | None = None,
) -> xr.Dataset:
    """Return the dataset of a sweep, without descriptions of its variables.

    Args:
        values: values of runs by name, [seeds, configurations], optionally followed by [evaluations] or by
            [evaluations, iterates], each followed by the axes of an array, or for `params` by [parameter];
            configurations in the grid's order.
        configurations: values of configurations by name, [configurations]. Names of axes are ignored.
        coordinates: swept axes in the grid's order, then `seed`, `round`, `iterate` and `client`. The last two are
            dropped if no value uses them. An axis of arrays without coordinates has indices.
        attributes: attributes of the dataset.
        axes: axes of the values of metrics that are arrays, by name.
    """
    of_run, axes = ("round", "iterate"), axes or {}
    grid = [name for name in coordinates if name not in ("seed", *of_run, CLIENT)]
    shape = [len(coordinates[name]) for name in grid]
    variables = {}
    for name, value in values.items():
        moved = np.moveaxis(value, 0, 1)
        own = (PARAMETER,) if name == PARAMS else axes.get(name, ())
        dims = [*grid, "seed", *of_run[: moved.ndim - 2 - len(own)], *own]
        variables[name] = (dims, moved.reshape(*shape, *moved.shape[1:]))
    variables["diverged"] = (variables["diverged"][0], variables["diverged"][1].astype(bool))
    for name in (name for name in configurations if name not in grid):
        variables[name] = (grid, configurations[name].reshape(shape))
    used = {name: size for dims, value in variables.values() for name, size in zip(dims, value.shape, strict=True)}
    indices = {axis: np.arange(used[axis]) for each in axes.values() for axis in each}
    optional = {"iterate", *indices}
    given = {name: one for name, one in coordinates.items() if name not in optional or len(one) == used.get(name)}
    kept = {**given, **{axis: one for axis, one in indices.items() if axis not in given}}
    return xr.Dataset(variables, kept, dict(attributes))


def guarantee_of(dataset: xr.Dataset) -> PrivacyGuarantee:
    """Return the privacy guarantee of one configuration (combination of swept settings) of a sweep.

    The result is the weakest guarantee of the configuration's runs, so it holds for each run.

    `PrivacyGuarantee.then` raises Refusal if the result is combined with another guarantee for a seed of this dataset.

    Args:
        dataset: dataset with every axis of the grid fixed, such as `grid.sel(mu=2.0)`.

    Raises:
        Refusal: if the dataset still has a dimension of swept settings.
    """
    texts = dataset["guarantee"]
    if texts.size != 1:
        raise Refusal(
            f"dataset must have a single value along {', '.join(map(str, texts.dims))}, got {dict(texts.sizes)}"
        )
    found = PrivacyGuarantee.from_json(str(texts.values.item()))
    return replace(found, streams=_streams(dataset, found))


def _streams(dataset: xr.Dataset, found: PrivacyGuarantee) -> Streams:
    """Return the random streams of a dataset's seeds.

    If configurations have their own noise, it follows from the seed and from the place of the configuration in the
    grid, so that another sweep has the same. A trial has the noise of resampled settings at the same place.
    """
    assumed = {one.name for one in found.assumptions}
    hidden = "secret participation" in assumed
    secret = {NOISE: True, SAMPLES: hidden or "secret samples" in assumed, PARTICIPATION: hidden}
    seeds = np.ravel(dataset.coords.get("seed", [])).tolist()
    used = {(name, seed) for name in secret for seed in seeds}
    return Streams(used, {(name, seed) for name, seed in used if secret[name]})


def preferred(dataset: xr.Dataset, name: str, iterate: str) -> str:
    """Return the iterate, or "output" if the metric was not evaluated at it.

    >>> preferred(xr.Dataset({"loss": ("seed", [1.0])}), "loss", "last")
    'output'
    """
    values = dataset[name if name in dataset else recorded_name(name)]
    return iterate if "iterate" in values.dims and iterate in values["iterate"].values else OUTPUT


def vector_axes(values: xr.DataArray, dataset: xr.Dataset) -> list[str]:
    """Return the names of a metric's axes beside runs, rounds and iterates: those of an array, or none."""
    return [str(axis) for axis in values.dims if axis not in (*dataset["diverged"].dims, "seed", "round", "iterate")]


def require_scalars(name: str, dataset: xr.Dataset) -> None:
    """Raise Refusal if a recorded metric is an array."""
    for axis in vector_axes(dataset[name], dataset) if name in dataset else ():
        instead = f"Use {name}_mean or {name}_worst_tenth" if axis == CLIENT else f"Select one by .sel({axis}=…)"
        raise Refusal(f"metric {name!r} must be a scalar here, got one with the axis {axis!r}. {instead}")


def has(dataset: xr.Dataset, name: str) -> bool:
    """Return True if a dataset of results has a metric with a value for each evaluated round.

    This includes metrics that are computed from a recorded one, such as "noise_rms" from "noise_mean_square".
    """
    return any("round" in dataset[one].dims for one in (name, recorded_name(name)) if one in dataset)


def constant(dataset: xr.Dataset, name: str) -> float | None:
    """Return the value of a metric for the best constant prediction, or None if it has none.

    >>> data = xr.Dataset({"test_accuracy": ("seed", [0.5], {"constant_predictor": 0.6})})
    >>> constant(data, "test_accuracy"), constant(data, "test_loss")
    (0.6, None)
    """
    source = recorded_name(name)
    if name in dataset and CONSTANT in dataset[name].attrs:
        return float(dataset[name].attrs[CONSTANT])
    value = dataset[source].attrs.get(CONSTANT) if source in dataset else None
    return None if value is None else float(value if source == name else known(name).function(value))


def with_alone(dataset: xr.Dataset, values: Mapping[str, np.ndarray], machines: int) -> xr.Dataset:
    """Return the dataset with metrics of machines that train alone: means over machines and interval half-widths.

    Args:
        values: values by metric, shape [trained machines].
        machines: total number of machines.

    >>> with_alone(xr.Dataset(), {"loss": np.array([1.0, 2.0, 3.0])}, 3)["alone_loss"].item()
    2.0
    """
    variables = {}
    for name, each in values.items():
        mean, half = mean_interval(xr.DataArray(np.asarray(each, float), dims="seed"))
        variables |= {f"{ALONE}{name}": mean, f"{ALONE}{name}{HALF}": half if len(each) >= INTERVAL else half * np.nan}
    trained = min((len(each) for each in values.values()), default=machines)
    said = f"{machines} machines" if trained == machines else f"{trained} machines, a fixed random sample of {machines}"
    return dataset.assign(variables).assign_attrs(alone=said)


def alone(dataset: xr.Dataset, name: str) -> tuple[xr.DataArray, xr.DataArray] | None:
    """Return the mean of a metric over machines that train alone and its interval half-width, or None if missing."""
    source = recorded_name(name)
    if f"{ALONE}{source}" not in dataset:
        return None
    mean, half = dataset[f"{ALONE}{source}"], dataset[f"{ALONE}{source}{HALF}"]
    return (mean, half) if source == name else (known(name).function(mean), half * np.nan)


def final(dataset: xr.Dataset, name: str, iterate: str = OUTPUT) -> xr.DataArray:
    """Return a metric at each run's last evaluation. The dimension `round` is removed.

    Args:
        dataset: result of `sweep` or of a run.
        name: name of the metric.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    Raises:
        Refusal: if the metric or the iterate is not in the dataset.

    >>> data = xr.Dataset({"loss": (("seed", "round"), [[2.0, 1.0, np.nan]])}, {"round": [1, 2, 3]})
    >>> final(data, "loss").values.tolist()
    [1.0]
    """
    values = _recorded(dataset, name, iterate)
    recorded = values.notnull()
    places = xr.DataArray(np.arange(1, values.sizes["round"] + 1), dims="round")
    last = (recorded * places).argmax("round")
    return _made(name, values, values.isel(round=last).drop_vars("round", errors="ignore"))


def averaged(dataset: xr.Dataset, name: str, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the mean of a metric over each run's evaluations, without the dimension `round`.

    Rounds without an evaluation are left out. If a run diverged, all its values are NaN, and so is its mean.

    If a metric is a function of a recorded metric, the function is applied to the mean of the recorded metric.

    Args:
        dataset: result of `sweep` or of a run.
        name: name of the metric.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    >>> data = xr.Dataset({"noise_mean_square": (("seed", "round"), [[1.0, 7.0, np.nan]])}, {"round": [1, 2, 3]})
    >>> averaged(data, "noise_mean_square").item(), averaged(data, "noise_rms").item()
    (4.0, 2.0)
    """
    values = _recorded(dataset, name, iterate)
    return _made(name, values, values.mean("round"))


def figure(dataset: xr.Dataset, name: str, iterate: str = OUTPUT, rounds: str = "last") -> xr.DataArray:
    """Return each run's summary: a metric's "last" evaluation (`final`), or its "mean" over them (`averaged`)."""
    require_choice("rounds", rounds, FIGURES)
    return FIGURES[rounds](dataset, name, iterate)


FIGURES = {"last": final, "mean": averaged}


def rounds_to(dataset: xr.Dataset, name: str, value: float, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the first evaluated round of each run at which a metric reaches a value.

    The result has the dimensions of the dataset without `round`.

    A metric reaches a value when it is at least as good: at least as high for an accuracy, at most as high for a loss.
    A run that never reaches the value, or diverged, has NaN. Average over seeds with `.mean("seed", skipna=False)`.

    Args:
        dataset: result of `sweep`.
        name: name of the metric.
        value: value to be reached.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    >>> curves = [[0.90, 0.96, 0.98], [0.90, 0.92, 0.94]]
    >>> data = xr.Dataset({"test_accuracy": (("seed", "round"), curves)}, {"round": [10, 20, 30]})
    >>> rounds_to(data, "test_accuracy", 0.95).values.tolist()
    [20.0, nan]
    """
    values = _recorded(dataset, name, iterate)
    curve = _made(name, values, values).astype(np.float32)
    higher = custom_metrics([dataset]).get(name, known(name)).better == "higher"
    reached = curve >= np.float32(value) if higher else curve <= np.float32(value)
    first = values["round"].values[reached.argmax("round").values].astype(float)
    return reached.any("round").astype(float).copy(data=np.where(reached.any("round").values, first, np.nan))


def rounds_of(name: str, averaged: Collection[str]) -> str:
    """Return the summary of a metric, "mean" if it is one of the metrics that are averaged over rounds, or "last".

    >>> rounds_of("noise_rms", ["noise_mean_square"]), rounds_of("test_loss", ["noise_rms"])
    ('mean', 'last')
    """
    return "mean" if name in averaged or recorded_name(name) in averaged else "last"


def _recorded(dataset: xr.Dataset, name: str, iterate: str) -> xr.DataArray:
    """Return the runs' values of a metric, or of the metric that it is computed from; NaN for diverged runs."""
    source = recorded_name(name)
    if source not in dataset and name not in dataset:
        require_choice("metric", name, [str(each) for each in dataset.data_vars if "round" in dataset[each].dims])
    values = of_iterate(dataset[source if source in dataset else name], iterate)
    return values.where(~dataset["diverged"]) if "diverged" in dataset else values


def _made(name: str, values: xr.DataArray, reduced: xr.DataArray) -> xr.DataArray:
    return reduced if values.name == name else known(name).function(reduced)


def trials_as_seeds(data: xr.Dataset) -> xr.Dataset:
    """Return the data with trials as seeds: the mean over each trial's runs, and the worst privacy among them."""
    if TRIAL not in data.dims:
        return data
    runs = [name for name in data.data_vars if "seed" in data[name].dims and name != PARAMS]
    means = data[runs].astype(float).mean("seed", skipna=False, keep_attrs=True)
    means["diverged"] = data["diverged"].any("seed")
    for name in {"realised_mu", "realised_epsilon"} & set(runs):  # the privacy of a trial is that of its worst run
        means[name] = data[name].max("seed")
    for metric in (METRICS[name] for name in METRICS if name in means):
        if metric.of_mean is not None:
            means[metric.of_mean.name] = metric.of_mean.function(means[metric.name])
    rest = data.drop_vars([*runs, PARAMS, "seed"], errors="ignore")
    reduced = xr.merge([means, rest]).rename({TRIAL: "seed"}).assign_attrs(data.attrs)
    reduced["seed"].attrs["unit"] = "trials"
    return reduced


def bytes_to(dataset: xr.Dataset, name: str, value: float, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the mean number of bytes that a machine sends in each run until a metric reaches a value.

    A run reaches the value at the first evaluated round whose metric is at least as good (`rounds_to`). A run that
    never reaches the value has NaN. The result assumes that all rounds of a run cost the same number of bytes.

    Args:
        dataset: result of `sweep`.
        name: name of the metric.
        value: value to be reached.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    Raises:
        Refusal: if the metric or the costs were not recorded.

    >>> curves = [[0.90, 0.96, 0.98], [0.90, 0.92, 0.94]]
    >>> data = xr.Dataset({"test_accuracy": (("seed", "round"), curves)}, {"round": [10, 20, 30]})
    >>> data = data.assign(sent_bytes=("seed", [600.0, 600.0]), rounds_taken=30)
    >>> bytes_to(data, "test_accuracy", 0.95).values.tolist()
    [400.0, nan]
    """
    return _cost_to(dataset, "sent_bytes", name, value, iterate)


def gradients_to(dataset: xr.Dataset, name: str, value: float, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the number of gradients per stored record that each run computes until a metric reaches a value.

    The result assumes that all rounds of a run compute equally many gradients. The result is NaN for a run that never
    reaches the value. It is also NaN if the cost `gradients_per_record` is NaN, as for examples that are computed on
    demand.

    Args:
        dataset: result of `sweep`.
        name: name of the metric.
        value: value to be reached.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    Raises:
        Refusal: if the metric or the costs were not recorded.

    >>> data = xr.Dataset({"test_loss": (("seed", "round"), [[0.9, 0.5, 0.1]])}, {"round": [10, 20, 30]})
    >>> data = data.assign(gradients_per_record=("seed", [3.0]), rounds_taken=30)
    >>> gradients_to(data, "test_loss", 0.5).values.tolist()
    [2.0]
    """
    return _cost_to(dataset, "gradients_per_record", name, value, iterate)


def hours_to(dataset: xr.Dataset, name: str, value: float, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the simulated hours of each run until a metric reaches a value.

    Simulated hours follow from the delays of a participation scheme. The result assumes that all rounds of a run take
    equally long; `Run.hours` has the exact hours of one run. A run that never reaches the value has NaN.

    Args:
        dataset: result of `sweep`.
        name: name of the metric.
        value: value of the metric that is to be reached.
        iterate: name of the iterate at which the metric is evaluated, if there are several, such as "last".

    Raises:
        Refusal: if the metric was not recorded, or the participation has no delays.

    >>> data = xr.Dataset({"test_loss": (("seed", "round"), [[0.9, 0.5, 0.1]])}, {"round": [10, 20, 30]})
    >>> hours_to(data.assign(hours=("seed", [6.0]), rounds_taken=30), "test_loss", 0.5).values.tolist()
    [4.0]
    """
    if "hours" not in dataset:
        raise Refusal("dataset must have hours, got one without. Use Timed or Buffered, in a file the key delays")
    return _cost_to(dataset, "hours", name, value, iterate)


def _cost_to(dataset: xr.Dataset, cost: str, name: str, value: float, iterate: str) -> xr.DataArray:
    for needed in (cost, "rounds_taken"):
        if needed not in dataset:
            raise Refusal(f"dataset must have {needed}, got one without it. Run the sweep again with this version")
    reached = rounds_to(dataset, name, value, iterate)
    found = (reached * dataset[cost] / dataset["rounds_taken"]).transpose(*reached.dims).rename(None)
    found.attrs = {"long_name": f"{cost.replace('_', ' ')} until {name} is {value:g}"}
    return found
