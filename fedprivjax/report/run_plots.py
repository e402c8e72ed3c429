"""Figures of one run: its metrics, who takes part, ε over rounds and of every machine, and the noise's correlation."""

from collections.abc import Iterable
from contextlib import suppress

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.finished_run import Run, SavedRun
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known, require_recorded
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.experiment.jobs import Job
from fedprivjax.layout.colours import CONSTANT, colour, look, slots
from fedprivjax.layout.drawing import FONT, add_legend, panelled, percent_ticks, point_title
from fedprivjax.layout.wording import power_text, relations
from fedprivjax.noise import correlation
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy import gdp
from fedprivjax.privacy.rounding import up
from fedprivjax.report.partition_plot import NAMED
from fedprivjax.report.summary import Summary
from fedprivjax.report.tables import BEST

CELLS = 400  # most rows and columns of an image; more machines or rounds share one
ENDS = 40  # most numbers of rounds for which ε is computed
BINS = 31  # odd, so that one value is in the middle of its bar
SIZE = 6.0, 3.8  # width and height in inches
ROW = 0.17  # height of a machine's bar in inches, with text of `FONT` points


def plot_run(run: SavedRun, shown: str | Metric | None = None, against: str | None = None) -> Figure:
    """Plot one run.

    Args:
        shown: a recorded metric; "participation", the rounds in which every machine takes part; "machine_epsilon", the
            ε of each machine, as a histogram if there are more than 30; "epsilon", the ε of the first rounds;
            "noise_correlation", of noise that is correlated over rounds or between machines; or None for every
            recorded metric of scalars.
        against: "round" or "hours", for metrics.

    Raises:
        Refusal: if the run does not have what is to be drawn, or has no public schedule.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> run = simulate(DPMu2(mu=2.0, clip=1.6), problem, Uniform(20, 10), rounds=3, seed=1)
    >>> plot_run(run).axes[0].get_ylabel(), plot_run(run, "participation").axes[0].get_ylabel()
    ('test accuracy', 'machine')
    """
    if shown is None or isinstance(shown, Metric) or shown not in VIEWS:
        return metrics_of(run, shown, against)
    if against is not None:
        raise Refusal(f"against must go with a metric, got {against!r} with {shown!r}")
    _, draw = VIEWS[shown]
    return draw(run)


def plots_of_first(this: Summary, jobs: Iterable[Job]) -> tuple[str, dict[str, Figure]]:
    """Return the name of a run of the first private protocol, and its figures by title.

    The run is that of the first seed at the chosen point, as in `Summary.drawn`. ε over rounds is left out if it has to
    be searched for. The name is empty if there is no private protocol, or all its sweeps are of trials.
    """
    ready = [job for job in jobs if job.label in this.private and job.start is not None]
    metric = next((cells.metric for cells in this.tabulated if ready and ready[0].label in cells.runs), None)
    if metric is None:
        return "", {}
    label = ready[0].label
    chosen, axes = this.drawn(metric, ()).best[label], this.whole[label]["diverged"].drop_vars("seed").coords
    at = {str(name): float(chosen[f"{BEST}{name}" if f"{BEST}{name}" in chosen else name]) for name in axes}
    job = next(job for job in ready if job.label == label and job.shape.items() <= at.items())
    start, made = job.prepare().start_at(at), {}
    for title, draw in VIEWS.values():
        if draw is epsilon_spent and start.event.mus is None:
            continue
        with suppress(Refusal):  # not every run has every figure
            made[title] = draw(start)
    name = f"{label} at {point_title(at)}" if at else label
    return f"{name} ({chosen.attrs['selected']})" if "selected" in chosen.attrs else name, made


def metrics_of(run: SavedRun, metric: str | Metric | None = None, against: str | None = None) -> Figure:
    """Plot metrics of one run over rounds or simulated hours, one panel for each metric, one curve for each iterate."""
    scalars = [name for name, values in run.metrics.items() if values.ndim == 1]
    scalars.sort(key=lambda name: not known(name).shown)  # those of the command line first
    name = None if metric is None else known(metric).name
    if name in run.metrics and name not in scalars:
        raise Refusal(f"metric of a run must have one value a round to be drawn, got {name!r}. Draw a sweep's results")
    if name is not None:
        require_recorded(name, scalars, others=VIEWS)
    hours, against = getattr(run, "hours", None), against or "round"
    along = {"round": run.rounds} | ({} if hours is None else {"hours": hours})
    require_choice("axis of a plot", against, along)
    drawn = scalars if name is None else [name]
    if not drawn:
        raise Refusal("run must have a recorded metric to be drawn, got none")
    figure, panels = panelled(len(drawn), 4.2, 3.2, sharey=False)
    (slot,) = slots([run.method])
    for axis, one in zip(panels, drawn, strict=True):
        shown = {label: held[one] for label, held in run.iterates.items() if one in held}
        for place, (label, values) in enumerate(shown.items()):
            axis.plot(along[against], values, label=label, **look(slot + place), markevery=[-1])
        uncovered = "\n(not covered by ε)" * (one in run.non_private_metrics)
        axis.set(xlabel="simulated hours" if against == "hours" else "round", ylabel=known(one).words + uncovered)
        axis.grid(alpha=0.3)
        if known(one).unit == "%":
            percent_ticks(axis.yaxis)
    if len(run.iterates) > 1:
        add_legend(figure, [max(panels, key=lambda axis: len(axis.lines))])
    return figure


