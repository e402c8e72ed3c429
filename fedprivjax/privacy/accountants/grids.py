"""Privacy losses of one sampled Gaussian release, on a grid of any spacing, for many rounds of small losses.

Between two neighbouring losses of the grid, the probabilities of both datasets are split between the two losses so that
both are preserved (Connect the Dots: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022). Losses are then at least the
true ones in the order of privacy, and their variance grows by h²/6 at spacing h. Rounding moves probability upwards.
All pairs are Gaussian mixtures of unit variance whose loss increases with x and has a closed inverse. With rate q:

    added     (1−q)·N(0) + q·N(m)  against  N(0)                       x = m/2 + ln(1 + (e^l − 1)/q)/m
    replaced  (1−q)·N(0) + q·N(m)  against  (1−q)·N(0) + q·N(−m)      x = (l/2 + asinh((1−q)·e^{m²/2}·sinh(l/2)/q))/m

For a group of records, `mixed` allows several occurrences. Its loss has no closed inverse, see `accountants.groups`.
"""

from collections.abc import Callable
from math import asinh, ceil, exp, expm1, floor, inf, log1p

import numpy as np
import scipy

from fedprivjax.plan.samplers import Occurrences
from fedprivjax.plan.samplers.minibatch import RAREST
from fedprivjax.privacy.accountants.composition import LARGEST
from fedprivjax.privacy.accountants.dp_accounting_backend import LossGrid
from fedprivjax.privacy.relations import ADD_OR_REMOVE

REACH = 10.5  # standard deviations; normals beyond them, of probability 4e-26, count as infinite loss
MOST_CELLS = 2**21
UNIT = 8 * 2.0**-53  # bounds the relative rounding of a normal's tail
FADED = 800.0  # exponent whose negative has the exponential 0
MOST_MIXED = 10**6  # largest number of losses of `mixed`
POINTS = 4097  # points of the table in which the search for a loss starts
STEPS = 60  # largest number of steps of that search, which takes about 6

Masses = tuple[np.ndarray, np.ndarray]  # probabilities of the intervals between edges, and bounds on their rounding


def added(shift: float, rate: float, spacing: float) -> list[LossGrid]:
    """Return the losses for adding or removing a record that moves a release by `shift`.

    Returns:
        One grid for each direction, or an empty list if losses are too large or too many.
    """
    low, high = _loss(-REACH, shift, rate), _loss(shift + REACH, shift, rate)
    places = _places(low, high, spacing)
    if not places.size:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log1p(np.expm1(places * spacing) / rate)
    edges = np.where(np.isnan(ratio), -np.inf, shift / 2 + ratio / shift)
    other = _normal(edges, 0.0)
    one = _mixture(rate, other, _normal(edges, shift))
    reverse = _reversed(other), _reversed(one)
    return [_grid(places[0], one, other, spacing), _grid(-places[-1], *reverse, spacing)]


def replaced(shift: float, rate: float, spacing: float) -> list[LossGrid]:
    """Return the losses for replacing a record that moves a release from −`shift` to `shift`, as in `added`."""
    top = _loss(shift + REACH, shift, rate) - _loss(-shift - REACH, shift, rate)
    places = _places(-top, top, spacing)
    if not places.size:
        return []
    half, steep = places * spacing / 2, (1 - rate) / rate * exp(shift**2 / 2)
    edges = (half + np.arcsinh(steep * np.sinh(half))) / shift
    one = _mixture(rate, _normal(edges, 0.0), _normal(edges, shift))
    return [_grid(places[0], one, _reversed(one), spacing)]


