"""Tables of verdicts and audits: comparison with expected numbers, and claimed ε(δ) with the proved lower bounds."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprivjax.auditing.audit import LEVEL, Audit
from fedprivjax.auditing.one_run import OneRunAudit
from fedprivjax.engine.metrics import known
from fedprivjax.experiment import Expected
from fedprivjax.experiment.expected import ORDER
from fedprivjax.experiment.verdict import Verdict, describe, judged_metric, origin_of
from fedprivjax.privacy import gdp
from fedprivjax.privacy.cross_check import entry
from fedprivjax.privacy.rounding import down, up
from fedprivjax.report.colours import colour
from fedprivjax.report.drawing import panelled
from fedprivjax.report.text_table import Sheet
from fedprivjax.report.wording import grouped, mixed, rounds_title, title_of

VERDICTS = {None: "–", True: "ok", False: "MISS"}
DELTAS = np.geomspace(1e-7, 0.1, 25)


def verdict_tables(found: Iterable[Verdict]) -> list[Sheet]:
    """Return a table for each `[[expected]]` entry: results, expected numbers, and whether each is within tolerance."""
    return [_verdict_table(list(cells)) for _, cells in groupby(found, key=lambda v: id(v.expected))]


def _verdict_table(found: list[Verdict]) -> Sheet:
    expected = found[0].expected
    metric, words = judged_metric(expected), _words(expected)
    stated = ": ".join(filter(None, (origin_of(expected), expected.source)))
    source = f", {stated}" if stated else ""
    what, text = f"{words} (mean ± 95% interval)", metric.text
    if expected.rule in ORDER:
        what = (
            f"{words}, the change along {expected.axis} nearest to the wrong side (mean ± 95% interval, paired by seed)"
        )
    elif expected.axis is not None:
        what, text = f"exponent of {words} in {expected.axis} (least squares of logarithms ± 95% interval)", _exponent
    paired = f" less {expected.other}, paired by seed" if expected.rule == "paired_above" else ""
    table = Sheet(f"{expected.protocol}{paired}: {what}{source}; {describe(expected)}")
    spread = "standard error" if expected.rule in ("within_se", "slope") else "sd"
    table.add_columns("cell", "ours", spread, "expected", "difference")
    table.add_columns("verdict", justify="left")
    for v in found:
        where = ", ".join(f"{name} {value:g}" for name, value in v.at.items())
        value, difference = "", ""
        if v.value is not None and expected.rule not in ORDER:
            value = text(v.value)
            difference = "" if np.isnan(v.mean) else text(v.mean - v.value, sign=True)
        table.add_row(where, f"{text(v.mean)} ± {text(v.half)}", text(v.sd), value, difference, VERDICTS[v.holds])
    return table


def _words(expected: Expected) -> str:
    metric, value = known(expected.metric), expected.rounds_to
    if value is not None:
        return rounds_title(metric, value, expected.iterate)
    return title_of(metric, expected.iterate, expected.rounds)


def _exponent(value: float, *, sign: bool = False) -> str:
    return "–" if np.isnan(value) else f"{value:{'+' * sign}.3f}"


def verdict_line(found: Iterable[Verdict]) -> tuple[str, bool]:
    """Return a summary line, and whether enough cells are within tolerance.

    All judged cells must be, or the fraction `share` of those of an entry that sets it. The line counts cells by the
    origin of their expected numbers.
    """
    listed = list(found)
    judged = [v for v in listed if v.holds is not None]
    if not judged:
        return "nothing to judge", True
    line = f"{_held(judged)} cells within their tolerance{_by_origin(judged)}"
    shares = sorted({v.expected.share for v in judged})
    enough = [np.mean([bool(v.holds) for v in judged if v.expected.share == share]) >= share for share in shares]
    far = [_errors(v) for v in judged if v.expected.rule == "within_se"]
    within = all(_errors(v) <= v.expected.limit for v in judged if v.expected.limit is not None)
    if shares[0] < 1:
        line += f" ({' and '.join(f'{share:.0%}' for share in shares)} required)"
    if far:
        line += f", the furthest at {max(far):.2g} standard errors"
    shown = sum(v.value is not None and v.holds is None for v in listed)
    line += f"; {shown} more are shown and not judged" if shown else ""
    return line, all(enough) and within


def _held(judged: list[Verdict]) -> str:
    return f"{sum(bool(v.holds) for v in judged)} of {len(judged)}"


def _by_origin(judged: list[Verdict]) -> str:
    """Return the counts of cells by the origin of their expected numbers as text, or "" if no origin is stated."""
    groups = grouped((origin_of(v.expected) or "origin not stated", v) for v in judged)
    if len(groups) == 1 and not origin_of(judged[0].expected):
        return ""
    return f" ({', '.join(f'{origin} {_held(own)}' for origin, own in groups.items())})"


def _errors(v: Verdict) -> float:
    """Return the distance of the result from the expected value in standard errors."""
    difference = abs(v.mean - (v.value or 0.0))
    return difference / v.sd if v.sd else np.inf if difference else 0.0


def audit_table(audits: Mapping[str, Audit | OneRunAudit]) -> Sheet:
    """Return a table with a row per protocol: claimed ε, accountant's ε, lower bounds at 95%, and what was scored."""
    mixed_terms = mixed(one.guarantee.terms for one in audits.values())
    table = Sheet(f"audited against claimed; bounds at {1 - LEVEL:.0%}{mixed_terms}")
    table.add_columns("protocol", "verdict", "trust", justify="left")
    table.add_columns("δ", "claimed ε", "accountant's ε", "canary's part", "ε proved", "… by μ", "scored")
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
    """Return the number of scaled-down runs, or of right guesses of the canaries of one run."""
    if isinstance(one, Audit):
        return f"2 · {one.bounds.runs[0]} small runs"
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
    """Plot claimed guarantees ε(δ) with the lower bounds that audits proved, one panel per protocol.

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
