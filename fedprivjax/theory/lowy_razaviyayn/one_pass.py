"""Algorithm 2 in one pass on heterogeneous machines: batches, rounds, rates of the population loss (Theorem 2.3).

Every record is used once, so the noise of a round is that of one release, `σ² = 32L²·ln(1.25/δ)/(εK)²`. Larger batches
K mean fewer rounds and less noise, so K is chosen. `per_round` is M. The rates have constant 1.
`epsilon` must be at most 8·ln(1/δ).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import at_least_one, counts, inverse, nonnegative, ordered, plain, positive, probability
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants, client_variance, curvatures


def one_pass_rounds(*, records: int, batch: int) -> int:
    """Number of rounds of one pass, `R = ⌊n/K⌋`, without the remaining records.

    >>> one_pass_rounds(records=100, batch=30)
    3
    """
    counts(records=records, batch=batch)
    ordered("batch", batch, "records", records)
    return records // batch


def one_pass_batch(problem: ProblemConstants, *, epsilon: float, delta: float, smoothness: float) -> int:
    """Batch for a convex loss, at which the optimisation error equals the error due to noise.

    `K = (L/(βD))^{2/5}·n^{3/5}·(d·ln(1/δ))^{1/5}/(ε^{2/5}·M^{1/5})`, rounded and clipped to 1..n.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1.

    >>> problem = ProblemConstants(records=1000, per_round=4, dimension=10, diameter=1.0, lipschitz=1.0)
    >>> one_pass_batch(problem, epsilon=1.0, delta=1e-5, smoothness=1.0)
    124
    """
    noise = _noise(problem, epsilon, delta)
    length = problem.lipschitz / (positive("smoothness", smoothness) * problem.diameter)
    batch = (length * noise) ** 0.4 * problem.records**0.6 / problem.per_round**0.2
    return _rounded(float(batch), problem)


def one_pass_strong_batch(
    problem: ProblemConstants,
    *,
    epsilon: float,
    delta: float,
    smoothness: float,
    strong_convexity: float,
    gap: float,
    deviation: float,
) -> int:
    """Batch for a strongly convex loss: `K = n/(√κ·ln(μΔ·min{(εn)²M/(L²d·ln(1/δ)), nM/φ²}))`.

    Here κ = β/μ. K is rounded and clipped to 1..n, and K = n if the logarithm is not positive.

    Args:
        gap: Δ, bound on the excess loss at the start.
        deviation: φ, bound on the standard deviation of a record's gradient (L2 norm over coordinates).

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.2.

    >>> problem = ProblemConstants(records=1000, per_round=4, dimension=10, diameter=1.0, lipschitz=1.0)
    >>> loss = {"smoothness": 4.0, "strong_convexity": 1.0, "gap": 1.0, "deviation": 1.0}
    >>> one_pass_strong_batch(problem, epsilon=1.0, delta=1e-5, **loss)
    60
    """
    mu, beta = curvatures(strong_convexity, smoothness)
    root = np.sqrt(beta / mu)
    noise, records = _noise(problem, epsilon, delta) * problem.lipschitz, problem.records
    precise = np.minimum((records / noise) ** 2, records * inverse(nonnegative("deviation", deviation) ** 2))
    log = np.log(mu * positive("gap", gap) * problem.per_round * precise)
    return _rounded(float(records / (root * log)) if log > 0 else records, problem)


def one_pass_bound(
    problem: ProblemConstants,
    *,
    batch: ArrayLike,
    machines: int,
    epsilon: ArrayLike,
    delta: float,
    smoothness: ArrayLike,
    deviation: ArrayLike,
    diversity: ArrayLike = 0.0,
) -> Any:
    """Rate of the excess population loss for a convex loss and any batch, which may be a real number.

    `βD²K²/n² + φD/√(nM) + LD√(d·ln(1/δ))/(ε√(KnM)) + √K·υD/√(nM)·√((N−M)/(N−1))`

    Args:
        diversity: υ², mean squared distance of the machines' gradients to their mean.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1, which prints β² for β.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=4, diameter=1.0, lipschitz=1.0)
    >>> loss = {"smoothness": 16.0, "deviation": 2.0}
    >>> round(one_pass_bound(problem, batch=25, machines=4, epsilon=1.0, delta=0.5, **loss), 6)
    1.116651
    """
    batch = at_least_one("batch", batch)
    ordered("batch", batch, "records", problem.records)
    start = nonnegative("smoothness", smoothness) * (problem.diameter * batch / problem.records) ** 2
    noise = problem.lipschitz * _noise(problem, epsilon, delta) / np.sqrt(batch)
    clients = np.sqrt(batch * client_variance(diversity=diversity, machines=machines, per_round=problem.per_round))
    spread = nonnegative("deviation", deviation) + noise + clients
    return plain(start + problem.diameter * spread / np.sqrt(problem.records * problem.per_round))


def one_pass_rate(
    problem: ProblemConstants,
    *,
    machines: int,
    epsilon: ArrayLike,
    delta: float,
    smoothness: ArrayLike,
    deviation: ArrayLike,
    diversity: ArrayLike = 0.0,
) -> Any:
    """Rate of the excess population loss for a convex loss at the best batch, before its rounding.

    `φD/√(nM) + (β^{1/4}LD^{3/2}√(d·ln(1/δ))/(εn√M))^{4/5}
    + √((N−M)/(N−1))·υL^{1/5}D^{4/5}β^{−1/5}·(√(d·ln(1/δ))/(εnM³))^{1/5}`

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=1, diameter=1.0, lipschitz=1.0)
    >>> round(one_pass_rate(problem, machines=4, epsilon=1.0, delta=1e-5, smoothness=1.0, deviation=0.0), 6)
    0.03834
    """
    records, per_round, diameter = problem.records, problem.per_round, problem.diameter
    smoothness, lipschitz = positive("smoothness", smoothness), problem.lipschitz
    noise = _noise(problem, epsilon, delta) / records
    statistical = nonnegative("deviation", deviation) * diameter / np.sqrt(records * per_round)
    private = (smoothness**0.25 * lipschitz * diameter**1.5 * noise / np.sqrt(per_round)) ** 0.8
    clients = np.sqrt(client_variance(diversity=diversity, machines=machines, per_round=per_round))
    chosen = clients * diameter**0.8 * (lipschitz / smoothness * noise / per_round**3) ** 0.2
    return plain(statistical + private + chosen)


def one_pass_strong_rate(
    problem: ProblemConstants,
    *,
    machines: int,
    epsilon: ArrayLike,
    delta: float,
    smoothness: ArrayLike,
    strong_convexity: ArrayLike,
    deviation: ArrayLike,
    diversity: ArrayLike = 0.0,
) -> Any:
    """Rate of the excess population loss for a strongly convex loss at the best batch.

    `φ²/(μnM) + √κ·L²d·ln(1/δ)/(μ(εn)²M) + υ²/(μ√κM)·(1 − (M−1)/(N−1))`

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.2, which omits 1/μ from the first term, and in (9) from the second.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=1, diameter=1.0, lipschitz=1.0)
    >>> loss = {"smoothness": 4.0, "strong_convexity": 1.0, "deviation": 2.0}
    >>> round(one_pass_strong_rate(problem, machines=4, epsilon=1.0, delta=1e-5, **loss), 6)
    0.010576
    """
    mu, beta = curvatures(strong_convexity, smoothness)
    root = np.sqrt(beta / mu)
    statistical = nonnegative("deviation", deviation) ** 2 / problem.records
    private = root * (problem.lipschitz * _noise(problem, epsilon, delta) / problem.records) ** 2
    clients = client_variance(diversity=diversity, machines=machines, per_round=problem.per_round) / root
    return plain((statistical + private + clients) / (mu * problem.per_round))


def _noise(problem: ProblemConstants, epsilon: ArrayLike, delta: float) -> np.ndarray:
    """Return `√(d·ln(1/δ))/ε`. Raise Refusal if ε is outside the range of the theorem."""
    epsilon, log = positive("epsilon", epsilon), np.log(1 / probability("delta", delta))
    ordered("epsilon", epsilon, "8·ln(1/delta)", 8 * log)
    return np.sqrt(problem.dimension * log) / epsilon


def _rounded(batch: float, problem: ProblemConstants) -> int:
    return int(np.clip(np.rint(batch), 1, problem.records))
