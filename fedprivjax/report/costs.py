"""Cost of a run: a table, and plots of a metric against rounds, bytes, gradients per record, and simulated hours."""

from collections.abc import Collection, Mapping
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import known
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report import drawing
from fedprivjax.report.colours import looks
from fedprivjax.report.remarks import constant_of, draw_alone, draw_constant, with_marks
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import Layout, count_text, number_text, points_of, target_epsilon
from fedprivjax.sweeps.results import of_iterate, preferred

COUNTED = {
    "taken": "rounds",
    "gradients": "gradients a record",
    "messages": "messages a machine sends",
    "bytes": "bytes a machine sends",
}
EXPECTED = {"gradients_per_record": COUNTED["gradients"], "sent_bytes": COUNTED["bytes"]}  # may be expected values
SAME = 0.005  # relative difference up to which costs share a row
AXES = {"taken": "rounds", "bytes": "sent by a machine", "gradients": "gradients a record", "hours": "simulated hours"}
USUAL = 2.0  # default ε: the nearest swept privacy level is drawn
ENDS: dict[str, Any] = {"ms": 4, "markevery": [-1]}  # marker at the end of a run


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
    timed = any(costs["hours"].notnull().any() for costs in runs.values())
    further = ["in a round: messages (bits)"] * many + [AXES["hours"]] * timed
    table.add_columns(*axes, *COUNTED.values(), *further, "seconds")
    for label, costs in runs.items():
        for point in points_of({name: layout.varied[name] for name in own[label]}):
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


def metric_against_costs(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_accuracy",
    point: Mapping[str, float] | None = None,
    *,
    iterate: str = OUTPUT,
    constant: bool = True,
    costs: Collection[str] = tuple(AXES),
) -> Figure:
    """Plot a metric during runs against rounds, bytes sent by a machine, gradients per record, and simulated hours.

    Each of `costs` ("taken", the rounds, "bytes", "gradients", and "hours", of participation with delays) has a panel
    with a logarithmic axis, and each participation a row of panels. Every swept setting has one value: for a privacy
    level the one nearest to ε = 2, for other settings the middle one, unless `point` gives another. A dot marks the end
    of a run. Bands are as in `metric_over_rounds`. A run's bytes, gradients and hours are spread evenly over its
    rounds, which is exact for bytes and gradients of cohorts of equal size. Gradients per record are not drawn for data
    whose examples are computed on demand.
    """
    metric, rows = known(metric), drawing.panels_of(best)
    best = {label: data for label, data in with_marks(with_costs(best)).items() if metric.name in data}
    chosen = drawing.placed(best, usual_point(best) | dict(point or {}))
    limits = drawing.limits_of(best, metric)
    axes_shown = [name for name in costs if any(run_costs(data)[name].notnull().any() for data in best.values())]
    if not axes_shown:
        raise Refusal(f"results must have {' or '.join(costs)} of runs to be drawn against them, got none")
    figure, axes = drawing.panelled(len(rows) * len(axes_shown), across=len(axes_shown))
    for place, axis in enumerate(axes):
        row, name = rows[place // len(axes_shown)], axes_shown[place % len(axes_shown)]
        for label, look in looks(best).items():
            part = drawing.at(best[label], {**chosen, **row})
            values = of_iterate(part[metric.name], preferred(part, metric.name, iterate))
            spent = run_costs(part)
            scale = float(spent[name]) / float(spent["taken"])
            if np.isfinite(scale):
                drawing.draw_path(axis, label, values, limits, scale=scale, **look, **ENDS)
        _label(axis, name, row)
    draw_constant(axes, constant_of(best, metric) if constant else None)
    draw_alone(axes, [{**chosen, **rows[place // len(axes_shown)]} for place in range(len(axes))], best, metric)
    words = f"{metric.words}\n({drawing.over_seeds(best)})"
    drawing.finish(figure, axes, metric, words, across=len(axes_shown))
    figure.suptitle(_title(chosen, next(iter(best.values())).attrs["delta"]), fontsize=matplotlib.rcParams["font.size"])
    return figure


def usual_point(best: Mapping[str, xr.Dataset]) -> dict[str, float]:
    """Return the middle value of every swept setting, and of a privacy level the value nearest to ε = 2."""
    chosen = drawing.middle_of(best)
    for data in best.values():
        for name in (name for name in LEVELS if name in data.dims):
            off = [abs(np.log(target_epsilon(name, value, data.attrs["delta"]) / USUAL)) for value in data[name].values]
            chosen[name] = float(data[name].values[int(np.argmin(off))])
    return chosen


def differ_in_costs(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if there are several protocols and their rounds, bytes or hours differ at some point."""
    runs = [run_costs(data) for data in with_costs(best).values()]
    return any(_apart(one[name], runs[0][name]) for one in runs[1:] for name in ("taken", "bytes", "hours"))


def _apart(one: xr.DataArray, other: xr.DataArray) -> bool:
    return bool((abs(one - other) > SAME * abs(other)).any())


def _label(axis: Axes, name: str, row: Mapping[str, float]) -> None:
    axis.set(xlabel=AXES[name], xscale="log", title=drawing.point_title(row))
    drawing.plain_ticks(axis.xaxis, *axis.get_xlim())
    if name == "bytes":
        low, high = axis.get_xlim()
        if high > 30 * low:  # fewer ticks, since "100 kB" is longer than a number
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)) if high < 300 * low else LogLocator(numticks=6))
        axis.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _title(point: Mapping[str, float], delta: float) -> str:
    """Return the point as text, with the ε of a μ."""
    epsilon = f" (ε = {target_epsilon('mu', point['mu'], delta):.3g})" if "mu" in point else ""
    others = {name: value for name, value in point.items() if name != "mu"}
    level = {name: value for name, value in point.items() if name == "mu"}
    return ", ".join(filter(None, (drawing.point_title(level) + epsilon, drawing.point_title(others))))
