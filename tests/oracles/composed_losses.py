"""Lower and upper bounds on ε of many sampled Gaussian releases, by NumPy alone.

The loss of one release is rounded to the nearest point of a grid. Except with probability `SHARE`·δ, the sum of all
rounding errors is within Bernstein's bound of its mean, so δ(ε) of the rounded losses, moved by that much, brackets the
true one. The grid follows from the ε in question. Losses are weighted by e^{λl}, so that the errors of the Fourier
transform are relative to δ.
"""

from math import log, sqrt

import numpy as np
import scipy

CELLS, REACH, SHARE = 100_001, 11.0, 1e-3


def normal(edges, mean):
    low, high = edges[:-1] - mean, edges[1:] - mean
    right = low > 0
    cdf = scipy.special.ndtr
    return np.where(right, cdf(-low) - cdf(-high), cdf(high) - cdf(low))


def mixture(edges, rate, mean):
    return (1 - rate) * normal(edges, 0.0) + rate * normal(edges, mean)


def log_rise(x, rate, mean):
    """ln of the density of the mixture divided by that of N(0, 1)."""
    with np.errstate(over="ignore"):
        return np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + mean * x - mean**2 / 2)


def pairs(relation, z, rate):
    """Probabilities of cells and the losses at their edges, one item for each pair of datasets."""
    if relation == "subset":  # the bound on the profile, in both directions
        mean = 2 / z
        edges = np.linspace(mean / 2, mean + REACH, CELLS)
        loss, one, other = log_rise(edges, rate, mean), mixture(edges, rate, mean), normal(edges, 0.0)
        rest = 1 - one.sum() - other.sum()
        flat = np.zeros(1)
        return [
            (
                np.concatenate([one, other, [rest]]),
                np.concatenate([loss[:-1], -loss[:-1], flat]),
                np.concatenate([loss[1:], -loss[1:], flat]),
            )
        ]
    mean = 1 / z
    if relation == "replace-one":
        edges = np.linspace(-mean - REACH, mean + REACH, CELLS)
        loss = log_rise(edges, rate, mean) - log_rise(edges, rate, -mean)
        return [(mixture(edges, rate, mean), loss[:-1], loss[1:])]
    edges = np.linspace(-REACH, mean + REACH, CELLS)
    loss = log_rise(edges, rate, mean)
    return [(mixture(edges, rate, mean), loss[:-1], loss[1:]), (normal(edges, 0.0), -loss[1:], -loss[:-1])]


def bounds(relation, z, rate, rounds, delta, wanted=3e-3):
    """The largest lower and upper bounds on ε over the pairs. About `wanted` separates each from the true ε."""
    found = [_bounds(*pair, rounds, delta, wanted) for pair in pairs(relation, z, rate)]
    return max(low for low, _ in found), max(high for _, high in found)


def _bounds(mass, start, end, rounds, delta, wanted):
    kept = mass > 0
    mass, start, end = mass[kept], start[kept], end[kept]
    loss, width = (start + end) / 2, np.abs(end - start)

    def chernoff(order):
        return (rounds * scipy.special.logsumexp(order * loss, b=mass) - log(delta)) / order

    scale = sqrt(rounds * (mass @ (loss - mass @ loss) ** 2))
    orders = np.geomspace(1e-6, 1000, 110) / scale
    values = [chernoff(order) for order in orders]
    best = int(np.argmin(values))
    order, guess = orders[best], values[best]
    rare = log(1 / (SHARE * delta))
    spacing = wanted * max(guess, 1e-2 * scale) / sqrt(rounds * rare / 6)
    places = np.rint(loss / spacing).astype(np.int64)
    errors = loss - places * spacing
    variance = mass @ (errors**2 + width**2 / 12 + np.abs(errors) * width)
    moved = sqrt(2 * rounds * variance * rare) + (spacing / 2 + width.max()) * rare / 3
    moved += rounds * float(mass @ width**2) + rounds * 1e-16 * float(
        mass @ np.abs(loss)
    )  # means within cells, rounding
    mean = rounds * float(mass @ errors)
    lowest = places.min()
    chances = np.bincount(places - lowest, mass)
    at = lowest * rounds, order, spacing
    low = _epsilon(chances, *at, rounds, delta * (1 + SHARE))[0]
    high = _epsilon(chances, *at, rounds, delta * (1 - SHARE))[1]
    return max(low + mean - moved, 0.0), max(high + mean + moved, 0.0)


def _epsilon(chances, lowest, order, spacing, rounds, delta):
    """Two bounds on ε ∈ ℝ at δ of sums of losses that are multiples of the spacing, equal unless ε is far below 0."""
    places = np.arange(chances.size)
    with np.errstate(divide="ignore"):
        logs = np.log(chances) + order * spacing * places
    level = scipy.special.logsumexp(logs)
    weighted = np.exp(logs - level)
    mean = weighted @ places
    deviation = sqrt(rounds * (weighted @ (places - mean) ** 2)) + 1
    used = np.flatnonzero(weighted)
    moved, logs = used - mean, np.log(weighted[used])

    def end(sign):
        """Distance from the mean, beyond which the probability is below e^−40, by Chernoff's bound."""
        tilts = np.geomspace(0.1, 2, 8) * sqrt(80) / deviation
        return min((rounds * scipy.special.logsumexp(logs + sign * t * moved) + 40) / t for t in tilts)

    length = int(scipy.fft.next_fast_len(int(end(1) + end(-1)) + 2, real=True))
    folded = np.bincount(used % length, weighted[used], length)
    first = max(0, int(rounds * mean - end(-1)))
    transform = scipy.fft.rfft(folded)
    with np.errstate(divide="ignore"):
        composed = scipy.fft.irfft(np.exp(rounds * np.log(transform)), length)
    composed = np.roll(composed, -(first % length)).clip(0)
    losses = spacing * (lowest + first + np.arange(length))
    total = rounds * level + order * spacing * lowest

    def excess(epsilon):
        above = np.searchsorted(losses, epsilon, side="right")
        over = losses[above:] - epsilon
        part = composed[above:] @ (np.exp(-order * over) * -np.expm1(-over))
        return total - order * epsilon + np.log(part + 1e-300) - log(delta)

    low = high = spacing * (lowest + rounds * mean)
    wide = spacing * deviation
    while excess(low) < 0 and low > -30 * wide:
        low -= wide
    while excess(high) > 0:
        high += wide
    if excess(low) <= 0:
        return -np.inf, low
    found = scipy.optimize.brentq(excess, low, high, xtol=1e-9 * wide)
    return found, found