def subsampled(z: float, occurrences: Occurrences, rate: float, spacing: float) -> list[LossGrid]:
    """Return the losses of the bound for samples of a fixed size, see `accountants.sampled.profile`.

    Losses above 0 are those of `added` with this rate, for each number of occurrences. Losses below 0 mirror them.
    """
    shifts = 2 * occurrences.times / z
    places = _places(0.0, _loss(shifts.max() + REACH, shifts.max(), rate), spacing)
    if not places.size:
        return []
    inner = np.log1p(np.expm1(places * spacing) / rate)
    above, one, other, lost = np.zeros(places.size), 0.0, 0.0, RAREST
    for shift, weight in zip(shifts, occurrences.chances / rate, strict=True):
        edges = shift / 2 + inner / shift
        lower = _normal(edges, 0.0)
        upper = _mixture(rate, lower, _normal(edges, shift))
        above += weight * _split(places[0], upper, lower, spacing)
        one, other = one + weight * upper[0][1:].sum(), other + weight * lower[0][1:].sum()
        lost += weight * upper[0][-1]
    below = above[1:] * np.exp(-places[1:] * spacing)
    above[0] += above[0] + max(0.0, 1 - one - other)
    return [LossGrid(spacing, -int(places[-1]), np.concatenate([below[::-1], above]), lost)]


def mixed(shift: float, occurrences: Occurrences, absent: float, spacing: float, relation: str) -> list[LossGrid]:
    """Return the losses for a group of records, of which j occur and move a release by at most j·`shift`.

    Numbers of occurrences that are left out count as infinite losses.

    Args:
        occurrences: numbers of occurrences from 1, in ascending order, and their probabilities.
        absent: probability of no occurrence.
        spacing: distance of neighbouring losses. It is increased if there would be more than `MOST_MIXED`.
        relation: as in `accountants.groups`. Losses above `LARGEST` count as infinite.

    Returns:
        One grid for each direction: one if records are replaced, two if they are added or removed.
    """
    times, chances = np.append(0.0, occurrences.times), np.append(absent, occurrences.chances)
    times, chances = times[chances > 0], chances[chances > 0]
    loss = _added_loss(shift, times, chances) if relation == ADD_OR_REMOVE else _replaced_loss(shift, times, chances)
    reach = shift * times[-1] + REACH
    low = -REACH if relation == ADD_OR_REMOVE else -reach
    low, high = (np.clip(loss(np.array([low, reach]))[0], -LARGEST, LARGEST) * (1 - 1e-12)).tolist()
    spacing = max(spacing, (high - low) / MOST_MIXED)
    places = _places(low, high, spacing)
    edges = _edges(loss, places * spacing, reach + FADED / shift)

    def sums(sign: int) -> Masses:
        masses, wrong = np.zeros(edges.size + 1), np.zeros(edges.size + 1)
        for time, chance in zip(times, chances, strict=True):
            one, error = _normal(edges, sign * shift * time)
            masses, wrong = masses + chance * one, wrong + chance * error
        return masses, wrong

    one = sums(1)
    if relation != ADD_OR_REMOVE:
        grids = [_grid(places[0], one, sums(-1), spacing)]
    else:
        other = _normal(edges, 0.0)
        back = _grid(-places[-1], _reversed(other), _reversed(one), spacing)
        grids = [_grid(places[0], one, other, spacing), back]
    return [grid._replace(infinite=grid.infinite + RAREST) for grid in grids]


Loss = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # losses at points, and their slopes


