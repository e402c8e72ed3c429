"""Privacy loss distributions from bounds on a privacy profile at some points.

A privacy profile δ(ε) is convex in e^ε, so the convex hull of upper bounds at single points is an upper bound for every
ε. For a symmetric neighbouring relation the bounds hold in both directions, and the profile at −ε is
`1 − e^{−ε} + e^{−ε}·δ(ε)`. A pair of distributions with this profile dominates the mechanism, and the composition of
dominating pairs dominates the adaptive composition (Zhu, Dong & Wang 2022, Theorem 10).
"""

from math import ceil, exp
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LARGEST = 300.0  # larger losses are treated as infinite
FINEST, CELLS, SHORTEST = 1e-4, 10_000, 2000  # least spacing, most cells up to the largest loss, cells of the smallest

COARSE = 1e-4  # δ up to which steps are coarse


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
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    last = max(ceil(float(np.max(epsilons)) / spacing), 1)
    grid = np.arange(last + 1)
    above = _hull(epsilons, deltas, grid * spacing)
    below = -np.expm1(-grid * spacing) + np.exp(-grid * spacing) * above
    profile = np.maximum.accumulate(np.concatenate([below[:0:-1], above])[::-1])[::-1]  # despite rounding
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
