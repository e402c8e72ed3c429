"""Rounds and rates of Algorithm 2 on the empirical loss, smooth (Theorem E.1) and by envelopes (Theorem 2.4).

The rates have constant 1 and, with `bare_load`, no logarithms. `per_round` is M̃ and `load` ξ̃ as for Algorithm 1;
`spread` is Φ̂², the mean squared distance of all records' gradients to the empirical gradient, at most L²: give 0 for
full batches. The formal theorems omit the batch K from the second term of the rounds; `formal` does so too.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import (
    Load,
    at_least_one,
    counts,
    inverse,
    least_rounds,
    load_at,
    nonnegative,
    one,
    ordered,
    plain,
    positive,
)


def accelerated_rounds(
    *,
    per_round: float,
    dimension: int,
    diameter: float,
    lipschitz: float,
    smoothness: float,
    load: Load,
    spread: float,
    batch: int,
    formal: bool = False,
) -> int:
    """Rounds for a smooth convex loss: `R ≥ max{√(βD√M̃/(L√(dξ̃))), Φ̂²/(dL²ξ̃K)}`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.1.

    >>> accelerated_rounds(per_round=4, dimension=25, diameter=1.0, lipschitz=2.0, smoothness=8.0, load=0.01,
    ...                    spread=1.0, batch=10)
    4
    """
    scale = _product(smoothness=smoothness, diameter=diameter) / _product(lipschitz=lipschitz)
    scale *= np.sqrt(one(at_least_one, "per_round", per_round))
    noise_of = _noise_rounds(dimension, lipschitz, load, spread, batch, formal)
    return least_rounds(lambda rounds: max(np.sqrt(scale * np.sqrt(noise_of(rounds)[0])), noise_of(rounds)[1]))


def accelerated_strong_rounds(
    *,
    per_round: float,
    dimension: int,
    lipschitz: float,
    smoothness: float,
    strong_convexity: float,
    gap: float,
    load: Load,
    spread: float,
    batch: int,
    formal: bool = False,
) -> int:
    """Rounds for a smooth strongly convex loss: `R ≥ max{√(β/μ)·ln(ΔμM̃/(dL²ξ̃)), Φ̂²/(dL²ξ̃K)}`.

    Args:
        gap: Δ, a bound on the loss at the start above the minimum; LD always is one.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.2.

    >>> accelerated_strong_rounds(per_round=4, dimension=25, lipschitz=2.0, smoothness=4.0, strong_convexity=1.0,
    ...                           gap=2.0, load=0.01, spread=1.0, batch=10)
    5
    """
    mu = _product(strong_convexity=strong_convexity)
    ordered("strong_convexity", mu, "smoothness", smoothness)
    scale = _product(gap=gap) * mu * one(at_least_one, "per_round", per_round) / _product(lipschitz=lipschitz) ** 2
    slope = np.sqrt(_product(smoothness=smoothness) / mu)
    noise_of = _noise_rounds(dimension, lipschitz, load, spread, batch, formal)
    return least_rounds(lambda rounds: max(slope * np.log(scale * noise_of(rounds)[0]), noise_of(rounds)[1]))


def accelerated_rate(
    *,
    rounds: int,
    batch: int,
    per_round: ArrayLike,
    dimension: int,
    diameter: ArrayLike,
    lipschitz: ArrayLike,
    smoothness: ArrayLike,
    load: ArrayLike,
    spread: ArrayLike,
) -> Any:
    """The excess empirical loss of a convex run after any rounds: `βD²/R² + DΦ̂/√(M̃KR) + LD√(dξ̃/M̃)`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.1 (whose (30) prints a stray "+ ]").

    >>> accelerated_rate(rounds=10, batch=10, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0, smoothness=100.0,
    ...                  load=0.01, spread=1.0)
    1.55
    """
    counts(rounds=rounds, batch=batch)
    diameter, deviation = positive("diameter", diameter), np.sqrt(nonnegative("spread", spread))
    start = nonnegative("smoothness", smoothness) * diameter**2 / rounds**2
    sampling = diameter * deviation / np.sqrt(at_least_one("per_round", per_round) * batch * rounds)
    floor = empirical_rate(per_round=per_round, dimension=dimension, diameter=diameter, lipschitz=lipschitz, load=load)
    return plain(start + sampling + floor)


def accelerated_strong_rate(
    *,
    rounds: int,
    batch: int,
    per_round: ArrayLike,
    dimension: int,
    lipschitz: ArrayLike,
    smoothness: ArrayLike,
    strong_convexity: ArrayLike,
    gap: ArrayLike,
    load: ArrayLike,
    spread: ArrayLike,
) -> Any:
    """The same, strongly convex: `Δ·exp(−√(μ/β)·R) + Φ̂²/(μM̃KR) + L²dξ̃/(μM̃)`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.2.

    >>> accelerated_strong_rate(rounds=1000, batch=10, per_round=4, dimension=25, lipschitz=2.0, smoothness=4.0,
    ...                         strong_convexity=1.0, gap=2.0, load=0.01, spread=40000.0)
    1.25
    """
    counts(rounds=rounds, batch=batch)
    mu, beta = positive("strong_convexity", strong_convexity), positive("smoothness", smoothness)
    ordered("strong_convexity", mu, "smoothness", beta)
    start = positive("gap", gap) * np.exp(-np.sqrt(mu / beta) * rounds)
    sampling = nonnegative("spread", spread) / (mu * at_least_one("per_round", per_round) * batch * rounds)
    floor = empirical_strong_rate(
        per_round=per_round, dimension=dimension, lipschitz=lipschitz, strong_convexity=mu, load=load
    )
    return plain(start + sampling + floor)


def empirical_rate(
    *, per_round: ArrayLike, dimension: int, diameter: ArrayLike, lipschitz: ArrayLike, load: ArrayLike
) -> Any:
    """The excess empirical loss after enough rounds, convex, smooth or not: `LD√(dξ̃/M̃)`.

    Source: Lowy & Razaviyayn 2023, Theorems E.1 and 2.4.

    >>> empirical_rate(per_round=4, dimension=25, diameter=1.0, lipschitz=2.0, load=0.01)
    0.5
    """
    counts(dimension=dimension)
    scale = positive("lipschitz", lipschitz) * positive("diameter", diameter)
    return plain(scale * np.sqrt(dimension * nonnegative("load", load) / at_least_one("per_round", per_round)))


def empirical_strong_rate(
    *, per_round: ArrayLike, dimension: int, lipschitz: ArrayLike, strong_convexity: ArrayLike, load: ArrayLike
) -> Any:
    """The same, strongly convex: `(L²/μ)·dξ̃/M̃`.

    Source: Lowy & Razaviyayn 2023, Theorems E.1 and 2.4.

    >>> empirical_strong_rate(per_round=4, dimension=25, lipschitz=2.0, strong_convexity=0.5, load=0.01)
    0.5
    """
    counts(dimension=dimension)
    scale = positive("lipschitz", lipschitz) ** 2 / positive("strong_convexity", strong_convexity)
    return plain(scale * dimension * nonnegative("load", load) / at_least_one("per_round", per_round))


def accelerated_envelope_smoothness(
    *, per_round: ArrayLike, dimension: int, diameter: ArrayLike, lipschitz: ArrayLike, load: ArrayLike
) -> Any:
    """The envelope's smoothness for a convex empirical loss: `b = L√M̃/(D√(dξ̃))`.

    Args:
        load: positive.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> accelerated_envelope_smoothness(per_round=4, dimension=25, diameter=1.0, lipschitz=2.0, load=0.01)
    8.0
    """
    counts(dimension=dimension)
    scale = positive("lipschitz", lipschitz) / positive("diameter", diameter)
    return plain(scale * np.sqrt(at_least_one("per_round", per_round) / (dimension * positive("load", load))))


def accelerated_envelope_strong_smoothness(
    *, per_round: ArrayLike, dimension: int, strong_convexity: ArrayLike, load: ArrayLike
) -> Any:
    """The same for a strongly convex loss: `b = μM̃/(dξ̃)`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> accelerated_envelope_strong_smoothness(per_round=4, dimension=25, strong_convexity=0.5, load=0.01)
    8.0
    """
    counts(dimension=dimension)
    mu = positive("strong_convexity", strong_convexity)
    return plain(mu * at_least_one("per_round", per_round) / (dimension * positive("load", load)))


def nonsmooth_accelerated_rounds(
    *, per_round: float, dimension: int, load: Load, batch: int, sampled: bool = True, formal: bool = False
) -> int:
    """Rounds for a convex loss that need not be smooth: `R ≥ max{√(M̃/(dξ̃)), 1/(dξ̃K)}`.

    Args:
        sampled: False drops the second term: full batches of all records.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> nonsmooth_accelerated_rounds(per_round=4, dimension=25, load=0.0001, batch=10)
    40
    """
    machines = one(at_least_one, "per_round", per_round)
    noise_of = _noise_rounds(dimension, 1.0, load, float(sampled), batch, formal)
    return least_rounds(lambda rounds: max(np.sqrt(machines * noise_of(rounds)[0]), noise_of(rounds)[1]))


def nonsmooth_accelerated_strong_rounds(
    *,
    per_round: float,
    dimension: int,
    lipschitz: float,
    strong_convexity: float,
    gap: float,
    load: Load,
    batch: int,
    sampled: bool = True,
    formal: bool = False,
) -> int:
    """The same for a strongly convex loss: `R ≥ max{√(M̃/(dξ̃))·ln(ΔμM̃/(dL²ξ̃)), 1/(dξ̃K)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> nonsmooth_accelerated_strong_rounds(per_round=4, dimension=25, lipschitz=2.0, strong_convexity=1.0, gap=2.0,
    ...                                     load=0.01, batch=10)
    9
    """
    machines, length = one(at_least_one, "per_round", per_round), _product(lipschitz=lipschitz)
    scale = _product(gap=gap, strong_convexity=strong_convexity) * machines / length**2
    noise_of = _noise_rounds(dimension, 1.0, load, float(sampled), batch, formal)

    def need(rounds: int) -> float:
        unbounded, second = noise_of(rounds)
        return max(np.sqrt(machines * unbounded) * np.log(scale * unbounded), second)

    return least_rounds(need)


def _noise_rounds(dimension: int, lipschitz: float, load: Load, spread: float, batch: int, formal: bool):
    """rounds ↦ (1/(dξ̃), the rounds after which the sampling's error is below the noise's)."""
    counts(dimension=dimension, batch=batch)
    relative = one(nonnegative, "spread", spread) / _product(lipschitz=lipschitz) ** 2 / (1 if formal else batch)

    def noise_of(rounds: int) -> tuple[float, float]:
        unbounded = float(inverse(dimension * load_at(load, rounds)))
        return unbounded, relative * unbounded if relative else 0.0

    return noise_of


def _product(**values: float) -> float:
    return float(np.prod([positive(name, value) for name, value in values.items()]))
