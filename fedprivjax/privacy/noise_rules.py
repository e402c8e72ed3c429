"""Noise of a machine's messages for a privacy target, by the theorems' rules or by an accountant.

All rules are for a message `(1/K)·Σ_j g_j + N(0, σ²·I)`, ‖g_j‖ ≤ L, sent in each of R rounds, and for replacing one
record.
"""

from math import inf, log, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.privacy.accountants.sampled import noise_multiplier_for, sampled_epsilon, shift_distribution
from fedprivjax.privacy.per_machine import group_identical

NOISE_RULES = {
    "accountant": "the smallest noise whose accounted ε for the sampler is at most the target",
    "advanced": "Theorem 2.1's advanced composition, σ² = 256·L²·R·ln(2.5R/δ)·ln(2/δ)/(nε)²: valid but conservative",
    "paper_moments": "the experiments' σ² = 8·L²·R·ln(1/δ)/(nε)²: its claimed ε is invalid; requires `acknowledged`",
}

CLAIMS = {
    "advanced": "Lowy & Razaviyayn 2023, Theorem 2.1 with its constants, advanced composition",
    "paper_moments": "Lowy & Razaviyayn 2023, section 3, the experiments' moments accountant",
}


def noise_std(
    rule: str,
    *,
    sampler: Sampler | str,
    lipschitz: float,
    records: int,
    rounds: int,
    epsilon: float,
    delta: float,
    batch: int | None = None,
    acknowledged: bool = False,
    whole_message: bool = False,
) -> float:
    """Return σ per coordinate of one machine's message, or 0 if epsilon is infinite.

    Args:
        rule: a key of `NOISE_RULES`.
        sampler, batch: as in `privacy.accountants.sampled`. In one pass (`Disjoint`) each record is in one message
            only, and "advanced" is `σ² = 32·L²·ln(1.25/δ)/(εK)²`.
        lipschitz: L, or the norm C to which whole messages are clipped.
        records: number of the machine's records, n.
        rounds: number of the machine's messages, R.
        epsilon, delta: target (ε, δ).
        acknowledged: True to accept that the ε claimed by "paper_moments" is invalid.
        whole_message: True if the mean is clipped instead of each record's gradient. A record then moves the mean by
            up to 2C, as if L were C times the message's number of records. "paper_moments" keeps the formula of the
            experiments.

    Raises:
        ValueError: if the target or the batch is outside the rule's theorem.

    Source: Lowy & Razaviyayn 2023, Theorems 2.1 and 2.3, and section 3.

    >>> round(noise_std("advanced", sampler="replacement", lipschitz=1.0, records=1000, batch=100, rounds=10,
    ...                 epsilon=1.0, delta=1e-5), 3)
    0.678
    """
    require_choice("noise_rule", rule, NOISE_RULES)
    drawn_by = as_sampler(sampler, batch)
    require_positive("lipschitz", lipschitz)
    require_positive("epsilon", epsilon, infinite=True)
    require_between("delta", delta, 0, 1)
    for name, value in (("records", records), ("rounds", rounds)):
        require_at_least(name, value, 1)
    size = drawn_by.batch_of(records)
    if epsilon == inf:
        return 0.0
    if rule in CLAIMS:
        _check_claim(rule, drawn_by, records, rounds, epsilon, delta, acknowledged, whole_message)
        return _claiming(rule, drawn_by, lipschitz, records, rounds, delta, whole_message) / epsilon
    settings = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
    return lipschitz / (1 if whole_message else size) * noise_multiplier_for(epsilon, sampler=drawn_by, **settings)


def claimed_epsilon(
    rule: str,
    noise_std: float,
    *,
    sampler: Sampler | str,
    lipschitz: float,
    records: int,
    rounds: int,
    delta: float,
    batch: int | None = None,
    whole_message: bool = False,
) -> float:
    """Return the ε that a rule of `CLAIMS` claims for a noise, or NaN outside the rule's theorem.

    It is the inverse of `noise_std`.

    >>> settings = {"sampler": "subset", "lipschitz": 1.0, "records": 1000, "batch": 500, "rounds": 10, "delta": 1e-5}
    >>> round(claimed_epsilon("advanced", noise_std("advanced", epsilon=2.0, **settings), **settings), 9)
    2.0
    """
    require_choice("rule", rule, CLAIMS)
    drawn_by = as_sampler(sampler, batch)
    epsilon = _claiming(rule, drawn_by, lipschitz, records, rounds, delta, whole_message) / noise_std
    try:
        _check_claim(rule, drawn_by, records, rounds, epsilon * (1 - 1e-9), delta, True, whole_message)
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
    **settings: ArrayLike,
) -> np.ndarray:
    """Return `noise_std` of every machine, float64 [machines]. Each setting is one number or one per machine.

    >>> settings = {"lipschitz": [1.0, 2.0], "records": 100, "rounds": 5, "epsilon": 1.0, "delta": 1e-5}
    >>> one, two = noise_stds("accountant", sampler="subset", batch=10, **settings)
    >>> bool(two == 2 * one)
    True
    """
    drawn_by = as_sampler(sampler, None if batch is None else np.asarray(batch).tolist())
    flags = {"acknowledged": acknowledged, "whole_message": whole_message}
    settings["batch"] = 0 if drawn_by.batch is None else drawn_by.batch
    columns = dict(zip(settings, map(np.atleast_1d, np.broadcast_arrays(*settings.values())), strict=True))
    first, group = group_identical(list(columns.values()))  # identical machines are accounted for once
    needed = []
    for machine in first:
        one: dict[str, Any] = {name: column[machine].item() for name, column in columns.items()}
        one |= {name: int(one[name]) for name in ("records", "rounds")}
        needed.append(noise_std(rule, sampler=drawn_by.with_batch(int(one.pop("batch"))), **one, **flags))
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


