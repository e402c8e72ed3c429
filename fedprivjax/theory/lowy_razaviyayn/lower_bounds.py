"""What no private algorithm can beat: Theorems 3.1, F.3, F.4 and F.5, all machines in every round.

The bounds hold up to constants and logarithms; constant 1 and no logarithms here. A call outside a theorem's hypotheses
is refused. Where a theorem says `δ = o(x)`, δ must be below x.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, one, ordered, plain, positive, probability

_INTERACTIONS = ("sequential", "compositional")


def population_lower_bound(
    *,
    machines: int,
    records: int,
    dimension: int,
    epsilon: float,
    diameter: float,
    lipschitz: float,
    deviation: float,
    round_epsilons: Sequence[float],
    round_deltas: Sequence[float],
    interaction: str = "compositional",
    compositionality: float = 1.0,
    strong_convexity: float = 0.0,
) -> float:
    """The excess population loss that an inter-silo record-level private algorithm must leave, machines alike.

    Convex: `φD/√(Nn) + LD·min{1, √d/(εn√N·C²)}`; strongly convex: `φ²/(μnN) + LD·min{1, d/((εn)²N·C⁴)}`.

    Args:
        epsilon: ε of all rounds, for one record of one machine.
        deviation: φ, at most L.
        round_epsilons, round_deltas: (ε_r, δ_r) of each round's messages; one entry for "sequential".
        interaction: "sequential" (every machine is asked once) or "compositional".
        compositionality: C; 1 for sequential or compositional algorithms, √R for the one-pass Algorithm 2.
        strong_convexity: μ, 0 for a merely convex loss.

    Raises:
        ValueError: unless ε ≤ √N, ε_r ≤ 1/n, N ≥ 16·ln(2/(n·min δ_r)), δ (Σδ_r) < 1/(nN)², √Σε_r² ≤ Cε, φ ≤ L, μD ≤ L.

    Source: Lowy & Razaviyayn 2023, Theorem 3.1.

    >>> population_lower_bound(machines=400, records=25, dimension=100, epsilon=0.04, diameter=1.0, lipschitz=1.0,
    ...                        deviation=1.0, round_epsilons=[0.04], round_deltas=[1e-9])
    0.51
    """
    _problem(machines, records, dimension, lipschitz, diameter, strong_convexity)
    deviation = one(nonnegative, "deviation", deviation)
    ordered("deviation", deviation, "lipschitz", lipschitz)
    factor = _compositional(interaction, compositionality, epsilon, round_epsilons)
    _local_privacy(machines, records, epsilon, interaction, round_epsilons, round_deltas)
    private = np.sqrt(dimension / machines) / (epsilon * records * factor**2)
    return _population(machines * records, deviation, private, lipschitz * diameter, diameter, strong_convexity)


def empirical_lower_bound(
    *,
    machines: int,
    records: int,
    dimension: int,
    epsilon: float,
    diameter: float,
    lipschitz: float,
    round_epsilons: Sequence[float],
    round_deltas: Sequence[float],
    interaction: str = "compositional",
    strong_convexity: float = 0.0,
) -> float:
    """The excess empirical loss that an algorithm symmetric in its machines must leave, on some data.

    Convex: `LD·min{1, √d/(εn√N)}`; strongly convex: `LD·min{1, d/((εn)²N)}`.

    Raises:
        ValueError: as `population_lower_bound` (C = 1); the theorem's `δ_r ≥ 2e^{−N/16}/(Nn)` follows.

    Source: Lowy & Razaviyayn 2023, Theorem F.4.

    >>> empirical_lower_bound(machines=400, records=25, dimension=100, epsilon=0.04, diameter=1.0, lipschitz=1.0,
    ...                       round_epsilons=[0.04], round_deltas=[1e-9])
    0.5
    """
    _problem(machines, records, dimension, lipschitz, diameter, strong_convexity)
    _compositional(interaction, 1.0, epsilon, round_epsilons)
    _local_privacy(machines, records, epsilon, interaction, round_epsilons, round_deltas)
    private = np.sqrt(dimension / machines) / (epsilon * records)
    return _capped(private, lipschitz * diameter, strong_convexity)


def central_population_lower_bound(
    *,
    machines: int,
    records: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diameter: float,
    lipschitz: float,
    deviation: float,
    strong_convexity: float = 0.0,
) -> float:
    """The same with a trusted server: `εnN` in the place of `εn√N`.

    For strongly convex losses with L near μD the factor of the second term is L²/μ, which is LD at L = μD.

    Raises:
        ValueError: unless δ < 1/(nN), φ ≤ L, μD ≤ L.

    Source: Lowy & Razaviyayn 2023, Theorem F.3 (Bassily et al. 2019); section 3 prints φ²/√(Nn) for φD/√(Nn).

    >>> central_population_lower_bound(machines=400, records=25, dimension=100, epsilon=0.002, delta=1e-9, diameter=1.0,
    ...                                lipschitz=1.0, deviation=1.0)
    0.51
    """
    private = _central(machines, records, dimension, epsilon, delta, lipschitz, diameter, strong_convexity)
    deviation = one(nonnegative, "deviation", deviation)
    ordered("deviation", deviation, "lipschitz", lipschitz)
    return _population(machines * records, deviation, private, lipschitz * diameter, diameter, strong_convexity)


def central_empirical_lower_bound(
    *,
    machines: int,
    records: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diameter: float,
    lipschitz: float,
    strong_convexity: float = 0.0,
) -> float:
    """The excess empirical loss with a trusted server: `LD·min{1, √d/(εnN)}`, strongly convex its square's factor.

    Raises:
        ValueError: unless δ < 1/(nN) and μD ≤ L.

    Source: Lowy & Razaviyayn 2023, Theorem F.5 (Bassily, Smith & Thakurta 2014).

    >>> central_empirical_lower_bound(machines=400, records=25, dimension=100, epsilon=0.002, delta=1e-9, diameter=1.0,
    ...                               lipschitz=1.0)
    0.5
    """
    private = _central(machines, records, dimension, epsilon, delta, lipschitz, diameter, strong_convexity)
    return _capped(private, lipschitz * diameter, strong_convexity)


def classical_local_lower_bound(
    *, machines: int, dimension: int, epsilon: float, diameter: float, lipschitz: float
) -> float:
    """Classical local privacy, one record a machine: `LD·min{1, √d/(ε√N)}`.

    Raises:
        ValueError: unless ε ≤ 1.

    Source: Duchi, Jordan & Wainwright 2013, Proposition 3, as Lowy & Razaviyayn 2023 cite it.

    >>> classical_local_lower_bound(machines=400, dimension=100, epsilon=1.0, diameter=1.0, lipschitz=2.0)
    1.0
    """
    _problem(machines, 1, dimension, lipschitz, diameter, 0.0)
    _hypothesis("ε ≤ 1", one(positive, "epsilon", epsilon) <= 1, epsilon=epsilon)
    return _capped(np.sqrt(dimension / machines) / epsilon, lipschitz * diameter, 0.0)


def trivial_bound(*, lipschitz: ArrayLike, diameter: ArrayLike) -> Any:
    """The excess loss of not moving at all, which caps every upper bound: `LD`.

    >>> trivial_bound(lipschitz=2.0, diameter=0.5)
    1.0
    """
    return plain(positive("lipschitz", lipschitz) * positive("diameter", diameter))


def _problem(machines, records, dimension, lipschitz, diameter, strong_convexity) -> None:
    counts(machines=machines, records=records, dimension=dimension)
    lipschitz, diameter = one(positive, "lipschitz", lipschitz), one(positive, "diameter", diameter)
    mu = one(nonnegative, "strong_convexity", strong_convexity)
    holds = mu * diameter <= lipschitz * (1 + 1e-9)
    _hypothesis("μD ≤ L", holds, strong_convexity=mu, diameter=diameter, lipschitz=lipschitz)


def _central(machines, records, dimension, epsilon, delta, lipschitz, diameter, strong_convexity) -> float:
    """`√d/(εnN)`, the hypotheses checked."""
    _problem(machines, records, dimension, lipschitz, diameter, strong_convexity)
    total = machines * records
    holds = one(probability, "delta", delta) < 1 / total
    _hypothesis("δ = o(1/(nN))", holds, delta=delta, limit=1 / total)
    return float(np.sqrt(dimension) / (positive("epsilon", epsilon) * total))


def _compositional(interaction: str, factor: float, epsilon: float, round_epsilons: Sequence[float]) -> float:
    require_choice("interaction", interaction, _INTERACTIONS)
    epsilon, factor = one(positive, "epsilon", epsilon), one(positive, "compositionality", factor)
    if interaction == "sequential":
        return 1.0
    least = float(np.linalg.norm(positive("round_epsilons", round_epsilons))) / epsilon
    _hypothesis("√Σε_r² ≤ C·ε", least <= factor * (1 + 1e-9), compositionality=factor, needed=least)
    return factor


def _local_privacy(machines, records, epsilon, interaction, round_epsilons, round_deltas) -> None:
    largest = float(np.max(positive("round_epsilons", round_epsilons)))
    deltas = np.atleast_1d(probability("round_deltas", round_deltas))
    limit, least = 1 / (machines * records) ** 2, 16 * np.log(2 / (deltas.min() * records))
    spent = float(deltas.max() if interaction == "sequential" else deltas.sum())
    name = "δ = o(1/(nN)²)" if interaction == "sequential" else "Σδ_r = o(1/(nN)²)"
    _hypothesis("ε ≤ √N", epsilon <= np.sqrt(machines), epsilon=epsilon, machines=machines)
    _hypothesis("ε_r ≤ 1/n", largest <= (1 + 1e-9) / records, round_epsilons=largest, limit=1 / records)
    _hypothesis("N ≥ 16·ln(2/(n·min δ_r))", machines >= least, machines=machines, limit=float(least))
    _hypothesis(name, spent < limit, round_deltas=spent, limit=limit)


def _population(total, deviation, private, scale, diameter, strong_convexity) -> float:
    if strong_convexity:
        statistical = deviation**2 / (strong_convexity * total)
    else:
        statistical = deviation * diameter / np.sqrt(total)
    return float(statistical + _capped(private, scale, strong_convexity))


def _capped(private: float, scale: float, strong_convexity: float) -> float:
    """`LD·min{1, √d/(...)}`; the square of the second for strongly convex losses."""
    return float(scale * min(1.0, private**2 if strong_convexity else private))


def _hypothesis(name: str, holds: bool, **numbers: float) -> None:
    if not holds:
        given = ", ".join(f"{key} = {value:.6g}" for key, value in numbers.items())
        raise Refusal(f"the lower bound's hypothesis {name} must hold, got {given}")
