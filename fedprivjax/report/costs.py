"""Cost of a run: rounds, gradients per record, messages, bytes, simulated hours and seconds."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from fedprivjax.report.summary import Summary
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import count_text, number_text, points_of

COUNTED = {
    "taken": "rounds",
    "gradients": "gradients a record",
    "messages": "messages a machine sends",
    "bytes": "bytes a machine sends",
}
EXPECTED = {"gradients_per_record": COUNTED["gradients"], "sent_bytes": COUNTED["bytes"]}  # may be expected values
SAME = 0.005  # relative difference up to which costs share a row
AXES = {"taken": "rounds", "bytes": "sent by a machine", "gradients": "gradients a record", "hours": "simulated hours"}


def with_costs(best: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets with recorded costs. Datasets of versions that did not record them are dropped."""
    return {label: data for label, data in best.items() if "sent_bytes" in data}


def run_costs(data: xr.Dataset) -> xr.Dataset:
    """Return the cost of a run, averaged over seeds, at every point of a dataset.

    The variables are the keys of `COUNTED`, `hours` (NaN without delays), `seconds`, and per machine and round
    `of_round` (messages) and `bits_of_round`.
    """
    sent_bytes = data["sent_bytes"]
    found = {
        "taken": data["rounds_taken"],
        "gradients": data["gradients_per_record"],
        "messages": 8 * sent_bytes / data["sent_bits"] * data["sent_messages"],
        "bytes": sent_bytes,
        "hours": data["hours"] if "hours" in data else xr.full_like(sent_bytes, np.nan, float),
        "seconds": data["seconds"],
        "of_round": data["sent_messages"],
        "bits_of_round": data["sent_bits"],
    }
    return xr.Dataset({name: each.mean("seed") if "seed" in each.dims else each for name, each in found.items()})


def costs_table(this: Summary) -> Sheet:
    """Return a table of the cost of a run, one row per protocol, and per swept cell only if costs differ."""
    runs = {label: run_costs(data) for label, data in with_costs(this.best).items()}
    own = {label: [name for name in this.varied if _differs(costs, name)] for label, costs in runs.items()}
    axes = [name for name in this.varied if any(name in names for names in own.values())]
    many = any((costs["of_round"] > 1).any() for costs in runs.values())
    table = Sheet(f"what a run costs, mean over {this.over}; seconds with compiling", keys=1 + len(axes))
    table.add_columns("protocol", justify="left")
    timed = any(costs["hours"].notnull().any() for costs in runs.values())
    further = ["in a round: messages (bits)"] * many + [AXES["hours"]] * timed
    table.add_columns(*axes, *COUNTED.values(), *further, "seconds")
    for label, costs in runs.items():
        for point in points_of({name: this.varied[name] for name in own[label]}):
            at = [f"{point[name]:g}" if name in point else "" for name in axes]
            table.add_row(label, *at, *_cells(costs.sel(point), many, timed))
    return table


def _differs(costs: xr.Dataset, axis: str) -> bool:
    """Return True if a run's cost changes along an axis by more than `SAME`. Seconds always vary and are ignored."""
    if axis not in costs.dims:
        return False
    counted = [costs[name] for name in (*COUNTED, "hours", "of_round", "bits_of_round") if axis in costs[name].dims]
    return any(bool((each.max(axis) - each.min(axis) > SAME * each.max(axis)).any()) for each in counted)


def _cells(costs: xr.Dataset, many: bool, timed: bool) -> list[str]:
    """Return the numbers of a row, each the mean of the cells that share the row."""
    value = {str(name): float(each.mean()) for name, each in costs.items()}
    sent = count_text(value["messages"]), count_text(value["bytes"])
    counted = [f"{value['taken']:.0f}", number_text(value["gradients"], "–"), *sent]
    of_round = [f"{value['of_round']:.3g} ({value['bits_of_round']:.3g})"] * many
    hours = [number_text(value["hours"], "–")] * timed
    return [*counted, *of_round, *hours, number_text(value["seconds"], "–")]


def differ_in_costs(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if there are several protocols and their rounds, bytes or hours differ at some point."""
    runs = [run_costs(data) for data in with_costs(best).values()]
    return any(_apart(one[name], runs[0][name]) for one in runs[1:] for name in ("taken", "bytes", "hours"))


def _apart(one: xr.DataArray, other: xr.DataArray) -> bool:
    return bool((abs(one - other) > SAME * abs(other)).any())
