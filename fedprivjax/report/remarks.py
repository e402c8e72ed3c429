"""Baselines, marks of protocols chosen by results, and remarks on swept settings, in tables and plots."""

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fedprivjax.engine.metric import Metric
from fedprivjax.experiment import Experiment, tuning_experiment
from fedprivjax.experiment.section import STRUCTURAL
from fedprivjax.experiment.tuning import Choice, formatted
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report import colours
from fedprivjax.report.text_table import Sheet
from fedprivjax.sweeps.results import alone, constant, has, mean_interval
from fedprivjax.sweeps.selection import NO_EFFECT, UNACCOUNTED, clip_has_no_effect

CHOSEN = " ‡"  # mark of a protocol whose settings were chosen by results
CHOSEN_NOTE = "‡ chosen by results, not covered by the guarantee"
NAIVE_NOTE = (
    "intervals of ‡ are naive: the runs that chose a point also measure it, so they cover the mean in less than 95%"
)
CONSTANT = "constant predictor"
ALONE = "each machine alone"
Summary = tuple[xr.DataArray, xr.DataArray]  # mean, and half the width of its interval
WORSE = " †"  # mark of a mean that is worse than the constant predictor's value


def marked(label: str, data: xr.Dataset) -> str:
    """Return a protocol's label, with a mark if settings were chosen by results and no guarantee covers this.

    >>> marked("ours", xr.Dataset(attrs={UNACCOUNTED: "clip"})), marked("ours", xr.Dataset())
    ('ours ‡', 'ours')
    """
    return label + CHOSEN * (UNACCOUNTED in data.attrs)


def chosen_by_these_runs(best: Mapping[str, xr.Dataset]) -> bool:
    """Return True if runs of a protocol both chose its settings and measure them, which biases mean and interval.

    >>> chosen_by_these_runs({"ours": xr.Dataset(attrs={UNACCOUNTED: "clip", "grid_points": 3})})
    False
    """
    return any(UNACCOUNTED in data.attrs and "grid_points" not in data.attrs for data in best.values())


def with_marks(best: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return the datasets by marked label."""
    return {marked(label, data): data for label, data in best.items()}


def choice_table(experiment: Experiment, choices: Mapping[str, Choice]) -> Sheet:
    """Return the tuned points, one row per method, with the mean of the metric and the number of points tried."""
    other = tuning_experiment(experiment)
    metric = other.evaluation.known(other.evaluation.select)
    given = other.sweep.seeds
    seeds = given if isinstance(given, int) else len(given)
    over = f"all cells and {seeds} seed{'s' * (seeds > 1)}"
    table = Sheet(f"chosen on {other.problem.dataset}, by the best mean over {over}")
    table.add_columns("method", "chosen", justify="left")
    table.add_columns(metric.title, "of points", "diverged")
    for label, one in choices.items():
        table.add_row(label, formatted(one.values), metric.text(one.score), str(one.points), str(one.diverged))
    return table


def constant_of(best: Mapping[str, xr.Dataset], metric: Metric) -> float | None:
    """Return the constant predictor's value of a metric, or None if it has none."""
    found = (constant(data, metric.name) for data in best.values() if has(data, metric.name))
    return next((value for value in found if value is not None), None)


def is_better(value: float, other: float, metric: Metric) -> bool:
    """Return True if `value` is better than `other` for the metric. NaN is neither better nor worse."""
    return value > other if metric.better == "higher" else value < other


def draw_constant(axes: Sequence[Axes], value: float | None) -> None:
    """Draw a dotted line at the constant predictor's value, unless it is far outside the vertical axis's limits."""
    if value is not None and _near(axes[0], value, value):
        for axis in axes:
            axis.axhline(value, color=colours.CONSTANT, ls=":", lw=1.5, label=CONSTANT)


def alone_of(best: Mapping[str, xr.Dataset], metric: Metric) -> dict[str, Summary]:
    """Return a metric of machines that train alone, by column header. Protocols with different data have separate ones.

    Axes along which the metric is constant are dropped.
    """
    groups: list[tuple[list[str], Summary]] = []
    for label, data in best.items():
        found = alone(data, metric.name)
        if found is None:
            continue
        mean, half = _along(found)
        same = next((labels for labels, (other, _) in groups if other.equals(mean)), None)
        if same is None:
            groups.append(([label], (mean, half)))
        else:
            same.append(label)
    return {ALONE + (f" ({', '.join(ls)})" if len(groups) > 1 else ""): summary for ls, summary in groups}


def _along(summary: Summary) -> Summary:
    mean, half = summary
    for name in mean.dims:
        first = mean.isel({name: 0}, drop=True)
        if all(mean.isel({name: place}, drop=True).equals(first) for place in range(mean.sizes[name])):
            mean, half = first, half.isel({name: 0}, drop=True)
    return mean, half


def draw_alone(
    axes: Sequence[Axes],
    points: Sequence[Mapping[str, float]],
    best: Mapping[str, xr.Dataset],
    metric: Metric,
    along: str = "",
) -> None:
    """Draw a dashed line at the mean of machines that train alone, unless it is far outside the axis's limits.

    If the mean depends on the horizontal axis, the line is a curve.

    Args:
        points: for each panel, values of the axes that are not drawn.
        along: name of the horizontal axis.
    """
    for grey, (words, (mean, _)) in zip(colours.ALONE * len(best), alone_of(best, metric).items(), strict=False):
        parts = [
            mean.sel({n: v for n, v in point.items() if n in mean.dims and n != along}, method="nearest")
            for point in points
        ]
        parts = [part.isel({name: 0 for name in part.dims if name != along}) for part in parts]
        if not _near(axes[0], min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)):
            continue
        for axis, part in zip(axes, parts, strict=True):
            style = {"color": grey, "ls": "--", "lw": 1.5, "label": words}
            if along in part.dims:
                axis.plot(part[along], part, **style)
            else:
                axis.axhline(float(part), **style)


