"""Method comparison as text: bounds, costs and guarantees, without a ranking across kinds of bound."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Group
from rich.text import Text

from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import count_text, grouped, guarantees_in, mixed, number_text, statement
from fedprivjax.method.planning.uses import EXPLICIT, GRADIENT, MISSING, ORDER, POPULATION, TRAINING
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import MACHINE, RECORD, TRUST

SECTIONS = (
    (EXPLICIT, POPULATION, "excess loss on the population, proved constants: smaller is better"),
    (EXPLICIT, TRAINING, "excess loss on the training records, proved constants: not on the population"),
    (ORDER, None, "rates without constants: not comparable"),
    (GRADIENT, None, "norm of the gradient: not comparable with a loss"),
    (MISSING, None, "no bound"),
)
UNITS = {"record": RECORD, "machine": MACHINE}
SHORT = {"optimisation": "steps", "sampling": "sampling", "noise": "noise", "stability": "reuse", "bias": "old points"}


def plan_ranking(found: xr.Dataset, given: set[str]) -> Group:
    """Return a plan's methods on a screen: the places of pilot runs, and the bounds at every ε, best first.

    Args:
        found: result of `planner.plan`.
        given: names of the settings that were given, not left to their defaults.
    """
    levels = [found.sel(epsilon=level) for level in found["epsilon"].values.tolist()]
    named = dict(sections(found))
    unproved, tried = named.pop(SECTIONS[-1][2], []), ranked(levels[0]) if "pilot" in found.attrs else []
    parts: list[Any] = [Text(line) for line in _settings(found, given)]
    parts += [Text(_headline(at), style="bold") for at in levels]
    if tried:
        title = "clip (of gradients or updates) and step of the pilot runs"
        parts += [_places_table(levels, tried), _level_table(title, levels, tried, _pilot_settings)]
    bound = partial(_bound, text=count_text, vacuous="*", none="–")
    parts += [_level_table(f"{words}; * vacuous", levels, labels, bound) for words, labels in named.items()]
    refused = found["protocol"].values[(found["refusal"] != "").all("epsilon").values].tolist()
    lines = {"no bound": [label for label in unproved if label not in tried], "not planned": refused}
    return Group(*parts, *(Text(f"{words}: {'; '.join(labels)}") for words, labels in lines.items() if labels))


def _places_table(levels: list[xr.Dataset], labels: list[str]) -> Sheet:
    """Return the place and the accuracy of every method with a pilot run, at every ε."""
    seeds = levels[0].attrs["pilot_seeds"]
    ties = f"a place is 1 plus the methods whose 95% interval (Student's t, {seeds} seeds) lies wholly above"
    table = Sheet(f"pilot runs; {ties if seeds > 1 else 'one seed gives no intervals, so all tie'}")
    table.add_columns("method", justify="left")
    for at in levels:
        table.add_columns(f"place, ε = {float(at['epsilon']):g}", "accuracy in %")
    for label in labels:
        table.add_row(label, *(cell for at in levels for cell in _placed(at.sel(protocol=label))))
    return table


def _level_table(title: str, levels: list[xr.Dataset], labels: list[str], text: Callable[[xr.Dataset], str]) -> Sheet:
    """Return a table of one text of every method at every ε."""
    table = Sheet(title)
    table.add_columns("method", justify="left")
    table.add_columns(*(f"ε = {float(at['epsilon']):g}" for at in levels))
    for label in labels:
        table.add_row(label, *(text(at.sel(protocol=label)) for at in levels))
    return table


def _pilot_settings(row: xr.Dataset) -> str:
    """Return the clip and the step of a pilot run."""
    return ", ".join(number_text(float(row[name]), "–") for name in ("pilot_clip", "pilot_step"))


def _placed(row: xr.Dataset) -> tuple[str, str]:
    """Return the place of a method in a pilot and its accuracy, as text."""
    mean, half = (100 * float(row[name]) for name in ("pilot_accuracy", "pilot_interval"))
    interval = "" if np.isnan(half) else f" ± {half:.1f}"
    return number_text(float(row["pilot_place"]), "–"), "diverged" if np.isnan(mean) else f"{mean:.1f}{interval}"


def plan_report(found: xr.Dataset, given: set[str]) -> Group:
    """Return everything that is known of every method: its numbers at each ε, and texts.

    Args:
        found, given: as in `plan_ranking`.
    """
    parts: list[Any] = [Text(line) for line in _settings(found, given)]
    for label in found["protocol"].values.tolist():
        parts += [Text(f"\n{label}", style="bold"), *details(found.sel(protocol=label))]
    return Group(*parts)


def details(row: xr.Dataset) -> Iterator[Sheet | Text]:
    """Yield the table of one method's numbers, with a column for each ε, and its texts with the ε that they hold at."""
    levels = row["epsilon"].values.tolist()
    table = Sheet(f"noise, bound and costs of all machines at δ = {row.attrs['delta']:g}")
    table.add_columns("", justify="left")
    table.add_columns(*(f"ε = {level:g}" for level in levels))
    terms = {f"bound: {SHORT[term]}": row["bound_term"].sel(term=term) for term in row["term"].values.tolist()}
    for name, values in {**row.data_vars, **terms}.items():
        if values.dims == ("epsilon",) and values.dtype.kind == "f" and np.nan_to_num(values).any():
            cells = [_bound(row.sel(epsilon=level)) for level in levels] if name == "bound" else map(_text, values)
            table.add_row(str(name), *cells)
    if table.rows:
        yield table
    for name in (name for name, values in row.data_vars.items() if values.dtype.kind == "O"):
        texts = map(_stated if name == "guarantee" else str, row[name].values.tolist())
        for text, at in grouped(zip(texts, levels, strict=True)).items():
            where = "" if len(at) == len(levels) else f" (ε = {', '.join(f'{level:g}' for level in at)})"
            yield from [Text(f"{name}{where}: {text}")] if text else []


