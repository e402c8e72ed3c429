"""Privacy curves of two runs: on the same records (sequential composition), or on disjoint ones (parallel)."""

from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.accountants.composition import composed_pair, epsilon_between
from fedprivjax.privacy.accountants.profiles import LARGEST, ladder, loss_of_profile, spacing_for
from fedprivjax.privacy.curve import Curve

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

SMALLEST = 1e-14  # smallest δ at which a run's curve is read


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
        composed = inf if self._loss is None else epsilon_between(self._loss, delta)[1]
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
        spacing = spacing_for(*(float(epsilons.max()) for epsilons, _ in points))
        one, other = (loss_of_profile(*each, spacing) for each in points)
        return composed_pair(one, other)


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
    deltas = np.append(known, ladder(max(known, SMALLEST))) if known else ladder(SMALLEST)
    deltas = np.maximum(deltas, known)
    epsilons = curve.epsilons(deltas)
    kept = epsilons <= LARGEST
    return epsilons[kept], deltas[kept]
