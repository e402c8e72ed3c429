"""Privacy curves: ε as a function of δ, and δ as a function of ε, of one run or of two.

Two runs are on the same records (sequential composition), or on disjoint ones (parallel).
"""

from collections.abc import Callable
from functools import cached_property
from math import e, exp, expm1, inf, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import as_float, require_between
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants import composition

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LEAST, MOST = 1e-12, 1 - 1e-12  # range of the search for δ
STEPS = 40  # halvings of ln δ
SUMMED = 10_000  # changes up to which `spread` sums terms
CLOSED = 1e-12  # relative error allowed for the closed form of `spread`
SMALLEST = 1e-14  # smallest δ at which a run's curve is read


class Curve:
    """Base class of privacy curves: rigorous upper bounds for the worst machine.

    Attributes:
        mu: GDP parameter that determines the whole curve, or None.
        known_from: smallest δ at which ε is known.
    """

    mu: float | None = None
    known_from: float = 0.0

    def epsilon(self, delta: float) -> float:
        """Return ε at δ, or inf if nothing is guaranteed."""
        require_between("delta", delta, 0, 1)
        return self._epsilon(float(delta))

    def epsilons(self, deltas: np.ndarray) -> np.ndarray:
        """Return ε at each δ, in the shape of `deltas`, [points]."""
        return np.array([self.epsilon(float(delta)) for delta in deltas])

    def delta(self, epsilon: float) -> float:
        """Return a δ at which ε holds, or 1 if no smaller one is known."""
        found = as_float("epsilon", epsilon)
        if not found >= 0:
            raise Refusal(f"epsilon must be at least 0, got {epsilon}")
        return self._delta(found)

    def _epsilon(self, delta: float) -> float:
        raise Undefined("a curve must define _epsilon(delta)")

    def _delta(self, epsilon: float) -> float:
        """Return δ by bisection, from above."""
        least, most = max(LEAST, self.known_from), max(MOST, self.known_from)
        if not self._epsilon(most) <= epsilon:
            return 1.0
        if self._epsilon(least) <= epsilon:
            return least
        low, high = log(least), log(most)
        for _ in range(STEPS):
            middle = (low + high) / 2
            found = self._epsilon(max(exp(middle), least)) <= epsilon
            low, high, most = (low, middle, max(exp(middle), least)) if found else (middle, high, most)
        return most


class GaussianCurve(Curve):
    """Exact curve of μ-GDP.

    >>> curve = GaussianCurve(1.0)
    >>> round(curve.epsilon(1e-5), 2), round(curve.delta(1.0), 6)
    (4.38, 0.126937)
    """

    def __init__(self, mu: float):
        self.mu = self.parameter = float(mu)

    def epsilons(self, deltas: np.ndarray) -> np.ndarray:
        return np.asarray(gdp.epsilon(self.parameter, deltas), float)

    def _epsilon(self, delta: float) -> float:
        return float(gdp.epsilon(self.parameter, delta))

    def _delta(self, epsilon: float) -> float:
        return float(gdp.delta(epsilon, self.parameter))


class AccountedCurve(Curve):
    """Curve of an accountant, evaluated per δ and cached. ε is inf if the accountant raises Refusal.

    >>> AccountedCurve(lambda delta: log(1 / delta)).delta(2.0) - exp(-2) < 1e-9
    True
    """

    def __init__(self, account: Callable[[float], float]):
        self.account = account
        self.answers: dict[float, float] = {}

    def _epsilon(self, delta: float) -> float:
        if delta not in self.answers:
            try:
                self.answers[delta] = float(self.account(delta))
            except Refusal:  # outside a claim's conditions
                self.answers[delta] = inf
        return self.answers[delta]


class ListedCurve(Curve):
    """Curve of a guarantee read from a file: ε at its stated δ, which also holds at every larger δ.

    >>> ListedCurve(2.0, 1e-5).epsilon(1e-4)
    2.0
    >>> ListedCurve(2.0, 1e-5).epsilon(1e-6)
    Traceback (most recent call last):
    fedprivjax.Refusal: delta must be at least 1e-05, the one at which this guarantee was saved, got 1e-06
    """

    def __init__(self, epsilon: float, delta: float):
        self.stated = float(epsilon)
        self.known_from = float(delta)

    def _epsilon(self, delta: float) -> float:
        if delta < self.known_from:
            raise Refusal(
                f"delta must be at least {self.known_from:g}, the one at which this guarantee was saved, got {delta:g}"
            )
        return self.stated

    def _delta(self, epsilon: float) -> float:
        """Return `δ + (1 − δ)·(e^{stated} − e^ε)/(e^{stated} + 1)` below the stated ε.

        The best test is then at the corner of the two lines of the trade-off function.
        """
        if epsilon >= self.stated:
            return self.known_from
        share = (1 - exp(epsilon - self.stated)) / (1 + exp(-self.stated))
        return min(1.0, self.known_from + (1 - self.known_from) * share)