def participation(run: SavedRun | ReadyRun) -> Figure:
    """Plot which machines take part in each round of a run.

    The horizontal axis is the round, and the vertical axis is the machine. A cell is black if the machine takes part in
    the round, and grey if it drops out. If there are more than 400 (`CELLS`) machines or rounds, several machines share
    a row, or several rounds share a column. The shade of a cell is then a mean.
    """
    schedule = _plan(run).schedule
    if schedule.secret is not None:
        raise Refusal(f"participation must be public to be drawn, got {schedule.secret}, which the server keeps secret")
    round_of, slot = np.nonzero(schedule.scheduled)
    machine, share = schedule.participants[round_of, slot], np.where(schedule.present[round_of, slot], 1.0, 0.5)
    size = schedule.size
    bins = min(size.machines, CELLS), min(size.rounds, CELLS)
    edges = [np.linspace(0, size.machines, bins[0] + 1), np.linspace(0, size.rounds, bins[1] + 1)]
    counts, _, _ = np.histogram2d(machine, round_of, edges, weights=share)
    cells = np.outer(*(np.diff(np.ceil(each - 1e-9)) for each in edges))
    figure, (axis,) = panelled(1, *SIZE)
    extent = (0.5, size.rounds + 0.5, size.machines - 0.5, -0.5)
    image = axis.imshow(counts / cells, aspect="auto", interpolation="nearest", extent=extent, cmap="Greys", vmin=0)
    total = schedule.total
    title = f"{size.machines} machines, {schedule.cohort:.4g} a round, each in {total.min()} to {total.max()} rounds"
    axis.set(xlabel="round", ylabel="machine", title=title)
    _whole(axis.xaxis)
    _number_machines(run, axis.yaxis)
    if (size.machines, size.rounds) != bins:
        figure.colorbar(image, label="share of machines and rounds")
    else:
        names = {1.0: "takes part", 0.5: "drops out"}
        shown = [Patch(fc=image.get_cmap()(each), ec=CONSTANT, label=names[each]) for each in names if each in share]
        figure.legend(handles=shown, loc="outside lower center", ncols=len(shown))
    return figure


def machine_epsilons(run: SavedRun | ReadyRun) -> Figure:
    """Plot the ε of each machine, the worst in another colour. Of more than `NAMED` machines, plot a histogram.

    A line marks the largest ε, which is the run's.
    """
    one = run.guarantee
    if not one.private:
        raise Refusal("run must be private for an ε of every machine, got a non-private one")
    machines, worst = one.per_machine.size, np.flatnonzero(one.per_machine >= (1 - 1e-9) * one.stated.max)
    many = machines > NAMED
    values = one.stated.values if many else one.per_machine
    values = values if one.mus is None else np.atleast_1d(gdp.epsilon(values, one.delta))
    figure, (axis,) = panelled(1, *SIZE)
    if many:
        axis.hist(values.round(9), BINS, weights=one.stated.counts, color=colour(0))
        _whole(axis.yaxis)
    else:
        marked = np.isin(range(machines), worst) & (worst.size < machines)
        axis.barh(range(machines), values, color=[colour(int(mark)) for mark in marked])
        axis.set_ylim(machines - 0.4, -0.6)  # the first machine is at the top
        _number_machines(run, axis.yaxis)
        inches = ROW * float(matplotlib.rcParams["font.size"]) / FONT
        figure.set_figheight(max(figure.get_figheight(), inches * (machines + 6)))
    axis.axvline(one.epsilon, color=CONSTANT, ls=":")
    terms = f"(δ = {power_text(one.delta)}, {relations([one.terms])})"
    names = _client_names(run)
    which = f"client {names[worst[0]]!r}" if names else f"machine {worst[0]}"
    which += f" and {worst.size - 1} more" if worst.size > 1 else ""
    title = f"{'every machine' if worst.size == machines else f'the worst: {which}'}, ε = {up(one.epsilon, 4)}"
    axis.set(xlabel=f"ε of a machine  {terms}", ylabel="machines" if many else "machine", title=title)
    return figure


