"""Tables and plots of results, which may be a folder, loaded results, or datasets of sweeps."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TypeAlias

import xarray as xr
from matplotlib.figure import Figure
from rich.console import Console, ConsoleOptions
from rich.text import Text

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.finished_run import SavedRun
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, require_recorded
from fedprivjax.engine.metrics import shown as usual
from fedprivjax.experiment import Experiment
from fedprivjax.experiment.results import Results, load, require_of
from fedprivjax.experiment.tuning import selected
from fedprivjax.layout.colours import using
from fedprivjax.layout.text_table import Sheet, html_table, plain
from fedprivjax.report import plots
from fedprivjax.report.remarks import footnotes
from fedprivjax.report.run_plots import plot_run
from fedprivjax.report.summary import Summary, summary, summary_of
from fedprivjax.report.tables import (
    choice_table,
    chosen_tables,
    realised_differs,
    realised_table,
    results_table,
    results_tables,
)
from fedprivjax.sweeps.results import require_scalars, trials_as_seeds

Showable: TypeAlias = "str | Path | Results | xr.Dataset | Mapping[str, xr.Dataset]"


@dataclass(frozen=True)
class Tables:
    """Tables of results, with their footnotes.

    `print` writes them as text, as on the command line. A notebook shows them as HTML tables.

    Attributes:
        sheets: the tables. Each has a `title` and a `frame`, which is a pandas DataFrame of the table's texts and
            numbers.
        notes: footnotes.
    """

    sheets: list[Sheet]
    notes: list[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Sheet | Text]:
        yield from self.sheets
        yield from map(Text, self.notes)

    def __str__(self) -> str:
        return plain(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "\n".join([*map(html_table, self.sheets), *(f"<p>{escape(note)}</p>" for note in self.notes)])


def tables(this: Summary) -> Tables:
    """Return all tables of an experiment's results, and their footnotes.

    Args:
        this: results prepared for display, with the rows and metrics that tables show.
    """
    return Tables(results_tables(this), footnotes(this))


def experiment_summary(experiment: Experiment, results: Results) -> Summary:
    """Return the summary of an experiment's results, with the points tuned on other data."""
    require_of(experiment, results)
    tuned = choice_table(experiment, results.choices) if results.choices else None
    grids = {label: trials_as_seeds(data) for label, data in results.items()}
    return replace(summary(experiment, selected(experiment, dict(results))), grids=grids, tuned=tuned)


def table(results: Showable, metric: str | Metric | None = None, *, iterate: str | None = None) -> Tables:
    """Return results as tables, in the form in which the command line prints them.

    Args:
        results: a results folder, the result of `load`, the dataset of a sweep, or a dictionary of such datasets with
            the labels of their protocols as keys.
        metric: metric whose table is returned. If this table does not state the realised ε, a table of the realised ε
            is added. A table of chosen settings is added if settings, such as a step size, were chosen by the best
            metric in the same results. None returns all tables.
        iterate: name of the iterate to show, such as "last". None is the one that the experiment file names, or the
            reported parameters.

    Raises:
        Refusal: if the folder cannot be read, the metric was not recorded, or private protocols have different δ.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)
    >>> table(grid, "test_loss").sheets[0].frame.columns.tolist()
    ['mu', 'target ε', 'DPMu2']
    """
    this = summarised(results, iterate)
    if metric is None:
        return tables(this)
    require_recorded_by(this, metric)
    realised = [realised_table(this)] if realised_differs(this) else []
    return Tables([results_table(this, metric), *realised, *chosen_tables(this)], footnotes(this))


