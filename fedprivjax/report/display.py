"""Tables and plots of results, which may be a folder, loaded results, or datasets of sweeps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

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
from fedprivjax.experiment.results import Results, load
from fedprivjax.experiment.tuning import Choice
from fedprivjax.privacy.target import LEVELS
from fedprivjax.report.client_plot import client_histogram, client_metrics
from fedprivjax.report.colours import using
from fedprivjax.report.costs import metric_against_costs, with_costs
from fedprivjax.report.plots import all_plots, metric_against, metric_against_epsilon, metric_over_rounds
from fedprivjax.report.remarks import choice_table
from fedprivjax.report.run_plots import plot_run
from fedprivjax.report.tables import footnotes, results_table, results_tables
from fedprivjax.report.text_table import Sheet, html_table, plain
from fedprivjax.report.wording import Layout, layout, layout_of
from fedprivjax.sweeps.results import has, require_scalars, vector_axes

EPSILON, ROUND, COSTS = "epsilon", "round", "costs"
COST = ("bytes", "gradients", "hours")  # horizontal axes of their own
Showable: TypeAlias = "str | Path | Results | xr.Dataset | Mapping[str, xr.Dataset]"


@dataclass(frozen=True)
class Tables:
    """Tables and their footnotes. `print` gives the command line's text, and a notebook shows HTML tables.

    Attributes:
        sheets: tables. Each has a `title` and a `frame`, a pandas DataFrame of its cells.
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


@dataclass(frozen=True)
class Shown:
    """Results with their layout, ready to be tabulated and plotted.

    Attributes:
        layout: axes, δ, iterate and notes.
        best: datasets by label, each protocol's grid reduced to its best point.
        partition: plot of the data partition, or None.
        tuned: table of the points tuned on other data, or None.
    """

    layout: Layout
    best: Mapping[str, xr.Dataset]
    partition: Figure | None = None
    tuned: Sheet | None = None

    def tables(self) -> Tables:
        """Return every table, and the footnotes."""
        tuned = [] if self.tuned is None else [self.tuned]
        return Tables([*results_tables(self.layout, self.best), *tuned], footnotes(self.layout, self.best))

    def plots(self) -> dict[str, Figure]:
        """Return every informative plot, by name."""
        partition = {} if self.partition is None else {"partition": self.partition}
        return partition | all_plots(self.best, self.layout)


def shown(
    experiment: Experiment,
    best: Mapping[str, xr.Dataset],
    partition: Figure | None = None,
    choices: Mapping[str, Choice] | None = None,
) -> Shown:
    """Return an experiment's selected results, laid out by its settings."""
    return Shown(layout(experiment), best, partition, choice_table(experiment, choices) if choices else None)


def table(results: Showable, metric: str | Metric | None = None, *, iterate: str | None = None) -> Tables:
    """Return the tables that the command line prints.

    Args:
        results: a results folder, the result of `load`, a sweep's dataset, or datasets by label.
        metric: metric of the only table, or None for all tables.
        iterate: iterate to show. Default: the experiment's `evaluation.iterate`, or the output.

    Raises:
        Refusal: if the folder cannot be read, or the metric was not recorded.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)
    >>> table(grid, "test_loss").sheets[0].frame.columns.tolist()
    ['mu', 'target ε', 'DPMu2']
    """
    this = laid_out(results, iterate)
    if metric is None:
        return this.tables()
    recorded_by(this, metric)
    return Tables([results_table(this.layout, this.best, metric)], footnotes(this.layout, this.best))


def plot(
    results: "Showable | SavedRun",
    metric: str | Metric | None = None,
    against: str | None = None,
    *,
    iterate: str | None = None,
    bands: bool = False,
    style: str = "screen",
) -> Figure:
    """Return a plot of results, or of one run, as a matplotlib figure.

    Args:
        results: as in `table`, or a run.
        metric: metric to draw. Default: the first one that the command line draws, or all of a run. A metric of every
            client without `against` is a histogram. Of a run also "participation" (which machines take part in which
            round), "machine_epsilon" (how many machines have which ε) or "noise_correlation" (of noise that is
            correlated over rounds or between machines).
        against: horizontal axis: "epsilon", "round", "costs" (rounds, bytes, gradients and hours), "bytes" (sent by a
            machine), "gradients" (per record), "hours" (simulated) or any swept setting. Default: the first of these
            that applies.
        iterate: as in `table`.
        bands: True draws 95% intervals of the mean as bands, instead of the experiment's bars, also against ε and
            swept settings. Bands need three seeds.
        style: "screen", "dark" (for dark pages), or "paper": the width of a column and text of 8 points.
            `figure.savefig("name")` then writes a PDF. In every style a method keeps its colour, line style and
            marker. Eight of them differ for colour-blind readers, the first four also in greyscale.

    Raises:
        Refusal: if the metric was not recorded, the axis was not swept, there is nothing to draw, or there is no such
            style.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)
    >>> figure = plot(grid, "test_accuracy", against="epsilon", bands=True, style="paper")
    >>> figure.get_size_inches().tolist()
    [3.35, 2.3]
    """
    with using(style):
        if isinstance(results, SavedRun):
            return plot_run(results, metric, against)
        return _plot(laid_out(results, iterate), metric, against, bands)