class GroupCurve(Curve):
    """Curve for k changes: each point (ε, δ) becomes `(kε, δ·Σ_{j<k} e^{jε})`, and the best point is used.

    Source: Dwork & Roth 2014, Theorem 2.2, with its sum written out.

    >>> curve = GroupCurve(ListedCurve(0.5, 1e-6), 2)
    >>> curve.epsilon(3e-6), round(spread(0.5, 1e-6, 2) * 1e6, 3)
    (1.0, 2.649)
    """

    def __init__(self, one: Curve, size: int):
        self.one, self.size = one, size
        known = one.known_from
        self.known_from = min(MOST, spread(one.epsilon(known), known, size)) if known else 0.0

    def _epsilon(self, delta: float) -> float:
        if delta < self.known_from:
            raise Refusal(f"delta must be at least {self.known_from:.4g} for {self.size} changes, got {delta:g}")

        def fits(one: float) -> bool:
            return spread(self.one.epsilon(one), one, self.size) <= delta

        if fits(delta):
            return self.size * self.one.epsilon(delta)
        # a known δ of one change is used exactly, because the exponential of its logarithm may be smaller
        low, high = self.one.known_from or delta / e, delta
        while not fits(low):
            low, high = low * (low / delta), low
            if self.one.known_from or low < LEAST**2:
                return inf
        for _ in range(STEPS):
            middle = sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return self.size * self.one.epsilon(low)


def spread(epsilon: float, delta: float, size: int) -> float:
    """Return δ of k = `size` changes, `δ·Σ_{j<k} e^{jε} = δ·(e^{kε} − 1)/(e^ε − 1)`, or inf if it overflows.

    >>> spread(0.0, 1e-6, 3) == 3e-6
    True
    """
    if (size - 1) * epsilon > 700:
        return inf
    if size > SUMMED:
        return delta * (1 + CLOSED) * (expm1(size * epsilon) / expm1(epsilon) if epsilon else size)
    return delta * sum(exp(j * epsilon) for j in range(size))


class SequentialCurve(Curve):
    """Curve of the adaptive composition of two runs, by privacy loss distributions that dominate their curves.

    It is never above basic composition, (ε₁ + ε₂, δ₁ + δ₂).

    >>> from fedprivjax.privacy.curve import GaussianCurve, ListedCurve
    >>> curve, exact = SequentialCurve(GaussianCurve(0.6), GaussianCurve(0.8)), GaussianCurve(1.0)
    >>> 1 <= curve.epsilon(1e-5) / exact.epsilon(1e-5) < 1.002
    True
    >>> round(SequentialCurve(ListedCurve(1.0, 1e-6), ListedCurve(0.5, 1e-6)).epsilon(2e-6), 3)
    1.5
    """

    def __init__(self, first: Curve, second: Curve):
        self.first, self.second = first, second
        self.known_from = first.known_from + second.known_from

    def _epsilon(self, delta: float) -> float:
        if delta < self.known_from:
            raise Refusal(f"delta must be at least {self.known_from:g} for both runs together, got {delta:g}")
        composed = inf if self._loss is None else composition.epsilon_between(self._loss, delta)[1]
        return min(composed, self._basic(delta))

    def _basic(self, delta: float) -> float:
        """Return the smaller ε₁ + ε₂ of a few divisions of δ."""
        least, most = self.first.known_from, delta - self.second.known_from
        parts = {max(part, least) for part in (least, most, (least + most) / 2) if 0 < part < delta}
        return min((self._sum(part, delta - part) for part in parts), default=inf)

    def _sum(self, one: float, other: float) -> float:
        # a known δ is used exactly, because the difference may be smaller
        return self.first.epsilon(one) + self.second.epsilon(max(other, self.second.known_from))

    @cached_property
    def _loss(self) -> "PrivacyLossDistribution | None":
        """Composed privacy loss, or None if one of the curves has no point with a finite ε below `LARGEST`."""
        points = _points(self.first), _points(self.second)
        if not all(epsilons.size for epsilons, _ in points):
            return None
        spacing = composition.spacing_for(*(float(epsilons.max()) for epsilons, _ in points))
        one, other = (composition.loss_of_profile(*each, spacing) for each in points)
        return composition.composed_pair(one, other)


class ParallelCurve(Curve):
    """Curve for disjoint records: the larger ε of the two runs.

    >>> from fedprivjax.privacy.curve import GaussianCurve
    >>> ParallelCurve(GaussianCurve(0.6), GaussianCurve(0.8)).epsilon(1e-5) == GaussianCurve(0.8).epsilon(1e-5)
    True
    """

    def __init__(self, first: Curve, second: Curve):
        self.first, self.second = first, second
        self.known_from = max(first.known_from, second.known_from)

    def _epsilon(self, delta: float) -> float:
        return max(self.first.epsilon(delta), self.second.epsilon(delta))

    def _delta(self, epsilon: float) -> float:
        return max(self.first.delta(epsilon), self.second.delta(epsilon))


def _points(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Return (ε, δ) of a curve on a ladder of δ, without those whose ε is above `LARGEST`."""
    known = curve.known_from
    deltas = np.append(known, composition.ladder(max(known, SMALLEST))) if known else composition.ladder(SMALLEST)
    deltas = np.maximum(deltas, known)
    epsilons = curve.epsilons(deltas)
    kept = epsilons <= composition.LARGEST
    return epsilons[kept], deltas[kept]
