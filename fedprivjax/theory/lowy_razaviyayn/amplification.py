"""Privacy of groups of records, and amplification by shuffling (Theorems 4.1 and F.2, Corollary F.1).

All guarantees are for replace-one neighbours. For groups and shuffled datasets, the arguments `epsilon` and `delta` are
the privacy of one record against the messages of its machine.

Algorithm 1 with a shuffler (Theorem 4.1) has M identical machines in every round, each with a batch of one record. Its
noise is `σ² = C·R·L²·load`, where `shuffled_load` replaces ξ and an unspecified constant C replaces 256. The steps,
bounds and rates of Algorithm 1 hold at this load: `minibatch_step`, `strong_step`, `strong_rate`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.accountants.shuffled import shuffling
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, ordered, plain, positive, probability
from fedprivjax.theory.lowy_razaviyayn.minibatch import minibatch_rounds
from fedprivjax.theory.lowy_razaviyayn.minibatch_strong import strong_rounds
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants


class Privacy(NamedTuple):
    """ε and δ of an (ε, δ)-DP guarantee."""

    epsilon: float
    delta: float


def group_privacy(*, epsilon: float, delta: float, records: int) -> Privacy:
    """Privacy of a group of records if each record has (ε, δ)-DP.

    If the group is a machine's dataset, the result is user-level privacy.

    Args:
        epsilon: ε of one record.
        delta: δ of one record.
        records: n, number of records in the group.

    Returns:
        `(nε, n·e^{(n−1)ε}·δ)`.

    Source: Dwork & Roth 2014, section 2.3; Lowy & Razaviyayn 2023, appendix D.

    >>> group_privacy(epsilon=0.5, delta=1e-6, records=1)
    Privacy(epsilon=0.5, delta=1e-06)
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    return Privacy(records * epsilon, float(records * np.exp((records - 1) * epsilon) * delta))


def hybrid_target(*, epsilon: float, delta: float, records: int) -> Privacy:
    """Privacy of one record that implies (ε, δ)-DP of a machine's whole dataset.

    Args:
        epsilon: ε of the whole dataset.
        delta: δ of the whole dataset.
        records: n, number of records of a machine.

    Returns:
        `(ε/n, δ/(n·e^{(n−1)ε/n}))`. The paper prints δ/n, without the exponential factor.

    Source: Lowy & Razaviyayn 2023, appendix G.1, corrected.

    >>> hybrid_target(epsilon=2.0, delta=1e-6, records=4).epsilon
    0.5
    """
    counts(records=records)
    epsilon, delta = one(positive, "epsilon", epsilon) / records, one(probability, "delta", delta)
    return Privacy(epsilon, float(delta / (records * np.exp((records - 1) * epsilon))))


def compositionality(*, round_epsilons: Sequence[float], epsilon: float) -> float:
    """Root sum of squares of the rounds' ε, divided by the ε of the whole run.

    The paper calls an algorithm C-compositional if this ratio is at most C. The lower bound for algorithms without a
    trusted server (`local_lower_bound`) depends on C.

    Args:
        round_epsilons: ε_r of each round r.
        epsilon: ε of the whole run.

    Returns:
        `√(Σ_r ε_r²)/ε`.

    Source: Lowy & Razaviyayn 2023, section 3 and appendix F.

    >>> compositionality(round_epsilons=[1.0] * 9, epsilon=1.0)
    3.0
    """
    squares = np.sum(positive("round_epsilons", round_epsilons) ** 2)
    return float(np.sqrt(squares) / positive("epsilon", epsilon))


def shuffled_machines(
    *, epsilon: float, delta: float, failure: float, machines: int, records: int, printed: bool = False
) -> Privacy:
    """Privacy of one record in one round, if a trusted shuffler hides which machine sent which message.

    The N machines send their messages in a uniformly random order, which an observer of the messages does not know.

    Args:
        epsilon: ε of a machine's message without shuffling, for replacing one record of the machine.
        delta: δ of a machine's message without shuffling, for replacing one record of the machine; may be 0.
        failure: δ', a part of the resulting δ that can be chosen freely.
        machines: N, number of all machines.
        records: n, number of records of a machine.
        printed: True omits the factor `e^{ε_r} + 1` from the formula of δ_r below. The printed theorem omits this
            factor, but the proof (Lemma F.6) needs the factor.

    Returns:
        The privacy (ε_r, δ_r) with shuffling, where ε and δ are the arguments:
        `ε_r = ln[1 + (e^ε−1)/(e^ε+1)·(8√(e^{nε}·ln(4/δ'))/√N + 8e^{nε}/N)]` and
        `δ_r = δ' + (e^{ε_r}+1)·2Nn·e^{(n−1)ε}·δ`.

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
    """Privacy of one record in all rounds, if a trusted shuffler hides which machine sent which message.

    In each round, the shuffler assigns the machines' datasets to the messages in a new uniformly random order, which an
    observer does not know.

    Args:
        epsilon: ε of all rounds without shuffling, for replacing one record of one machine. It is used only to check
            the hypothesis ε ≤ √N.
        round_epsilons: ε of each round without shuffling, for replacing one record of one machine.
        round_deltas: δ_r of each round r without shuffling, for replacing one record of one machine.
        machines: N, number of machines.
        records: n, number of records of each machine.
        printed: as in `shuffled_machines`.

    Returns:
        The composed ε and δ. Let a_r and b_r be the ε and δ of round r with shuffling, from `shuffled_machines` with
        the failure probability Nnδ_r. Let `δ' = Nn·Σ_r δ_r`. Then

        * `ε = Σ_r a_r·tanh(a_r/2) + √(2·Σ_r a_r²·ln(1/δ'))`;
        * `δ = δ' + Σ_r b_r`.

    Raises:
        Refusal: unless epsilon ≤ √N, every entry of round_epsilons ≤ 1/n, and `2e^{−N/16}/(Nn) ≤ δ_r ≤ 1/(14nNR)` for R
            rounds; or if `shuffled_machines` rejects a round.

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


