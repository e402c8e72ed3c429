"""Tables and plots of audits: claimed ε(δ) with the lower bounds that were proved."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprivjax.auditing.audit import LEVEL, Audit
from fedprivjax.auditing.one_run import OneRunAudit
from fedprivjax.layout.colours import colour
from fedprivjax.layout.drawing import panelled
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import mixed
from fedprivjax.privacy import gdp
from fedprivjax.privacy.cross_check import entry
from fedprivjax.privacy.rounding import down, up

DELTAS = np.geomspace(1e-7, 0.1, 25)


def audit_table(audits: Mapping[str, Audit | OneRunAudit]) -> Sheet:
    """Return a table with a row per protocol: claimed ε, accountant's ε, lower bounds at 95%, and what was scored."""
    mixed_terms = mixed(one.guarantee.terms for one in audits.values())
    small = ", of scaled-down runs" if all(isinstance(one, Audit) for one in audits.values()) else ""
    table = Sheet(f"audited against claimed{small}; bounds at {1 - LEVEL:.0%}{mixed_terms}")
    table.add_columns("protocol", "verdict", "trust", justify="left")
    table.add_columns(
        "δ", "claimed ε", "accountant's ε", "canary's μ / claimed", "ε proved", "ε proved if μ-GDP", "scored"
    )
    for label, one in audits.items():
        claim, bounds = one.guarantee, one.bounds
        table.add_row(
            label,
            "REFUTED" if one.refuted else "not refuted",
            claim.terms.against,
            f"{claim.delta:g}",
            up(claim.epsilon, 4),
            _accounted(one),
            _achieved(one),
            down(bounds.epsilon_lower, 3),
            "–" if claim.mu is None else down(bounds.gdp_epsilon_lower, 3),
            _scored(one),
        )
    return table


def _scored(one: Audit | OneRunAudit) -> str:
    """Return the runs on each of the two neighbouring datasets, or the right guesses of the canaries of one run."""
    if isinstance(one, Audit):
        return f"{one.bounds.runs[0]} runs per dataset"
    return f"{one.bounds.right} of {one.bounds.guesses} guesses right, {one.bounds.canaries} canaries"


def audit_verdict(audits: Mapping[str, Any]) -> list[str]:
    """Return a line for every refuted protocol, with the scores that refute it, and the number of the others."""
    lines = [
        f"{label}: REFUTED" + (f" by {', '.join(one.refuted)}" if one.refuted is not True else "")
        for label, one in audits.items()
        if one.refuted
    ]
    rest = len(audits) - len(lines)
    return [*lines, f"not refuted: {rest} of {len(audits)} claims"] if audits else []


def _accounted(one: Audit | OneRunAudit) -> str:
    """Return an accountant's ε, marked with "≥" if it is only a lower bound that an adversary achieves."""
    if one.guarantee.event is None:
        return "–"
    line = entry(one.guarantee.event, one.guarantee.delta)
    if not line.accountant:
        return "–"
    return f"≥ {down(line.accountant_epsilon, 4)}" if line.only_lower else up(line.accountant_epsilon, 4)


def _achieved(one: Audit | OneRunAudit) -> str:
    """Return the ratio of the canary's μ to the claimed one."""
    claimed, attained = one.guarantee.mu, one.attained if isinstance(one, Audit) else None
    return "–" if attained is None or claimed is None else f"{attained / claimed:.0%}"


def plot(audits: Mapping[str, Audit | OneRunAudit]) -> Figure:
    """Plot claimed guarantees ε(δ) with the lower bounds from audits, one panel per protocol.

    Args:
        audits: result of `audit` or `audit_one_run` for each protocol, by the label of its panel.
    """
    figure, panels = panelled(max(1, len(audits)), 4.4, 3.2, sharey=False)
    for axis, (label, one) in zip(panels, audits.items(), strict=False):
        _panel(axis, label, one)
    return figure


def _panel(axis, label: str, one: Audit | OneRunAudit) -> None:
    claim, bounds = one.guarantee, one.bounds
    axis.plot(DELTAS, [claim.epsilon_at(delta) for delta in DELTAS], "k", label="claimed")
    if claim.mu is not None:
        axis.plot(DELTAS, gdp.epsilon(bounds.mu_lower, DELTAS), "--", color=colour(0), label="proved by μ")
    # a lower bound at δ also holds at every smaller δ, since ε(δ) is larger there
    axis.plot([DELTAS[0], claim.delta], [bounds.epsilon_lower] * 2, color=colour(1), label="proved")
    axis.plot([claim.delta], [bounds.epsilon_lower], "o", color=colour(1))
    axis.set(xscale="log", xlabel="δ", ylabel="ε", title=f"{label} ({claim.terms.against})", ylim=(0, None))
    axis.legend(fontsize=8)