def _near(axis: Axes, least: float, most: float) -> bool:
    """Return True if the values are within an axis's limits, or exceed them by at most the distance of the limits."""
    low, high = axis.get_ylim()
    return 2 * low - high <= least and most <= 2 * high - low


def below_alone(best: Mapping[str, xr.Dataset], runs: Mapping[str, xr.DataArray], metric: Metric) -> list[str]:
    """Return a remark for each protocol that is worse in some cell than machines that train alone.

    Args:
        runs: value of each run, by label, shape [..., seed].
    """
    lines = []
    for label, values in runs.items():
        found = alone(best[label], metric.name)
        if found is None:
            continue
        gap = (mean_interval(values)[0] - _along(found)[0]) * (1 if metric.better == "higher" else -1)
        if (gap < 0).any():
            where = f"{int((gap < 0).sum())} of {gap.size} cells"
            lines.append(f"{label} is worse than {ALONE} in {where} of {metric.words}")
    return lines


def above_non_private(best: Mapping[str, xr.Dataset], runs: Mapping[str, xr.DataArray], metric: Metric) -> list[str]:
    """Return a remark for each private protocol that is better in some cell than a non-private one.

    The difference of means must exceed the root sum of squares of both half-widths.

    Args:
        runs: value of each run, by label, shape [..., seed].
    """
    free = [label for label in runs if np.isinf(best[label]["realised_mu"]).all()]
    lines = []
    for label in (label for label in runs if label not in free):
        for other in free:
            cells = _better_cells(runs[label], runs[other], metric)
            if cells.any():
                where = f"{int(cells.sum())} of {cells.size} cells"
                lines.append(
                    f"{label} is better than {other}, which has no noise, in {where} of {metric.words}: "
                    f"tune the step size, clip and rounds of {other} before reading it as the cost of privacy"
                )
    return lines


def _better_cells(private: xr.DataArray, free: xr.DataArray, metric: Metric) -> np.ndarray:
    """Return whether the private mean is better in each cell by more than both intervals; bool, shape [cells]."""
    (mean, half), (level, around) = mean_interval(private), mean_interval(free)
    gap = (mean - level) * (1 if metric.better == "higher" else -1)
    return np.ravel((gap > np.hypot(half.fillna(0), around.fillna(0))).values)


def sweep_notes(best: Mapping[str, xr.Dataset], runs: Mapping[str, xr.DataArray], metric: Metric) -> list[str]:
    """Return a line for each protocol whose swept clip has no effect, and for each whose best value is at an edge.

    Args:
        runs: value of each run by which cells are compared, by label; shape [..., seed].
    """
    without_effect = [label for label, data in best.items() if clip_has_no_effect(data)]
    lines = [f"{label}: {NO_EFFECT}" for label in without_effect]
    for label, values in runs.items():
        for axis in _tunable(values):
            if axis == "clip" and label in without_effect:
                continue
            at_edge = _at_edge(values, axis, metric)
            if at_edge.any():
                cells = "" if at_edge.size == 1 else f" in {int(at_edge.sum())} of {at_edge.size} cells"
                lines.append(f"{label}: the best cell is at the edge of the swept {axis}{cells}, by {metric.words}")
    return lines


def _tunable(values: xr.DataArray) -> list[str]:
    """Return the axes of three or more values that are settings of the method, not privacy levels or sizes."""
    fixed = (*LEVELS, *STRUCTURAL, "seed")
    return [str(name) for name in values.dims if name not in fixed and values.sizes[name] > 2]


def _at_edge(values: xr.DataArray, axis: str, metric: Metric) -> np.ndarray:
    """Return whether the best mean along the axis is at an end; bool, one for each cell of the other axes."""
    score = (1 if metric.better == "higher" else -1) * values.mean("seed", skipna=False)
    place = score.sortby(axis).fillna(-np.inf).argmax(axis).values
    return np.ravel((place == 0) | (place == values.sizes[axis] - 1))
