"""Privacy of Gaussian-noised means over records that are resampled for each release, for one record.

A release is `(1/K)·Σ_j g_j + N(0, σ²)` with ‖g_j‖ ≤ L. The noise multiplier is `z = σ·K/L`, so a record that occurs
j times moves it by at most 2j/z standard deviations. dp-accounting supports Poisson sampling under replace-one, but not
samples of a fixed size, with or without replacement. For those the privacy profile of one release is bounded by
subsampling (Balle, Barthe & Gaboardi 2018). With η the probability that the record occurs,

    δ(ε) ≤ Σ_{j≥1} P[j]·δ_j(ln(1 + (e^ε − 1)/η)),        δ_j the Gaussian profile at shift 2j/z

and releases are composed as privacy loss distributions. Both directions are bounded, so the result also holds for
adaptively chosen releases.

If losses are far smaller than their usual grid, or the rounding errors of so many releases are not far below δ, the
grid is finer and losses are weighted before they are composed (`grids.py`, `tilted.py`). If that takes too much
memory, the smaller one of the usual bound and of a Rényi bound holds.

For a group of k records that are sampled independently, releases have mixtures as pairs, see `accountants.groups`.

For adding or removing a record, Poisson samples have dp-accounting's pair of distributions. The rate and the divisor K
are then public constants, and a record moves a release by 1/z standard deviations.

If the whole message is clipped to norm C, not each record, then `z = σ/C` and every sampler has the same bound with one
term: with probability η the record occurs and moves the message by up to 2C, regardless of its number of occurrences.
dp-accounting's pair for Poisson samples, ±C around a fixed centre, is not the worst one in this case: a record can turn
a message from −C to +C.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, exp, expm1, inf, isinf, log, sinh, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import require_restated
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.plan.samplers import Occurrences, Poisson, Sampler, as_sampler
from fedprivjax.plan.samplers.minibatch import RAREST
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants import composition, grids
from fedprivjax.privacy.accountants.dp_accounting_backend import LossGrid, dp_accounting_relation
from fedprivjax.privacy.accountants.groups import group_epsilon, group_occurrences
from fedprivjax.privacy.accountants.tilted import Composed
from fedprivjax.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE, vectors_changed
from fedprivjax.privacy.target import search_min_noise

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

GRID = 5e-4  # spacing of privacy losses; the estimate is an upper bound for any spacing
FINEST, SPREAD = 1e-4, 0.02  # least spacing for independent samples, and its ratio to a loss's standard deviation
LONGEST = 5000.0  # larger losses of one release are treated as infinite
MAX_CELLS = 1e6  # largest number of cells of one release's losses, for independent samples
NEGLIGIBLE = 1e-15  # δ of the larger losses of one release, which are treated as infinite
LARGEST_GROUP = 1_000_000  # units of an exact guarantee of groups, which takes seconds
KEPT = 32  # number of cached composed losses, some megabytes each
KEPT_FINE = 8  # of these on finer grids
COARSEST, FINER = 5, 10  # cells per standard deviation of a loss: fewer are refined, to the second number
MOST_LINEAR = 0.1  # largest typical loss that is linear in the rate
SPENT = 0.01  # largest part of δ lost to rounding in a Fourier transform of unweighted losses


@dataclass(frozen=True)
class SampledReleases:
    """Releases of one machine on sampled records, and the δ at which their ε is stated.

    Attributes:
        sampler: a sampler, or its name together with `batch`.
        records: number of the machine's records, n.
        rounds: number of releases in which the machine takes part. Participation is public.
        delta: δ in (0, 1).
        batch: batch size K; None if `sampler` is a sampler, or "full".
        whole_message: True if the mean is clipped instead of each record's vector.
        relation: neighbouring relation, a key of `RELATIONS`. Only records that are sampled independently, and clipped
            one by one, can be added or removed.
        group: number of records that are replaced, added or removed together. For several records whose samples amplify
            privacy, only Poisson samples of records that are clipped one by one are supported.

    Raises:
        ValueError: if a setting is out of range.
    """

    sampler: Any
    records: int
    rounds: int
    delta: float
    batch: Any = None
    whole_message: bool = False
    relation: str = REPLACE_ONE
    group: int = 1

    def __post_init__(self):
        sampler = as_sampler(self.sampler, self.batch)
        require_restated(sampler)
        require_at_least("records", self.records, 1)
        require_at_least("rounds", self.rounds, 1)
        object.__setattr__(self, "batch", sampler.batch_of(self.records))
        object.__setattr__(self, "sampler", sampler.with_batch(self.batch))
        require_between("delta", self.delta, 0, 1)
        require_choice("relation", self.relation, RELATIONS)
        if self.relation != REPLACE_ONE and (self.whole_message or not sampler.independent):
            what = "messages that are clipped as a whole" if self.whole_message else f"the sampler {sampler.name!r}"
            raise Refusal(f"relation must be {REPLACE_ONE!r} for {what}, got {self.relation!r}. Use Poisson samples")
        require_at_least("size of a group", self.group, 1)
        for name in ("records", "rounds", "group"):  # products of short NumPy integers overflow
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.group > LARGEST_GROUP and self.amplified:
            raise Refusal(
                f"size of a group must be at most {LARGEST_GROUP} for an exact guarantee, got {self.group}. "
                f"Use exact = False"
            )
        if self.group > 1 and self.amplified and (self.whole_message or type(self.sampler) is not Poisson):
            what = "messages that are clipped as a whole" if self.whole_message else f"the sampler {sampler.name!r}"
            raise Refusal(
                f"size of a group must be 1 for an exact guarantee with {what}, got {self.group}. Use Poisson samples "
                f"of records that are clipped one by one, or exact = False"
            )

    @property
    def moved(self) -> int:
        """L2 change of a release by one record that occurs once, in units of L/K: 2 if it is replaced, else 1."""
        return vectors_changed(self.relation)

    @property
    def amplified(self) -> bool:
        """True if sampling amplifies privacy."""
        return self.sampler.amplifies(self.records, self.batch)

    @property
    def with_record(self) -> int:
        """Largest number of releases that may contain a given record."""
        return self.sampler.releases(self.rounds, self.records, self.batch)

    @property
    def repeated(self) -> float:
        """Largest number of a record's occurrences in a release, or 1 if messages are clipped as a whole."""
        return 1.0 if self.whole_message else float(self.sampler.occurrences(self.records, self.batch).times.max())

    def mu(self, noise_multiplier: float) -> float:
        """Return μ of the releases if sampling does not amplify privacy; inf without noise."""
        shift = self.group * self.moved * self.repeated
        return shift * sqrt(self.with_record) / noise_multiplier if noise_multiplier > 0 else inf


