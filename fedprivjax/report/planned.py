"""Method comparison as text and as a plot: bounds, costs and guarantees, without a ranking across kinds of bound."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from rich.console import Group
from rich.text import Text

from fedprivjax.method.planning.bounds import EXPLICIT, GRADIENT, MISSING, ORDER, POPULATION, TRAINING
from fedprivjax.privacy.terms import TRUST
from fedprivjax.report.colours import look, slots
from fedprivjax.report.drawing import epsilon_axis
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import count_text, grouped, mixed, number_text, power_text, relations, terms_of

SECTIONS = (
    (EXPLICIT, POPULATION, "excess loss on the population, proved constants: smaller is better"),
    (EXPLICIT, TRAINING, "excess loss on the training records, proved constants: not on the population"),
    (ORDER, None, "rates without constants: not comparable"),
    (GRADIENT, None, "norm of the gradient: not comparable with a loss"),
    (MISSING, None, "no bound"),
)
WHOLE = ("rounds", "batch")
SHORT = {"optimisation": "steps", "sampling": "sampling", "noise": "noise", "stability": "reuse", "bias": "old points"}


def plan_report(found: xr.Dataset, given: set[str]) -> Group:
    """Return the tables and notes of a plan at each of its ε.

    Args:
        found: result of `planner.plan`.
        given: names of the settings that were given, not left to their defaults.
    """
    parts: list[Any] = [Text(line) for line in _settings(found, given)]
    for level in found["epsilon"].values.tolist():
        at = found.sel(epsilon=level)
        parts += [Text(), Text(_headline(at), style="bold"), *pilot_tables(at), *bound_tables(at), cost_table(at)]
    at = found.isel(epsilon=0)
    lists = (_pilot_notes(at), _notes(at), _theorems(at), _guarantees(at), _refusals(at))
    return Group(*parts, *(Text(line) for lines in lists for line in lines))


def pilot_tables(at: xr.Dataset) -> Iterator[Sheet]:
    """Yield the table of pilot runs, best method first, if there were any."""
    if "pilot" not in at.attrs:
        return
    table = Sheet(at.attrs["pilot"] + mixed(terms_of(at)))
    table.add_columns("method", justify="left")
    columns = {"accuracy in %": "pilot_accuracy", "seconds": "pilot_seconds", "ε": "pilot_epsilon"}
    columns |= {"rounds": "pilot_rounds", "batch": "batch", "step": "pilot_step"}
    table.add_columns(*columns)
    for label in ranked(at):
        row = at.sel(protocol=label)
        mean, half = (100 * float(row[name]) for name in ("pilot_accuracy", "pilot_interval"))
        shown = "diverged" if np.isnan(mean) else f"{mean:.1f}" + ("" if np.isnan(half) else f" ± {half:.1f}")
        numbers = ((name, float(row[column])) for name, column in list(columns.items())[1:])
        table.add_row(str(label), shown, *(number_text(value, whole=name in WHOLE) for name, value in numbers))
    yield table


def ranked(at: xr.Dataset) -> list[str]:
    """Return the methods with a pilot run, best first and diverged ones last."""
    labels = at["protocol"].values[at["pilot_seconds"].notnull().values]
    return labels[np.argsort(-at["pilot_accuracy"].sel(protocol=labels).values, kind="stable")].tolist()


def bound_tables(at: xr.Dataset) -> Iterator[Sheet]:
    """Yield a table of bounds and their terms for each kind of bound."""
    terms = [str(term) for term in at["term"].values]
    for words, labels in sections(at):
        rows = [at.sel(protocol=label) for label in labels]
        shown = [term for term in terms if any(np.nan_to_num(row["bound_term"].sel(term=term)).any() for row in rows)]
        table = Sheet(words)
        table.add_columns("method", justify="left")
        table.add_columns("bound", *(SHORT[term] for term in shown), "bound_kind")
        for label, row in zip(labels, rows, strict=True):
            parts = [number_text(float(row["bound_term"].sel(term=term))) for term in shown]
            table.add_row(label, _bound(row), *parts, row["bound_kind"].item())
        yield table


def cost_table(at: xr.Dataset) -> Sheet:
    """Return a table of each method's noise, ε and cost of a run, in the order of the bounds."""
    noise = "each method's own noise_std, the worst machine's ε"
    table = Sheet(f"what it takes: {noise} at δ = {at.attrs['delta']:g}, costs in all{mixed(terms_of(at))}")
    columns = {"noise_std": "noise_std", "ε": "realised_epsilon", "step": "step_size"}
    columns |= {name: name for name in WHOLE}
    counted = ("gradients", "messages", "bytes")
    table.add_columns("method", justify="left")
    table.add_columns(*columns, *counted)
    for _, labels in sections(at):
        table.add_section()
        for label in labels:
            row = at.sel(protocol=label)
            cells = [number_text(float(row[name]), whole=name in WHOLE) for name in columns.values()]
            table.add_row(label, *cells, *(count_text(float(row[name])) for name in counted))
    return table