def _text(value: Any) -> str:
    """Return a number to three digits, or a large one with its prefix."""
    return number_text(float(value), "–") if abs(float(value)) < 1000 else count_text(float(value))


def _stated(guarantee: str) -> str:
    """Return the statement of a guarantee without its numbers, or "" if there is none."""
    return statement(PrivacyGuarantee.from_json(guarantee).terms) if guarantee else ""


def ranked(at: xr.Dataset) -> list[str]:
    """Return the methods with a pilot run, best first and diverged ones last."""
    labels = at["protocol"].values[at["pilot_seconds"].notnull().values]
    return labels[np.argsort(-at["pilot_accuracy"].sel(protocol=labels).values, kind="stable")].tolist()


def sections(found: xr.Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yield the methods that are planned at any ε by kind of bound, sorted by the bound at the first ε."""
    found = found if "epsilon" in found.dims else found.expand_dims("epsilon")
    for kind, of, words in SECTIONS:
        chosen = ((found["bound_kind"] == kind) & ((found["bound_of"] == of) if of else True)).any("epsilon").values
        labels = found["protocol"].values[chosen]
        if labels.size:
            yield words, labels[np.argsort(found["bound"].isel(epsilon=0).values[chosen], kind="stable")].tolist()


def _settings(found: xr.Dataset, given: set[str]) -> list[str]:
    s = found.attrs
    constants = [("lipschitz", "G"), ("smoothness", "L"), ("diameter", "D")]
    values = ", ".join(f"{letter} = {s[name]:g}{'' if name in given else ' (default)'}" for name, letter in constants)
    sizes = f"{s['per_round']} a round, {s['samples']} records each; d = {s['dimension']}"
    first = f"{s['machines']} identical machines, {sizes}"
    protected = f"a guarantee at δ = {s['delta']:g} for {UNITS[s['unit']]}"
    trust = f"{protected}, trust {s['trust']}: an adversary sees {TRUST[s['trust']]}"
    replaced = "; ".join(s.get("replaced", []))
    own = [f"replaced in the file's own setting: {replaced}"] if replaced else []
    pilot = [s["pilot"], f"pilot: {s['pilot_data']}"] if "pilot" in s else []
    stated = [words.removeprefix("; ") for words in [mixed(one.terms for one in guarantees_in(found))] if words]
    return [*own, first, f"constants of the losses on a ball of diameter D: {values}", trust, *stated, *pilot]


def _headline(at: xr.Dataset) -> str:
    """Return a line with the first of a pilot, or with the smallest of the comparable bounds."""
    trivial, level = at.attrs["trivial"], float(at["epsilon"])
    if "pilot" in at.attrs and (at["pilot_place"] == 1).any():
        first = [label for label in ranked(at) if at["pilot_place"].sel(protocol=label) == 1]
        words = "the first place is" if len(first) == 1 else f"a tie of {len(first)} for the first place:"
        return f"realised ε = {level:g}: {words} {'; '.join(first)}, on synthetic data"
    if at["bound"].isnull().all():
        return f"realised ε = {level:g}: no bound is proved for these methods. Rank them by pilot runs: --pilot"
    comparable = at["bound"].where((at["bound_kind"] == EXPLICIT) & (at["bound_of"] == POPULATION))
    if not (comparable < trivial).any():
        return f"realised ε = {level:g}: no bound on the population's loss is below G·D = {trivial:g}, which is trivial"
    best = comparable["protocol"].values[int(np.nanargmin(comparable.values))]
    least = number_text(float(comparable.min()))
    return f"realised ε = {level:g}: the smallest proved bound is {least}, of {best} (trivial: G·D = {trivial:g})"


def _bound(
    row: xr.Dataset, text: Callable[[float], str] = number_text, vacuous: str = " vacuous", none: str = "missing"
) -> str:
    """Return the bound, marked if it is not below the trivial one: G·D for an excess loss, G for a gradient."""
    value, kind = float(row["bound"]), row["bound_kind"].item()
    if np.isnan(value):
        return none
    most = {EXPLICIT: row.attrs["trivial"], GRADIENT: row.attrs["lipschitz"]}.get(kind, np.inf)
    return text(value) + vacuous * (value >= most)
