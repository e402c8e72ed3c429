"""Bounds on attacks that distinguish two neighbouring datasets, and the smallest μ that a guarantee's curve implies.

Given (ε, δ) points of a curve, a test with false-positive rate α has a true-positive rate of at most

    min over points of   δ + e^ε·α   and   1 − e^{−ε}·(1 − δ − α)

Its advantage, the true-positive rate minus the false-positive rate, is at most `(e^ε − 1 + 2δ)/(e^ε + 1)`. For μ-GDP
the exact values are `Φ(Φ⁻¹(α) + μ)` and `2Φ(μ/2) − 1`.

Source: Wasserman & Zhou 2010 and Kairouz, Oh & Viswanath 2015 for points; Dong, Roth & Su 2022 for μ-GDP.
"""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedprivjax.checks.values import require_between
from fedprivjax.privacy.curve import Curve

FLOOR = 1e-9  # smallest δ
MARGIN = 1e-3  # smallest 1 − δ
POINTS = 25  # points on a curve
REFINEMENTS = 12
MOST = 600.0  # points with a larger ε are ignored
RATES = np.concatenate([np.logspace(-9, -2, 400), np.linspace(0.01, 1, 1000)])  # false-positive rates to compare


class SmallestMu(NamedTuple):
    """Smallest μ that points of a guarantee's curve imply for all δ from `floor` on.

    Attributes:
        mu: smallest μ, or inf if there is none.
        regret: privacy lost by stating μ: the largest difference of the curve's trade-off function (smallest
            false-negative rate at a false-positive rate) minus that of μ-GDP. Accurate to a few per cent, from below.
        floor: smallest δ for which μ holds.
    """

    mu: float
    regret: float
    floor: float


def advantage(curve: Curve) -> float:
    """Return the largest difference of a test's true-positive and false-positive rates.

    >>> from fedprivjax.privacy.curve import GaussianCurve
    >>> round(advantage(GaussianCurve(1.0)), 4)
    0.3829
    """
    if curve.mu is not None:
        return float(2 * scipy.special.ndtr(curve.mu / 2) - 1)
    # (e^ε − 1 + 2δ)/(e^ε + 1) = 1 − 2·(1 − δ)/(e^ε + 1)
    return _least(curve, lambda epsilon, delta: 1 - 2 * (1 - delta) * scipy.special.expit(-epsilon))


def true_positive_rate(curve: Curve, false_positive_rate: float) -> float:
    """Return the largest true-positive rate of a test with this false-positive rate.

    >>> from fedprivjax.privacy.curve import GaussianCurve
    >>> round(true_positive_rate(GaussianCurve(1.0), 0.01), 4)
    0.0924
    """
    require_between("false_positive_rate", false_positive_rate, 0, 1)
    if curve.mu is not None:
        return float(scipy.special.ndtr(scipy.special.ndtri(false_positive_rate) + curve.mu))
    rate = np.array([false_positive_rate])
    return _least(curve, lambda epsilon, delta: 1 - trade_off(np.array([epsilon]), np.array([delta]), rate)[0])


def _least(curve: Curve, bound: Callable[[float, float], Any]) -> float:
    """Return the minimum of `bound` over a curve, on a grid in the logit of δ that is refined around the best point."""

    def at(odds: float) -> float:
        delta = float(scipy.special.expit(odds))
        return float(bound(curve.epsilon(delta), delta))

    if curve.known_from:
        return float(bound(curve.epsilon(curve.known_from), curve.known_from))
    places, width = np.linspace(scipy.special.logit(FLOOR), -scipy.special.logit(MARGIN), POINTS), 0.0
    values = [at(place) for place in places]
    for _ in range(3):
        best, width = places[int(np.argmin(values))], width / 4 or float(places[1] - places[0])
        places = best + width * np.array([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75])
        values = [at(place) for place in places]
    return min(values)


