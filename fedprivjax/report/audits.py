"""What audits say: a table, and a plot of claimed ε(δ) with the bounds that were proved."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprivjax.auditing.audit import LEVEL, Audit
from fedprivjax.auditing.one_run import OneRunAudit
from fedprivjax.privacy import gdp
from fedprivjax.privacy.cross_check import AGREES, entry
from fedprivjax.report.colours import colour
from fedprivjax.report.text_table import Sheet

DELTAS = np.geomspace(1e-7, 0.1, 25)


def audit_table(audits: dict[str, Audit]) -> Sheet:
    """A row a protocol: the theorem's ε, an accountant's, what the likelihood ratio proves at 95%, the verdict."""
    table = Sheet(f"audited against claimed; bounds at {1 - LEVEL:.0%}, of runs in small")
    for name in ("protocol", "trust"):
        table.add_column(name)
    columns = ("δ", "claimed ε", "accountant's ε", "canary's part", "ε proved", "… by μ", "runs", "verdict")
    for name in columns:
        table.add_column(name, "right")
    for label, one in audits.items():
        claim, bounds = one.guarantee, one.best.bounds
        table.add_row(
            label,
            claim.trust,
            f"{claim.delta:g}",
            f"{claim.epsilon:.4g}",
            _accounted(one),
            "–" if one.attained is None or claim.mu is None else f"{one.attained / claim.mu:.0%}",
            f"{bounds.epsilon_lower:.3g}",
            "–" if claim.mu is None else f"{bounds.gdp_epsilon_lower:.3g}",
            f"2 · {bounds.runs[0]}",
            "REFUTED" if one.refuted else "not refuted",
        )
    return table


def refutations(audits: Mapping[str, Any]) -> list[str]:
    """A line for every protocol that is refuted in two worlds: by which scores."""
    by = {label: one.refuted for label, one in audits.items() if one.refuted and one.refuted is not True}
    return [f"{label}: refuted by {', '.join(scores)}" for label, scores in by.items()]


def _accounted(one: Audit) -> str:
    """An accountant's ε; "≥" where that is what an adversary attains, so at least so much."""
    if one.guarantee.event is None:
        return "–"
    line = entry(one.guarantee.event, one.guarantee.delta)
    if not line.accountant:
        return "–"
    return f"{'' if line.verdict == AGREES else '≥ '}{line.accountant_epsilon:.4g}"


def one_run_table(audits: dict[str, OneRunAudit]) -> Sheet:
    """A row a protocol: what is claimed, and what right guesses of canaries prove at 95%."""
    table = Sheet(f"audited in one run against claimed; bounds at {1 - LEVEL:.0%}")
    for name in ("protocol", "trust"):
        table.add_column(name)
    columns = ("δ", "claimed ε", "canaries", "guessed", "right", "ε proved", "ε proved by μ", "verdict")
    for name in columns:
        table.add_column(name, "right")
    for label, one in audits.items():
        claim, bounds = one.guarantee, one.bounds
        table.add_row(
            label,
            claim.trust,
            f"{claim.delta:g}",
            f"{claim.epsilon:.4g}",
            str(bounds.canaries),
            str(bounds.guesses),
            str(bounds.right),
            f"{bounds.epsilon_lower:.3g}",
            "–" if claim.mu is None else f"{bounds.gdp_epsilon_lower:.3g}",
            "REFUTED" if one.refuted else "not refuted",
        )
    return table


def plot(audits: Mapping[str, Audit | OneRunAudit]) -> Figure:
    """Claimed ε(δ), and what is proved: a panel a protocol."""
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
    # a bound at δ holds at every smaller δ, where ε is larger
    axis.plot([DELTAS[0], claim.delta], [bounds.epsilon_lower] * 2, color=colour(1), label="proved")
    axis.plot([claim.delta], [bounds.epsilon_lower], "o", color=colour(1))
    axis.set(xscale="log", xlabel="δ", ylabel="ε", title=f"{label} ({claim.trust})", ylim=(0, None))
    axis.legend(fontsize=8)
