"""What a run costs, as a table: rounds, gradients a record, what a machine sends, seconds."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from fedprivjax.report.layout import Layout
from fedprivjax.report.number_format import count_text, points_of
from fedprivjax.report.text_table import Sheet

COUNTED = {
    "taken": "rounds",
    "gradients": "gradients a record",
    "messages": "messages a machine sends",
    "bytes": "bytes a machine sends",
}
SAME = 0.005  # relative: what is less apart stands in one row


def told(best: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """The datasets that say what a run costs: those of a version that did not, are left out."""
    return {label: data for label, data in best.items() if "sent_bytes" in data}


def run_costs(data: xr.Dataset) -> xr.Dataset:
    """What a run costs, the mean over seeds, at every point of a dataset: `COUNTED`, `seconds`, and what a machine
    sends in a round, `of_round` messages and `bits_of_round`."""
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
    """What a run costs: a row per protocol, and per swept cell only where it costs something else.

    Args:
        best: datasets that say it, by label.
        over: what means are over, in words.
    """
    runs = {label: run_costs(data) for label, data in best.items()}
    own = {label: [name for name in layout.varied if _differs(costs, name)] for label, costs in runs.items()}
    axes = [name for name in layout.varied if any(name in names for names in own.values())]
    many = any((costs["of_round"] > 1).any() for costs in runs.values())
    table = Sheet(f"what a run costs, mean over {over}; seconds with compiling", keys=1 + len(axes))
    table.add_column("protocol")
    columns = (*axes, *COUNTED.values(), *["in a round: messages (bits)"] * many, "seconds")
    for name in columns:
        table.add_column(name, "right")
    for label, costs in runs.items():
        for point in points_of({name: layout.varied[name] for name in own[label]}):
            table.add_row(label, *(_coordinate(point, name) for name in axes), *_cells(costs.sel(point), many))
    return table


def _differs(costs: xr.Dataset, axis: str) -> bool:
    """Whether a run costs something else along an axis, by more than `SAME`; seconds are never twice the same."""
    if axis not in costs.dims:
        return False
    counted = [costs[name] for name in (*COUNTED, "of_round", "bits_of_round") if axis in costs[name].dims]
    return any(bool((each.max(axis) - each.min(axis) > SAME * each.max(axis)).any()) for each in counted)


def _coordinate(point: Mapping[str, float], name: str) -> str:
    return f"{point[name]:g}" if name in point else ""


def _cells(costs: xr.Dataset, many: bool) -> list[str]:
    """A row's numbers; the mean of the cells that it stands for."""
    value = {str(name): float(each.mean()) for name, each in costs.items()}
    sent = count_text(value["messages"]), count_text(value["bytes"])
    counted = [f"{value['taken']:.0f}", _number(value["gradients"]), *sent]
    of_round = [f"{value['of_round']:.3g} ({value['bits_of_round']:.3g})"] * many
    return [*counted, *of_round, _number(value["seconds"])]


def _number(value: float) -> str:
    """Three digits; a dash where nothing is known."""
    return "–" if np.isnan(value) else f"{value:.3g}"