@cache
def sampled_epsilon(noise_multiplier: float, releases: SampledReleases) -> float:
    """Return an upper bound on ε of a machine's releases, for one of its records.

    In tests it is within 2% of the ε that its pairs of distributions allow, or below 1e-5: for z from 0.5 to 500, rates
    of 1e-4 and 0.5, up to 10⁶ rounds, and δ of 1e-10 and 1e-3. The bound is exact if the sampler is "full" or
    "disjoint", or takes all records.

    Args:
        noise_multiplier: z = σ·K/L, or σ/C for messages that are clipped as a whole. inf is perfect privacy.

    >>> round(sampled_epsilon(2.0, SampledReleases("full", records=10, rounds=4, delta=1e-5)), 3)
    9.997
    >>> from fedprivjax.plan.samplers import Poisson
    >>> settings = {"sampler": Poisson(10), "records": 100, "rounds": 1, "delta": 1e-5}
    >>> [round(sampled_epsilon(1.0, SampledReleases(whole_message=whole, **settings)), 2) for whole in (False, True)]
    [1.79, 6.58]
    """
    require_positive("noise_multiplier", noise_multiplier, infinite=True)
    if isinf(noise_multiplier):
        return 0.0
    if not releases.amplified:
        return float(gdp.epsilon(releases.mu(noise_multiplier), releases.delta))
    if releases.group > 1:
        rate = releases.sampler.chance(releases.records, releases.batch)
        change = releases.group, releases.rounds, releases.relation
        return group_epsilon(1 / noise_multiplier, rate, *change, releases.delta)
    message = releases.whole_message, releases.relation
    settings = noise_multiplier, releases.sampler, releases.records
    cells = _cells(noise_multiplier, releases)
    fine = _fine_losses(*settings, releases.rounds, *message, cells) if cells else ()
    found = max((loss.epsilon(releases.delta) for loss in fine), default=inf)
    if found < inf:
        return found
    found = max((loss.renyi_epsilon(releases.delta) for loss in fine), default=inf)
    loss = _loss(*settings, releases.rounds, *message)
    return found if loss is None else min(found, composition.epsilon_between(loss, releases.delta)[1])


