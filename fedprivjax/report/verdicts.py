"""Tables of verdicts: results compared with expected numbers, such as those of a paper."""

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from fedprivjax.engine.metrics import known
from fedprivjax.experiment.expected import ORDER
from fedprivjax.experiment.verdict import Verdict, describe, judged_metric, origin_of
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import grouped, title_of

VERDICTS = {None: "–", True: "ok", False: "MISS"}


def verdict_tables(found: Iterable[Verdict]) -> list[Sheet]:
    """Return a table for each `[[expected]]` entry: results, expected numbers, and whether each is within tolerance."""
    return [_verdict_table(list(cells)) for _, cells in groupby(found, key=lambda v: id(v.expected))]


def _verdict_table(found: list[Verdict]) -> Sheet:
    expected = found[0].expected
    metric = judged_metric(expected)
    words = title_of(known(expected.metric), expected.iterate, expected.rounds, expected.rounds_to)
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


def _exponent(value: float, *, sign: bool = False) -> str:
    return "–" if np.isnan(value) else f"{value:{'+' * sign}.3f}"


def verdict_line(found: Iterable[Verdict]) -> tuple[str, bool]:
    """Return a summary line, and whether enough cells are within tolerance.

    All judged cells must be within tolerance. If entries set the same `share`, this fraction of their cells together is
    enough. The line counts cells by the origin of their expected numbers.
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
