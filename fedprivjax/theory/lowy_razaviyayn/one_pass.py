"""Algorithm 2 in one pass on heterogeneous machines: batches, rounds, rates of the population loss (Theorem 2.3).

Every record is used once, so the noise of a round is that of one release, `σ² = 32L²·ln(1.25/δ)/(εK)²`. Larger batches
K mean fewer rounds and less noise, so K is chosen. `per_round` is M. The rates have constant 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import (
    at_least_one,
    counts,
    nonnegative,
    ordered,
    plain,
    positive,
    probability,
    validate,
)
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants, client_variance, curvatures


def one_pass_rounds(*, records: int, batch: int) -> int:
    """Number of rounds of one pass over a machine's records. Remaining records are not used.

    Args:
        records: n, number of records of a machine.
        batch: K, number of records in a batch.

    Returns:
        `⌊n/K⌋`.

    >>> one_pass_rounds(records=100, batch=30)
    3
    """
    counts(records=records, batch=batch)
    ordered("batch", batch, "records", records)
    return records // batch


@dataclass(frozen=True, kw_only=True, eq=False)
class OnePassConstants(ProblemConstants):
    """Constants of a smooth problem, and the privacy budget of one pass over the records.

    Attributes:
        records: n, number of records of one machine.
        per_round: M, number of machines in a round.
        dimension: d, number of parameters of the model.
        diameter: D, bound on the distance from the start to the optimum.
        lipschitz: L, bound on the gradient norm of one record's loss.
        epsilon: ε of the privacy budget, at most 8·ln(1/δ).
        delta: δ of the privacy budget.
        smoothness: β, smoothness of the loss.
        deviation: φ, bound on the standard deviation of a record's gradient (L2 norm over coordinates).
        machines: N, number of all machines, or None if all machines are in every round.
        diversity: υ², mean squared distance of the machines' gradients to their mean.
    """

    epsilon: Any
    delta: Any
    smoothness: Any
    deviation: Any = 0.0
    machines: int | None = None
    diversity: Any = 0.0

    def __post_init__(self):
        super().__post_init__()
        validate(self, epsilon=positive, delta=probability, smoothness=positive, deviation=nonnegative)
        ordered("epsilon", self.epsilon, "8·ln(1/delta)", 8 * np.log(1 / self.delta))

    @property
    def noise(self) -> np.ndarray:
        """The number `√(d·ln(1/δ))/ε`, through which alone bounds and batch sizes depend on privacy.

        Here d is the number of parameters, and (ε, δ) the privacy budget. A larger number means more noise.
        """
        return np.sqrt(self.dimension * np.log(1 / self.delta)) / self.epsilon

    @property
    def clients(self) -> Any:
        """Variance due to choosing the machines of a round at random, or 0 if all machines take part.

        It is `(1 − (M−1)/(N−1))·υ²` for M of N machines in a round, where υ² is `diversity`. Divided by M, it is the
        mean squared error that the choice causes in the mean gradient.
        """
        if self.machines is None:
            return 0.0
        return client_variance(diversity=self.diversity, machines=self.machines, per_round=self.per_round)


def one_pass_batch(problem: OnePassConstants) -> int:
    """Number of records in a batch of one pass of accelerated SGD for a convex loss.

    At this number, the error of optimisation equals the error due to noise.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), D (distance from the start
            to the optimum), L (Lipschitz constant), β (smoothness), and ε and δ (privacy budget).

    Returns:
        `(L/(βD))^{2/5}·n^{3/5}·(d·ln(1/δ))^{1/5}/(ε^{2/5}·M^{1/5})`, rounded and clipped to 1..n.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1.

    >>> sizes = {"records": 1000, "per_round": 4, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> one_pass_batch(OnePassConstants(epsilon=1.0, delta=1e-5, smoothness=1.0, **sizes))
    124
    """
    length = problem.lipschitz / (problem.smoothness * problem.diameter)
    batch = (length * problem.noise) ** 0.4 * problem.records**0.6 / problem.per_round**0.2
    return _rounded(float(batch), problem)


def one_pass_strong_batch(problem: OnePassConstants, *, strong_convexity: float, gap: float) -> int:
    """Number of records in a batch of one pass of accelerated SGD for a strongly convex loss.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), L (Lipschitz constant), β
            (smoothness), φ (standard deviation of a record's gradient), and ε and δ (privacy budget).
        strong_convexity: μ, strong convexity of the loss.
        gap: Δ, bound on the excess loss at the start.

    Returns:
        `n/(√(β/μ)·ln(μΔ·min{(εn)²M/(L²d·ln(1/δ)), nM/φ²}))`, rounded and clipped to 1..n; n if the logarithm is not
        positive.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.2.

    >>> sizes = {"records": 1000, "per_round": 4, "dimension": 10, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = OnePassConstants(epsilon=1.0, delta=1e-5, smoothness=4.0, deviation=1.0, **sizes)
    >>> one_pass_strong_batch(problem, strong_convexity=1.0, gap=1.0)
    60
    """
    mu, beta = curvatures(strong_convexity, problem.smoothness)
    records, root = problem.records, np.sqrt(beta / mu)
    error = np.maximum((problem.noise * problem.lipschitz / records) ** 2, problem.deviation**2 / records)
    log = np.log(mu * positive("gap", gap) * problem.per_round / error)
    return _rounded(float(records / (root * log)) if log > 0 else records, problem)


def one_pass_bound(problem: OnePassConstants, *, batch: ArrayLike) -> Any:
    """Excess population loss of one pass of accelerated SGD for a smooth convex loss, up to a constant.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), D (distance from the start
            to the optimum), L (Lipschitz constant), β (smoothness), φ (standard deviation of a record's gradient), υ
            (root mean squared distance of the machines' gradients to their mean), N (all machines), and ε and δ
            (privacy budget).
        batch: K, number of records in a batch; may be a real number.

    Returns:
        `βD²K²/n² + φD/√(nM) + LD√(d·ln(1/δ))/(ε√(KnM)) + √K·υD/√(nM)·√((N−M)/(N−1))`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1, with β instead of the printed β².

    >>> sizes = {"records": 100, "per_round": 4, "dimension": 4, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = OnePassConstants(epsilon=1.0, delta=0.5, smoothness=16.0, deviation=2.0, **sizes)
    >>> round(one_pass_bound(problem, batch=25), 6)
    1.116651
    """
    batch = at_least_one("batch", batch)
    ordered("batch", batch, "records", problem.records)
    start = problem.smoothness * (problem.diameter * batch / problem.records) ** 2
    noise = problem.lipschitz * problem.noise / np.sqrt(batch)
    spread = problem.deviation + noise + np.sqrt(batch * problem.clients)
    return plain(start + problem.diameter * spread / np.sqrt(problem.records * problem.per_round))


def one_pass_rate(problem: OnePassConstants) -> Any:
    """Excess population loss of one pass of accelerated SGD for a smooth convex loss, up to a constant.

    The batch size is `one_pass_batch`. The three terms of the result are due to sampled records, noise, and sampled
    machines, in this order.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), D (distance from the start
            to the optimum), L (Lipschitz constant), β (smoothness), φ (standard deviation of a record's gradient), υ
            (root mean squared distance of the machines' gradients to their mean), N (all machines), and ε and δ
            (privacy budget).

    Returns:
        `φD/√(nM) + (β^{1/4}LD^{3/2}√(d·ln(1/δ))/(εn√M))^{4/5} +
        √((N−M)/(N−1))·υL^{1/5}D^{4/5}β^{−1/5}·(√(d·ln(1/δ))/(εnM³))^{1/5}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.1.

    >>> sizes = {"records": 100, "per_round": 4, "dimension": 1, "diameter": 1.0, "lipschitz": 1.0}
    >>> round(one_pass_rate(OnePassConstants(epsilon=1.0, delta=1e-5, smoothness=1.0, **sizes)), 6)
    0.03834
    """
    per_round, diameter, smoothness = problem.per_round, problem.diameter, problem.smoothness
    lipschitz, noise = problem.lipschitz, problem.noise / problem.records
    statistical = problem.deviation * diameter / np.sqrt(problem.records * per_round)
    private = (smoothness**0.25 * lipschitz * diameter**1.5 * noise / np.sqrt(per_round)) ** 0.8
    chosen = np.sqrt(problem.clients) * diameter**0.8 * (lipschitz / smoothness * noise / per_round**3) ** 0.2
    return plain(statistical + private + chosen)


def one_pass_strong_rate(problem: OnePassConstants, *, strong_convexity: ArrayLike) -> Any:
    """Excess population loss of one pass of accelerated SGD for a smooth strongly convex loss, up to a constant.

    The batch size is `one_pass_strong_batch`. The three terms of the result are due to sampled records, noise, and
    sampled machines, in this order.

    Args:
        problem: constants n (records of a machine), M (machines in a round), d (parameters), L (Lipschitz constant), β
            (smoothness), φ (standard deviation of a record's gradient), υ (root mean squared distance of the machines'
            gradients to their mean), N (all machines), and ε and δ (privacy budget).
        strong_convexity: μ, strong convexity of the loss.

    Returns:
        `φ²/(μnM) + √κ·L²d·ln(1/δ)/(μ(εn)²M) + υ²/(μ√κM)·(1 − (M−1)/(N−1))`, where κ = β/μ.

    Source: Lowy & Razaviyayn 2023, Theorem 2.3.2, which omits 1/μ from the term with φ². Equation (9) omits 1/μ from
    the term with ln(1/δ).

    >>> sizes = {"records": 100, "per_round": 4, "dimension": 1, "diameter": 1.0, "lipschitz": 1.0}
    >>> problem = OnePassConstants(epsilon=1.0, delta=1e-5, smoothness=4.0, deviation=2.0, **sizes)
    >>> round(one_pass_strong_rate(problem, strong_convexity=1.0), 6)
    0.010576
    """
    mu, beta = curvatures(strong_convexity, problem.smoothness)
    root = np.sqrt(beta / mu)
    private = root * (problem.lipschitz * problem.noise / problem.records) ** 2
    return plain((problem.deviation**2 / problem.records + private + problem.clients / root) / (mu * problem.per_round))


def _rounded(batch: float, problem: ProblemConstants) -> int:
    return int(np.clip(np.rint(batch), 1, problem.records))
