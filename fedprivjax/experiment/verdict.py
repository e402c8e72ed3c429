"""Comparison of results with published or expected numbers, cell by cell."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.engine.metrics import known, recorded_name, require_recorded
from fedprivjax.experiment import Cell, Expected, Experiment
from fedprivjax.experiment.expected import ORDER, RULES
from fedprivjax.sweeps.intervals import exponent, mean_interval
from fedprivjax.sweeps.results import figure, preferred, rounds_to

ROUNDS = Metric("rounds", float, of="mean", digits=1)
COMPARISON = "comparison within the run"
ORIGINS = {  # kinds of sources of expected numbers as text
    "table": "paper's table",
    "text": "paper's text",
    "code": "authors' released code",
    "run": "earlier run of this project",
    "derivation": "derivation",
}


class Verdict(NamedTuple):
    """Tolerance check of one cell.

    Attributes:
        expected: entry of `[[expected]]`.
        at: values of the cell's swept settings.
        mean: mean over seeds; the exponent for rule "slope", the mean difference for "paired_above", the mean change
            that is nearest to the wrong side for "increases" and "decreases".
        half: half the 95% interval of the mean.
        sd: standard deviation over seeds; for "paired_above" that of the difference, for "within_se" the standard error
            of the difference of the two means, for "slope" the standard error of the exponent.
        seeds: number of seeds.
        value: number that the mean is compared with, or None.
        holds: whether the comparison holds, or None if the cell is not judged.
    """

    expected: Expected
    at: dict[str, float]
    mean: float
    half: float
    sd: float
    seeds: int
    value: float | None
    holds: bool | None


def verdicts(experiment: Experiment, best: Mapping[str, xr.Dataset]) -> list[Verdict]:
    """Judge every expected cell of an experiment on its results.

    Args:
        best: datasets by label, with each protocol's own grid reduced to its best point.

    Raises:
        ValueError: if the sweep does not contain a cell.
    """
    return [_judge(expected, cell, best) for expected in experiment.expected for cell in _cells(expected, best)]


def check_cells(experiment: Experiment) -> None:
    """Raise Refusal if the sweep will not contain an expected cell as a single number.

    That is the case if a cell's value is not swept, a cell leaves an axis with several values open, or the axis of a
    slope has fewer than three positive values, that of an order fewer than two.
    """
    swept = experiment.sweep.over
    fixed = {settings.label: settings.fixed for settings in experiment.protocol}
    for expected in experiment.expected:
        for name, value in (place for cell in expected.cells for place in cell.at.items()):
            if not _near(swept.get(name, []), value).any():
                raise Refusal(f"expected cell {name} = {value:g} must be swept, got {swept.get(name, [])}")
        own = fixed.get(expected.protocol, set())
        if expected.axis is not None:
            _check_axis(expected, [] if expected.axis in own else swept.get(expected.axis, []))
        for cell in expected.cells if expected.protocol in fixed else []:
            several = [name for name, values in swept.items() if len(values) > 1 and name not in own]
            _check_fixed(cell, [name for name in several if name != expected.axis])


def check_recorded(
    entries: Iterable[Expected], label: str, recorded: Mapping[str, Sequence[str]], evaluations: int
) -> None:
    """Raise Refusal if the runs of a protocol will not record a metric or an iterate that entries expect of them.

    Args:
        entries: entries of `[[expected]]`.
        label: label of the protocol.
        recorded: names of the recorded metrics of each iterate.
        evaluations: number of evaluations of a run.
    """
    for expected in (one for one in entries if one.protocol == label):
        require_choice(f"iterate of {label} in [[expected]]", expected.iterate, recorded)
        names = recorded[expected.iterate]
        require_recorded(recorded_name(expected.metric), names, f"metric of {label!r} in [[expected]]")
        if expected.rounds == "mean" and evaluations < 2:
            raise Refusal(
                "rounds = 'mean' in [[expected]] must have several evaluations a run, got 1: lower evaluation.every"
            )


def origin_of(expected: Expected) -> str:
    """Return the kind of source of an entry's numbers as text, or "" if it is not stated.

    >>> origin_of(Expected(protocol="a", origin="code")), origin_of(Expected(protocol="a", rule="above", other="b"))
    ("authors' released code", 'comparison within the run')
    """
    compared = expected.rule in ("above", "paired_above", *ORDER)
    return ORIGINS.get(expected.origin, COMPARISON if compared else "")


def describe(expected: Expected) -> str:
    """Return the rule of a comparison as text.

    >>> describe(Expected(protocol="a", metric="test_loss", rule="within", tolerance=0.002))
    'within 0.002'
    >>> describe(Expected(protocol="a", metric="gradient_norm", rule="at_least", rounds="mean"))
    'at least it − 0, by the mean over rounds'
    >>> describe(Expected(protocol="a", rounds_to=0.97, rule="at_most", tolerance=5))
    'at most it + 5'
    """
    amount = judged_metric(expected).amount(expected.tolerance)
    over = ", by the mean over rounds" if expected.rounds == "mean" else ""
    return RULES[expected.rule].format(amount=amount, tolerance=expected.tolerance, other=expected.other) + over


def judged_metric(expected: Expected) -> Metric:
    """Return the metric that is compared, or for `rounds_to` a number of rounds."""
    return known(expected.metric) if expected.rounds_to is None else ROUNDS


def _values(data: xr.Dataset, expected: Expected, iterate: str) -> xr.DataArray:
    """Return the number of each run that is compared, [..., seed], infinity if it never reaches `rounds_to`."""
    if expected.rounds_to is None:
        return figure(data, expected.metric, iterate, expected.rounds)
    return rounds_to(data, expected.metric, expected.rounds_to, iterate).fillna(np.inf)


def _cells(expected: Expected, best: Mapping[str, xr.Dataset]) -> list[Cell]:
    if expected.cells or expected.protocol not in best:
        return expected.cells
    first: dict[Any, int] = {"seed": 0} | ({} if expected.axis is None else {expected.axis: 0})
    data = best[expected.protocol]
    grid = _values(data, expected, expected.iterate).isel(first, drop=True)
    names = [str(name) for name in grid.dims]
    points = product(*(grid[name].values.astype(float).tolist() for name in names))
    return [Cell(at=dict(zip(names, point, strict=True))) for point in points]


def _judge(expected: Expected, cell: Cell, best: Mapping[str, xr.Dataset]) -> Verdict:
    if expected.protocol not in best:
        return Verdict(expected, cell.at, np.nan, np.nan, np.nan, 0, cell.value, None)
    runs, value = _runs(expected.protocol, expected, cell, best, expected.iterate), cell.value
    count = runs.sizes["seed"]
    if expected.axis is not None and expected.rule in ORDER:
        return _judge_order(expected, cell, runs, expected.axis)
    if expected.axis is not None:
        slope, half, error = exponent(runs, expected.axis)
        holds = None if value is None else slope <= value + expected.tolerance
        return Verdict(expected, cell.at, slope, half, error, count, value, holds)
    if expected.rule in ("above", "paired_above"):
        other, same = str(expected.other), expected.other == expected.protocol
        iterate = OUTPUT if same else preferred(best[other], expected.metric, expected.iterate)
        others = _runs(other, expected, cell, best, iterate)
        if expected.rule == "above":
            value = float(others.mean("seed"))
        else:
            runs, value = runs - others, value or 0.0
    finite = runs.where(np.isfinite(runs))  # the spread of runs that never reach a value is unknown
    mean, half = float(runs.mean("seed", skipna=False)), float(mean_interval(finite)[1])
    sd = float(finite.std("seed", ddof=1, skipna=False)) if count > 1 else np.nan
    if expected.rule == "within_se":
        assert cell.sd is not None
        assert cell.runs is not None
        ours = sd**2 * (count - 1) if count > 1 else 0.0
        pooled = np.sqrt((cell.sd**2 * (cell.runs - 1) + ours) / (cell.runs + count - 2))
        sd = float(pooled * np.sqrt(1 / cell.runs + 1 / count))
    return Verdict(expected, cell.at, mean, half, sd, count, value, _holds(expected, mean, half, sd, value))


def _judge_order(expected: Expected, cell: Cell, runs: xr.DataArray, axis: str) -> Verdict:
    """Judge the change between neighbouring values of the axis, paired by seed, that is nearest to the wrong side."""
    sign = ORDER[expected.rule]
    changes = runs.sortby(axis).diff(axis)
    mean, half = mean_interval(changes)
    nearest = int((sign * mean - half).fillna(-np.inf).argmin(axis))
    change, width = float(mean[nearest]), float(half[nearest])
    sd = float(changes.isel({axis: nearest}).std("seed", ddof=1, skipna=False)) if runs.sizes["seed"] > 1 else np.nan
    return Verdict(expected, cell.at, change, width, sd, runs.sizes["seed"], 0.0, sign * change - width > 0)


def _runs(label: str, expected: Expected, cell: Cell, best: Mapping[str, xr.Dataset], iterate: str) -> xr.DataArray:
    """Return a protocol's values of the metric at a cell, with the axis `seed`. Axes that it lacks are ignored."""
    runs = _values(best[label], expected, iterate)
    for name, value in cell.at.items():
        if name not in runs.dims:
            continue
        near = _near(runs[name].values, value)
        if not near.any():
            raise Refusal(f"expected cell {name} = {value:g} must be swept, got {runs[name].values.tolist()}")
        runs = runs.isel({name: int(np.argmax(near))})
    runs = runs.squeeze([name for name in runs.dims if name not in ("seed", expected.axis) and runs.sizes[name] == 1])
    _check_fixed(cell, [str(name) for name in runs.dims if name not in ("seed", expected.axis)])
    return runs


