"""Marks of protocols whose hyper-parameters were chosen by results, and the table of those tuned on another dataset."""

from collections.abc import Mapping

import xarray as xr

from fedprivjax.experiment import Experiment, tuning_experiment
from fedprivjax.experiment.tuning import Choice, formatted
from fedprivjax.report.text_table import Sheet
from fedprivjax.sweeps.selection import UNACCOUNTED

CHOSEN = " ‡"  # mark of a protocol with such a choice
CHOSEN_NOTE = "‡ chosen by results, not covered by the guarantee"
NAIVE_NOTE = (
    "intervals of ‡ are naive: the runs that chose a point also measure it, so they cover the mean in less than 95%"
)


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
