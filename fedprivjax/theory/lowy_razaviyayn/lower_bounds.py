"""Lower bounds for private algorithms with all machines in every round: Theorems 3.1, F.3, F.4 and F.5.

`per_round` of the problem is N, the number of machines. The bounds hold up to constants and logarithms; these functions
use constant 1 and no logarithms. Arguments outside a theorem's hypotheses raise Refusal. If a theorem says `δ = o(x)`,
δ must be below x.
"""

from collections.abc import Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, one, ordered, positive, probability, single
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants

_INTERACTIONS = ("sequential", "compositional")


def local_lower_bound(
    problem: ProblemConstants,
    *,
    epsilon: float,
    round_epsilons: Sequence[float],
    round_deltas: Sequence[float],
    deviation: float = 0.0,
    interaction: str = "compositional",
    compositionality: float = 1.0,
    strong_convexity: float = 0.0,
) -> float:
    """Lower bound on the excess loss without a trusted server, if each machine's messages are private.

    The bound is on the excess population loss, for machines whose records have the same distribution. With `deviation`
    0 and `compositionality` 1, the bound is also on the excess empirical loss for the worst data. The bound on the
    excess empirical loss is only for algorithms that are symmetric in the machines. Constants and logarithms are
    omitted.

    Args:
        problem: constants N (`per_round`, here the number of all machines), n (records of a machine), d (parameters), D
            (distance from the start to the optimum) and L (Lipschitz constant).
        epsilon: ε of all rounds, for one record of one machine.
        round_epsilons: ε_r of the messages of each round r; one entry for "sequential".
        round_deltas: δ_r of the messages of each round r; one entry for "sequential".
        deviation: φ, bound on the standard deviation of a record's gradient, at most L; 0 for the empirical loss.
        interaction: "sequential" (every machine sends one message) or "compositional" (several rounds).
        compositionality: C, for "compositional": a number that is at least `√(Σ_r ε_r²)/ε`. For "sequential", C is 1
            and this argument is ignored.
        strong_convexity: μ, strong convexity of the loss, or 0 for a convex loss.

    Returns:
        `φD/√(Nn) + LD·min{1, √d/(εn√N·C²)}` for a convex loss, and `φ²/(μnN) + LD·min{1, d/((εn)²N·C⁴)}` for a strongly
        convex loss.

    Raises:
        Refusal: unless ε ≤ √N, ε_r ≤ 1/n, N ≥ 16·ln(2/(n·min δ_r)), Σδ_r < 1/(nN)², √Σε_r² ≤ Cε, φ ≤ L and μD ≤ L.

    Source: Lowy & Razaviyayn 2023, Theorems 3.1 and F.4.

    >>> problem = ProblemConstants(records=25, per_round=400, dimension=100, diameter=1.0, lipschitz=1.0)
    >>> messages = {"round_epsilons": [0.04], "round_deltas": [1e-9]}
    >>> [local_lower_bound(problem, epsilon=0.04, deviation=phi, **messages) for phi in (1.0, 0.0)]
    [0.51, 0.5]
    """
    problem = _checked(problem, strong_convexity)
    factor = _compositional(interaction, compositionality, epsilon, round_epsilons)
    _local_privacy(problem, epsilon, interaction, round_epsilons, round_deltas)
    private = np.sqrt(problem.dimension / problem.per_round) / (epsilon * problem.records * factor**2)
    return _with_sampling(problem, deviation, private, strong_convexity)


def central_lower_bound(
    problem: ProblemConstants, *, epsilon: float, delta: float, deviation: float = 0.0, strong_convexity: float = 0.0
) -> float:
    """Lower bound on the excess loss with a trusted server.

    The bound is on the excess population loss. With `deviation` 0, the bound is also on the excess empirical loss for
    the worst data. Constants and logarithms are omitted.

    Args:
        problem: constants N (`per_round`, here the number of all machines), n (records of a machine), d (parameters), D
            (distance from the start to the optimum) and L (Lipschitz constant).
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.
        deviation: φ, bound on the standard deviation of a record's gradient, at most L.
        strong_convexity: μ, strong convexity of the loss, or 0 for a convex loss.

    Returns:
        `φD/√(Nn) + LD·min{1, √d/(εnN)}` for a convex loss, and `φ²/(μnN) + LD·min{1, d/(εnN)²}` for a strongly convex
        loss. The theorem for a strongly convex loss is for L near μD.

    Raises:
        Refusal: unless δ < 1/(nN), φ ≤ L and μD ≤ L, the hypotheses of the theorems.

    Source: Lowy & Razaviyayn 2023, Theorems F.3 (Bassily et al. 2019) and F.5 (Bassily, Smith & Thakurta 2014). Section
    3 prints φ²/√(Nn) for φD/√(Nn).

    >>> problem = ProblemConstants(records=25, per_round=400, dimension=100, diameter=1.0, lipschitz=1.0)
    >>> [central_lower_bound(problem, epsilon=0.002, delta=1e-9, deviation=phi) for phi in (1.0, 0.0)]
    [0.51, 0.5]
    """
    problem = _checked(problem, strong_convexity)
    total = problem.per_round * problem.records
    holds = one(probability, "delta", delta) < 1 / total
    _hypothesis("δ = o(1/(nN))", holds, delta=delta, limit=1 / total)
    private = float(np.sqrt(problem.dimension) / (positive("epsilon", epsilon) * total))
    return _with_sampling(problem, deviation, private, strong_convexity)


