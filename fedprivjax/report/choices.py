"""Table of the hyper-parameters that were tuned on another dataset."""

from collections.abc import Mapping

from fedprivjax.experiment import Experiment, tuning_experiment
from fedprivjax.experiment.tuning import Choice, formatted
from fedprivjax.report.text_table import Sheet


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
