"""Privacy of Gaussian-noised means over records that a sampler picks anew each time, for replacing one record.

A release is `(1/K)·Σ_j g_j + N(0, σ²)` with ‖g_j‖ ≤ L; the noise multiplier is `z = σ·K/L`, so a record that occurs
j times moves it by at most 2j/z standard deviations. dp-accounting knows Poisson sampling under replacement; samples of
a fixed size it does not, with replacement not at all. For those the privacy profile of one release is bounded by
subsampling (Balle, Barthe & Gaboardi 2018): with η the chance that the record occurs,

    δ(ε) ≤ Σ_{j≥1} P[j]·δ_j(ln(1 + (e^ε − 1)/η)),        δ_j the Gaussian profile at shift 2j/z

and releases are composed as privacy loss distributions. Both directions are bounded, so the result holds for any
adaptive choice of what is released.
"""

from collections.abc import Callable
from functools import cache
from math import ceil, exp, inf, isinf, log, sqrt

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.plan.minibatches import SAMPLERS
from fedprivjax.privacy import gdp

GRID = 5e-4  # spacing of privacy losses; the estimate is from above whatever it is
LONGEST = 5000.0  # a loss of one release beyond this is taken for infinite
MOST = 600.0  # beyond, dp-accounting's search for ε divides by an e^{−ε} that underflows
CELLS = 100_000  # of a mixture's density, for the lower value
NEGLIGIBLE = 1e-15  # probability, of occurrences and of losses, that is added to δ rather than resolved


Mixture = tuple[np.ndarray, np.ndarray]


@cache
def sampled_epsilon(
    noise_multiplier: float, *, sampler: str, records: int, batch: int, rounds: int, delta: float
) -> float:
    """An upper bound on the ε of `rounds` releases of one machine, at δ, for replacing one of its records.

    Args:
        noise_multiplier: z = σ·K/L; inf is perfect privacy.
        sampler: "replacement", "subset", "poisson" (bounds by a subsampled profile), "full" (exact) or "disjoint",
            where every record is in one release only, whatever their number (exact).
        records: n, the machine's own.
        batch: K; ignored by "full".
        rounds: releases in which the machine takes part, publicly.

    Raises:
        ValueError: settings out of range.

    >>> round(sampled_epsilon(2.0, sampler="full", records=10, batch=10, rounds=4, delta=1e-5), 3)
    9.997
    """
    _check(noise_multiplier, sampler, records, batch, rounds, delta)
    if isinf(noise_multiplier):
        return 0.0
    if sampler in ("full", "disjoint") or (sampler in ("subset", "poisson") and batch == records):
        releases = 1 if sampler == "disjoint" else rounds
        return float(gdp.epsilon(2 * sqrt(releases) / noise_multiplier, delta))
    one = _poisson(noise_multiplier, batch / records) if sampler == "poisson" else None
    one = _fixed_size(noise_multiplier, sampler, records, batch) if one is None else one
    return inf if one is None else _epsilon(_composed(one, rounds), delta)[1]


@cache
def attainable_epsilon(
    noise_multiplier: float, *, sampler: str, records: int, batch: int, rounds: int, delta: float
) -> float:
    """A lower value of the same ε: what an adversary attains on a linear loss. A claim below it is refuted.

    The record's gradient is +L in one world and −L in the other, and all others' are 0, or, where a record that is
    drawn takes another's place, −L or +L: of these pairs the worst.

    >>> from math import isclose
    >>> settings = {"sampler": "full", "records": 10, "batch": 10, "rounds": 4, "delta": 1e-5}
    >>> isclose(attainable_epsilon(2.0, **settings), sampled_epsilon(2.0, **settings), rel_tol=1e-3)
    True
    """
    _check(noise_multiplier, sampler, records, batch, rounds, delta)
    if sampler in ("full", "disjoint"):
        return sampled_epsilon(
            noise_multiplier, sampler=sampler, records=records, batch=batch, rounds=rounds, delta=delta
        )
    if isinf(noise_multiplier):
        return 0.0
    times, chances = _occurrences(sampler, records, batch)
    times, chances = np.append(0.0, times), np.append(1 - chances.sum(), chances)
    alone = np.zeros(1), np.ones(1)
    pairs = [((times, chances), (-times, chances))]
    if sampler != "poisson":
        pairs += [((2 * times, chances), alone), (alone, (-2 * times, chances))]
    return max(_attained(one, other, noise_multiplier, rounds, delta) for one, other in pairs)


def _attained(one: Mixture, other: Mixture, z: float, rounds: int, delta: float) -> float:
    """The ε at δ, from below, between as many draws of a Gaussian mixture (shifts, weights) and of one further left.

    Losses are rounded to a grid; but for a probability of δ/1000, the errors' sum is near its mean (Hoeffding 1963).
    """
    edges = np.linspace(min(m.min() for m, _ in (one, other)) - 10 * z, one[0].max() + 10 * z, CELLS + 1)
    mass = sum(weight * np.diff(ndtr((edges - shift) / z)) for shift, weight in zip(*one, strict=True))
    loss = _log_density(edges[:-1], one, z) - _log_density(edges[:-1], other, z)
    spacing = max(sqrt(np.cov(loss, aweights=mass)) / 200, float(np.ptp(loss)) / 1e6)
    nearest = np.rint(loss / spacing).astype(int)
    places, which = np.unique(nearest, return_inverse=True)
    masses = dict(zip(places.tolist(), np.bincount(which, mass).tolist(), strict=True))
    pmf = pld_pmf.create_pmf(masses, spacing, infinity_mass=0.0, pessimistic_estimate=False)
    found = _epsilon(_composed(PrivacyLossDistribution(pmf), rounds), 1.001 * delta)[0]
    mean = rounds * float(mass @ (loss - nearest * spacing))
    error = max(mean - spacing * sqrt(rounds * log(1000 / delta) / 2), -rounds * spacing / 2)
    return max(found + error, 0.0) if found > 0 else 0.0


