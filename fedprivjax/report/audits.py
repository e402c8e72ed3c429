"""Results of audits: tables, and a plot of the claimed ε(δ) with the proved lower bounds."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprivjax.auditing.audit import LEVEL, Audit
from fedprivjax.auditing.one_run import OneRunAudit
from fedprivjax.privacy import gdp
from fedprivjax.privacy.cross_check import AGREES, entry
from fedprivjax.report.colours import colour
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import mixed

DELTAS = np.geomspace(1e-7, 0.1, 25)
Cells = Mapping[str, Callable[[Any], str]]  # text of a cell from an audit, by column header


def audit_table(audits: Mapping[str, Audit]) -> Sheet:
    """Return a table with a row per protocol: claimed ε, accountant's ε, lower bound at 95% confidence, and outcome."""
    title = f"audited against claimed; bounds at {1 - LEVEL:.0%}, of scaled-down runs"
    between = {"accountant's ε": _accounted, "canary's part": _achieved}
    return _table(title, audits, between, "… by μ", {"runs": lambda one: f"2 · {one.bounds.runs[0]}"})


def one_run_table(audits: Mapping[str, OneRunAudit]) -> Sheet:
    """Return a table by protocol: claimed ε, and the lower bound from correct guesses of canaries at 95%."""
    between = {
        "canaries": lambda one: str(one.bounds.canaries),
        "guessed": lambda one: str(one.bounds.guesses),
        "right": lambda one: str(one.bounds.right),
    }
    return _table(
        f"audited in one run against claimed; bounds at {1 - LEVEL:.0%}", audits, between, "ε proved by μ", {}
    )


def _table(title: str, audits: Mapping[str, Any], between: Cells, by_mu: str, after: Cells) -> Sheet:
    """Return a table of claims and lower bounds, with further columns between the two and after them."""
    table = Sheet(title + mixed(one.guarantee.terms for one in audits.values()))
    table.add_columns("protocol", "trust", justify="left")
    table.add_columns("δ", "claimed ε", *between, "ε proved", by_mu, *after, "verdict")
    for label, one in audits.items():
        claim, bounds = one.guarantee, one.bounds
        table.add_row(
            label,
            claim.trust,
            f"{claim.delta:g}",
            f"{claim.epsilon:.4g}",
            *(cell(one) for cell in between.values()),
            f"{bounds.epsilon_lower:.3g}",
            "–" if claim.mu is None else f"{bounds.gdp_epsilon_lower:.3g}",
            *(cell(one) for cell in after.values()),
            "REFUTED" if one.refuted else "not refuted",
        )
    return table


def refutations(audits: Mapping[str, Any]) -> list[str]:
    """Return a line for every protocol refuted on two neighbouring datasets, with the scores that refute it."""
    by = {label: one.refuted for label, one in audits.items() if one.refuted and one.refuted is not True}
    return [f"{label}: refuted by {', '.join(scores)}" for label, scores in by.items()]


def _accounted(one: Audit) -> str:
    """Return an accountant's ε, marked with "≥" if it is only a lower bound that an adversary achieves."""
    if one.guarantee.event is None:
        return "–"
    line = entry(one.guarantee.event, one.guarantee.delta)
    if not line.accountant:
        return "–"
    return f"{'' if line.verdict == AGREES else '≥ '}{line.accountant_epsilon:.4g}"


def _achieved(one: Audit) -> str:
    """Return the ratio of the canary's μ to the claimed one."""
    claimed = one.guarantee.mu
    return "–" if one.attained is None or claimed is None else f"{one.attained / claimed:.0%}"


def plot(audits: Mapping[str, Audit | OneRunAudit]) -> Figure:
    """Plot the claimed ε(δ) and its proved lower bounds, one panel per protocol."""
    columns = min(3, max(1, len(audits)))
    rows = -(-max(1, len(audits)) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for label, one in audits.items():
        _panel(next(panels), label, one)
    for panel in panels:
        panel.set_axis_off()
    return figure


def _panel(axis, label: str, one: Audit | OneRunAudit) -> None:
    claim, bounds = one.guarantee, one.bounds
    axis.plot(DELTAS, [claim.epsilon_at(delta) for delta in DELTAS], "k", label="claimed")
    if claim.mu is not None:
        axis.plot(DELTAS, gdp.epsilon(bounds.mu_lower, DELTAS), "--", color=colour(0), label="proved by μ")
    # a lower bound at δ also holds at every smaller δ, since ε(δ) is larger there
    axis.plot([DELTAS[0], claim.delta], [bounds.epsilon_lower] * 2, color=colour(1), label="proved")
    axis.plot([claim.delta], [bounds.epsilon_lower], "o", color=colour(1))
    axis.set(xscale="log", xlabel="δ", ylabel="ε", title=f"{label} ({claim.trust})", ylim=(0, None))
    axis.legend(fontsize=8)
