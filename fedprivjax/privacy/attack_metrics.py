"""What an attacker gains who tells two neighbouring data sets apart, by a guarantee's curve; and the least μ above it.

With (ε, δ) points of a curve, a test of false-positive rate α has a true-positive rate of at most

    min over points of   δ + e^ε·α   and   1 − e^{−ε}·(1 − δ − α)

and its advantage, the one rate less the other, is at most `(e^ε − 1 + 2δ)/(e^ε + 1)`. For μ-GDP both are exact:
`Φ(Φ⁻¹(α) + μ)` and `2Φ(μ/2) − 1`.

Source: Wasserman & Zhou 2010 and Kairouz, Oh & Viswanath 2015 for points; Dong, Roth & Su 2022 for μ-GDP.
"""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedprivjax.checks.values import require_between
from fedprivjax.privacy.curve import Curve

FLOOR = 1e-9  # of δ
MARGIN = 1e-3  # of 1 − δ
POINTS = 25  # of a curve
REFINEMENTS = 12
MOST = 600.0  # of ε, beyond which a point says nothing
RATES = np.concatenate([np.logspace(-9, -2, 400), np.linspace(0.01, 1, 1000)])  # at which trade-offs are compared


class SmallestMu(NamedTuple):
    """The least μ that points of a guarantee's curve allow to state, for all δ from `floor` on.

    Attributes:
        regret: how much it gives away: the most by which the trade-off function of the guarantee's curve, the least
            false-negative rate at a false-positive rate, is above that of μ-GDP; to a few per cent, from below.
    """

    mu: float
    regret: float
    floor: float


def advantage(curve: Curve) -> float:
    """The most by which a test's true-positive rate exceeds its false-positive rate.

    >>> from fedprivjax.privacy.curve import GaussianCurve
    >>> round(advantage(GaussianCurve(1.0)), 4)
    0.3829
    """
    if curve.mu is not None:
        return float(2 * scipy.special.ndtr(curve.mu / 2) - 1)
    # (e^ε − 1 + 2δ)/(e^ε + 1) = 1 − 2·(1 − δ)/(e^ε + 1)
    return _least(curve, lambda epsilon, delta: 1 - 2 * (1 - delta) * scipy.special.expit(-epsilon))


def true_positive_rate(curve: Curve, false_positive_rate: float) -> float:
    """The largest true-positive rate of a test with this false-positive rate.

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
    """The least of what points of a curve give, found on a grid in the logit of δ that is refined about the best."""

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
    """The least false-negative rate that points of a curve allow at each false-positive rate, [rates].

    Args:
        epsilon, delta: the points, [points] each.
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
    """The least μ whose trade-off function is nowhere above that which points of a curve allow.

    That is the largest of straight lines `1 − δ − e^ε·α` and their mirror images, so it is linear between its kinks;
    that of μ-GDP is convex: it is below everywhere if it is at every kink (α, f), where `μ = Φ⁻¹(1 − f) − Φ⁻¹(α)`.
    So more points give a smaller μ, and few a valid one.

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
    for _ in range(REFINEMENTS if len(lines) > 1 else 0):  # another line beside the kink that asks for most
        lines |= {place: line for place in _beside(lines) if (line := _line(curve, place)).epsilon < MOST}
    mu = _asked(lines)[0]
    epsilon, delta = (np.array(column) for column in list(zip(*lines.values(), strict=True))[:2])
    theirs = scipy.special.ndtr(-scipy.special.ndtri(RATES) - mu)
    most = int(np.argmax(trade_off(epsilon, delta, RATES) - theirs))
    regret = 1 - true_positive_rate(curve, float(RATES[most])) - float(theirs[most]) if RATES[most] < 1 else 0.0
    return SmallestMu(mu, max(regret, 0.0), float(delta.min()))


class _Line(NamedTuple):
    """A point of a curve, with 1 − δ."""

    epsilon: float
    delta: float
    rest: float


def _line(curve: Curve, odds: float) -> _Line:
    expit = scipy.special.expit
    delta = max(float(expit(odds)), curve.known_from)  # what is known is known from there, to the last digit
    return _Line(curve.epsilon(delta), delta, float(expit(-odds)))


def _beside(lines: dict[float, _Line]) -> list[float]:
    """Places half-way to the neighbours of the line that is highest where most is asked for."""
    places = sorted(lines)
    at = places.index(_asked(lines)[1])
    return [(places[at] + other) / 2 for other in (*places[max(at - 1, 0) : at], *places[at + 1 : at + 2])]


def _asked(lines: dict[float, _Line]) -> tuple[float, float]:
    """The largest μ that a kink asks for, and the place of the line through it that is first.

    The middle one is at f = α; those at larger α mirror those at smaller.
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
    asked = np.where(powers < 0.5, ndtri(powers), -ndtri(misses)) - ndtri(rates)
    worst = int(np.argmax(asked))
    return (float(asked[worst]), float(places[heights[worst].argmax()])) if asked[worst] > mu else (mu, place)