def epsilon_spent(run: SavedRun | ReadyRun) -> Figure:
    """Plot ε of the first rounds of a run, as if it had ended there: of its worst and of its median machine.

    There is one line for all machines if they are equal.
    The accountant is the run's. If participation is secret, every machine may take part in every round.
    """
    schedule, one = _plan(run).schedule, run.guarantee
    if not one.private:
        raise Refusal("run must be private for ε over rounds, got a non-private one")
    size = schedule.size
    ends = np.unique(np.linspace(1, size.rounds, ENDS).round().astype(int))
    if schedule.secret is not None:
        sent, total = np.broadcast_to(ends[:, None], (ends.size, size.machines)), np.full(size.machines, size.rounds)
    else:
        each, total = np.zeros((ends.size, size.machines), int), schedule.total
        t, slot = np.nonzero(schedule.scheduled)
        np.add.at(each, (np.searchsorted(ends, t + 1), schedule.participants[t, slot]), 1)
        sent = np.cumsum(each, axis=0)
    event = one.event.after(ends, sent, total)
    mus = event.mus
    found = event.epsilons(one.delta) if mus is None else mus.map(lambda mu: gdp.epsilon(mu, one.delta))
    values = found.each.reshape(sent.shape)
    if not np.isclose(values[-1].max(), one.epsilon, rtol=1e-9, atol=1e-12):
        raise Refusal(
            f"guarantee must follow from the run's rounds to be drawn over them, got ε = {up(one.epsilon, 4)}"
        )
    figure, (axis,) = panelled(1, *SIZE)
    lines = {"worst machine": values.max(axis=1), "median machine": np.median(values, axis=1)}
    if np.allclose(values.min(axis=1), values.max(axis=1), rtol=1e-9, atol=0):
        lines = {"all machines": values.max(axis=1)}
    for place, (name, line) in enumerate(lines.items()):
        points = np.append(0, ends), np.append(0, line)  # in between, the ε of the next point, which is larger
        axis.plot(*points, label=name, drawstyle="steps-pre", **look(place), markevery=[-1])
    axis.set(xlabel="round", ylabel=f"ε so far  (δ = {power_text(one.delta)}, {relations([one.terms])})", ylim=0)
    axis.set_title(f"ε = {up(one.epsilon, 4)} in {size.rounds} rounds")
    axis.grid(alpha=0.3)
    axis.legend()
    _whole(axis.xaxis)
    return figure


def noise_correlation(run: SavedRun | ReadyRun) -> Figure:
    """Plot the correlation of the noise: of the server's noise over rounds, or of two machines' messages of a round."""
    noise = getattr(run.protocol.privacy, "noise", None)  # type: ignore[attr-defined]
    matrix, name = correlation.noise_correlation(noise, _plan(run).schedule)
    figure, (axis,) = panelled(1, *SIZE)
    first = 0.5 if name == "round" else -0.5
    extent = (first, len(matrix) + first, len(matrix) + first, first)
    image = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
    figure.colorbar(image, label="correlation")
    axis.set(xlabel=name, ylabel=name)
    axis.set_title(f"noise: {noise}", fontsize="medium")
    _whole(axis.xaxis, axis.yaxis)
    if name == "machine":
        _number_machines(run, axis.yaxis)
    return figure


VIEWS = {  # of one run, by name: title on a page, and function
    "participation": ("participation", participation),
    "machine_epsilon": ("ε of each machine", machine_epsilons),
    "epsilon": ("ε over rounds", epsilon_spent),
    "noise_correlation": ("noise correlation", noise_correlation),
}


def _number_machines(run: SavedRun | ReadyRun, axis: Axis) -> None:
    """Set ticks at few clients with names, else at integers only."""
    names = _client_names(run)
    if 0 < len(names) <= NAMED:
        axis.set_ticks(range(len(names)), names)
    else:
        _whole(axis)


def _client_names(run: SavedRun | ReadyRun) -> tuple[str, ...]:
    """Return the names of the clients, or no names if they have none. A saved run does not know them."""
    return run.problem.client_names if isinstance(run, ReadyRun) else getattr(run, "client_names", ())


def _whole(*axes: Axis) -> None:
    """Set ticks at integers only."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))


def _plan(run: SavedRun | ReadyRun) -> Plan:
    if not isinstance(run, Run | ReadyRun):
        raise Refusal("run must have its plan for this plot, got a saved one. Use the result of simulate or run_of")
    return run.plan
