"""Composition of many releases whose δ is far smaller than the rounding errors of a Fourier transform.

Losses l are weighted by e^{λl}, so that the composed loss is centred near the ε in question:

    δ(ε) = e^{R·K(λ) − λε}·Σ_{l>ε} p_λ(l)·e^{−λ(l−ε)}·(1 − e^{ε−l})          K(λ) = ln Σ_l p(l)·e^{λl}

with p_λ the R-fold convolution of p(l)·e^{λl−K(λ)}. An error of its transform is then relative to δ. Errors of the
transform, of its window and of the sums are bounded and count towards less privacy.
"""

from collections.abc import Callable
from functools import cached_property
from math import exp, expm1, inf, log, log1p, log2, sqrt

import numpy as np
import scipy

from fedprivjax.privacy.accountants.dp_accounting_backend import LossGrid

TAIL = 1e-15  # probability of the weighted losses outside the window
STEP = 1.2  # ratio of neighbouring λ
LADDER = -120, 60  # steps of the least and the largest λ; rare, large losses need a small one
WIDEST = 2**22  # longest transform
UNIT = 2.0**-53
STEEPEST = 600.0  # largest exponent of factors that are multiplied, so that none overflows
FADED = 60.0  # a characteristic function below e^{−`FADED`} after all releases is replaced by 0
NEAR = 40.0  # largest exponent of the weights of losses below the bound at which a search for ε starts
SUMMED = 128 * UNIT  # bounds the relative rounding of a sum of so many numbers in pairs
KEPT = 2**22  # number of probabilities in memory


