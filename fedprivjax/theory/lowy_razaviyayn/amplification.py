"""Privacy of groups of records, and of machines whose data sets are shuffled (Theorem F.2, Corollary F.1).

Everything is replace-one; `epsilon` and `delta` of an argument are those of one record against one machine's messages.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.accountants.shuffled import shuffling
from fedprivjax.theory._numbers import counts, one, ordered, positive, probability


class Privacy(NamedTuple):
    """An (ε, δ) guarantee."""

    epsilon: float
    delta: float


def group_privacy(*, epsilon: float, delta: float, records: int) -> Privacy:
    """What one-record privacy gives for a whole data set: `(nε, n·e^{(n−1)ε}·δ)`, user-level for n = all records.

    Source: Dwork & Roth 2014, section 2.3; Lowy & Razaviyayn 2023, appendix D.

    >>> group_privacy(epsilon=0.5, delta=1e-6, records=1)
    Privacy(epsilon=0.5, delta=1e-06)
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    return Privacy(records * epsilon, float(records * np.exp((records - 1) * epsilon) * delta))


def hybrid_target(*, epsilon: float, delta: float, records: int) -> Privacy:
    """The one-record privacy that gives (ε, δ) for a machine's whole data set: `(ε/n, δ/(n·e^{(n−1)ε/n}))`.

    The paper's appendix G.1 takes δ/n, which leaves out the exponential, at most e^ε.

    Source: Lowy & Razaviyayn 2023, appendix G.1, corrected.

    >>> hybrid_target(epsilon=2.0, delta=1e-6, records=4).epsilon
    0.5
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon) / records, one(probability, "delta", delta)
    return Privacy(epsilon, float(delta / (records * np.exp((records - 1) * epsilon))))


def compositionality(*, round_epsilons: Sequence[float], epsilon: float) -> float:
    """The least C for which an algorithm is C-compositional: `√(Σ_r ε_r²)/ε`.

    Source: Lowy & Razaviyayn 2023, section 3 and appendix F.

    >>> compositionality(round_epsilons=[1.0] * 9, epsilon=1.0)
    3.0
    """
    squares = np.sum(positive("round_epsilons", round_epsilons) ** 2)
    return float(np.sqrt(squares) / positive("epsilon", epsilon))


def shuffled_machines(
    *, epsilon: float, delta: float, failure: float, machines: int, records: int, printed: bool = False
) -> Privacy:
    """The central privacy of one round in which the machines' data sets are shuffled among N machines.

    `ε_r = ln[1 + (e^ε−1)/(e^ε+1)·(8√(e^{nε}·ln(4/δ'))/√N + 8e^{nε}/N)]`, `δ_r = δ' + (e^{ε_r}+1)·2Nn·e^{(n−1)ε}·δ`

    Args:
        epsilon, delta: of one machine's message in this round, for one record; delta may be 0.
        failure: δ', a free part of the result's delta.
        printed: leave out the factor `e^{ε_r} + 1` as the theorem prints; its proof (Lemma F.6) needs it.

    Raises:
        ValueError: unless `ε ≤ ln(N/(16·ln(2/δ')))/n`, the theorem's hypothesis.

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
    """The central privacy of all rounds, the machines' data sets shuffled afresh in each.

    Theorem F.2 with `δ'_r = Nnδ_r` in every round, composed: `Σ ε_r·tanh(ε_r/2) + √(2·Σ ε_r²·ln(1/δ'))`, with
    `δ' = Nn·Σδ_r`. The paper gives it as `O(C²ε·ln(1/(nN·min δ_r))/√N)` and `14Nn·Σδ_r`.

    Args:
        epsilon: of all rounds, for one record of one machine.
        round_epsilons, round_deltas: of each round.
        printed: as in `shuffled_machines`.

    Raises:
        ValueError: unless ε ≤ √N, ε_r ≤ 1/n and `2e^{−N/16}/(Nn) ≤ δ_r ≤ 1/(14nNR)`, or as Theorem F.2 does.

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