def trade_off(epsilon: np.ndarray, delta: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the smallest false-negative rate that points of a curve allow at each false-positive rate, [rates].

    Args:
        epsilon, delta: points of the curve, each of shape [points].
        rates: false-positive rates.

    >>> trade_off(np.array([0.0]), np.array([0.1]), np.array([0.0, 0.5, 1.0])).round(3).tolist()
    [0.9, 0.4, 0.0]
    """
    epsilon, delta, rates = epsilon[:, None], delta[:, None], rates[None, :]
    with np.errstate(over="ignore"):
        one = 1 - delta - np.exp(np.minimum(epsilon, 700)) * rates
    other = np.exp(-epsilon) * (1 - delta - rates)
    return np.clip(np.maximum(one, other).max(axis=0), 0.0, 1.0)


def smallest_mu(curve: Curve, floor: float = FLOOR) -> SmallestMu:
    """Return the smallest μ whose trade-off function is nowhere above the one that points of a curve imply.

    The implied trade-off function is the maximum of the lines `1 − δ − e^ε·α` and their mirror images, so it is linear
    between kinks. The trade-off function of μ-GDP is convex. It is therefore below everywhere if it is below at every
    kink (α, f), where `μ = Φ⁻¹(1 − f) − Φ⁻¹(α)`. More points give a smaller μ, and any number gives a valid one.

    >>> from fedprivjax.privacy.curve import AccountedCurve, GaussianCurve
    >>> found = smallest_mu(AccountedCurve(GaussianCurve(2.0).epsilon))
    >>> 2.0 <= found.mu < 2.02, found.regret < 0.01
    (True, True)
    """
    require_between("floor", floor, 0, 0.5)
    if curve.mu is not None:
        return SmallestMu(curve.mu, 0.0, floor)
    odds = np.linspace(scipy.special.logit(floor), -scipy.special.logit(MARGIN), POINTS)
    if curve.known_from:
        odds = scipy.special.logit([curve.known_from])
    lines = {place: line for place in odds if (line := _line(curve, place)).epsilon < MOST}
    if not lines:
        return SmallestMu(inf, 1.0, floor)
    for _ in range(REFINEMENTS if len(lines) > 1 else 0):  # another line next to the kink with the largest μ
        lines |= {place: line for place in _beside(lines) if (line := _line(curve, place)).epsilon < MOST}
    mu = _required_mu(lines)[0]
    epsilon, delta = (np.array(column) for column in list(zip(*lines.values(), strict=True))[:2])
    gaussian = scipy.special.ndtr(-scipy.special.ndtri(RATES) - mu)
    most = int(np.argmax(trade_off(epsilon, delta, RATES) - gaussian))
    regret = 1 - true_positive_rate(curve, float(RATES[most])) - float(gaussian[most]) if RATES[most] < 1 else 0.0
    return SmallestMu(mu, max(regret, 0.0), float(delta.min()))


class _Line(NamedTuple):
    """A point of a curve, with `rest` = 1 − δ."""

    epsilon: float
    delta: float
    rest: float


def _line(curve: Curve, odds: float) -> _Line:
    expit = scipy.special.expit
    delta = max(float(expit(odds)), curve.known_from)  # rounding must not go below `known_from`
    return _Line(curve.epsilon(delta), delta, float(expit(-odds)))


def _beside(lines: dict[float, _Line]) -> list[float]:
    """Return the midpoints between the first line through the kink with the largest μ and its neighbours."""
    places = sorted(lines)
    at = places.index(_required_mu(lines)[1])
    return [(places[at] + other) / 2 for other in (*places[max(at - 1, 0) : at], *places[at + 1 : at + 2])]


def _required_mu(lines: dict[float, _Line]) -> tuple[float, float]:
    """Return the largest μ required by a kink, and the place of the line through it that is first.

    The middle kink is at f = α. Kinks at larger α mirror those at smaller α.
    """
    places = np.sort(list(lines))
    epsilon, delta, rest = np.array([lines[place] for place in places]).T
    slope = np.exp(epsilon)
    middles = rest * scipy.special.expit(-epsilon)
    middle = float(middles.max())
    mu, place = max(-2 * float(scipy.special.ndtri(middle)), 0.0), float(places[np.argmax(middles)])
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.subtract.outer(delta, delta) / -np.subtract.outer(slope, slope)
    inside = np.isfinite(rates) & (rates > 0) & (rates < middle)
    if not inside.any():
        return mu, place
    rates = rates[inside]
    heights = rest - slope * rates[:, None]
    powers, misses = np.min(delta + slope * rates[:, None], axis=1), heights.max(axis=1)
    ndtri = scipy.special.ndtri
    required = np.where(powers < 0.5, ndtri(powers), -ndtri(misses)) - ndtri(rates)
    worst = int(np.argmax(required))
    return (float(required[worst]), float(places[heights[worst].argmax()])) if required[worst] > mu else (mu, place)
