"""Lower bounds on the ε of sampled Gaussian mechanisms, achieved by explicit attacks. They refute invalid claims.

The two neighbouring datasets differ in one record, on a linear loss. Its vector has the largest norm and opposite
directions in the two, or the record replaces another one in the batch, is absent from one of the datasets, or turns a
message that is clipped as a whole. Each case is a pair of Gaussian mixtures, and the worst pair counts.
"""

from functools import cache
from math import isinf, log, sqrt

import numpy as np
import scipy

from fedprivjax.checks.values import require_positive
from fedprivjax.privacy.accountants.composition import composed, epsilon_between
from fedprivjax.privacy.accountants.sampled import NEGLIGIBLE, SampledReleases, sampled_epsilon, shift_distribution
from fedprivjax.privacy.terms import ADD_OR_REMOVE

CELLS = 100_000  # number of cells of a discretised mixture density

Mixture = tuple[np.ndarray, np.ndarray]  # shifts and weights


@cache
def attainable_epsilon(noise_multiplier: float, releases: SampledReleases) -> float:
    """Return a lower bound on the ε that `sampled_epsilon` bounds from above. A claim below it is refuted.

    >>> from math import isclose
    >>> releases = SampledReleases("full", records=10, rounds=4, delta=1e-5)
    >>> isclose(attainable_epsilon(2.0, releases), sampled_epsilon(2.0, releases), rel_tol=1e-3)
    True
    """
    sampler, whole = releases.sampler, releases.whole_message
    if isinf(noise_multiplier) or not sampler.secret:
        return sampled_epsilon(noise_multiplier, releases)
    require_positive("noise_multiplier", noise_multiplier)
    times, chances = shift_distribution(sampler, releases.records, whole)
    tails = np.cumsum(chances[::-1])[::-1]
    kept = np.append(True, tails[:-1] > NEGLIGIBLE)  # all but the rarest numbers of occurrences
    times, chances = times[kept], chances[kept]
    times, chances = np.append(0.0, times), np.append(1 - chances.sum(), chances)
    pairs: list[tuple[Mixture, Mixture]] = [((times, chances), (-times, chances))]
    if releases.relation == ADD_OR_REMOVE:  # the record is absent from one of the datasets
        alone = np.zeros(1), np.ones(1)
        pairs = [((times, chances), alone), (alone, (-times, chances))]
    elif whole:
        pairs += _turned(chances[1:].sum(), sampler.empty(releases.records, releases.batch))
    elif not sampler.independent:  # a sampled record replaces another one, at −L or +L
        alone = np.zeros(1), np.ones(1)
        pairs += [((2 * times, chances), alone), (alone, (-2 * times, chances))]
    return max(_attained(one, other, noise_multiplier, releases.rounds, releases.delta) for one, other in pairs)


def _turned(chance: float, empty: float) -> list[tuple[Mixture, Mixture]]:
    """Return the mixtures for a record that turns a clipped message from −C to +C, in both orders of the datasets.

    In the other dataset the record equals all others. A message without records is 0, half-way between.
    """
    without = (1 - chance) * np.array([1 - empty, empty])
    one = np.array([0.0, 1.0, 2.0]), np.append(without, chance)
    other = np.array([0.0, 1.0]), without + np.array([chance, 0.0])
    return [(one, other), ((-other[0], other[1]), (-one[0], one[1]))]


def _attained(one: Mixture, other: Mixture, z: float, rounds: int, delta: float) -> float:
    """Return a lower bound on ε at δ between `rounds` samples of two Gaussian mixtures (shifts, weights).

    `other` lies to the left of `one`. Losses are rounded to a grid. Except with probability δ/1000, the sum of the
    rounding errors is near its mean (Hoeffding 1963).
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    edges = np.linspace(min(m.min() for m, _ in (one, other)) - 10 * z, one[0].max() + 10 * z, CELLS + 1)
    mass = sum(weight * np.diff(scipy.special.ndtr((edges - shift) / z)) for shift, weight in zip(*one, strict=True))
    loss = _log_density(edges[:-1], one, z) - _log_density(edges[:-1], other, z)
    spacing = max(sqrt(np.cov(loss, aweights=mass)) / 200, float(np.ptp(loss)) / 1e6)
    nearest = np.rint(loss / spacing).astype(int)
    places, place = np.unique(nearest, return_inverse=True)
    masses = dict(zip(places.tolist(), np.bincount(place, mass).tolist(), strict=True))
    pmf = pld_pmf.create_pmf(masses, spacing, infinity_mass=0.0, pessimistic_estimate=False)
    epsilon = epsilon_between(composed(PrivacyLossDistribution(pmf), rounds), 1.001 * delta)[0]
    mean = rounds * float(mass @ (loss - nearest * spacing))
    error = max(mean - spacing * sqrt(rounds * log(1000 / delta) / 2), -rounds * spacing / 2)
    return max(epsilon + error, 0.0) if epsilon > 0 else 0.0


def _log_density(x: np.ndarray, mixture: Mixture, z: float) -> np.ndarray:
    logs = [np.log(weight) - ((x - shift) / z) ** 2 / 2 for shift, weight in zip(*mixture, strict=True) if weight > 0]
    return np.logaddexp.reduce(np.stack(logs), axis=0)