def _plot(this: Shown, metric: str | Metric | None, against: str | None, bands: bool) -> Figure:
    evaluation = this.layout.evaluation
    if metric is not None and against is None and known(metric).name in client_metrics(this.best):
        return client_histogram(this.best, known(metric).name, evaluation.at, iterate=evaluation.iterate)
    axes = _axes(this)
    if metric is None and against is None and not bands:
        if made := this.plots():
            return next(iter(made.values()))
        if not axes:
            raise Refusal("results must have an axis of several values or several records to be drawn, got neither")
    against = against or next(iter(axes), ROUND)
    require_choice("axis of a plot", against, axes)
    metric = metric or usual_metric(this, against)
    name = recorded_by(this, metric)
    of: dict[str, Any] = {"iterate": evaluation.iterate}
    if against == ROUND:
        return metric_over_rounds(this.best, metric, evaluation.at, **of)
    of["constant"] = "constant" in evaluation.baselines
    if against in (COSTS, *COST):
        of |= {} if against == COSTS else {"costs": [against]}
        return metric_against_costs(this.best, metric, evaluation.at, **of)
    of |= {"bars": "interval" if bands else evaluation.bars, "bands": bands, "rounds": this.layout.rounds(name)}
    best = {label: data for label, data in this.best.items() if has(data, name)}
    if against == EPSILON:
        return metric_against_epsilon(best, metric, **of)
    return metric_against(best, against, metric, **of)


def laid_out(results: Showable, iterate: str | None) -> Shown:
    """Return the laid-out results of a folder, loaded results, or datasets."""
    if isinstance(results, str | Path):
        results = load(results)
    if isinstance(results, Results):
        this = shown(results.spec, results.best, choices=results.choices)
    elif isinstance(results, xr.Dataset):
        this = _of_datasets({str(results.attrs.get("protocol", "protocol")): results})
    elif isinstance(results, Mapping) and results and all(isinstance(data, xr.Dataset) for data in results.values()):
        this = _of_datasets(results)
    else:
        wanted = "results must be a folder, the result of load, or datasets of sweeps"
        one = ". Use run.metrics, or sweep(…, seeds=[seed])" if isinstance(results, SavedRun) else ""
        raise Refusal(f"{wanted}, got {type(results).__name__}{one}")
    if iterate is None:
        return this
    evaluation = this.layout.evaluation.but(iterate=iterate)
    return replace(this, layout=replace(this.layout, evaluation=evaluation))


def _of_datasets(datasets: Mapping[str, xr.Dataset]) -> Shown:
    for label, data in datasets.items():
        lacking = [name for name in ("diverged", "realised_epsilon", "guarantee") if name not in data]
        lacking += [name for name in ("delta", "non_private_metrics") if name not in data.attrs]
        if lacking:
            raise Refusal(f"dataset of {label!r} must be a sweep's, got one without {', '.join(lacking)}")
    return Shown(layout_of(datasets), datasets)


def _axes(this: Shown) -> list[str]:
    """Return the available horizontal axes: ε, the swept settings, rounds and costs."""
    sizes = [(str(name), n) for data in this.best.values() for name, n in data["diverged"].sizes.items()]
    swept = list(dict.fromkeys(name for name, size in sizes if size > 1 and name != "seed"))
    others = [name for name in swept if name not in LEVELS]
    rounds = any(data.sizes.get(ROUND, 0) > 1 for data in this.best.values())
    costs = (COSTS, *COST) if rounds and with_costs(this.best) else ()
    return [EPSILON] * (others != swept) + others + [ROUND] * rounds + [*costs]


def usual_metric(this: Shown, against: str = EPSILON) -> str:
    """Return the metric that the command line draws first."""
    places = {ROUND: "over_rounds"} | dict.fromkeys((COSTS, *COST), "against_costs")
    names = usual(places.get(against, "against_epsilon"))
    for data in this.best.values():
        recorded = (name for name in data if ROUND in data[name].dims)
        names += [str(name) for name in recorded if not vector_axes(data[name], data)]
    found = next((name for name in names if any(has(data, name) for data in this.best.values())), None)
    if found is None:
        raise Refusal("results must have a recorded metric to be drawn, got none")
    return found


def recorded_by(this: Shown, metric: str | Metric) -> str:
    """Return the metric's name.

    Raises:
        Refusal: unless at least one protocol recorded it.
    """
    name = known(metric).name
    names = dict.fromkeys(str(n) for data in this.best.values() for n in data if ROUND in data[n].dims)
    if not any(has(data, name) for data in this.best.values()):
        require_recorded(name, names)
    for data in this.best.values():
        require_scalars(name, data)
    return name
