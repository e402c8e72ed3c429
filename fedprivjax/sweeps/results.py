"""Results with named axes: a sweep's dataset, and what one reads off it first."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import t


def sweep_dataset(
    values: Mapping[str, np.ndarray], coordinates: Mapping[str, np.ndarray], members, said: Mapping[str, Any]
) -> xr.Dataset:
    """A sweep's dataset.

    Args:
        values: by name, [seeds, members] or [seeds, members, records]; members in the grid's order.
        coordinates: the swept axes in the grid's order, then `seed` and `round`.
        members: noise_std and step_size, [members] each.
        said: attributes.
    """
    grid = [name for name in coordinates if name not in ("seed", "round")]
    shape = [len(coordinates[name]) for name in grid]
    variables = {}
    for name, value in values.items():
        moved = np.moveaxis(value, 0, 1)
        dims = [*grid, "seed", *(["round"] if moved.ndim == 3 else [])]
        variables[name] = (dims, moved.reshape(*shape, *moved.shape[1:]))
    variables["diverged"] = (variables["diverged"][0], variables["diverged"][1].astype(bool))
    for name in (name for name in ("noise_std", "step_size") if name not in grid):
        variables[name] = (grid, getattr(members, name).reshape(shape))
    return xr.Dataset(variables, dict(coordinates), dict(said))


def with_iterates(metrics: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """The recorded names among `names`, with those of a protocol's other iterates (`name_average`, `name_last`)."""
    return [name for name in metrics if name in names or name.rpartition("_")[0] in names]


def attributes(event, protocol, delta: float, noise: str, non_private: Sequence[str]) -> dict[str, Any]:
    """What a dataset says of its guarantee, and of what that does not cover."""
    return {
        "protocol": type(protocol).__name__,
        "unit": event.unit,
        "relation": event.relation,
        "trust": event.trust,
        "theorem": event.theorem,
        "assumptions": "; ".join(event.assumptions),
        "delta": delta,
        "selection": "not accounted for: hyper-parameters chosen by looking at these results are not covered",
        "non_private_metrics": ", ".join(non_private),
        "noise": noise,
        "prng": "simulation only: a deployment needs a cryptographic generator and discrete noise",
    }


def final(dataset: xr.Dataset, name: str) -> xr.DataArray:
    """A metric at each run's last record, without the `round` dimension.

    >>> data = xr.Dataset({"loss": (("seed", "round"), [[2.0, 1.0, np.nan]])}, {"round": [1, 2, 3]})
    >>> final(data, "loss").values.tolist()
    [1.0]
    """
    values = dataset[name]
    if "diverged" in dataset:
        values = values.where(~dataset["diverged"])
    recorded = values.notnull()
    last = (recorded * np.arange(1, values.sizes["round"] + 1)).argmax("round")
    return values.isel(round=last).drop_vars("round", errors="ignore")


def mean_interval(values: xr.DataArray, level: float = 0.95) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over seeds and half the width of its Student-t interval (NaN for a single seed).

    A diverged run makes both NaN: the mean of the others would flatter.

    >>> mean, half = mean_interval(xr.DataArray([0.0, 1.0, 2.0], dims="seed"))
    >>> float(mean), round(float(half), 2)
    (1.0, 2.48)
    """
    count = values.sizes["seed"]
    if count == 1:
        return values.mean("seed", skipna=False), values.isel(seed=0, drop=True) * np.nan
    width = t.ppf(0.5 + level / 2, count - 1) / np.sqrt(count)
    return values.mean("seed", skipna=False), width * values.std("seed", ddof=1, skipna=False)
