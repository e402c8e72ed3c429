"""A guarantee as a curve: the ε at every δ, and the δ at every ε."""

from collections.abc import Callable
from math import e, exp, inf, log, sqrt

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_between
from fedprivjax.privacy import gdp

LEAST, MOST = 1e-12, 1 - 1e-12  # where an accounted δ is looked for
STEPS = 40  # halvings of ln δ


class Curve:
    """The interface: rigorous upper bounds, of the worst machine.

    Attributes:
        mu: the GDP parameter that stands for the whole curve, or None.
        known_from: the least δ at which ε is known.
    """

    mu: float | None = None
    known_from: float = 0.0

    def epsilon(self, delta: float) -> float:
        """The ε at δ, inf where nothing is promised."""
        require_between("delta", delta, 0, 1)
        return self._epsilon(float(delta))

    def delta(self, epsilon: float) -> float:
        """A δ at which ε holds, at least 0; 1 where none below is known."""
        if not epsilon >= 0:
            raise Refusal(f"epsilon must be at least 0, got {epsilon}")
        return self._delta(float(epsilon))

    def _epsilon(self, delta: float) -> float:
        raise Undefined("a curve must define _epsilon(delta)")

    def _delta(self, epsilon: float) -> float:
        """By bisection, from above."""
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
    """Of μ-GDP, exact.

    >>> curve = GaussianCurve(1.0)
    >>> round(curve.epsilon(1e-5), 2), round(curve.delta(1.0), 6)
    (4.38, 0.126937)
    """

    def __init__(self, mu: float):
        self.mu = self.parameter = float(mu)

    def _epsilon(self, delta: float) -> float:
        return float(gdp.epsilon(self.parameter, delta))

    def _delta(self, epsilon: float) -> float:
        return float(gdp.delta(epsilon, self.parameter))


class AccountedCurve(Curve):
    """Of an accountant that is asked at one δ after another; its answers are kept, and where it refuses, none is known.

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
    """Of a guarantee that was read from a file: ε at its stated δ, which holds at every larger one.

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
        """Below the stated ε, the corner of the two lines of the trade-off function is the best test:
        `δ + (1 − δ)·(e^{stated} − e^ε)/(e^{stated} + 1)`."""
        if epsilon >= self.stated:
            return self.known_from
        share = (1 - exp(epsilon - self.stated)) / (1 + exp(-self.stated))
        return min(1.0, self.known_from + (1 - self.known_from) * share)


class GroupCurve(Curve):
    """Of k changes, one after another: (ε, δ) becomes `(kε, δ·Σ_{j<k} e^{jε})`, at the best of the one's points.

    Source: Dwork & Roth 2014, Theorem 2.2, with its sum written out.

    >>> curve = GroupCurve(ListedCurve(0.5, 1e-6), 2)
    >>> curve.epsilon(3e-6), round(spread(0.5, 1e-6, 2) * 1e6, 3)
    (1.0, 2.649)
    """

    def __init__(self, one: Curve, members: int):
        self.one, self.members = one, members
        known = one.known_from
        self.known_from = min(MOST, spread(one.epsilon(known), known, members)) if known else 0.0

    def _epsilon(self, delta: float) -> float:
        if delta < self.known_from:
            raise Refusal(f"delta must be at least {self.known_from:.4g} for {self.members} changes, got {delta:g}")

        def fits(one: float) -> bool:
            return spread(self.one.epsilon(one), one, self.members) <= delta

        if fits(delta):
            return self.members * self.one.epsilon(delta)
        # a δ of one change that is known is taken as it is: the exponential of its logarithm may be below it
        low, high = self.one.known_from or delta / e, delta
        while not fits(low):
            low, high = low * (low / delta), low
            if self.one.known_from or low < LEAST**2:
                return inf
        for _ in range(STEPS):
            middle = sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return self.members * self.one.epsilon(low)


def spread(epsilon: float, delta: float, members: int) -> float:
    """δ of so many changes, `δ·Σ_{j<k} e^{jε}`, which is `δ·(e^{kε} − 1)/(e^ε − 1)`; inf where it is beyond numbers.

    >>> spread(0.0, 1e-6, 3) == 3e-6
    True
    """
    if (members - 1) * epsilon > 700:
        return inf
    return delta * sum(exp(j * epsilon) for j in range(members))
