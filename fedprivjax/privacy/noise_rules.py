"""Noise of a machine's messages for a privacy target, by the theorems' rules or by an accountant.

All rules are for a message `(1/K)·Σ_j g_j + N(0, σ²·I)`, ‖g_j‖ ≤ L, sent in each of R rounds, and for replacing one
record. The accountant's rule may also be for adding or removing one, see `SampledReleases`.
"""

from dataclasses import dataclass
from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_flag, require_positive
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.privacy.accountants.sampled import SampledReleases, noise_multiplier_for, shift_distribution
from fedprivjax.privacy.per_machine import group_identical
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.rounding import down, up

NOISE_RULES = {
    "accountant": "the smallest noise whose accounted ε for the sampler is at most the target",
    "advanced": "Theorem 2.1's advanced composition, σ² = 256·L²·R·ln(2.5R/δ)·ln(2/δ)/(nε)²: valid but conservative",
    "paper_moments": "the experiments' σ² = 8·L²·R·ln(1/δ)/(nε)²: its claimed ε is invalid; requires `acknowledged`",
}
THEOREM_RULES = ("accountant", "advanced")  # rules whose claim holds
CLAIMS = {
    "advanced": "Lowy & Razaviyayn 2023, Theorem 2.1 with its constants, advanced composition",
    "paper_moments": "Lowy & Razaviyayn 2023, section 3, the experiments' moments accountant",
}


@dataclass(frozen=True)
class PaperMoments:
    """The rule "paper_moments" as a setting of a privacy object. Its claimed ε is invalid; results report a valid one.

    Attributes:
        acknowledged: True to accept this. Otherwise no noise is computed from a finite ε.
        claimed_records: n in the rule, or None for the machine's number of records.
    """

    acknowledged: bool = False
    claimed_records: int | None = None

    def __post_init__(self):
        require_flag("acknowledged", self.acknowledged)
        if self.claimed_records is not None:
            require_at_least("claimed_records", self.claimed_records, 1)


def noise_std(
    rule: str, releases: SampledReleases, *, lipschitz: float, epsilon: float, acknowledged: bool = False
) -> float:
    """Return the noise σ that a rule prescribes for a target ε: the standard deviation per coordinate of a message.

    A machine with n records sends in each of R rounds the mean of the gradients of K records, with Gaussian noise. The
    rules are:

    * "accountant": the smallest noise whose accounted ε is at most the target.
    * "advanced": `σ² = 256·L²·R·ln(2.5R/δ)·ln(2/δ)/(nε)²`, or `σ² = 32·L²·ln(1.25/δ)/(Kε)²` if each record is in one
      message only. It is a theorem, valid but conservative.
    * "paper_moments": `σ² = 8·L²·R·ln(1/δ)/(nε)²`.

    Args:
        rule: name of the rule, a key of `NOISE_RULES`.
        releases: n, K, R, δ and the sampler of the records.
        lipschitz: L, bound on the norm of one record's gradient. If `releases.whole_message` is True, it is instead the
            norm C to which the mean of the K gradients is clipped. "advanced" then uses L = C·n·q, where q is the
            probability that a message uses a given record.
        epsilon: target ε.
        acknowledged: True to accept that the ε claimed by "paper_moments" is invalid.

    Raises:
        ValueError: if ε or K is outside the range for which the rule's theorem holds.

    Source: Lowy & Razaviyayn 2023, Theorems 2.1 and 2.3, and section 3.

    >>> releases = SampledReleases("replacement", records=1000, batch=100, rounds=10, delta=1e-5)
    >>> round(noise_std("advanced", releases, lipschitz=1.0, epsilon=1.0), 3)
    0.678
    """
    require_choice("noise_rule", rule, NOISE_RULES)
    require_positive("lipschitz", lipschitz)
    require_positive("epsilon", epsilon, infinite=True)
    if epsilon == inf:
        return 0.0
    if rule in CLAIMS:
        _check_claim(rule, releases, epsilon, acknowledged)
        return _claiming(rule, releases, lipschitz) / epsilon
    return lipschitz / _averaged(releases) * noise_multiplier_for(epsilon, releases)


def claimed_epsilon(rule: str, noise_std: float, releases: SampledReleases, lipschitz: float) -> float:
    """Return the ε that a rule of `CLAIMS` claims for a noise, or NaN outside the rule's theorem.

    It is the inverse of `noise_std`.

    >>> releases = SampledReleases("subset", records=1000, batch=500, rounds=10, delta=1e-5)
    >>> noise = noise_std("advanced", releases, lipschitz=1.0, epsilon=2.0)
    >>> round(claimed_epsilon("advanced", noise, releases, lipschitz=1.0), 9)
    2.0
    """
    require_choice("rule", rule, CLAIMS)
    epsilon = _claiming(rule, releases, lipschitz) / noise_std
    try:
        _check_claim(rule, releases, epsilon * (1 - 1e-9), acknowledged=True)
    except Refusal:
        return nan
    return epsilon