def _log_density(x: np.ndarray, mixture: Mixture, z: float) -> np.ndarray:
    logs = [np.log(weight) - ((x - shift) / z) ** 2 / 2 for shift, weight in zip(*mixture, strict=True) if weight > 0]
    return np.logaddexp.reduce(np.stack(logs), axis=0)


@cache
def noise_multiplier_for(epsilon: float, *, sampler: str, records: int, batch: int, rounds: int, delta: float) -> float:
    """The least z (to a part in 10⁴, from above) whose `sampled_epsilon` is at most ε.

    >>> round(noise_multiplier_for(9.997, sampler="full", records=10, batch=10, rounds=4, delta=1e-5), 2)
    2.0
    """
    require_positive("epsilon", epsilon)
    settings = {"sampler": sampler, "records": records, "batch": batch, "rounds": rounds, "delta": delta}
    _check(1.0, **settings)
    if sampler in ("full", "disjoint"):
        releases = 1 if sampler == "disjoint" else rounds
        return float(2 * sqrt(releases) / gdp.mu(epsilon, delta))

    guess = 2 * batch / records * sqrt(rounds) / float(gdp.mu(epsilon, delta))
    return least_noise(lambda z: sampled_epsilon(z, **settings), epsilon, guess)


def least_noise(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """The least noise multiplier (to a part in 10⁴, from above) at which a decreasing `epsilon_of` it is at most ε."""

    def excess(logarithm: float) -> float:
        return min(epsilon_of(exp(logarithm)), 2 * epsilon) - epsilon

    low = high = log(guess)
    while excess(high) > 0:
        low, high = high, high + 0.5
    while low == high or excess(low) <= 0:
        low, high = low - 0.5, high if excess(low) > 0 else low
    return exp(float(brentq(excess, low, high, xtol=5e-5)) + 1e-4)  # type: ignore[arg-type]


def _composed(loss: PrivacyLossDistribution, rounds: int) -> PrivacyLossDistribution:
    with np.errstate(over="ignore"):  # a moment that overflows bounds no tail, and dp-accounting leaves it out
        return loss.self_compose(rounds)


def _epsilon(loss: PrivacyLossDistribution, delta: float) -> tuple[float, float]:
    """Between which two numbers the ε at δ lies, which are one where dp-accounting can tell."""
    low = MOST
    if loss.get_delta_for_epsilon(low) <= delta:
        found = float(loss.get_epsilon_for_delta(delta))
        return found, found
    high = 2 * low
    while loss.get_delta_for_epsilon(high) > delta:
        low, high = high, 2 * high
        if isinf(high):
            return inf, inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if loss.get_delta_for_epsilon(middle) > delta else (low, middle)
    return low, high


def _fixed_size(z: float, sampler: str, records: int, batch: int) -> PrivacyLossDistribution | None:
    """The bound's loss distribution for one release; None where it has losses beyond `LONGEST`."""
    times, chances = _occurrences(sampler, records, batch)
    longest = next((x for x in np.geomspace(0.05, LONGEST, 64) if _profile(x, times, chances, z) < NEGLIGIBLE), None)
    if longest is None:
        return None
    spacing = max(min(GRID, longest / 2000), longest / 4e4)  # the estimate is off by its square
    grid = np.arange(ceil(longest / spacing) + 1)
    above = np.minimum.accumulate(_profile(grid * spacing, times, chances, z))
    below = -np.expm1(-grid * spacing) + np.exp(-grid * spacing) * above  # of e^{−ε}, by symmetry
    deltas = np.concatenate([below[:0:-1], above])
    places = np.concatenate([-grid[:0:-1], grid])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(spacing, int(places[0]), int(places[-1]), deltas)
    return PrivacyLossDistribution(pmf)


def _profile(epsilon, times: np.ndarray, chances: np.ndarray, z: float) -> np.ndarray:
    epsilon = np.asarray(epsilon, float)
    with np.errstate(over="ignore"):
        inner = np.where(
            epsilon < 30, np.log1p(np.expm1(np.minimum(epsilon, 30)) / chances.sum()), epsilon - log(chances.sum())
        )
    return sum(chance * gdp.delta(inner, 2 * j / z) for j, chance in zip(times, chances, strict=True))  # type: ignore


def _occurrences(sampler: str, records: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """How often a record may occur, from once, and how likely each is."""
    if sampler != "replacement":
        return np.array([1.0]), np.array([batch / records])
    most = int(binom.isf(NEGLIGIBLE, batch, 1 / records)) + 1
    times = np.arange(1, most + 1)
    return times.astype(float), binom.pmf(times, batch, 1 / records)


def _poisson(z: float, rate: float) -> PrivacyLossDistribution:
    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sensitivity=1.0,
        sampling_prob=rate,
        value_discretization_interval=GRID,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )


def _check(noise_multiplier, sampler, records, batch, rounds, delta) -> None:
    require_positive("noise_multiplier", noise_multiplier, infinite=True)
    require_choice("sampler", sampler, SAMPLERS)
    for name, value in (("records", records), ("batch", batch), ("rounds", rounds)):
        require_at_least(name, value, 1)
    if sampler in ("subset", "poisson") and batch > records:
        raise Refusal(f"batch must be at most records ({records}) for the sampler {sampler!r}, got {batch}")
    require_between("delta", delta, 0, 1)
