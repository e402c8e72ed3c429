"""Text of a method comparison: bounds, costs and guarantees, without a ranking across kinds of bound."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Group
from rich.text import Text

from fedprivjax.method.planning.bounds import EXPLICIT, GRADIENT, MISSING, ORDER, POPULATION, TRAINING
from fedprivjax.privacy.terms import TRUST
from fedprivjax.report.number_format import count_text, number_text
from fedprivjax.report.relations import mixed, terms_of
from fedprivjax.report.text_table import Sheet

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
    alike: dict[str, list[str]] = {}
    for label in at["protocol"].values:
        for terms in terms_of(at.sel(protocol=label)):
            words = f"{terms.unit}, {terms.stated_relation}, trust {terms.trust}; {terms.theorem}"
            alike.setdefault(words, []).append(str(label))
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
