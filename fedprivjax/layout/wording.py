"""Text of tables and plots: numbers, points of a grid, metrics, protected units and neighbouring relations."""

from collections.abc import Iterable, Mapping
from itertools import product
from math import isnan, log10
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.engine.metric import OUTPUT, Metric
from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import LARGE_EPSILON, PrivacyGuarantee
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import MACHINE, RECORD, Terms

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
CHOSEN = " ‡"  # mark of a protocol whose settings were chosen by results
CHOSEN_NOTE = "‡ chosen by results, not covered by the guarantee"
Point = Mapping[str, float]
SHORT = {RECORD: "record", MACHINE: "machine"}  # units in labels of figures


def points_of(axes: Mapping[str, list[float]]) -> list[dict[str, float]]:
    """Return every point of a grid, the last axis changing fastest.

    >>> points_of({"machines": [5], "mu": [1, 2]})
    [{'machines': 5, 'mu': 1}, {'machines': 5, 'mu': 2}]
    """
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Return the values of each key, with the keys in the order of their first values.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Any, list[Any]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def of_axes(values: xr.DataArray | xr.Dataset, point: Mapping[str, float]) -> dict[str, float]:
    """Return the part of a point on the axes that the values have.

    >>> of_axes(xr.DataArray([0.0, 1.0], dims="mu"), {"machines": 5, "mu": 1})
    {'mu': 1}
    """
    return {name: value for name, value in point.items() if name in values.dims}


def number_text(value: float, missing: str = "") -> str:
    """Return a number to three digits; NaN is `missing`.

    >>> number_text(3.14159), number_text(float("nan"), "–")
    ('3.14', '–')
    """
    return missing if isnan(value) else f"{value:.3g}"


def range_text(*values: float) -> str:
    """Return the smallest and the largest of several numbers as text, or their common value.

    >>> range_text(2.0, 0.5, 1.0), range_text(1.0, 1.0)
    ('0.5 to 2', '1')
    """
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def power_text(value: float) -> str:
    """Return a number as matplotlib's text of digits and a power of ten.

    >>> power_text(1e-5), power_text(2.5e-6), power_text(0.05)
    ('$10^{-5}$', '$2.5·10^{-6}$', '0.05')
    """
    digits, _, power = f"{value:.2e}".partition("e")
    if abs(int(power)) < 3:
        return f"{value:g}"
    factor = "" if float(digits) == 1 else f"{float(digits):g}·"
    return f"${factor}10^{{{int(power)}}}$"


def epsilon_text(value: float) -> str:
    """Return an ε, rounded up to three digits and marked with "!" above `LARGE_EPSILON`.

    >>> epsilon_text(4.3778), epsilon_text(65.32)
    ('4.38', '65.4 !')
    """
    return up(value, 3) + (" !" if value > LARGE_EPSILON else "")


def target_epsilon(name: str, value: Any, delta: float) -> Any:
    """Return the ε of a privacy target, or of several, named "mu" or "epsilon".

    >>> target_epsilon("epsilon", 2.0, 1e-5), round(target_epsilon("mu", 1.0, 1e-5), 2)
    (2.0, 4.38)
    """
    return value if name == "epsilon" else gdp.epsilon(value, delta)


def title_of(metric: Metric, iterate: str = OUTPUT, rounds: str = "last", rounds_to: float | None = None) -> str:
    """Return a metric's title, with its iterate and averaging over rounds.

    Args:
        rounds_to: value of the metric, for the title of the number of rounds to it instead.

    >>> from fedprivjax.engine.metrics import known
    >>> title_of(known("test_accuracy"), rounds_to=0.97), title_of(known("test_loss"), "last", rounds_to=0.1)
    ('rounds to test accuracy ≥ 97.0%', "rounds to test loss ≤ 0.1000 of the iterate 'last'")
    """
    of = "" if iterate == OUTPUT else f" of the iterate '{iterate}'"
    if rounds_to is None:
        return metric.title + of + (" averaged over rounds" if rounds == "mean" else "")
    reached = "≥" if metric.better == "higher" else "≤"
    return f"rounds to {metric.words} {reached} {metric.text(rounds_to)}{metric.unit}{of}"


def count_text(value: float) -> str:
    """Return a count with its SI prefix, or an empty string for NaN.

    >>> count_text(2.88e6), count_text(450.0), count_text(999.7)
    ('2.88 M', '450', '1 k')
    """
    if not value >= 999.5:
        return number_text(value)
    power = min(int(log10(value * (1 + 5e-4)) // 3), len(PREFIXES) - 1)
    return f"{value / 1000**power:.3g} {PREFIXES[power]}"


def guarantees_in(data: xr.Dataset) -> list[PrivacyGuarantee]:
    """Return the distinct guarantees of a protocol's results or of a plan, in the order of their JSON."""
    texts = {text for text in np.ravel(data.get("guarantee", "")) if isinstance(text, str) and text}
    return [PrivacyGuarantee.from_json(text) for text in sorted(texts)]


def statement(terms: Terms) -> str:
    """Return unit, relation, trust model and theorem of a guarantee as text.

    >>> statement(Terms("server", "a theorem", unit=MACHINE))
    'all records of one machine, replace-one, trust: server; a theorem'
    """
    return f"{terms.unit}, {terms.stated_relation}, trust: {terms.against}; {terms.theorem}"


def mixed(terms: Iterable[Terms]) -> str:
    """Return the end of a title that names every unit and relation, or an empty string if all are equal.

    >>> record, machine = Terms("none", "a theorem"), Terms("none", "a theorem", unit="a machine")
    >>> mixed([record, machine])
    '; DIFFERENT GUARANTEES: ε for a machine (replace-one), ε for one record of one machine (replace-one)'
    >>> mixed([record, record])
    ''
    """
    subjects = sorted({(one.unit, one.stated_relation) for one in terms})
    if len(subjects) < 2:
        return ""
    return "; DIFFERENT GUARANTEES: " + ", ".join(f"ε for {unit} ({relation})" for unit, relation in subjects)


def relations(terms: Iterable[Terms]) -> str:
    """Return the neighbouring relations as text, after the protected units if any is not a record.

    >>> machine = Terms("server", "a theorem", unit=MACHINE)
    >>> relations([Terms("none", "a theorem")]), relations([machine])
    ('replace-one', 'unit: machine, replace-one')
    """
    terms = list(terms)
    units = sorted({SHORT.get(one.unit, one.unit) for one in terms})
    named = [] if units == [SHORT[RECORD]] else ["unit: " + " and ".join(units)]
    return ", ".join([*named, *sorted({one.stated_relation for one in terms})])