def sections(at: xr.Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yield the planned methods by kind of bound, sorted by bound."""
    for kind, of, words in SECTIONS:
        chosen = (at["bound_kind"] == kind) & ((at["bound_of"] == of) if of else True)
        labels = at["protocol"].values[chosen.values]
        if labels.size:
            yield words, labels[np.argsort(at["bound"].values[chosen.values], kind="stable")].tolist()


def _settings(found: xr.Dataset, given: set[str]) -> list[str]:
    s = found.attrs
    constants = [("lipschitz", "G"), ("smoothness", "L"), ("diameter", "D")]
    values = ", ".join(f"{letter} = {s[name]:g}{'' if name in given else ' (default)'}" for name, letter in constants)
    sizes = f"{s['per_round']} a round, {s['samples']} records each; d = {s['dimension']}"
    first = f"{s['machines']} identical machines, {sizes}"
    trust = f"trust {s['trust']}: an adversary sees {TRUST[s['trust']]}"
    replaced = "; ".join(s.get("replaced", []))
    own = [f"replaced in the file's own setting: {replaced}"] if replaced else []
    return [*own, first, f"constants of the losses on a ball of diameter D: {values}", trust]


def _headline(at: xr.Dataset) -> str:
    """Return a line with the smallest of the comparable bounds."""
    trivial, level = at.attrs["trivial"], float(at["epsilon"])
    comparable = at["bound"].where((at["bound_kind"] == EXPLICIT) & (at["bound_of"] == POPULATION))
    if not (comparable < trivial).any():
        return f"actual ε = {level:g}: no bound on the population's loss is below G·D = {trivial:g}, which is trivial"
    best = comparable["protocol"].values[int(np.nanargmin(comparable.values))]
    least = number_text(float(comparable.min()))
    return f"actual ε = {level:g}: the smallest proved bound is {least}, of {best} (trivial: G·D = {trivial:g})"


def _notes(at: xr.Dataset, name: str = "note") -> Iterator[str]:
    named = ((label, at[name].sel(protocol=label).item()) for label in at["protocol"].values)
    lines = [f"  {label}: {note}" for label, note in named if note]
    yield from ["notes:", *lines] if lines else []


def _pilot_notes(at: xr.Dataset) -> Iterator[str]:
    if "pilot" in at.attrs:
        yield f"pilot: {at.attrs['pilot_data']}"
        yield from list(_notes(at, "pilot_note"))[1:]


def _theorems(at: xr.Dataset) -> Iterator[str]:
    """Yield the theorem of each bound, or the reason for a missing one."""
    yield "bounds:"
    for _, labels in sections(at):
        yield from (f"  {label}: {at['theorem'].sel(protocol=label).item()}" for label in labels)


def _guarantees(at: xr.Dataset) -> Iterator[str]:
    """Yield the guarantees, one line for all methods with the same text."""
    yield "guarantees:"
    stated = ((str(label), one) for label in at["protocol"].values for one in terms_of(at.sel(protocol=label)))
    alike = grouped(
        (f"{one.unit}, {one.stated_relation}, trust {one.trust}; {one.theorem}", label) for label, one in stated
    )
    yield from (f"  {'; '.join(labels)}: {words}" for words, labels in alike.items())


def _refusals(at: xr.Dataset) -> Iterator[str]:
    named = [(label, at["refusal"].sel(protocol=label).item()) for label in at["protocol"].values]
    if any(why for _, why in named):
        yield "not planned:"
    yield from (f"  {label}: {why}" for label, why in named if why)


def _bound(row: xr.Dataset) -> str:
    """Return the bound, marked "vacuous" if not below the trivial one: G·D for an excess loss, G for a gradient."""
    value, kind = float(row["bound"]), row["bound_kind"].item()
    if np.isnan(value):
        return "missing"
    most = {EXPLICIT: row.attrs["trivial"], GRADIENT: row.attrs["lipschitz"]}.get(kind, np.inf)
    return number_text(value) + (" vacuous" if value >= most else "")


def bound_against_epsilon(found: xr.Dataset, pilot: xr.Dataset | None = None) -> Figure:
    """Plot the bounds of a plan (`planner.plan`) against ε, one panel per kind of bound, one line per method.

    A bound above the dotted line is vacuous. The line is G·D for an excess loss and G for a gradient. Bounds on the
    training loss are dashed. The accuracy of a pilot run, if there was one, has a separate panel.

    Args:
        pilot: plan with the pilot runs, if it is another one, for example at fewer ε. Default: `found`.
    """
    pilot = found if pilot is None else pilot
    kinds = [kind for kind in (EXPLICIT, GRADIENT) if (found["bound_kind"] == kind).any()] or [EXPLICIT]
    panels = len(kinds) + ("pilot" in pilot.attrs)
    figure = Figure(figsize=(6.4 * panels, 6.0), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if "pilot" in pilot.attrs:
        _draw_pilot(axes[-1], pilot)
    for axis, kind in zip(axes, kinds, strict=False):
        _draw_bounds(axis, found, kind)
        name, most = ("G·D", "trivial") if kind == EXPLICIT else ("G", "lipschitz")
        axis.axhline(found.attrs[most], color="black", ls=":", lw=1, label=f"{name}: vacuous from here on")
        title = "excess loss, explicit constants" if kind == EXPLICIT else "norm of the gradient"
        axis.set(
            xscale="log",
            yscale="log",
            xlabel=f"actual ε  (δ = {power_text(found.attrs['delta'])}, {relations(terms_of(found))})",
        )
        axis.set(ylabel="bound", title=title)
        _finish(axis)
    s = found.attrs
    figure.suptitle(
        f"{s['machines']} machines, {s['per_round']} a round, {s['samples']} records each, d = {s['dimension']}, "
        f"trust {s['trust']}",
        fontsize=10,
    )
    return figure


def _draw_bounds(axis, found: xr.Dataset, kind: str) -> None:
    """Draw a line for each method with a bound of this kind."""
    chosen = found["bound"].where(found["bound_kind"] == kind)
    labels = found["protocol"].values[chosen.notnull().any("epsilon").values]
    for slot, label in zip(slots(map(_method, labels)), labels, strict=True):
        training = (found["bound_of"].sel(protocol=label) == TRAINING).any()
        words = f"{label} (training loss)" if training else str(label)
        style = look(slot) | {"ls": "--" if training else "-"}
        axis.plot(found["epsilon"], chosen.sel(protocol=label), label=words, ms=5, mfc="none", **style)


def _draw_pilot(axis, found: xr.Dataset) -> None:
    """Draw accuracy on synthetic data against ε, one line for each method with a pilot run."""
    accuracy = 100 * found["pilot_accuracy"]
    labels = found["protocol"].values[accuracy.notnull().any("epsilon").values]
    for slot, label in zip(slots(map(_method, labels)), labels, strict=True):
        style = {"ms": 5, "mfc": "none", **look(slot)}
        half = 100 * np.nan_to_num(found["pilot_interval"].sel(protocol=label))
        axis.errorbar(found["epsilon"], accuracy.sel(protocol=label), half, label=str(label), capsize=2, **style)
    axis.set(xscale="log", xlabel="actual ε", ylabel="accuracy in %, synthetic data")
    axis.set_title(found.attrs["pilot"].replace("; ", "\n"), fontsize=9)
    _finish(axis)


def _method(label: str) -> str:
    """Return the method of a row's label, which may name a use of it too."""
    return str(label).split(" ")[0]


def _finish(axis) -> None:
    """Add ticks, a grid and a legend below the axis."""
    epsilon_axis(axis)
    axis.grid(alpha=0.3, which="both")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
