"""Plots of a metric against cost: rounds, bytes sent by a machine, and gradients per record, side by side."""

from collections.abc import Collection, Mapping
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.baselines import constant_of, draw_alone, draw_constant
from fedprivjax.report.choices import with_marks
from fedprivjax.report.colours import colour, dashes, symbol
from fedprivjax.report.costs import SAME, run_costs, with_costs
from fedprivjax.report.drawing import (
    at,
    draw_path,
    finish,
    limits_of,
    middle_of,
    panelled,
    panels_of,
    placed,
    plain_ticks,
    point_title,
)
from fedprivjax.report.number_format import target_epsilon
from fedprivjax.sweeps.results import of_iterate, preferred

AXES = {"taken": "rounds", "bytes": "sent by a machine", "gradients": "gradients a record"}
USUAL = 2.0  # default ε: the nearest swept privacy level is drawn
ENDS: dict[str, Any] = {"ms": 4, "markevery": [-1]}  # marker at the end of a run


def metric_against_costs(
    best: Mapping[str, xr.Dataset],
    metric: str | Metric = "test_accuracy",
    point: Mapping[str, float] | None = None,
    *,
    iterate: str = OUTPUT,
    constant: bool = True,
    costs: Collection[str] = tuple(AXES),
) -> Figure:
    """Plot a metric during runs against rounds, bytes sent by a machine, and gradients per record.

    Each of `costs` ("taken", the rounds, "bytes" and "gradients") has a panel with a logarithmic axis, and each
    participation a row of panels. Every swept setting has one value: for a privacy level the one nearest to ε = 2, for
    other settings the middle one, unless `point` gives another. A dot marks the end of a run. Bands are as in
    `metric_over_rounds`. A run's bytes and gradients are spread evenly over its rounds, which is exact for cohorts of
    equal size. Gradients per record are not drawn for data whose examples are computed on demand.
    """
    metric, rows = known(metric), panels_of(best)
    best = {label: data for label, data in with_marks(with_costs(best)).items() if metric.name in data}
    chosen = placed(best, usual_point(best) | dict(point or {}))
    limits = limits_of(best, metric)
    axes_shown = [name for name in costs if any(run_costs(data)[name].notnull().any() for data in best.values())]
    if not axes_shown:
        raise Refusal(f"results must have {' or '.join(costs)} of runs to be drawn against them, got none")
    figure, axes = panelled(len(rows) * len(axes_shown), across=len(axes_shown))
    for place, axis in enumerate(axes):
        row, name = rows[place // len(axes_shown)], axes_shown[place % len(axes_shown)]
        for index, (label, data) in enumerate(best.items()):
            part = at(data, {**chosen, **row})
            values = of_iterate(part[metric.name], preferred(part, metric.name, iterate))
            spent = run_costs(part)
            scale = float(spent[name]) / float(spent["taken"])
            if np.isfinite(scale):
                draw_path(
                    axis,
                    label,
                    values,
                    colour(index),
                    limits,
                    scale=scale,
                    ls=dashes(index),
                    marker=symbol(index),
                    **ENDS,
                )
        _label(axis, name, row)
    draw_constant(axes, constant_of(best, metric) if constant else None)
    draw_alone(axes, [{**chosen, **rows[place // len(axes_shown)]} for place in range(len(axes))], best, metric)
    finish(figure, axes, metric, metric.words, limits, across=len(axes_shown))
    figure.suptitle(_title(chosen, next(iter(best.values())).attrs["delta"]), fontsize=matplotlib.rcParams["font.size"])
    return figure


def usual_point(best: Mapping[str, xr.Dataset]) -> dict[str, float]:
    """Return the middle value of every swept setting, and of a privacy level the value nearest to ε = 2."""
    chosen = middle_of(best)
    for data in best.values():
        for name in (name for name in LEVELS if name in data.dims):
            off = [abs(np.log(target_epsilon(name, value, data.attrs["delta"]) / USUAL)) for value in data[name].values]
            chosen[name] = float(data[name].values[int(np.argmin(off))])
    return chosen


def differ_in_costs(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if there are several protocols and their rounds or bytes differ at some point."""
    runs = [run_costs(data) for data in with_costs(best).values()]
    return any(_apart(one[name], runs[0][name]) for one in runs[1:] for name in ("taken", "bytes"))


def _apart(one: xr.DataArray, other: xr.DataArray) -> bool:
    return bool((abs(one - other) > SAME * abs(other)).any())


def _label(axis: Axes, name: str, row: Mapping[str, float]) -> None:
    axis.set(xlabel=AXES[name], xscale="log", title=point_title(row))
    plain_ticks(axis.xaxis, *axis.get_xlim())
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
    return ", ".join(filter(None, (point_title(level) + epsilon, point_title(others))))
