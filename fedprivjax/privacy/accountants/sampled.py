"""Privacy of Gaussian-noised means over records that a sampler picks anew each time, for replacing one record.

A release is `(1/K)·Σ_j g_j + N(0, σ²)` with ‖g_j‖ ≤ L; the noise multiplier is `z = σ·K/L`, so a record that occurs
j times moves it by at most 2j/z standard deviations. dp-accounting knows Poisson sampling under replacement; samples of
a fixed size it does not, with replacement not at all. For those the privacy profile of one release is bounded by
subsampling (Balle, Barthe & Gaboardi 2018): with η the chance that the record occurs,

    δ(ε) ≤ Σ_{j≥1} P[j]·δ_j(ln(1 + (e^ε − 1)/η)),        δ_j the Gaussian profile at shift 2j/z

and releases are composed as privacy loss distributions. Both directions are bounded, so the result holds for any
adaptive choice of what is released.

Where not records but a whole message is clipped, to norm C, `z = σ/C` and every sampler has the same bound with one
term: the record occurs, with chance η, or it does not, and then the message moves by up to 2C however often it occurs.
dp-accounting's pair for Poisson samples, ±C about a centre that stays where it is, is not the worst one there: a record
can turn a message from −C to +C.
"""

from functools import cache, lru_cache
from math import ceil, inf, isinf, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_positive
from fedprivjax.plan.samplers import Occurrences, Sampler, as_sampler
from fedprivjax.plan.samplers.subsampling import NEGLIGIBLE
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.composition import HEADROOM, composed, epsilon_between
from fedprivjax.privacy.accountants.noise_search import least_noise

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

GRID = 5e-4  # spacing of privacy losses; the estimate is from above whatever it is
LONGEST = 5000.0  # a loss of one release beyond this is taken for infinite
KEPT = 32  # composed losses, some megabytes each


def sampled_epsilon(
    noise_multiplier: float,
    *,
    sampler: Sampler | str,
    records: int,
    rounds: int,
    delta: float,
    batch: int | None = None,
    whole_message: bool = False,
) -> float:
    """An upper bound on the ε of `rounds` releases of one machine, at δ, for replacing one of its records.

    Exact where the sampler is "full" or "disjoint", or takes all records.

    Args:
        noise_multiplier: z = σ·K/L, or σ/C for messages that are clipped as a whole; inf is perfect privacy.
        sampler: an object, or its name with `batch` beside it.
        records: n, the machine's own.
        rounds: releases in which the machine takes part, publicly.
        batch: K, where the sampler is a name; ignored by "full".
        whole_message: the mean is clipped, not each record's vector.

    Raises:
        ValueError: settings out of range.

    >>> round(sampled_epsilon(2.0, sampler="full", records=10, rounds=4, delta=1e-5), 3)
    9.997
    >>> from fedprivjax.plan.samplers import Poisson
    >>> settings = {"sampler": Poisson(10), "records": 100, "rounds": 1, "delta": 1e-5}
    >>> [round(sampled_epsilon(1.0, whole_message=whole, **settings), 2) for whole in (False, True)]
    [1.79, 6.58]
    """
    drawn_by = checked(noise_multiplier, as_sampler(sampler, batch), records, rounds, delta)
    return 0.0 if isinf(noise_multiplier) else _bound(noise_multiplier, drawn_by, records, rounds, delta, whole_message)


