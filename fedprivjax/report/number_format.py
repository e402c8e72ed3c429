"""Formats of numbers in tables, and points of a grid."""

from collections.abc import Mapping
from math import isnan, log10

from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.metric import Metric
from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import LARGE_EPSILON

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def points_of(axes: Mapping[str, list[float]]) -> list[dict[str, float]]:
    """Return every point of a grid, the last axis changing fastest.

    >>> points_of({"machines": [5], "mu": [1, 2]})
    [{'machines': 5, 'mu': 1}, {'machines': 5, 'mu': 2}]
    """
    points: list[dict[str, float]] = [{}]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def number_text(value: float, missing: str = "", *, whole: bool = False) -> str:
    """Return a number to three digits, or as an integer if `whole`; NaN is `missing`.

    >>> number_text(3.14159), number_text(1234.0, whole=True), number_text(float("nan"), "–")
    ('3.14', '1234', '–')
    """
    if isnan(value):
        return missing
    return f"{value:.0f}" if whole else f"{value:.3g}"


def epsilon_text(value: float) -> str:
    """Return an ε to three digits, marked with "!" above `LARGE_EPSILON`.

    >>> epsilon_text(4.3778), epsilon_text(65.32)
    ('4.38', '65.3 !')
    """
    return f"{value:.3g}" + (" !" if value > LARGE_EPSILON else "")


def target_epsilon(name: str, value: float, delta: float) -> float:
    """Return the ε of a privacy target named "mu" or "epsilon".

    >>> target_epsilon("epsilon", 2.0, 1e-5), round(target_epsilon("mu", 1.0, 1e-5), 2)
    (2.0, 4.38)
    """
    return value if name == "epsilon" else float(gdp.epsilon(value, delta))


def title_of(metric: Metric, iterate: str = OUTPUT, rounds: str = "last") -> str:
    """Return a metric's title, with its iterate and averaging over rounds."""
    of = "" if iterate == OUTPUT else f" of the iterate '{iterate}'"
    return metric.title + of + (" averaged over rounds" if rounds == "mean" else "")


def rounds_title(metric: Metric, value: float, iterate: str = OUTPUT) -> str:
    """Return the title of the number of rounds to a value of a metric.

    >>> from fedprivjax.engine.metrics import known
    >>> rounds_title(known("test_accuracy"), 0.97), rounds_title(known("test_loss"), 0.1, "last")
    ('rounds to test accuracy ≥ 97.0%', "rounds to test loss ≤ 0.1000 of the iterate 'last'")
    """
    of = "" if iterate == OUTPUT else f" of the iterate '{iterate}'"
    return f"rounds to {metric.words} {'≥' if metric.better == 'higher' else '≤'} {metric.text(value)}{metric.unit}{of}"


def count_text(value: float) -> str:
    """Return a count with its SI prefix, or an empty string for NaN.

    >>> count_text(2.88e6), count_text(450.0), count_text(999.7)
    ('2.88 M', '450', '1 k')
    """
    if not value >= 999.5:
        return number_text(value)
    power = min(int(log10(value * (1 + 5e-4)) // 3), len(PREFIXES) - 1)
    return f"{value / 1000**power:.3g} {PREFIXES[power]}"