def noise_stds(
    rule: str,
    *,
    sampler: Sampler | str,
    batch: ArrayLike | None = None,
    acknowledged: bool = False,
    whole_message: bool = False,
    relation: str = REPLACE_ONE,
    **settings: ArrayLike,
) -> np.ndarray:
    """Return `noise_std` of every machine, float64 [machines]. Each setting is one number or one per machine.

    >>> settings = {"lipschitz": [1.0, 2.0], "records": 100, "rounds": 5, "epsilon": 1.0, "delta": 1e-5}
    >>> one, two = noise_stds("accountant", sampler="subset", batch=10, **settings)
    >>> bool(two == 2 * one)
    True
    """
    drawn_by = as_sampler(sampler, None if batch is None else np.asarray(batch).tolist())
    settings["batch"] = 0 if drawn_by.batch is None else drawn_by.batch
    columns = dict(zip(settings, map(np.atleast_1d, np.broadcast_arrays(*settings.values())), strict=True))
    first, group = group_identical(list(columns.values()))  # identical machines are accounted for once
    needed = []
    for machine in first:
        one: dict[str, Any] = {name: column[machine].item() for name, column in columns.items()}
        records, rounds, batch = (int(one[name]) for name in ("records", "rounds", "batch"))
        sampler = drawn_by.with_batch(batch)
        flags = {"whole_message": whole_message, "relation": relation}
        releases = SampledReleases(sampler, records, rounds, one["delta"], **flags)
        target = {"lipschitz": one["lipschitz"], "epsilon": one["epsilon"], "acknowledged": acknowledged}
        needed.append(noise_std(rule, releases, **target))
    return np.array(needed)[group]


def proportions(
    rule: str, *, sampler: Sampler, lipschitz: np.ndarray, records: np.ndarray, delta: np.ndarray, rounds: ArrayLike
) -> np.ndarray:
    """Return the machines' σ at one ε, up to a common factor, by the rule's formula; float64 [machines].

    For the accountant, σ is proportional to L·√ln(1/δ)/n, or to L·√ln(1.25/δ)/K in one pass.

    >>> from fedprivjax.plan.samplers import Subset
    >>> machines = {"lipschitz": np.array([1.0, 2.0]), "records": np.array([100, 100]), "delta": np.full(2, 1e-5)}
    >>> one, two = proportions("accountant", sampler=Subset(10), rounds=5, **machines)
    >>> float(two / one)
    2.0
    """
    if rule != "paper_moments" and sampler.one_pass:
        return lipschitz * np.sqrt(np.log(1.25 / delta)) / sampler.batches(records)
    if rule == "advanced":
        return lipschitz * np.sqrt(np.log(2.5 * np.asarray(rounds) / delta) * np.log(2 / delta)) / records
    return lipschitz * np.sqrt(np.log(1 / delta)) / records


def minimum_batch(*, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """Return the smallest batch for the rule "advanced": `K ≥ εn/(4√(2R·ln(2/δ)))`.

    >>> round(minimum_batch(records=1238, rounds=35, epsilon=18.0, delta=1238**-2.0))
    172
    """
    return epsilon * records / (4 * sqrt(2 * rounds * log(2 / delta)))


def moments_batch(*, records: int, rounds: int, epsilon: float) -> int:
    """Return the experiments' batch, `⌊n·√(ε/(4R))⌋` and at least 1.

    >>> moments_batch(records=1238, rounds=35, epsilon=18.0)
    443
    """
    require_positive("epsilon", epsilon)
    return max(1, int(records * sqrt(epsilon / (4 * rounds))))


def _averaged(releases: SampledReleases) -> int:
    """Return the divisor of a bounded vector in the released mean: K, or 1 if the mean itself is clipped."""
    return 1 if releases.whole_message else releases.batch


def _claiming(rule: str, releases: SampledReleases, lipschitz: float) -> float:
    """Return σ·ε by the rule's formula."""
    records, rounds, delta = releases.records, releases.rounds, releases.delta
    if rule == "paper_moments":
        return lipschitz * sqrt(8 * rounds * log(1 / delta)) / records
    drawn = _drawn(releases)
    unit = lipschitz * drawn if releases.whole_message else lipschitz
    if releases.sampler.one_pass:
        return unit * sqrt(32 * log(1.25 / delta)) / drawn
    return unit * 16 * sqrt(rounds * log(2.5 * rounds / delta) * log(2 / delta)) / records


def _drawn(releases: SampledReleases) -> float:
    """Return K, or n times the probability that a record occurs if messages are clipped as a whole."""
    if releases.whole_message:
        return releases.records * float(shift_distribution(releases.sampler, releases.records).chances.sum())
    return releases.batch


def _check_claim(rule: str, releases: SampledReleases, epsilon: float, acknowledged: bool) -> None:
    """Raise Refusal if ε or the batch is outside the conditions of the rule's theorem."""
    delta, one_pass = releases.delta, releases.sampler.one_pass
    if rule == "paper_moments":
        if acknowledged is not True:
            raise Refusal(
                "acknowledged must be true for noise_rule 'paper_moments', whose claimed ε is invalid for sampled "
                "batches. Results report a valid ε"
            )
        most = 2 * log(1 / delta)
        if epsilon > most:
            raise Refusal(f"epsilon must be at most {down(most, 4)} for the rule 'paper_moments', got {epsilon}")
        return
    most = 8 * log(1 / delta) if one_pass else 2 * log(2 / delta)
    if epsilon > most:
        raise Refusal(
            f"epsilon must be at most {down(most, 4)} for the rule 'advanced' at delta {delta:g}, got {epsilon}"
        )
    least = minimum_batch(records=releases.records, rounds=releases.rounds, epsilon=epsilon, delta=delta)
    batch = _drawn(releases)
    if batch < least and not one_pass:
        raise Refusal(
            f"batch must be at least {up(least, 4)} for the rule 'advanced' at epsilon {epsilon:g}, got {batch}"
        )
