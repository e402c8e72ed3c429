"""From a privacy target to the noise of a machine's messages: the theorems' rules, and an accountant.

All are for a message `(1/K)·Σ_j g_j + N(0, σ²·I)`, ‖g_j‖ ≤ L, sent in each of R rounds, and for replacing one record.
"""

from math import inf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.plan.minibatches import SAMPLERS
from fedprivjax.privacy.accountants.sampled import noise_multiplier_for, sampled_epsilon

NOISE_RULES = {
    "accountant": "the least noise whose accounted ε, for the sampler that is used, is at most the target",
    "advanced": "Theorem 2.1's advanced composition, σ² = 256·L²·R·ln(2.5R/δ)·ln(2/δ)/(nε)²: valid, and conservative",
    "paper_moments": "the experiments' σ² = 8·L²·R·ln(1/δ)/(nε)²: its claimed ε does not hold; only if acknowledged",
}


def noise_std(
    rule: str,
    *,
    sampler: str,
    lipschitz: float,
    records: int,
    batch: int,
    rounds: int,
    epsilon: float,
    delta: float,
    acknowledged: bool = False,
) -> float:
    """σ per coordinate of one machine's message; 0 where epsilon is infinite.

    Args:
        sampler: see `privacy.accountants.sampled`. In one pass ("disjoint") a record is in one message only: there
            "advanced" is `σ² = 32·L²·ln(1.25/δ)/(εK)²`.
        acknowledged: that "paper_moments" claims an ε which it does not give.

    Raises:
        ValueError: a target or a batch outside the rule's theorem, each by name.

    Source: Lowy & Razaviyayn 2023, Theorems 2.1 and 2.3, and section 3.

    >>> round(noise_std("advanced", sampler="replacement", lipschitz=1.0, records=1000, batch=100, rounds=10,
    ...                 epsilon=1.0, delta=1e-5), 3)
    0.678
    """
    require_choice("noise_rule", rule, NOISE_RULES)
    require_choice("sampler", sampler, SAMPLERS)
    require_positive("lipschitz", lipschitz)
    require_positive("epsilon", epsilon, infinite=True)
    require_between("delta", delta, 0, 1)
    for name, value in (("records", records), ("batch", batch), ("rounds", rounds)):
        require_at_least(name, value, 1)
    if epsilon == inf:
        return 0.0
    if rule == "advanced":
        return lipschitz * _advanced(sampler, records, batch, rounds, epsilon, delta)
    if rule == "paper_moments":
        _check_moments(epsilon, delta, acknowledged)
        return lipschitz * sqrt(8 * rounds * log(1 / delta)) / (records * epsilon)
    settings = {"records": records, "batch": batch, "rounds": rounds, "delta": delta}
    return lipschitz / batch * noise_multiplier_for(epsilon, sampler=sampler, **settings)


def noise_stds(rule: str, *, sampler: str, acknowledged: bool = False, **settings: ArrayLike) -> np.ndarray:
    """`noise_std` of every machine, [machines]: each of its other settings is one number or one for each machine.

    >>> settings = {"lipschitz": [1.0, 2.0], "records": 100, "batch": 10, "rounds": 5, "epsilon": 1.0, "delta": 1e-5}
    >>> one, two = noise_stds("accountant", sampler="subset", **settings)
    >>> bool(two == 2 * one)
    True
    """
    each = np.stack(np.broadcast_arrays(*settings.values()))
    unique, which = np.unique(each, axis=1, return_inverse=True)  # machines alike are accounted for once
    found = []
    for values in unique.T.tolist():
        own: dict[str, Any] = dict(zip(settings, values, strict=True))
        own |= {name: int(own[name]) for name in ("records", "batch", "rounds")}
        found.append(noise_std(rule, sampler=sampler, acknowledged=acknowledged, **own))
    return np.array(found)[which.ravel()]


def true_epsilon(
    noise_std: float, *, sampler: str, lipschitz: float, records: int, batch: int, rounds: int, delta: float
) -> float:
    """The ε that a noise really gives, as `sampled_epsilon` bounds it.

    >>> settings = {"sampler": "replacement", "lipschitz": 1.0, "records": 1000, "batch": 100, "rounds": 10}
    >>> true_epsilon(noise_std("advanced", epsilon=1.0, delta=1e-5, **settings), delta=1e-5, **settings) < 0.06
    True
    """
    require_positive("noise_std", noise_std)
    require_positive("lipschitz", lipschitz)
    sizes = {"records": records, "batch": batch, "rounds": rounds}
    return sampled_epsilon(noise_std * batch / lipschitz, sampler=sampler, delta=delta, **sizes)


def minimum_batch(*, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """The least batch for the rule "advanced": `K ≥ εn/(4√(2R·ln(2/δ)))`.

    >>> round(minimum_batch(records=1238, rounds=35, epsilon=18.0, delta=1238**-2.0))
    172
    """
    return epsilon * records / (4 * sqrt(2 * rounds * log(2 / delta)))


def moments_batch(*, records: int, rounds: int, epsilon: float) -> int:
    """The experiments' batch, `⌊n·√(ε/(4R))⌋` and at least 1.

    >>> moments_batch(records=1238, rounds=35, epsilon=18.0)
    443
    """
    require_positive("epsilon", epsilon)
    return max(1, int(records * sqrt(epsilon / (4 * rounds))))


def _advanced(sampler: str, records: int, batch: int, rounds: int, epsilon: float, delta: float) -> float:
    """σ/L, after the conditions of the theorem."""
    most = 8 * log(1 / delta) if sampler == "disjoint" else 2 * log(2 / delta)
    if epsilon > most:
        raise Refusal(f"epsilon must be at most {most:.4g} for the rule 'advanced' at delta {delta:g}, got {epsilon}")
    if sampler == "disjoint":
        return sqrt(32 * log(1.25 / delta)) / (epsilon * batch)
    least = minimum_batch(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    if batch < least:
        raise Refusal(f"batch must be at least {least:.4g} for the rule 'advanced' at epsilon {epsilon:g}, got {batch}")
    return 16 * sqrt(rounds * log(2.5 * rounds / delta) * log(2 / delta)) / (records * epsilon)


def _check_moments(epsilon: float, delta: float, acknowledged: bool) -> None:
    if acknowledged is not True:
        raise Refusal(
            "acknowledged must be true for the rule 'paper_moments': the epsilon it claims does not hold for sampled "
            "batches, and results state the true one"
        )
    if epsilon > 2 * log(1 / delta):
        most = 2 * log(1 / delta)
        raise Refusal(f"epsilon must be at most {most:.4g} for the rule 'paper_moments', got {epsilon}")
