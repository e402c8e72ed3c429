"""Table of the cost of a run: rounds, gradients per record, messages and bytes sent by a machine, seconds."""

from collections.abc import Mapping

import xarray as xr

from fedprivjax.report.layout import Layout
from fedprivjax.report.number_format import count_text, number_text, points_of
from fedprivjax.report.text_table import Sheet

COUNTED = {
    "taken": "rounds",
    "gradients": "gradients a record",
    "messages": "messages a machine sends",
    "bytes": "bytes a machine sends",
}
EXPECTED = {"gradients_per_record": COUNTED["gradients"], "sent_bytes": COUNTED["bytes"]}  # may be expected values
SAME = 0.005  # relative difference up to which costs share a row


def with_costs(best: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets with recorded costs. Datasets of versions that did not record them are dropped."""
    return {label: data for label, data in best.items() if "sent_bytes" in data}


def run_costs(data: xr.Dataset) -> xr.Dataset:
    """Return the cost of a run, averaged over seeds, at every point of a dataset.

    The variables are the keys of `COUNTED`, `seconds`, and per machine and round `of_round` (messages) and
    `bits_of_round`.
    """
    sent_bytes = data["sent_bytes"]
    found = {
        "taken": data["rounds_taken"],
        "gradients": data["gradients_per_record"],
        "messages": 8 * sent_bytes / data["sent_bits"] * data["sent_messages"],
        "bytes": sent_bytes,
        "seconds": data["seconds"],
        "of_round": data["sent_messages"],
        "bits_of_round": data["sent_bits"],
    }
    return xr.Dataset({name: each.mean("seed") if "seed" in each.dims else each for name, each in found.items()})


def costs_table(layout: Layout, best: Mapping[str, xr.Dataset], over: str) -> Sheet:
    """Return a table of the cost of a run, one row per protocol, and per swept cell only if costs differ.

    Args:
        best: datasets with recorded costs, by label.
        over: text for the runs that means are taken over, such as "3 seeds".
    """
    runs = {label: run_costs(data) for label, data in best.items()}
    own = {label: [name for name in layout.varied if _differs(costs, name)] for label, costs in runs.items()}
    axes = [name for name in layout.varied if any(name in names for names in own.values())]
    many = any((costs["of_round"] > 1).any() for costs in runs.values())
    table = Sheet(f"what a run costs, mean over {over}; seconds with compiling", keys=1 + len(axes))
    table.add_columns("protocol", justify="left")
    table.add_columns(*axes, *COUNTED.values(), *["in a round: messages (bits)"] * many, "seconds")
    for label, costs in runs.items():
        for point in points_of({name: layout.varied[name] for name in own[label]}):
            at = [f"{point[name]:g}" if name in point else "" for name in axes]
            table.add_row(label, *at, *_cells(costs.sel(point), many))
    return table


def _differs(costs: xr.Dataset, axis: str) -> bool:
    """Return True if a run's cost changes along an axis by more than `SAME`. Seconds always vary and are ignored."""
    if axis not in costs.dims:
        return False
    counted = [costs[name] for name in (*COUNTED, "of_round", "bits_of_round") if axis in costs[name].dims]
    return any(bool((each.max(axis) - each.min(axis) > SAME * each.max(axis)).any()) for each in counted)


def _cells(costs: xr.Dataset, many: bool) -> list[str]:
    """Return the numbers of a row, each the mean of the cells that share the row."""
    value = {str(name): float(each.mean()) for name, each in costs.items()}
    sent = count_text(value["messages"]), count_text(value["bytes"])
    counted = [f"{value['taken']:.0f}", number_text(value["gradients"], "–"), *sent]
    of_round = [f"{value['of_round']:.3g} ({value['bits_of_round']:.3g})"] * many
    return [*counted, *of_round, number_text(value["seconds"], "–")]
