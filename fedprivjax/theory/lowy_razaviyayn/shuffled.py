"""Algorithm 1 with a shuffler and M identical machines in every round, each with a batch of one record (Theorem 4.1).

The noise is `σ² = C·R·L²·load`, where `shuffled_load` replaces ξ and an unspecified constant C replaces 256. The steps,
bounds and rates of Algorithm 1 hold at this load: `minibatch_step`, `strong_step`, `strong_rate`.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, ordered, plain, positive, probability
from fedprivjax.theory.lowy_razaviyayn.minibatch import minibatch_rounds
from fedprivjax.theory.lowy_razaviyayn.minibatch_strong import strong_rounds
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants


def shuffled_load(*, machines: int, per_round: int, records: int, rounds: int, epsilon: float, delta: float) -> float:
    """Load with a shuffler: `M·ln(RM²/(Nδ))·ln(R/δ)·ln(1/δ)/(εnN)²`.

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
    """Load with a shuffler without its logarithms: `M/(εnN)²`, for plots and informal numbers of rounds.

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
    """Number of rounds with a shuffler, enough for the ε of one round to be small enough for amplification.

    `R ≥ max{(εnN)²/M, N/M, p, T}` with `p = min{n, (εnN)²/(dM)}`, and `T = (βD√M/L)·√p` for a convex loss or
    `T = (8β/μ)·ln(βD²μ(εnN)²/(dL²))` for a strongly convex loss.

    Source: Lowy & Razaviyayn 2023, Theorem 4.1, proved for one record of a machine per round.

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
    """Rate of the excess population loss for a convex loss: `(LD/√M)·(1/√n + √(d·load))`, with constant 1.

    With `shuffled_load` it is `LD·(1/√(nM) + √(d·logs)/(εnN))`.

    Source: Lowy & Razaviyayn 2023, Theorem 4.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> shuffled_rate(problem, load=0.01)
    0.6
    """
    scale = problem.lipschitz * problem.diameter
    terms = 1 / np.sqrt(problem.records) + np.sqrt(problem.dimension * nonnegative("load", load))
    return plain(scale / np.sqrt(problem.per_round) * terms)