@lru_cache(maxsize=KEPT)
def _loss(
    z: float, sampler: Sampler, records: int, rounds: int, whole: bool, relation: str
) -> "PrivacyLossDistribution | None":
    """Return the composed privacy loss of all releases, for every δ, or None if one loss exceeds `LONGEST`."""
    one = one_release(z, sampler, records, whole, relation)
    return None if one is None else composition.composed(one, rounds)


@lru_cache(maxsize=KEPT)
def one_release(
    z: float, sampler: Sampler, records: int, whole: bool, relation: str = REPLACE_ONE, coarse: int = 1
) -> "PrivacyLossDistribution | None":
    """Return an upper bound on the privacy loss of one release, or None if it has losses above `LONGEST`.

    Args:
        coarse: factor of the grid's spacing. A larger factor is faster and gives a slightly larger bound.
    """
    spacing = _spacing(z, sampler, records, whole, relation)
    if spacing is None:
        return None
    shifts = shift_distribution(sampler, records, whole)
    if _has_pair(sampler, shifts, whole):
        # the error of connecting the dots is of second order in the spacing
        return _independent(z, float(shifts.chances.sum()), relation, coarse * spacing)
    return _subsampled(z, shifts, _amplifying(sampler, shifts, whole), coarse * spacing)


def resolved(z: float, releases: SampledReleases, spacing: float) -> bool:
    """Return True if unweighted losses with this spacing determine ε, to some parts in a thousand."""
    enough = spacing * COARSEST <= _deviation(z, releases)
    return enough and releases.rounds * composition.ROUNDED <= SPENT * releases.delta


def _deviation(z: float, releases: SampledReleases) -> float:
    """Return nearly the standard deviation of the loss of one release, or less."""
    shifts = shift_distribution(releases.sampler, releases.records, releases.whole_message)
    rate, square = float(shifts.times @ shifts.chances), z**-2
    paired = _has_pair(releases.sampler, shifts, releases.whole_message)
    if not paired or rate * exp(min(1.5 * square, 50)) > MOST_LINEAR:
        return releases.moved * rate / z
    return rate * sqrt(expm1(square) if releases.relation == ADD_OR_REMOVE else 4 * sinh(square))


def _cells(z: float, releases: SampledReleases) -> int:
    """Return the number of cells of a finer grid in one cell of `one_release`, or 0 if that suffices.

    The finer grid holds all losses of the other one, so its bound is never larger.
    """
    message = releases.whole_message, releases.relation
    spacing = _spacing(z, releases.sampler, releases.records, *message)
    if spacing is None or resolved(z, releases, spacing):
        return 0
    deviation = _deviation(z, releases)
    return 1 if spacing * COARSEST <= deviation else ceil(FINER * spacing / deviation)


@lru_cache(maxsize=KEPT_FINE)
def _fine_losses(
    z: float, sampler: Sampler, records: int, rounds: int, whole: bool, relation: str, cells: int
) -> tuple[Composed, ...]:
    """Return the composed losses of all releases in each direction on the finer grid, or () if it is too long."""
    return tuple(Composed(grid, rounds) for grid in _fine_grids(z, sampler, records, whole, relation, cells))


@lru_cache(maxsize=KEPT_FINE)
def _fine_grids(z: float, sampler: Sampler, records: int, whole: bool, relation: str, cells: int) -> list[LossGrid]:
    """Return the losses of one release in each direction on the finer grid, or [] if it is too long."""
    spacing = _spacing(z, sampler, records, whole, relation)
    assert spacing is not None
    shifts = shift_distribution(sampler, records, whole)
    if not _has_pair(sampler, shifts, whole):
        return grids.subsampled(z, shifts, _amplifying(sampler, shifts, whole), spacing / cells)
    pair = grids.added if relation == ADD_OR_REMOVE else grids.replaced
    return pair(1 / z, float(shifts.chances.sum()), spacing / cells)


@cache
def noise_multiplier_for(epsilon: float, releases: SampledReleases) -> float:
    """Return the smallest z (from above) whose `sampled_epsilon` is at most ε.

    >>> round(noise_multiplier_for(9.997, SampledReleases("full", records=10, rounds=4, delta=1e-5)), 2)
    2.0
    """
    require_positive("epsilon", epsilon)
    mu = float(gdp.mu(epsilon, releases.delta))
    if not releases.amplified:
        return composition.HEADROOM * releases.mu(1.0) / mu
    guess = 2 * releases.batch / releases.records * sqrt(releases.rounds) / mu
    return require_known(search_min_noise(lambda z: sampled_epsilon(z, releases), epsilon, guess), epsilon)


