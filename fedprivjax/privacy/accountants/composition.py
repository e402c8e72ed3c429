"""Composition of dp-accounting's privacy loss distributions, with vectorised convolution and evaluation of ε."""

from bisect import bisect_left
from collections.abc import Callable
from math import ceil, expm1, floor, inf, isinf, log, log1p
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fedprivjax.privacy.accountants.dp_accounting_privates import symmetric_grid
from fedprivjax.privacy.accountants.tilted import power

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

HEADROOM = 1 + 2e-8  # factor for exactly solved noise: more than `accounted` rounds off, so that ε stays below
MOST = 600.0  # largest ε for which e^{−ε} does not underflow in dp-accounting's search
TAIL = 1e-15  # probability of the composed losses that are cut off and counted as infinite
ROUNDED = 2.0**-51  # largest probability lost to rounding in the convolution of one release
FAR = 50.0  # excess of a loss over ε from which its part of δ is its probability
STEEPEST = 20  # largest exponent, times the length, in the tail bounds; none overflows


def composed(loss: "PrivacyLossDistribution", rounds: int) -> "PrivacyLossDistribution":
    """Return the composed loss of `rounds` releases with this loss each."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    grid = symmetric_grid(loss)
    if grid is None or grid.probabilities.size < 2:
        with np.errstate(over="ignore"):  # dp-accounting ignores moments that overflow
            return loss.self_compose(rounds)
    spacing, lowest, chances, infinite = grid
    low, high = _window(chances, rounds)
    length = scipy.fft.next_fast_len(max(high - low + 1, chances.size), real=True)
    convolved = np.asarray(scipy.fft.irfft(power(np.asarray(scipy.fft.rfft(chances, length)), rounds), length))
    window = np.roll(convolved, -low)[: high - low + 1]
    spilt = TAIL + ROUNDED * rounds - expm1(rounds * log1p(-infinite)) if infinite < 1 else 1.0
    return PrivacyLossDistribution(DensePLDPmf(spacing, lowest * rounds + low, window, spilt, True))


def composed_pair(one: "PrivacyLossDistribution", other: "PrivacyLossDistribution") -> "PrivacyLossDistribution | None":
    """Return the composed loss of two releases with losses on the same grid, or None if one has no symmetric grid.

    Convolved without Fourier transforms: all terms are positive, so even the smallest probability is accurate.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    first, second = symmetric_grid(one), symmetric_grid(other)
    if first is None or second is None or first.spacing != second.spacing:
        return None
    spilt = first.infinite + second.infinite - first.infinite * second.infinite
    convolved = np.convolve(first.probabilities, second.probabilities)
    return PrivacyLossDistribution(DensePLDPmf(first.spacing, first.lowest + second.lowest, convolved, spilt, True))


def _window(chances: np.ndarray, rounds: int) -> tuple[int, int]:
    """Return the first and last place that hold all but `TAIL` of the convolution, by Chernoff's bound on each side."""
    places = np.arange(chances.size)

    def end(steepness: int) -> float:
        order = steepness / chances.size
        with np.errstate(divide="ignore", invalid="ignore"):
            return float((rounds * np.log(np.sum(chances * np.exp(order * places))) + log(2 / TAIL)) / order)

    most = (chances.size - 1) * rounds
    high, low = _least(end), -_least(lambda steepness: -end(-steepness))
    return max(0, floor(low)) if low > -inf else 0, min(most, ceil(high)) if high < inf else most


def _least(value_of) -> float:
    """Return the smallest value at 1 … `STEEPEST` of a function that decreases and then increases."""
    steps = range(1, STEEPEST)
    value = value_of(1 + bisect_left(steps, True, key=lambda step: value_of(step) <= value_of(step + 1)))
    return value if np.isfinite(value) else inf


def _exact_epsilon(loss: "PrivacyLossDistribution", delta: float) -> float:
    """Return dp-accounting's `get_epsilon_for_delta`: the smallest ε with Σ_{l > ε} p(1 − e^{ε−l}) ≤ δ.

    Computed with cumulative sums.
    """
    grid = symmetric_grid(loss)
    if grid is None:
        return float(loss.get_epsilon_for_delta(delta))
    spacing, lowest, chances, infinite = grid
    if infinite > delta:
        return inf
    losses = spacing * (lowest + np.arange(chances.size))[::-1]
    falling = chances[::-1]
    above = infinite + np.append(0.0, np.cumsum(falling))  # sums over the losses above each, and over all losses
    least = losses.clip(-MOST)
    below = np.append(0.0, np.cumsum(falling * np.exp(-least)))
    with np.errstate(divide="ignore", invalid="ignore"):  # the quotient itself may overflow
        reached = np.where((above > delta) & (below > 0), np.log(above - delta) - np.log(below), -inf)
    stops = np.flatnonzero(reached[:-1] >= losses)
    place = int(stops[0]) if stops.size else chances.size
    return max(0.0, float(reached[place]))


def epsilon_between(loss: "PrivacyLossDistribution", delta: float) -> tuple[float, float]:
    """Return lower and upper bounds on ε at δ. They are equal if ε is at most `MOST`, or infinite."""
    low, delta_of = MOST, _delta_of(loss)
    if delta_of(inf) > delta:
        return inf, inf
    if delta_of(low) <= delta:
        epsilon = _exact_epsilon(loss, delta)
        return epsilon, epsilon
    high = 2 * low
    while delta_of(high) > delta:
        low, high = high, 2 * high
        if isinf(high):
            return inf, inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return low, high


def _delta_of(loss: "PrivacyLossDistribution") -> Callable[[float], float]:
    """Return the function from ε to δ. Losses above ε + `FAR` count as infinite."""
    grid = symmetric_grid(loss)
    if grid is None:
        return lambda epsilon: float(loss.get_delta_for_epsilon(epsilon))
    spacing, lowest, chances, infinite = grid
    losses = spacing * (lowest + np.arange(chances.size))

    def delta_of(epsilon: float) -> float:
        above, far = np.searchsorted(losses, [epsilon, epsilon + FAR], side="right")
        near = -np.expm1(epsilon - losses[above:far]) @ chances[above:far]
        return infinite + float(near) + float(chances[far:].sum())

    return delta_of