def classical_local_lower_bound(
    *, machines: int, dimension: int, epsilon: float, diameter: float, lipschitz: float
) -> float:
    """Lower bound on the excess loss if each of N machines has one record and sends private messages.

    Constants are omitted.

    Args:
        machines: N, number of all machines.
        dimension: d, number of parameters.
        epsilon: ε of the privacy budget, at most 1.
        diameter: D, bound on the distance from the start to the optimum.
        lipschitz: L, Lipschitz constant of the loss.

    Returns:
        `LD·min{1, √d/(ε√N)}`.

    Raises:
        Refusal: unless ε ≤ 1.

    Source: Duchi, Jordan & Wainwright 2013, Proposition 3, as cited by Lowy & Razaviyayn 2023.

    >>> classical_local_lower_bound(machines=400, dimension=100, epsilon=1.0, diameter=1.0, lipschitz=2.0)
    1.0
    """
    counts(machines=machines)
    sizes = {"records": 1, "per_round": machines, "dimension": dimension}
    problem = single(ProblemConstants(diameter=diameter, lipschitz=lipschitz, **sizes))
    _hypothesis("ε ≤ 1", one(positive, "epsilon", epsilon) <= 1, epsilon=epsilon)
    return _capped(problem, np.sqrt(dimension / machines) / epsilon, 0.0)


def _checked(problem: ProblemConstants, strong_convexity: float) -> ProblemConstants:
    """Return the constants as single numbers. Raise Refusal unless μD ≤ L."""
    problem, mu = single(problem), one(nonnegative, "strong_convexity", strong_convexity)
    holds = mu * problem.diameter <= problem.lipschitz * (1 + 1e-9)
    _hypothesis("μD ≤ L", holds, strong_convexity=mu, diameter=problem.diameter, lipschitz=problem.lipschitz)
    return problem


def _compositional(interaction: str, factor: float, epsilon: float, round_epsilons: Sequence[float]) -> float:
    require_choice("interaction", interaction, _INTERACTIONS)
    epsilon, factor = one(positive, "epsilon", epsilon), one(positive, "compositionality", factor)
    if interaction == "sequential":
        return 1.0
    least = float(np.linalg.norm(positive("round_epsilons", round_epsilons))) / epsilon
    _hypothesis("√Σε_r² ≤ C·ε", least <= factor * (1 + 1e-9), compositionality=factor, needed=least)
    return factor


def _local_privacy(problem: ProblemConstants, epsilon: float, interaction: str, round_epsilons, round_deltas) -> None:
    machines, records = problem.per_round, problem.records
    largest = float(np.max(positive("round_epsilons", round_epsilons)))
    deltas = np.atleast_1d(probability("round_deltas", round_deltas))
    limit, least = 1 / (machines * records) ** 2, 16 * np.log(2 / (deltas.min() * records))
    spent = float(deltas.max() if interaction == "sequential" else deltas.sum())
    name = "δ = o(1/(nN)²)" if interaction == "sequential" else "Σδ_r = o(1/(nN)²)"
    _hypothesis("ε ≤ √N", epsilon <= np.sqrt(machines), epsilon=epsilon, machines=machines)
    _hypothesis("ε_r ≤ 1/n", largest <= (1 + 1e-9) / records, round_epsilons=largest, limit=1 / records)
    _hypothesis("N ≥ 16·ln(2/(n·min δ_r))", machines >= least, machines=machines, limit=float(least))
    _hypothesis(name, spent < limit, round_deltas=spent, limit=limit)


def _with_sampling(problem: ProblemConstants, deviation: float, private: float, strong_convexity: float) -> float:
    total, deviation = problem.per_round * problem.records, one(nonnegative, "deviation", deviation)
    ordered("deviation", deviation, "lipschitz", problem.lipschitz)
    if strong_convexity:
        statistical = deviation**2 / (strong_convexity * total)
    else:
        statistical = deviation * problem.diameter / np.sqrt(total)
    return float(statistical + _capped(problem, private, strong_convexity))


def _capped(problem: ProblemConstants, private: float, strong_convexity: float) -> float:
    """Return `LD·min{1, private}`, or `LD·min{1, private²}` for a strongly convex loss."""
    scale = problem.lipschitz * problem.diameter
    return float(scale * min(1.0, private**2 if strong_convexity else private))


def _hypothesis(name: str, holds: bool, **numbers: float) -> None:
    if not holds:
        given = ", ".join(f"{key} = {value:.6g}" for key, value in numbers.items())
        raise Refusal(f"the lower bound's hypothesis {name} must hold, got {given}")