def require_known(noise: float, epsilon: float) -> float:
    """Return the noise. Raise Refusal if it is infinite: no noise is known to give the ε."""
    if isinf(noise):
        raise Refusal(f"epsilon must be reachable with some noise at this delta, got {epsilon:g}")
    return noise


def shift_distribution(sampler: Sampler, records: int, whole_message: bool = False, group: int = 1) -> Occurrences:
    """Return the distribution of a release's shift from one record, in units of the largest shift per occurrence.

    If `group` is above 1, it is that of the shift from this number of records of a Poisson sampler.
    """
    occurrences = sampler.occurrences(records, sampler.batch_of(records))
    if group > 1:
        return group_occurrences(float(occurrences.chances.sum()), group)
    return Occurrences(np.ones(1), np.array([occurrences.chances.sum()])) if whole_message else occurrences


def _has_pair(sampler: Sampler, shifts: Occurrences, whole: bool) -> bool:
    """Return True if one pair of Gaussian mixtures dominates a release: of records that occur independently, once."""
    return sampler.independent and not whole and bool((shifts.times == 1).all())


def _amplifying(sampler: Sampler, shifts: Occurrences, whole: bool) -> float:
    """Return the probability that amplifies ε: that of an occurrence, or 1 if the other records may show it.

    Messages that are clipped as a whole are within 2C of each other, whatever their records are.
    """
    return float(shifts.chances.sum()) if whole or sampler.independent or sampler.coupled else 1.0


def _spacing(z: float, sampler: Sampler, records: int, whole: bool, relation: str) -> float | None:
    """Return the spacing of the losses of `one_release`, or None if there are losses above `LONGEST`."""
    shifts = shift_distribution(sampler, records, whole)
    if not _has_pair(sampler, shifts, whole):
        longest = _longest_loss(z, shifts, _amplifying(sampler, shifts, whole))
        return None if longest is None else max(min(GRID, longest / 2000), longest / 4e4)
    shift = vectors_changed(relation) / z
    longest = shift**2 / 2 + 9 * shift  # beyond nine standard deviations a loss is negligible
    finest = max(SPREAD * float(shifts.chances.sum()) / z, FINEST)
    return None if longest > LONGEST else max(min(finest, GRID), longest / MAX_CELLS)


def _subsampled(z: float, shifts: Occurrences, rate: float, spacing: float) -> "PrivacyLossDistribution":
    """Return the bound's loss distribution for one release."""
    longest = _longest_loss(z, shifts, rate)
    assert longest is not None
    above = profile(np.arange(ceil(longest / spacing) + 1) * spacing, shifts, rate, z)
    return composition.connected_dots(composition.symmetric_profile(np.minimum.accumulate(above), spacing), spacing)


def _longest_loss(z: float, shifts: Occurrences, rate: float) -> float | None:
    """Return a loss at which `profile` is negligible, or None if there is none up to `LONGEST`."""
    losses = np.geomspace(0.05, LONGEST, 64)
    enough = profile(losses, shifts, rate, z) < NEGLIGIBLE
    return float(losses[enough.argmax()]) if enough.any() else None


def profile(epsilon, shifts: Occurrences, rate: float, z: float) -> np.ndarray:
    """Return the bound δ(ε) for one release, in the shape of ε.

    Numbers of occurrences that are left out count as infinite losses.

    Args:
        rate: probability that amplifies ε, see `_amplifying`. With 1, the bound is the mean of δ(ε) over occurrences,
            by joint convexity.
    """
    epsilon = np.asarray(epsilon, float)
    with np.errstate(over="ignore"):
        near = np.log1p(np.expm1(np.minimum(epsilon, 30)) / rate)
        inner = np.where(epsilon < 30, near, epsilon - log(rate))
    parts = (chance * gdp.delta(inner, 2 * j / z) for j, chance in zip(*shifts, strict=True))
    return sum(parts, np.full(epsilon.shape, RAREST))


def _independent(z: float, rate: float, relation: str, spacing: float) -> "PrivacyLossDistribution":
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sensitivity=1.0,
        sampling_prob=rate,
        value_discretization_interval=spacing,
        neighboring_relation=dp_accounting_relation(relation),
    )
