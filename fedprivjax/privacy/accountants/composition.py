"""Privacy loss distributions: from bounds on a privacy profile, and their composition.

Profiles: a privacy profile δ(ε) is convex in e^ε, so the convex hull of upper bounds at single points is an upper bound
for every ε. For a symmetric neighbouring relation the bounds hold in both directions, and the profile at −ε is
`1 − e^{−ε} + e^{−ε}·δ(ε)`. A pair of distributions with this profile dominates the mechanism, and the composition of
dominating pairs dominates the adaptive composition (Zhu, Dong & Wang 2022, Theorem 10).

Composition: dp-accounting's privacy loss distributions, with vectorised convolution and evaluation of ε.
"""

from bisect import bisect_left
from collections.abc import Callable
from math import ceil, exp, expm1, floor, inf, isinf, log, log1p
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fedprivjax.privacy.accountants.dp_accounting_backend import LossGrid, symmetric_grid
from fedprivjax.privacy.accountants.tilted import power

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LARGEST = 300.0  # larger losses are treated as infinite, and no exponential overflows
FINEST, CELLS, SHORTEST = 1e-4, 10_000, 2000  # least spacing, most cells up to the largest loss, cells of the smallest

COARSE = 1e-4  # δ up to which steps are coarse
HEADROOM = 1 + 2e-8  # factor for exactly solved noise: more than `accounted` rounds off, so that ε stays below
MOST = 600.0  # largest ε for which e^{−ε} does not underflow in dp-accounting's search
TAIL = 1e-15  # probability of the composed losses that are cut off and counted as infinite
ROUNDED = 2.0**-51  # largest probability lost to rounding in the convolution of one release
FAR = 50.0  # excess of a loss over ε from which its part of δ is its probability
STEEPEST = 20  # largest exponent, times the length, in the tail bounds; none overflows


def spacing_for(*longest: float) -> float:
    """Return the spacing of a grid for mechanisms with these largest losses."""
    return max(min(longest) / SHORTEST, max(longest) / CELLS, FINEST)


def loss_of_profile(epsilons: np.ndarray, deltas: np.ndarray, spacing: float) -> "PrivacyLossDistribution":
    """Return the privacy loss of a pair of distributions whose profile is at most the hull of points (ε, δ).

    Args:
        epsilons, deltas: upper bounds, shape [points]: the mechanism is (ε, δ)-DP for each, in both directions.
        spacing: spacing of the losses.

    >>> from math import log
    >>> loss = loss_of_profile(np.array([log(3)]), np.array([0.0]), 1e-3)
    >>> round(float(loss.get_delta_for_epsilon(0.0)), 3)  # that of randomised response
    0.5
    """
    last = max(ceil(float(np.max(epsilons)) / spacing), 1)
    profile = symmetric_profile(_hull(epsilons, deltas, np.arange(last + 1) * spacing), spacing)
    return connected_dots(np.maximum.accumulate(profile[::-1])[::-1], spacing)  # despite rounding


def symmetric_profile(above: np.ndarray, spacing: float) -> np.ndarray:
    """Return a profile of both signs of ε from its values at ε = 0, h, 2h, …, with h = `spacing`, [2·size − 1]."""
    grid = np.arange(above.size)
    below = -np.expm1(-grid * spacing) + np.exp(-grid * spacing) * above  # profile at −ε, by symmetry
    return np.concatenate([below[:0:-1], above])


def connected_dots(profile: np.ndarray, spacing: float) -> "PrivacyLossDistribution":
    """Return an upper bound on the privacy loss of a `symmetric_profile`."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    last = profile.size // 2
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(spacing, -last, last, profile)
    return PrivacyLossDistribution(pmf)


def _hull(epsilons: np.ndarray, deltas: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the lower convex hull, in e^ε, of points and of their mirror images, at ε ≥ 0."""
    mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    x = np.exp(np.concatenate([-epsilons, epsilons]))
    y = np.concatenate([mirrored, deltas])
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    hull: list[int] = []
    for point in range(x.size):
        if hull and x[point] == x[hull[-1]]:  # the lower of two comes first
            continue
        while len(hull) > 1 and _above(x, y, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.interp(np.exp(at), x[hull], y[hull])  # constant after the last point


def _above(x: np.ndarray, y: np.ndarray, left: int, middle: int, right: int) -> bool:
    """Return True if the middle point lies on or above the line through the others."""
    share = (x[middle] - x[left]) / (x[right] - x[left])
    return bool(y[middle] >= y[left] + share * (y[right] - y[left]))


def ladder(least: float) -> np.ndarray:
    """Return values of δ from `least` to almost 1, in steps of a third, and of a twentieth above `COARSE`."""
    coarse = np.exp(np.arange(np.log(least), np.log(max(COARSE, least)), np.log(4 / 3)))
    fine = np.exp(np.arange(np.log(max(COARSE, least)), 0, np.log(1.05)))
    return np.concatenate([np.maximum(coarse, least), np.maximum(fine, least), [1 - exp(-20)]])


def composed(loss: "PrivacyLossDistribution", rounds: int) -> "PrivacyLossDistribution":
    """Return the composed loss of `rounds` releases with this loss each."""
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
    return loss_of_grid(LossGrid(spacing, lowest * rounds + low, window, spilt))


def composed_pair(one: "PrivacyLossDistribution", other: "PrivacyLossDistribution") -> "PrivacyLossDistribution | None":
    """Return the composed loss of two releases with losses on the same grid, or None if one has no symmetric grid.

    Convolved without Fourier transforms: all terms are positive, so even the smallest probability is accurate.
    """
    first, second = symmetric_grid(one), symmetric_grid(other)
    if first is None or second is None or first.spacing != second.spacing:
        return None
    spilt = first.infinite + second.infinite - first.infinite * second.infinite
    convolved = np.convolve(first.probabilities, second.probabilities)
    return loss_of_grid(LossGrid(first.spacing, first.lowest + second.lowest, convolved, spilt))


def loss_of_grid(grid: LossGrid) -> "PrivacyLossDistribution":
    """Return the privacy loss of a grid that serves both directions, the inverse of `symmetric_grid`."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    return PrivacyLossDistribution(DensePLDPmf(*grid, True))


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