def shuffled_load(*, machines: int, per_round: int, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """Privacy load with a trusted shuffler: a number to which the noise variance is proportional.

    Args:
        machines: N, number of all machines.
        per_round: M, number of machines in a round.
        records: n, number of records of a machine.
        rounds: R, number of rounds.
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.

    Returns:
        `M·ln(RM²/(Nδ))·ln(R/δ)·ln(1/δ)/(εnN)²`.

    Raises:
        Refusal: unless ε ≤ ln(2/δ) and M ≥ 16·ln(18RM²/(Nδ)), the hypotheses of the theorem.

    Source: Lowy & Razaviyayn 2023, Theorem 4.1.

    >>> round(shuffled_load(machines=1000, per_round=1000, records=10, rounds=100, epsilon=1.0, delta=1e-6), 6)
    0.064459
    """
    counts(machines=machines, per_round=per_round, records=records, rounds=rounds)
    ordered("per_round", per_round, "machines", machines)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    ordered("epsilon", epsilon, "ln(2/delta)", np.log(2 / delta))
    shuffled = rounds * per_round**2 / (machines * delta)
    least = 16 * np.log(18 * shuffled)
    if per_round < least:
        raise Refusal(f"per_round must be at least 16·ln(18RM²/(Nδ)) ({least:.6g}), got {per_round}")
    logs = np.log(shuffled) * np.log(rounds / delta) * np.log(1 / delta)
    return float(per_round * logs / (epsilon * records * machines) ** 2)


def shuffled_bare_load(*, machines: int, per_round: ArrayLike, records: ArrayLike, epsilon: ArrayLike) -> Any:
    """Simplified privacy load with a trusted shuffler: `shuffled_load` without logarithmic factors.

    The noise variance is proportional to the privacy load. The simplified load is for plots and for
    `shuffled_rounds`.

    Args:
        machines: N, number of all machines.
        per_round: M, number of machines in a round.
        records: n, number of records of a machine.
        epsilon: ε of the privacy budget.

    Returns:
        `M/(εnN)²`.

    >>> shuffled_bare_load(machines=10, per_round=4, records=2, epsilon=0.1)
    1.0
    """
    counts(machines=machines)
    ordered("per_round", at_least_one("per_round", per_round), "machines", machines)
    total = positive("epsilon", epsilon) * at_least_one("records", records) * machines
    return plain(np.asarray(per_round, float) / total**2)


def shuffled_rounds(
    problem: ProblemConstants, *, machines: int, epsilon: float, smoothness: float, strong_convexity: float = 0.0
) -> int:
    """Number of rounds of minibatch SGD with a trusted shuffler.

    After this number of rounds, the error of optimisation has at most the order of the other errors. The number also
    makes the ε of one round as small as the theorem on shuffling requires.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), D (distance from the start
            to the optimum) and L (Lipschitz constant).
        machines: N, number of all machines.
        epsilon: ε of the privacy budget.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss; 0 for a convex loss.

    Returns:
        The smallest integer R with `R ≥ max{(εnN)²/M, N/M, p, T}` and `p = min{n, (εnN)²/(dM)}`. For a convex loss,
        `T = (βD√M/L)·√p`. For a strongly convex loss, `T = (8β/μ)·ln(βD²μ(εnN)²/(dL²))`.

    Source: Lowy & Razaviyayn 2023, Theorem 4.1. The proof is for batches of one record.

    >>> problem = ProblemConstants(records=10, per_round=50, dimension=5, diameter=1.0, lipschitz=1.0)
    >>> shuffled_rounds(problem, machines=100, epsilon=0.1, smoothness=1.0)
    200
    """
    sizes = {"machines": machines, "per_round": problem.per_round, "records": problem.records}
    load = shuffled_bare_load(epsilon=epsilon, **sizes)
    settings = {"batch": 1, "smoothness": smoothness, "load": load}
    if strong_convexity:
        rounds = strong_rounds(problem, strong_convexity=strong_convexity, **settings)
    else:
        rounds = minibatch_rounds(problem, **settings)
    amplified = int(np.ceil(max(1 / load, machines / problem.per_round) * (1 - 1e-12)))
    return max(rounds, amplified)


def shuffled_rate(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Excess population loss of minibatch SGD with a trusted shuffler for a convex loss, up to a constant.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), D (distance from the start
            to the optimum) and L (Lipschitz constant).
        load: ξ, privacy load with a shuffler (`shuffled_load`).

    Returns:
        `(LD/√M)·(1/√n + √(dξ))`. At the load `shuffled_load` for N machines in all, the result has the order
        `LD·(1/√(nM) + √d/(εnN))` without logarithms.

    Source: Lowy & Razaviyayn 2023, Theorem 4.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> shuffled_rate(problem, load=0.01)
    0.6
    """
    scale = problem.lipschitz * problem.diameter
    terms = 1 / np.sqrt(problem.records) + np.sqrt(problem.dimension * nonnegative("load", load))
    return plain(scale / np.sqrt(problem.per_round) * terms)
