"""Rounds and rates of Algorithm 2 on the empirical loss, smooth (Theorem E.1) and by envelopes (Theorem 2.4).

The rates have constant 1 and, with `bare_load`, no logarithms. `per_round` is M˜ and `load` is ξ˜, as for Algorithm 1.
`spread` is Φˆ², the mean squared distance of all records' gradients to the empirical gradient. It is at most L², and 0
for full batches. The formal theorems omit the batch K from the second term of the rounds, as does `formal=True`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import counts, inverse, nonnegative, one, ordered, plain, positive, single
from fedprivjax.theory.lowy_razaviyayn._rounds import Load, load_at, min_rounds
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants, curvatures


def accelerated_rounds(
    problem: ProblemConstants, *, smoothness: float, load: Load, spread: float, batch: int, formal: bool = False
) -> int:
    """Number of rounds of accelerated SGD for a smooth convex loss.

    The number is the smallest integer R with

        R ≥ max{√(βD√M˜/(L√(dξ˜))), Φˆ²/(dL²ξ˜K)}

    After these rounds, the excess empirical loss is of the order `LD√(dξ˜/M˜)` (`empirical_rate`).

    Args:
        problem: constants M˜ (machines in a round), d (parameters), D (distance from the start to the optimum) and L
            (Lipschitz constant).
        smoothness: β, smoothness of the loss.
        load: ξ˜, privacy load (`privacy_load`). If ξ˜ depends on the number of rounds, give a function.
        spread: Φˆ², mean squared distance of all records' gradients to their mean.
        batch: K, number of records in a batch.
        formal: True uses `Φˆ²/(dL²ξ˜)` instead of `Φˆ²/(dL²ξ˜K)`, as the formal statement of the theorem does.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> accelerated_rounds(problem, smoothness=8.0, load=0.01, spread=1.0, batch=10)
    4
    """
    problem = single(problem)
    scale = one(positive, "smoothness", smoothness) * problem.diameter / problem.lipschitz * np.sqrt(problem.per_round)
    relative = one(nonnegative, "spread", spread) / problem.lipschitz**2
    return _rounds(problem, lambda noise: np.sqrt(scale * np.sqrt(noise)), load, relative, batch, formal)


def accelerated_strong_rounds(
    problem: ProblemConstants,
    *,
    smoothness: float,
    strong_convexity: float,
    gap: float,
    load: Load,
    spread: float,
    batch: int,
    formal: bool = False,
) -> int:
    """Number of rounds of accelerated SGD for a smooth strongly convex loss.

    The number is the smallest integer R with

        R ≥ max{√(β/μ)·ln(ΔμM˜/(dL²ξ˜)), Φˆ²/(dL²ξ˜K)}

    After these rounds, the excess empirical loss is of the order `(L²/μ)·dξ˜/M˜` (`empirical_strong_rate`).

    Args:
        problem: constants M˜ (machines in a round), d (parameters) and L (Lipschitz constant).
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        gap: Δ, bound on the excess loss at the start, such as L times the distance to the optimum.
        load: ξ˜, privacy load (`privacy_load`), or a function from the number of rounds to ξ˜.
        spread: Φˆ², mean squared distance of all records' gradients to their mean.
        batch: K, number of records in a batch.
        formal: as in `accelerated_rounds`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> loss = {"smoothness": 4.0, "strong_convexity": 1.0, "gap": 2.0}
    >>> accelerated_strong_rounds(problem, load=0.01, spread=1.0, batch=10, **loss)
    5
    """
    problem = single(problem)
    mu, beta = one(positive, "strong_convexity", strong_convexity), one(positive, "smoothness", smoothness)
    ordered("strong_convexity", mu, "smoothness", beta)
    scale = one(positive, "gap", gap) * mu * problem.per_round / problem.lipschitz**2
    slope = np.sqrt(beta / mu)
    relative = one(nonnegative, "spread", spread) / problem.lipschitz**2
    return _rounds(problem, lambda noise: slope * np.log(scale * noise), load, relative, batch, formal)


def accelerated_rate(
    problem: ProblemConstants, *, rounds: int, batch: int, smoothness: ArrayLike, load: ArrayLike, spread: ArrayLike
) -> Any:
    """Excess empirical loss of accelerated SGD after R rounds for a smooth convex loss, up to a constant.

    Args:
        problem: constants M˜ (machines in a round), d (parameters), D (distance from the start to the optimum) and L
            (Lipschitz constant).
        rounds: R, number of rounds.
        batch: K, number of records in a batch.
        smoothness: β, smoothness of the loss.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).
        spread: Φˆ², mean squared distance of all records' gradients to their mean.

    Returns:
        `βD²/R² + DΦˆ/√(M˜KR) + LD√(dξ˜/M˜)`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> accelerated_rate(problem, rounds=10, batch=10, smoothness=100.0, load=0.01, spread=1.0)
    1.55
    """
    counts(rounds=rounds, batch=batch)
    start = nonnegative("smoothness", smoothness) * problem.diameter**2 / rounds**2
    deviation = np.sqrt(nonnegative("spread", spread))
    sampling = problem.diameter * deviation / np.sqrt(problem.per_round * batch * rounds)
    return plain(start + sampling + empirical_rate(problem, load=load))


def accelerated_strong_rate(
    problem: ProblemConstants,
    *,
    rounds: int,
    batch: int,
    smoothness: ArrayLike,
    strong_convexity: ArrayLike,
    gap: ArrayLike,
    load: ArrayLike,
    spread: ArrayLike,
) -> Any:
    """Excess empirical loss of accelerated SGD after R rounds for a smooth strongly convex loss, up to a constant.

    Args:
        problem: constants M˜ (machines in a round), d (parameters) and L (Lipschitz constant).
        rounds: R, number of rounds.
        batch: K, number of records in a batch.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        gap: Δ, bound on the excess loss at the start.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).
        spread: Φˆ², mean squared distance of all records' gradients to their mean.

    Returns:
        `Δ·exp(−√(μ/β)·R) + Φˆ²/(μM˜KR) + L²dξ˜/(μM˜)`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> loss = {"smoothness": 4.0, "strong_convexity": 1.0, "gap": 2.0}
    >>> accelerated_strong_rate(problem, rounds=1000, batch=10, load=0.01, spread=40000.0, **loss)
    1.25
    """
    counts(rounds=rounds, batch=batch)
    mu, beta = curvatures(strong_convexity, smoothness)
    start = positive("gap", gap) * np.exp(-np.sqrt(mu / beta) * rounds)
    sampling = nonnegative("spread", spread) / (mu * problem.per_round * batch * rounds)
    return plain(start + sampling + empirical_strong_rate(problem, strong_convexity=mu, load=load))


def empirical_rate(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Excess empirical loss of accelerated SGD after enough rounds for a convex loss, up to a constant.

    The loss need not be smooth. The number of rounds is `accelerated_rounds` for a smooth loss, otherwise
    `nonsmooth_accelerated_rounds`.

    Args:
        problem: constants M˜ (machines in a round), d (parameters), D (distance from the start to the optimum) and L
            (Lipschitz constant).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `LD√(dξ˜/M˜)`.

    Source: Lowy & Razaviyayn 2023, Theorems E.1 and 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> empirical_rate(problem, load=0.01)
    0.5
    """
    scale = problem.lipschitz * problem.diameter
    return plain(scale * np.sqrt(problem.dimension * nonnegative("load", load) / problem.per_round))


