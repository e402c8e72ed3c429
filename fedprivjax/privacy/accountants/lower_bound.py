"""What an adversary really attains against sampled Gaussian mechanisms: lower values, by which claims are refuted.

In one world a record's vector is as long as it may be, in the other it points the opposite way, on a linear loss; or it
takes another's place; or it turns a message that is clipped as a whole. Of these pairs of mixtures the worst counts.
"""

from functools import cache
from math import isinf, log, sqrt

import numpy as np
import scipy

from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.privacy.accountants.composition import composed, epsilon_between
from fedprivjax.privacy.accountants.sampled import checked, law, sampled_epsilon

CELLS = 100_000  # of a mixture's density

Mixture = tuple[np.ndarray, np.ndarray]  # shifts and weights


def attainable_epsilon(
    noise_multiplier: float,
    *,
    sampler: Sampler | str,
    records: int,
    rounds: int,
    delta: float,
    batch: int | None = None,
    whole_message: bool = False,
) -> float:
    """A lower value of the ε that `sampled_epsilon`, whose arguments these are, bounds. A claim below it is refuted.

    >>> from math import isclose
    >>> settings = {"sampler": "full", "records": 10, "rounds": 4, "delta": 1e-5}
    >>> isclose(attainable_epsilon(2.0, **settings), sampled_epsilon(2.0, **settings), rel_tol=1e-3)
    True
    """
    drawn_by = checked(noise_multiplier, as_sampler(sampler, batch), records, rounds, delta)
    if isinf(noise_multiplier):
        return 0.0
    if not drawn_by.secret:
        settings = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
        return sampled_epsilon(noise_multiplier, sampler=drawn_by, **settings)
    return _worst(noise_multiplier, drawn_by, records, rounds, delta, whole_message)


@cache
def _worst(z: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    times, chances = law(sampler, records, whole)
    times, chances = np.append(0.0, times), np.append(1 - chances.sum(), chances)
    pairs: list[tuple[Mixture, Mixture]] = [((times, chances), (-times, chances))]
    if whole:
        pairs += _turned(chances[1:].sum(), sampler.empty(records, sampler.batch_of(records)))
    elif not sampler.independent:  # a record that is drawn takes another's place, at −L or +L
        alone = np.zeros(1), np.ones(1)
        pairs += [((2 * times, chances), alone), (alone, (-2 * times, chances))]
    return max(_attained(one, other, z, rounds, delta) for one, other in pairs)


def _turned(chance: float, empty: float) -> list[tuple[Mixture, Mixture]]:
    """A record so long that it turns a clipped message from −C to +C, against one like all others; and back.

    A message without any records is 0, half-way between.
    """
    without = (1 - chance) * np.array([1 - empty, empty])
    one = np.array([0.0, 1.0, 2.0]), np.append(without, chance)
    other = np.array([0.0, 1.0]), without + np.array([chance, 0.0])
    return [(one, other), ((-other[0], other[1]), (-one[0], one[1]))]


def _attained(one: Mixture, other: Mixture, z: float, rounds: int, delta: float) -> float:
    """The ε at δ, from below, between as many draws of a Gaussian mixture (shifts, weights) and of one further left.

    Losses are rounded to a grid; but for a probability of δ/1000, the errors' sum is near its mean (Hoeffding 1963).
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