class Composed:
    """R releases with one privacy loss each, a pair of distributions that dominates every release."""

    def __init__(self, one: LossGrid, rounds: int):
        self.one, self.rounds = one, rounds
        used = np.flatnonzero(one.probabilities)
        self.places = used
        self.losses = one.spacing * (one.lowest + used)
        self.largest = float(np.abs(self.losses[[0, -1]]).max())
        self.chances = one.probabilities[used]
        self.logs = np.log(self.chances)
        self.cumulants: dict[float, float] = {}
        self.windows: dict[int, tuple[int, np.ndarray]] = {}

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the sum of all finite losses."""
        mean = self.chances @ self.losses / self.chances.sum()
        return sqrt(self.rounds * (self.chances @ (self.losses - mean) ** 2)) or self.one.spacing

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
            weighted = order * self.losses
            if abs(order) * self.largest < STEEPEST:
                shift, weighted = 0.0, np.exp(weighted, out=weighted) * self.chances
            else:
                weighted += self.logs
                shift = float(weighted.max())
                weighted = np.exp(weighted - shift)
            self.cumulants[order] = shift + log(weighted.sum())
        return self.cumulants[order]

    def _weighted(self, order: float) -> np.ndarray:
        """Return the weighted probabilities p_λ of one release."""
        return np.exp(self.logs + (order * self.losses - self._cumulant(order)))

    def _order(self, step: int) -> float:
        """Return λ, on a ladder that all δ share."""
        return STEP**step / self.scale

    def _chernoff(self, step: int, target: float) -> float:
        order = self._order(step)
        return (self.rounds * self._cumulant(order) + self._margin(order) - target) / order

    def _margin(self, order: float) -> float:
        """Return a bound on the logarithm of the rounding of e^{R·K(λ)} and of the weighted losses."""
        return self.rounds * 8 * UNIT * (2 + order * self.largest)

    def _steepness(self, target: float) -> int:
        """Return the step of the λ with the least of Chernoff's bounds, which decrease and then increase.

        The search starts at the λ of normal losses.
        """
        low, high = LADDER
        step, stride = round(log(max(-2 * target, 1.0)) / (2 * log(STEP))), 1
        while high - low > 1:
            step = min(max(step, low + 1), high - 1)
            falls = self._chernoff(step, target) > self._chernoff(step + 1, target)
            low, high = (step, high) if falls else (low, step)
            if low > LADDER[0] and high < LADDER[1]:
                step = (low + high) // 2
            else:
                step, stride = step + (stride if falls else -stride), 2 * stride
        return high

    def _window(self, step: int) -> tuple[int, np.ndarray] | None:
        """Return the first place of all but `TAIL` of the weighted probability, and bounds on the probabilities."""
        if step not in self.windows:
            order = self._order(step)
            weighted = self._weighted(order)
            first, last = self._ends(order, weighted)
            if last - first >= WIDEST:
                return None
            if last - first + sum(one.size for _, one in self.windows.values()) > KEPT:
                self.windows.clear()
            self.windows[step] = first, self._convolved(weighted, first, last)
        return self.windows[step]

    def _ends(self, order: float, weighted: np.ndarray) -> tuple[int, int]:
        """Return the first and last place of the window, counted from R times the lowest loss."""
        many = log(2 / TAIL)
        mean = float(weighted @ self.losses)
        deviation = sqrt(self.rounds * float(weighted @ (self.losses - mean) ** 2)) or self.one.spacing
        tilt = 0.25 * sqrt(2 * many) / deviation
        reach: list[float] = [inf, inf]
        for side, sign in enumerate((-1, 1)):
            for times, grown in enumerate(self._grown(order, weighted, sign * tilt), 1):
                steep = times * tilt
                reach[side] = min(reach[side], (self.rounds * (grown - sign * steep * mean) + many) / steep)
        lowest, spacing, centre = self.one.lowest * self.rounds, self.one.spacing, self.rounds * mean
        places = (centre - reach[0]) / spacing - lowest - 1, (centre + reach[1]) / spacing - lowest + 1
        return max(0, int(places[0])), min(self.rounds * (self.one.probabilities.size - 1), int(places[1]) + 1)

    def _grown(self, order: float, weighted: np.ndarray, tilt: float) -> list[float]:
        """Return K(λ + kt) − K(λ) for k from 1 to 5, with t = `tilt`."""
        multiples = range(1, 6)
        if 5 * abs(tilt) * self.largest >= STEEPEST:
            return [self._cumulant(order + times * tilt) - self._cumulant(order) for times in multiples]
        factor, product, grown = np.exp(tilt * self.losses), weighted.copy(), []
        for _ in multiples:
            product *= factor
            grown.append(log(product.sum()))
        return grown

    def _convolved(self, weighted: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return upper bounds on the weighted probabilities of the sums from `first` to `last`.

        Frequencies at which the characteristic function of all releases has faded are left out.
        """
        length = int(scipy.fft.next_fast_len(max(last - first + 1, 1024), real=True))
        folded = np.zeros(-(-self.one.probabilities.size // length) * length)
        folded[self.places] = weighted
        folded = folded.reshape(-1, length).sum(axis=0)
        transform = np.asarray(scipy.fft.rfft(folded))
        unit = 10 * UNIT * log2(length)  # relative, in the Euclidean norm
        wrong = unit * sqrt(length) * float(np.linalg.norm(folded))
        size = np.sqrt(np.real(transform) ** 2 + np.imag(transform) ** 2)
        faded = exp(-FADED / self.rounds)
        kept = np.flatnonzero(size > faded)
        powers = power(transform[kept], self.rounds)
        slope = _mean(power(size[kept] + wrong, self.rounds - 1), length) + (faded + wrong) ** (self.rounds - 1)
        rounding = self.rounds * (wrong + 8 * UNIT) * slope + exp(-FADED)
        rounding += unit * (sqrt(2 * float(np.vdot(powers, powers).real) / length) + exp(-FADED))
        transform[:] = 0
        transform[kept] = powers
        sums = np.asarray(scipy.fft.irfft(transform, length))
        start = first % length
        head, tail = sums[start:][: last - first + 1], sums[: max(0, last - first + 1 - (length - start))]
        return np.maximum(np.concatenate([head, tail]), 0) + rounding

    def _solved(self, step: int, target: float, first: int, chances: np.ndarray) -> float:
        """Return the ε at which δ(ε), bounded from above, is the target."""
        order, lowest = self._order(step), self.one.lowest * self.rounds + first
        losses = self.one.spacing * (lowest + np.arange(chances.size))
        level = self.rounds * self._cumulant(order) + self._margin(order) - target
        high = most = self._chernoff(step, target)
        while high > 0:
            low = max(0.0, high - min(NEAR / order, STEEPEST))
            excess = _excess(losses, chances, order, level, low, high)
            if excess(high) >= 0:
                return min(most, high * (1 + 1e-9))
            if excess(low) > 0:
                found = float(scipy.optimize.brentq(excess, low, high, xtol=1e-13 * high, rtol=1e-12))
                return min(most, found * (1 + 1e-9))
            high = low
        return 0.0


def _excess(
    losses: np.ndarray, chances: np.ndarray, order: float, level: float, low: float, high: float
) -> Callable[[float], float]:
    """Return the function from ε in [low, high] to the logarithm of δ(ε) divided by the target.

    The weights e^{−λ(l−ε)}·(1 − e^{ε−l}) are expanded around l − `high`, so that no exponential is taken twice.
    """
    start = int(np.searchsorted(losses, low, side="right"))
    above = losses[start:]
    over = above - high
    weights = chances[start:] * np.exp(-order * over)
    falls = weights * np.expm1(-over)

    def excess(epsilon: float) -> float:
        place, below = int(np.searchsorted(above, epsilon, side="right")), epsilon - high
        share = -expm1(below) * (1 + SUMMED)
        total = share * float(weights[place:].sum()) - exp(below) * float(falls[place:].sum())
        return level - order * high + log(max(total, 0.0) + exp(-order * below) * TAIL)

    return excess


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