def _added_loss(shift: float, times: np.ndarray, chances: np.ndarray) -> Loss:
    """Return ln Σ_j P[j]·e^{jmx − j²m²/2}, with m = `shift`, and its slope, as a function of x."""
    logs = np.log(chances) - (times * shift) ** 2 / 2

    def loss(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        top = np.full(x.shape, -inf)
        for time, each in zip(times, logs, strict=True):
            np.maximum(top, time * shift * x + each, out=top)
        total, slope = np.zeros(x.shape), np.zeros(x.shape)
        for time, each in zip(times, logs, strict=True):
            part = np.exp(time * shift * x + each - top)
            total += part
            slope += time * shift * part
        return top + np.log(total), slope / total

    return loss


def _replaced_loss(shift: float, times: np.ndarray, chances: np.ndarray) -> Loss:
    """Return the loss between mixtures at j·m and at −j·m, and its slope, as a function of x."""
    added_loss = _added_loss(shift, times, chances)

    def loss(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (right, rises), (left, falls) = added_loss(x), added_loss(-x)
        return right - left, rises + falls

    return loss


def _edges(loss: Loss, losses: np.ndarray, farthest: float) -> np.ndarray:
    """Return the points at which an increasing loss has these values, by Newton's method between bounds.

    A value that is at most the loss at −`farthest` has the edge −∞.
    """
    points = np.sinh(np.linspace(-asinh(farthest), asinh(farthest), POINTS))
    table = np.maximum.accumulate(loss(points)[0])
    place = np.searchsorted(table, losses)
    below, above = points[np.maximum(place - 1, 0)], points[np.minimum(place, POINTS - 1)]
    at = (below + above) / 2
    for _ in range(STEPS):
        value, slope = loss(at)
        high = value > losses
        below, above = np.where(high, below, at), np.where(high, at, above)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = at - (value - losses) / slope
        moved = np.where((step > below) & (step < above), step, (below + above) / 2)
        done = np.abs(moved - at).max() <= 1e-14 * (1 + np.abs(at).max())
        at = moved
        if done:
            break
    return np.where(place == 0, -inf, at)


def _loss(x: float, shift: float, rate: float) -> float:
    """Return the loss at x of the pair for added records, or inf if an exponential may overflow."""
    exponent = shift * (x - shift / 2)
    return log1p(rate * expm1(exponent)) if exponent < 2 * LARGEST else inf


def _places(low: float, high: float, spacing: float) -> np.ndarray:
    """Return the grid's losses in units of its spacing, or none if they are too large or too many."""
    if not (max(-low, high) < LARGEST and (high - low) / spacing < MOST_CELLS):
        return np.zeros(0, int)
    return np.arange(floor(low / spacing), max(ceil(high / spacing), 1) + 1)


def _mixture(rate: float, other: Masses, one: Masses) -> Masses:
    """Return the probabilities of a mixture in which `one` has the weight `rate`."""
    return (1 - rate) * other[0] + rate * one[0], (1 - rate) * other[1] + rate * one[1]


def _normal(edges: np.ndarray, mean: float) -> Masses:
    """Return the probabilities of the intervals that `edges` separate, from −∞ to ∞, of a normal of variance 1."""
    centred = edges - mean
    right = centred > 0
    tail = scipy.special.ndtr(-np.abs(centred))  # of the side that does not hold the mean
    lower = np.concatenate([[0.0], np.where(right, 1 - tail, tail), [1.0]])
    upper = np.concatenate([[1.0], np.where(right, tail, 1 - tail), [0.0]])
    right = np.append(False, right)
    masses = np.where(right, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    nearest = np.where(right, np.append(0.0, centred), np.append(centred, 0.0)).clip(-2 * REACH, 2 * REACH)
    return masses.clip(0), UNIT * (1 + nearest**2) * np.where(right, upper[:-1], lower[1:])


def _reversed(masses: Masses) -> Masses:
    return masses[0][::-1], masses[1][::-1]


def _split(lowest: int, one: Masses, other: Masses, spacing: float) -> np.ndarray:
    """Return the probabilities of the losses from `lowest`, of what lies between them: float64 [losses]."""
    start = np.exp(spacing * (lowest + np.arange(one[0].size - 2)))
    (p, wrong), (q, wrong_too) = ((masses[1:-1], errors[1:-1]) for masses, errors in (one, other))
    rise = ((p - q * start) + wrong + wrong_too * start) / -np.expm1(-spacing)
    rise = np.clip(rise, 0, p)
    return np.append(p - rise, 0.0) + np.append(0.0, rise)


def _grid(lowest: int, one: Masses, other: Masses, spacing: float) -> LossGrid:
    """Return the losses between two distributions. Smaller losses than the first are rounded up to it."""
    probabilities = _split(lowest, one, other, spacing)
    probabilities[0] += one[0][0]
    return LossGrid(spacing, int(lowest), probabilities, float(one[0][-1]))
