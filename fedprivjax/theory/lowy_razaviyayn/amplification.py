"""Privacy of groups of records, and of machines whose datasets are shuffled (Theorem F.2, Corollary F.1).

All guarantees are for replace-one neighbours. Arguments `epsilon` and `delta` are the privacy of one record against the
messages of its machine.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.accountants.shuffled import shuffling
from fedprivjax.theory._numbers import counts, one, ordered, positive, probability


class Privacy(NamedTuple):
    """Guarantee of (ε, δ)-DP."""

    epsilon: float
    delta: float


def group_privacy(*, epsilon: float, delta: float, records: int) -> Privacy:
    """Privacy of a group of n records from that of one record: `(nε, n·e^{(n−1)ε}·δ)`.

    If n is the size of a machine's dataset, this is user-level privacy.

    Source: Dwork & Roth 2014, section 2.3; Lowy & Razaviyayn 2023, appendix D.

    >>> group_privacy(epsilon=0.5, delta=1e-6, records=1)
    Privacy(epsilon=0.5, delta=1e-06)
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    return Privacy(records * epsilon, float(records * np.exp((records - 1) * epsilon) * delta))


def hybrid_target(*, epsilon: float, delta: float, records: int) -> Privacy:
    """Privacy of one record that implies (ε, δ)-DP of a machine's whole dataset: `(ε/n, δ/(n·e^{(n−1)ε/n}))`.

    The paper's appendix G.1 uses δ/n, without the exponential factor, which is at most e^ε.

    Source: Lowy & Razaviyayn 2023, appendix G.1, corrected.

    >>> hybrid_target(epsilon=2.0, delta=1e-6, records=4).epsilon
    0.5
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon) / records, one(probability, "delta", delta)
    return Privacy(epsilon, float(delta / (records * np.exp((records - 1) * epsilon))))


def compositionality(*, round_epsilons: Sequence[float], epsilon: float) -> float:
    """Smallest C for which an algorithm is C-compositional: `√(Σ_r ε_r²)/ε`.

    Source: Lowy & Razaviyayn 2023, section 3 and appendix F.

    >>> compositionality(round_epsilons=[1.0] * 9, epsilon=1.0)
    3.0
    """
    squares = np.sum(positive("round_epsilons", round_epsilons) ** 2)
    return float(np.sqrt(squares) / positive("epsilon", epsilon))


def shuffled_machines(
    *, epsilon: float, delta: float, failure: float, machines: int, records: int, printed: bool = False
) -> Privacy:
    """Central privacy of one round in which the datasets of the N machines are shuffled among them.

    `ε_r = ln[1 + (e^ε−1)/(e^ε+1)·(8√(e^{nε}·ln(4/δ'))/√N + 8e^{nε}/N)]`, `δ_r = δ' + (e^{ε_r}+1)·2Nn·e^{(n−1)ε}·δ`

    Args:
        epsilon, delta: privacy of one record against one machine's message in this round; delta may be 0.
        failure: δ', a freely chosen part of the resulting delta.
        printed: omit the factor `e^{ε_r} + 1`, as in the printed theorem, although its proof (Lemma F.6) needs it.

    Raises:
        Refusal: unless `ε ≤ ln(N/(16·ln(2/δ')))/n`, the hypothesis of the theorem.

    Source: Lowy & Razaviyayn 2023, Theorem F.2, after Feldman, McMillan & Talwar 2021, Theorem 3.8.

    >>> shuffled_machines(epsilon=0.1, delta=0.0, failure=1e-6, machines=10**6, records=5).epsilon < 0.01
    True
    """
    counts(machines=machines, records=records)
    epsilon, failure = one(positive, "epsilon", epsilon), one(probability, "failure", failure)
    if not 0 <= delta < 1:
        raise Refusal(f"delta must be at least 0 and below 1, got {delta}")
    most = np.log(machines / (16 * np.log(2 / failure))) / records
    if epsilon > most:
        raise Refusal(
            f"epsilon must be at most ln(machines/(16·ln(2/failure)))/records ({most:.6g}) for amplification by "
            f"shuffling, got {epsilon}"
        )
    total = shuffling(epsilon, failure, machines, records)
    factor = 1.0 if printed else np.exp(total) + 1
    spill = 2 * machines * records * np.exp((records - 1) * epsilon) * delta
    return Privacy(float(total), float(failure + factor * spill))


def shuffled_rounds_privacy(
    *,
    epsilon: float,
    round_epsilons: Sequence[float],
    round_deltas: Sequence[float],
    machines: int,
    records: int,
    printed: bool = False,
) -> Privacy:
    """Central privacy of all rounds, if the datasets of the machines are shuffled independently in each round.

    The result composes Theorem F.2 with `δ'_r = Nnδ_r` in every round: `Σ ε_r·tanh(ε_r/2) + √(2·Σ ε_r²·ln(1/δ'))`, with
    `δ' = Nn·Σδ_r` and the central ε_r. The paper states it as `O(C²ε·ln(1/(nN·min δ_r))/√N)` and `14Nn·Σδ_r`.

    Args:
        epsilon: ε of all rounds, for one record of one machine.
        round_epsilons, round_deltas: ε_r and δ_r of each round, for one record of one machine.
        printed: as for `shuffled_machines`.

    Raises:
        Refusal: unless ε ≤ √N, ε_r ≤ 1/n and `2e^{−N/16}/(Nn) ≤ δ_r ≤ 1/(14nNR)`, or if Theorem F.2 does not apply.

    Source: Lowy & Razaviyayn 2023, Corollary F.1; composition of Kairouz, Oh & Viswanath 2015.

    >>> result = shuffled_rounds_privacy(epsilon=1.0, round_epsilons=[0.05] * 10, round_deltas=[1e-12] * 10,
    ...                                  machines=10**6, records=5)
    >>> round(result.epsilon, 4)
    0.0118
    """
    counts(machines=machines, records=records)
    epsilons, deltas = positive("round_epsilons", round_epsilons), probability("round_deltas", round_deltas)
    if epsilons.shape != deltas.shape or epsilons.ndim != 1:
        raise Refusal(f"round_deltas must be as many as round_epsilons ({epsilons.shape}), got {deltas.shape}")
    ordered("epsilon", one(positive, "epsilon", epsilon), "√machines", np.sqrt(machines))
    ordered("round_epsilons", epsilons, "1/records", 1 / records)
    total = machines * records
    ordered("round_deltas", deltas, "1/(14·records·machines·rounds)", 1 / (14 * total * deltas.size))
    ordered("2·exp(−machines/16)/(machines·records)", 2 * np.exp(-machines / 16) / total, "round_deltas", deltas)
    each = [
        shuffled_machines(epsilon=e, delta=d, failure=total * d, machines=machines, records=records, printed=printed)
        for e, d in zip(epsilons, deltas, strict=True)
    ]
    central = np.array([one.epsilon for one in each])
    slack = total * deltas.sum()
    spent = central @ np.tanh(central / 2) + np.sqrt(2 * central @ central * np.log(1 / slack))
    return Privacy(float(spent), float(slack + sum(one.delta for one in each)))