@cache
def _bound(z: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    batch = sampler.batch_of(records)
    if not sampler.amplifies(records, batch):
        return float(gdp.epsilon(2 * sqrt(sampler.releases(rounds, records, batch)) / z, delta))
    loss = _loss(z, sampler, records, rounds, whole)
    return inf if loss is None else epsilon_between(loss, delta)[1]


@lru_cache(maxsize=KEPT)
def _loss(z: float, sampler: Sampler, records: int, rounds: int, whole: bool) -> "PrivacyLossDistribution | None":
    """What all releases lose, which serves every δ; None where one release has losses beyond `LONGEST`."""
    one = _one_release(z, sampler, records, whole)
    return None if one is None else composed(one, rounds)


@lru_cache(maxsize=KEPT)
def _one_release(z: float, sampler: Sampler, records: int, whole: bool) -> "PrivacyLossDistribution | None":
    return one_release(z, sampler, records, whole)


def one_release(
    z: float, sampler: Sampler, records: int, whole: bool, coarse: int = 1
) -> "PrivacyLossDistribution | None":
    """What one release loses, from above; None where it has losses beyond `LONGEST`.

    Args:
        coarse: how many times wider the grid of losses is than usual: quicker, and a little more is lost.
    """
    if sampler.independent and not whole:
        return _independent(z, sampler.batch_of(records) / records, coarse)
    return _subsampled(z, *law(sampler, records, whole), coarse)


def noise_multiplier_for(
    epsilon: float,
    *,
    sampler: Sampler | str,
    records: int,
    rounds: int,
    delta: float,
    batch: int | None = None,
    whole_message: bool = False,
) -> float:
    """The least z (from above) whose `sampled_epsilon` is at most ε.

    >>> round(noise_multiplier_for(9.997, sampler="full", records=10, rounds=4, delta=1e-5), 2)
    2.0
    """
    require_positive("epsilon", epsilon)
    drawn_by = checked(1.0, as_sampler(sampler, batch), records, rounds, delta)
    return _least(epsilon, drawn_by, records, rounds, delta, whole_message)


@cache
def _least(epsilon: float, sampler: Sampler, records: int, rounds: int, delta: float, whole: bool) -> float:
    mu, batch = float(gdp.mu(epsilon, delta)), sampler.batch_of(records)
    if not sampler.amplifies(records, batch):
        return HEADROOM * 2 * sqrt(sampler.releases(rounds, records, batch)) / mu
    guess = 2 * batch / records * sqrt(rounds) / mu
    least = least_noise(lambda z: _bound(z, sampler, records, rounds, delta, whole), epsilon, guess)
    return require_known(least, epsilon)


def require_known(noise: float, epsilon: float) -> float:
    """The noise, refused where none is known to give the ε."""
    if isinf(noise):
        raise Refusal(f"epsilon must be one that some noise is known to give at this delta, got {epsilon:g}")
    return noise


def law(sampler: Sampler, records: int, whole_message: bool = False) -> Occurrences:
    """How far one record may move a release, in units of the largest step that one occurrence makes, and how likely."""
    occurrences = sampler.occurrences(records, sampler.batch_of(records))
    return Occurrences(np.ones(1), np.array([occurrences.chances.sum()])) if whole_message else occurrences


def checked(noise_multiplier: float, sampler: Sampler, records: int, rounds: int, delta: float) -> Sampler:
    """The sampler, with one machine's batch, after all settings are looked at."""
    require_positive("noise_multiplier", noise_multiplier, infinite=True)
    for name, value in (("records", records), ("rounds", rounds)):
        require_at_least(name, value, 1)
    batch = sampler.batch_of(records)
    require_between("delta", delta, 0, 1)
    return sampler.with_batch(batch)


def _subsampled(z: float, times: np.ndarray, chances: np.ndarray, coarse: int) -> "PrivacyLossDistribution | None":
    """The bound's loss distribution for one release; None where it has losses beyond `LONGEST`."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    longest = _longest_loss(z, times, chances)
    if longest is None:
        return None
    spacing = coarse * max(min(GRID, longest / 2000), longest / 4e4)  # the estimate is off by its square
    grid = np.arange(ceil(longest / spacing) + 1)
    above = np.minimum.accumulate(profile(grid * spacing, times, chances, z))
    below = -np.expm1(-grid * spacing) + np.exp(-grid * spacing) * above  # of e^{−ε}, by symmetry
    deltas = np.concatenate([below[:0:-1], above])
    places = np.concatenate([-grid[:0:-1], grid])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(spacing, int(places[0]), int(places[-1]), deltas)
    return PrivacyLossDistribution(pmf)


def _longest_loss(z: float, times: np.ndarray, chances: np.ndarray) -> float | None:
    """A loss beyond which next to nothing is left of `profile`; None where there is none up to `LONGEST`."""
    losses = np.geomspace(0.05, LONGEST, 64)
    enough = profile(losses, times, chances, z) < NEGLIGIBLE
    return float(losses[enough.argmax()]) if enough.any() else None


def profile(epsilon, times: np.ndarray, chances: np.ndarray, z: float) -> np.ndarray:
    """The bound δ(ε) on one release, of ε's shape."""
    epsilon = np.asarray(epsilon, float)
    with np.errstate(over="ignore"):
        inner = np.where(
            epsilon < 30, np.log1p(np.expm1(np.minimum(epsilon, 30)) / chances.sum()), epsilon - log(chances.sum())
        )
    return sum(chance * gdp.delta(inner, 2 * j / z) for j, chance in zip(times, chances, strict=True))  # type: ignore


def _independent(z: float, rate: float, coarse: int) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sensitivity=1.0,
        sampling_prob=rate,
        value_discretization_interval=GRID * coarse,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