def true_epsilon(
    noise_std: float,
    *,
    sampler: Sampler | str,
    lipschitz: float,
    records: int,
    rounds: int,
    delta: float,
    batch: int | None = None,
    whole_message: bool = False,
) -> float:
    """Return the ε of a noise, as bounded by `sampled_epsilon`.

    >>> settings = {"sampler": "replacement", "lipschitz": 1.0, "records": 1000, "batch": 100, "rounds": 10}
    >>> true_epsilon(noise_std("advanced", epsilon=1.0, delta=1e-5, **settings), delta=1e-5, **settings) < 0.06
    True
    """
    require_positive("noise_std", noise_std)
    require_positive("lipschitz", lipschitz)
    drawn_by = as_sampler(sampler, batch)
    averaged = 1 if whole_message else drawn_by.batch_of(records)
    settings = {"records": records, "rounds": rounds, "delta": delta, "whole_message": whole_message}
    return sampled_epsilon(noise_std * averaged / lipschitz, sampler=drawn_by, **settings)


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


def _claiming(
    rule: str, sampler: Sampler, lipschitz: float, records: int, rounds: int, delta: float, whole_message: bool
) -> float:
    """Return σ·ε by the rule's formula."""
    if rule == "paper_moments":
        return lipschitz * sqrt(8 * rounds * log(1 / delta)) / records
    drawn = _drawn(sampler, records, whole_message)
    unit = lipschitz * drawn if whole_message else lipschitz
    if sampler.one_pass:
        return unit * sqrt(32 * log(1.25 / delta)) / drawn
    return unit * 16 * sqrt(rounds * log(2.5 * rounds / delta) * log(2 / delta)) / records


def _drawn(sampler: Sampler, records: int, whole_message: bool) -> float:
    """Return K, or n times the probability that a record occurs if messages are clipped as a whole."""
    if whole_message:
        return records * float(shift_distribution(sampler, records).chances.sum())
    return sampler.batch_of(records)


def _check_claim(
    rule: str,
    sampler: Sampler,
    records: int,
    rounds: int,
    epsilon: float,
    delta: float,
    acknowledged: bool,
    whole_message: bool,
) -> None:
    """Raise Refusal if the settings are outside the rule's theorem."""
    if rule == "paper_moments":
        return _check_moments(epsilon, delta, acknowledged)
    drawn = _drawn(sampler, records, whole_message)
    return _check_advanced(sampler.one_pass, records, drawn, rounds, epsilon, delta)


def _check_advanced(one_pass: bool, records: int, batch: float, rounds: int, epsilon: float, delta: float) -> None:
    """Raise Refusal if ε or the batch is outside the conditions of the theorem."""
    most = 8 * log(1 / delta) if one_pass else 2 * log(2 / delta)
    if epsilon > most:
        raise Refusal(f"epsilon must be at most {most:.4g} for the rule 'advanced' at delta {delta:g}, got {epsilon}")
    if one_pass:
        return
    least = minimum_batch(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    if batch < least:
        raise Refusal(f"batch must be at least {least:.4g} for the rule 'advanced' at epsilon {epsilon:g}, got {batch}")


def _check_moments(epsilon: float, delta: float, acknowledged: bool) -> None:
    if acknowledged is not True:
        raise Refusal(
            "acknowledged must be true for noise_rule 'paper_moments', whose claimed ε is invalid for sampled batches. "
            "Results report a valid ε"
        )
    if epsilon > 2 * log(1 / delta):
        most = 2 * log(1 / delta)
        raise Refusal(f"epsilon must be at most {most:.4g} for the rule 'paper_moments', got {epsilon}")