def plot(
    results: "Showable | SavedRun",
    metric: str | Metric | None = None,
    against: str | None = None,
    *,
    iterate: str | None = None,
    style: str = "screen",
) -> Figure:
    """Return a plot of results, or of one run, as a matplotlib figure.

    Args:
        results: a results folder, the result of `load`, the dataset of a sweep, a dictionary with such a dataset for
            the label of each protocol, or one run.
        metric: metric to draw. The default is the first metric that the command line draws, and for one run, all its
            scalar metrics. If a metric has one value per client and `against` is None, the plot is a histogram over
            clients. For one run, `metric` may also name one of these plots: "participation" (machines that take part in
            each round), "machine_epsilon" (ε of each machine), "epsilon" (ε of the rounds so far), or
            "noise_correlation" (correlations of the noise over rounds or between machines).
        against: horizontal axis: "epsilon", "round", "bytes" (sent by a machine), "gradients" (per record), "hours"
            (simulated), or any swept setting. For one run, it is "round" or "hours". "costs" has a panel for each of
            rounds, bytes, gradients and hours. "grid" draws heat maps over the two swept hyper-parameters with the most
            values, at least three each. If only one has three values, the vertical axis is ε. Default: "epsilon" if ε
            was swept, else the first swept setting, else "round".
        iterate: name of the iterate to show, such as "last". None is the one that the experiment file names, or the
            reported parameters.
        style: "screen", "dark" (for dark pages), "paper" or "paper wide". A figure for a paper has text of 8 points.
            With "paper wide" or several panels, its width is 6.75 inches (LaTeX's `figure*`), otherwise 3.25 inches (a
            column). In both paper styles, `figure.savefig("name")` writes a PDF. In every style, a method keeps its
            colour, line style and marker. Colour-blind readers can tell eight methods apart, and the first four also
            differ in greyscale.

    Raises:
        Refusal: if the metric was not recorded, the axis was not swept, there is nothing to draw, the style is unknown,
            or private protocols have different δ.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)
    >>> figure = plot(grid, "test_accuracy", against="epsilon", style="paper")
    >>> figure.get_size_inches().tolist()
    [3.25, 2.3]
    """
    with using(style):
        if isinstance(results, SavedRun):
            return plot_run(results, metric, against)
        return _plot(summarised(results, iterate), metric, against)


def _plot(this: Summary, metric: str | Metric | None, against: str | None) -> Figure:
    if metric is not None and against is None and known(metric).name in plots.client_metrics(this):
        return plots.client_histogram(this, metric)
    axes = plots.drawn_against(this)
    if metric is None and against is None:
        if made := plots.all_plots(this):
            return next(iter(made.values()))
        if not axes:
            raise Refusal("results must have an axis of several values or several records to be drawn, got neither")
    against = against or next(iter(axes), plots.ROUND)
    if against == plots.GRID and plots.GRID not in axes:
        raise Refusal(
            "grid must have two swept settings of methods (not ε or sizes) of three or more values, or one and several "
            "ε, to be drawn, got fewer. If a [[protocol]] of a file has the grid, draw results[label], its whole grid"
        )
    require_choice("axis of a plot", against, axes)
    metric = metric or usual_metric(this, against)
    if metric in axes:
        raise Refusal(f"metric must be a metric's name, got the axis {metric!r}. Write against={metric!r}")
    require_recorded_by(this, metric, axes)
    return axes[against](metric)


def summarised(results: Showable, iterate: str | None) -> Summary:
    """Return the summary of a folder, loaded results, or datasets."""
    if isinstance(results, str | Path):
        results = load(results)
    if isinstance(results, Results) and results.settings:
        this = experiment_summary(results.spec, results)
    elif isinstance(results, xr.Dataset):
        this = summary_of({str(results.attrs.get("protocol", "protocol")): results})
    elif isinstance(results, Mapping) and results and all(isinstance(data, xr.Dataset) for data in results.values()):
        this = summary_of(results)
    else:
        wanted = "results must be a folder, the result of load, or datasets of sweeps"
        one = ". Use run.metrics, or sweep(…, seeds=[seed])" if isinstance(results, SavedRun) else ""
        raise Refusal(f"{wanted}, got {type(results).__name__}{one}")
    return this if iterate is None else replace(this, evaluation=this.evaluation.but(iterate=iterate))


def usual_metric(this: Summary, against: str = plots.EPSILON) -> str:
    """Return the metric that the command line draws first."""
    places = {plots.ROUND: "over_rounds"} | dict.fromkeys((plots.COSTS, *plots.COST), "against_costs")
    scalars = [name for name, axes in this.recorded_axes.items() if not axes]
    found = next(filter(this.recorded, [*usual(places.get(against, "against_epsilon")), *scalars]), None)
    if found is None:
        raise Refusal("results must have a recorded metric to be drawn, got none")
    return found


def require_recorded_by(this: Summary, metric: str | Metric, others: Iterable[str] = ()) -> None:
    """Raise Refusal unless at least one protocol recorded the metric, with one value a round.

    Args:
        others: names that a misspelt metric may mean, for suggestions.
    """
    name = known(metric).name
    if not this.recorded(name):
        require_recorded(name, this.recorded_axes, others=others)
    for data in this.best.values():
        require_scalars(name, data)