def _near(values, value: float) -> np.ndarray:
    return np.isclose(values, value, rtol=1e-6, atol=0)


def _check_fixed(cell: Cell, axes: Iterable[str]) -> None:
    left = [name for name in axes if name not in cell.at]
    if left:
        raise Refusal(f"expected cell {cell.at} must fix {', '.join(left)}")


def _check_axis(expected: Expected, values: Sequence[float]) -> None:
    if expected.rule in ORDER and len(values) < 2:
        raise Refusal(f"axis of an order in [[expected]] must have two values, got {expected.axis} = {list(values)}")
    if expected.rule == "slope" and (len(values) < 3 or min(values) <= 0):
        got = f"{expected.axis} = {list(values)}"
        raise Refusal(f"axis of a slope in [[expected]] must have three positive values, got {got}")


def _holds(expected: Expected, mean: float, half: float, sd: float, value: float | None) -> bool | None:
    if expected.rule == "shown" or value is None:
        return None
    return {
        "within": abs(mean - value) <= expected.tolerance,
        "within_sd": abs(mean - value) <= expected.tolerance * sd,
        "within_se": abs(mean - value) <= expected.tolerance * sd,
        "at_least": mean >= value - expected.tolerance,
        "at_most": mean <= value + expected.tolerance,
        "paired_above": mean - half > value,
    }.get(expected.rule, mean > value)