def empirical_strong_rate(problem: ProblemConstants, *, strong_convexity: ArrayLike, load: ArrayLike) -> Any:
    """Excess empirical loss of accelerated SGD after enough rounds for a strongly convex loss, up to a constant.

    The loss need not be smooth. The number of rounds is `accelerated_strong_rounds` for a smooth loss, otherwise
    `nonsmooth_accelerated_strong_rounds`.

    Args:
        problem: constants M˜ (machines in a round), d (parameters) and L (Lipschitz constant).
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `(L²/μ)·dξ˜/M˜`.

    Source: Lowy & Razaviyayn 2023, Theorems E.1 and 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> empirical_strong_rate(problem, strong_convexity=0.5, load=0.01)
    0.5
    """
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale * problem.dimension * nonnegative("load", load) / problem.per_round)


def accelerated_envelope_smoothness(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Smoothness of the Moreau envelope on which to run accelerated SGD, for a convex loss.

    The loss need not be smooth. The envelope is a smooth lower approximation of the loss.

    Args:
        problem: constants M˜ (machines in a round), d (parameters), D (distance from the start to the optimum) and L
            (Lipschitz constant).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`); positive.

    Returns:
        `L√M˜/(D√(dξ˜))`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> accelerated_envelope_smoothness(problem, load=0.01)
    8.0
    """
    scale = problem.lipschitz / problem.diameter
    return plain(scale * np.sqrt(problem.per_round / (problem.dimension * positive("load", load))))


def accelerated_envelope_strong_smoothness(
    problem: ProblemConstants, *, strong_convexity: ArrayLike, load: ArrayLike
) -> Any:
    """Smoothness of the Moreau envelope on which to run accelerated SGD, for a strongly convex loss.

    The loss need not be smooth. The envelope is a smooth lower approximation of the loss.

    Args:
        problem: constants M˜ (machines in a round) and d (parameters).
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`); positive.

    Returns:
        `μM˜/(dξ˜)`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> accelerated_envelope_strong_smoothness(problem, strong_convexity=0.5, load=0.01)
    8.0
    """
    mu = positive("strong_convexity", strong_convexity)
    return plain(mu * problem.per_round / (problem.dimension * positive("load", load)))


def nonsmooth_accelerated_rounds(
    problem: ProblemConstants, *, load: Load, batch: int, sampled: bool = True, formal: bool = False
) -> int:
    """Number of rounds of accelerated SGD for a convex loss that need not be smooth.

    The number is the smallest integer R with

        R ≥ max{√(M˜/(dξ˜)), 1/(dξ˜K)}

    After these rounds, the excess empirical loss is of the order `LD√(dξ˜/M˜)` (`empirical_rate`). Here L is the
    Lipschitz constant, and D is the distance from the start to the optimum.

    Args:
        problem: constants M˜ (machines in a round) and d (parameters).
        load: ξ˜, privacy load (`privacy_load`). If ξ˜ depends on the number of rounds, give a function.
        batch: K, number of records in a batch.
        sampled: False leaves out `1/(dξ˜K)`, for batches of all records.
        formal: True uses `1/(dξ˜)` instead of `1/(dξ˜K)`, as the formal statement of the theorem does.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_accelerated_rounds(problem, load=0.0001, batch=10)
    40
    """
    problem = single(problem)
    return _rounds(problem, lambda noise: np.sqrt(problem.per_round * noise), load, float(sampled), batch, formal)


def nonsmooth_accelerated_strong_rounds(
    problem: ProblemConstants,
    *,
    strong_convexity: float,
    gap: float,
    load: Load,
    batch: int,
    sampled: bool = True,
    formal: bool = False,
) -> int:
    """Number of rounds of accelerated SGD for a strongly convex loss that need not be smooth.

    The number is the smallest integer R with

        R ≥ max{√(M˜/(dξ˜))·ln(ΔμM˜/(dL²ξ˜)), 1/(dξ˜K)}

    After these rounds, the excess empirical loss is of the order `(L²/μ)·dξ˜/M˜` (`empirical_strong_rate`).

    Args:
        problem: constants M˜ (machines in a round), d (parameters) and L (Lipschitz constant).
        strong_convexity: μ, strong convexity of the loss.
        gap: Δ, bound on the excess loss at the start.
        load: ξ˜, privacy load (`privacy_load`), or a function from the number of rounds to ξ˜.
        batch: K, number of records in a batch.
        sampled: False leaves out `1/(dξ˜K)`, for batches of all records.
        formal: as in `nonsmooth_accelerated_rounds`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.4.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_accelerated_strong_rounds(problem, strong_convexity=1.0, gap=2.0, load=0.01, batch=10)
    9
    """
    problem = single(problem)
    scale = one(positive, "gap", gap) * one(positive, "strong_convexity", strong_convexity)
    scale = scale * problem.per_round / problem.lipschitz**2

    def steps(noise: float) -> float:
        return np.sqrt(problem.per_round * noise) * np.log(scale * noise)

    return _rounds(problem, steps, load, float(sampled), batch, formal)


def _rounds(
    problem: ProblemConstants, steps: Callable[[float], float], load: Load, relative: float, batch: int, formal: bool
) -> int:
    """Return the fewest rounds R that the optimisation needs, and after which noise exceeds sampling errors.

    Args:
        steps: rounds of the optimisation, as a function of 1/(dξ˜) for d parameters and the privacy load ξ˜.
        relative: mean squared distance of all records' gradients to their mean, divided by L² for the Lipschitz
            constant L.
    """
    counts(batch=batch)
    relative = relative if formal else relative / batch

    def need(rounds: int) -> float:
        unbounded = float(inverse(problem.dimension * load_at(load, rounds)))
        return max(steps(unbounded), relative * unbounded if relative else 0.0)

    return min_rounds(need)
