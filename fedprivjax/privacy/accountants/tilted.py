"""Composition of many releases whose δ is far smaller than the rounding errors of a Fourier transform.

Losses l are weighted by e^{λl}, so that the composed loss is centred near the ε in question:

    δ(ε) = e^{R·K(λ) − λε}·Σ_{l>ε} p_λ(l)·e^{−λ(l−ε)}·(1 − e^{ε−l})          K(λ) = ln Σ_l p(l)·e^{λl}

with p_λ the R-fold convolution of p(l)·e^{λl−K(λ)}. An error of its transform is then relative to δ. Errors of the
transform, of its window and of the sums are bounded and count towards less privacy.
"""

from functools import cached_property
from math import expm1, inf, log, log1p, log2, sqrt

import numpy as np
import scipy

from fedprivjax.privacy.accountants.dp_accounting_privates import LossGrid

TAIL = 1e-15  # probability of the weighted losses outside the window
STEP = 1.2  # ratio of neighbouring λ
LADDER = -120, 60  # steps of the least and the largest λ; rare, large losses need a small one
WIDEST = 2**22  # longest transform
UNIT = 2.0**-53
KEPT = 2**22  # number of probabilities in memory


class Composed:
    """R releases with one privacy loss each, a pair of distributions that dominates every release."""

    def __init__(self, one: LossGrid, rounds: int):
        self.one, self.rounds = one, rounds
        used = np.flatnonzero(one.probabilities)
        self.places = used
        self.losses = one.spacing * (one.lowest + used)
        self.logs = np.log(one.probabilities[used])
        self.cumulants: dict[float, float] = {}
        self.windows: dict[int, tuple[int, np.ndarray]] = {}

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the sum of all finite losses."""
        chances = np.exp(self.logs)
        mean = chances @ self.losses / chances.sum()
        return sqrt(self.rounds * (chances @ (self.losses - mean) ** 2)) or self.one.spacing

    @property
    def _infinite(self) -> float:
        """Probability of an infinite loss."""
        return -expm1(self.rounds * log1p(-self.one.infinite)) if self.one.infinite < 1 else 1.0

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε at δ, or inf if the losses are too many."""
        infinite = self._infinite
        if delta <= infinite:
            return inf
        target = log(delta - infinite)
        step = self._steepness(target)
        window = self._window(step)
        return inf if window is None else self._solved(step, target, *window)

    def renyi_epsilon(self, delta: float) -> float:
        """Return Chernoff's bound on ε at δ, from moments of the loss alone. It is never smaller."""
        infinite = self._infinite
        if delta <= infinite:
            return inf
        target = log(delta - infinite)
        return max(0.0, self._chernoff(self._steepness(target), target))

    def _cumulant(self, order: float) -> float:
        """Return K(λ)."""
        if order not in self.cumulants:
            self.cumulants[order] = float(scipy.special.logsumexp(self.logs + order * self.losses))
        return self.cumulants[order]

    def _order(self, step: int) -> float:
        """Return λ, on a ladder that all δ share."""
        return STEP**step / self.scale

    def _chernoff(self, step: int, target: float) -> float:
        order = self._order(step)
        return (self.rounds * self._cumulant(order) + self._margin(order) - target) / order

    def _margin(self, order: float) -> float:
        """Return a bound on the logarithm of the rounding of e^{R·K(λ)} and of the weighted losses."""
        largest = float(np.abs(self.losses[[0, -1]]).max())
        return self.rounds * 8 * UNIT * (2 + order * largest)

    def _steepness(self, target: float) -> int:
        """Return the step of the λ with the least of Chernoff's bounds, which decrease and then increase."""
        low, high = LADDER
        while high - low > 1:
            middle = (low + high) // 2
            falls = self._chernoff(middle, target) > self._chernoff(middle + 1, target)
            low, high = (middle, high) if falls else (low, middle)
        return high

    def _window(self, step: int) -> tuple[int, np.ndarray] | None:
        """Return the first place of all but `TAIL` of the weighted probability, and bounds on the probabilities."""
        if step not in self.windows:
            first, last = self._ends(self._order(step))
            if last - first >= WIDEST:
                return None
            if last - first + sum(one.size for _, one in self.windows.values()) > KEPT:
                self.windows.clear()
            self.windows[step] = first, self._convolved(self._order(step), first, last)
        return self.windows[step]

    def _ends(self, order: float) -> tuple[int, int]:
        """Return the first and last place of the window, counted from R times the lowest loss."""
        level, many = self._cumulant(order), log(2 / TAIL)
        weighted = np.exp(self.logs + order * self.losses - level)
        mean = float(weighted @ self.losses)
        deviation = sqrt(self.rounds * float(weighted @ (self.losses - mean) ** 2)) or self.one.spacing
        centre = self.rounds * mean
        reach: list[float] = [inf, inf]
        for share in (0.25, 0.5, 0.75, 1.0, 1.25):
            tilt = share * sqrt(2 * many) / deviation
            for side, sign in enumerate((-1, 1)):
                grown = self.rounds * (self._cumulant(order + sign * tilt) - level - sign * tilt * mean)
                reach[side] = min(reach[side], (grown + many) / tilt)
        lowest, spacing = self.one.lowest * self.rounds, self.one.spacing
        places = (centre - reach[0]) / spacing - lowest - 1, (centre + reach[1]) / spacing - lowest + 1
        return max(0, int(places[0])), min(self.rounds * (self.one.probabilities.size - 1), int(places[1]) + 1)

    def _convolved(self, order: float, first: int, last: int) -> np.ndarray:
        """Return upper bounds on the weighted probabilities of the sums from `first` to `last`."""
        length = int(scipy.fft.next_fast_len(max(last - first + 1, 1024), real=True))
        weighted = np.exp(self.logs + order * self.losses - self._cumulant(order))
        folded = np.bincount(self.places % length, weighted, length)
        transform = np.asarray(scipy.fft.rfft(folded))
        unit = 10 * UNIT * log2(length)  # relative, in the Euclidean norm
        wrong = unit * sqrt(length) * float(np.linalg.norm(folded))
        size = np.abs(transform)
        rounding = self.rounds * (wrong + 8 * UNIT) * _mean((size + wrong) ** (self.rounds - 1), length)
        rounding += unit * sqrt(_mean(size ** (2 * self.rounds), length))
        sums = np.asarray(scipy.fft.irfft(power(transform, self.rounds), length))
        return np.roll(sums, -(first % length))[: last - first + 1].clip(0) + rounding

    def _solved(self, step: int, target: float, first: int, chances: np.ndarray) -> float:
        """Return the ε at which δ(ε), bounded from above, is the target."""
        order, lowest = self._order(step), self.one.lowest * self.rounds + first
        losses = self.one.spacing * (lowest + np.arange(chances.size))
        level = self.rounds * self._cumulant(order) + self._margin(order) - target

        def excess(epsilon: float) -> float:
            above = np.searchsorted(losses, epsilon, side="right")
            over = losses[above:] - epsilon
            total = chances[above:] @ (np.exp(-order * over) * -np.expm1(-over))
            return level - order * epsilon + log(total + TAIL)

        if excess(0.0) <= 0:
            return 0.0
        high = self._chernoff(step, target)
        if not (high > 0 and excess(high) < 0):
            return max(high, 0.0)
        found = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-13 * high, rtol=1e-12))
        return min(high, found * (1 + 1e-9))


def _mean(half: np.ndarray, length: int) -> float:
    """Return a bound on the mean over all frequencies of values at those of a real transform."""
    return 2 * float(half.sum()) / length


def power(each: np.ndarray, times: int) -> np.ndarray:
    """Return each number to an integer power, by squaring. This takes a tenth of the time of complex powers."""
    result = np.ones_like(each)
    while times:
        if times & 1:
            result *= each
        times >>= 1
        if times:
            each = each * each
    return result
