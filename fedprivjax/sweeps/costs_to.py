"""Cost of a run until a metric reaches a value: bytes that a machine sends, and gradients per record."""

import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.sweeps.results import rounds_to


def bytes_to(dataset: xr.Dataset, name: str, value: float, iterate: str = OUTPUT) -> xr.DataArray:
    """Return the bytes that a machine sends in each run until a metric reaches a value, averaged over machines.

    The rounds are those of `rounds_to`. A run that never reaches the value has NaN. A run's bytes are spread evenly
    over its rounds, which is exact for cohorts of equal size.

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
    """Return the gradients per stored record in each run until a metric reaches a value.

    As in `bytes_to`, a run's gradients are spread evenly over its rounds, and a run that never reaches the value has
    NaN. So has a run on data whose examples are computed on demand.

    Raises:
        Refusal: if the metric or the costs were not recorded.

    >>> data = xr.Dataset({"test_loss": (("seed", "round"), [[0.9, 0.5, 0.1]])}, {"round": [10, 20, 30]})
    >>> data = data.assign(gradients_per_record=("seed", [3.0]), rounds_taken=30)
    >>> gradients_to(data, "test_loss", 0.5).values.tolist()
    [2.0]
    """
    return _cost_to(dataset, "gradients_per_record", name, value, iterate)


def _cost_to(dataset: xr.Dataset, cost: str, name: str, value: float, iterate: str) -> xr.DataArray:
    for needed in (cost, "rounds_taken"):
        if needed not in dataset:
            raise Refusal(f"dataset must have {needed}, got one without it. Run the sweep again with this version")
    reached = rounds_to(dataset, name, value, iterate)
    return (reached * dataset[cost] / dataset["rounds_taken"]).transpose(*reached.dims).rename(None)
