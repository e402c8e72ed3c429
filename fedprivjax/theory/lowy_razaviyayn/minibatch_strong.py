"""Algorithm 1 for strongly convex losses (Theorem 2.1.2): recursions, steps, rounds, bounds.

Arguments such as `per_round` and `load` are as for convex losses.
"""

from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import counts, nonnegative, ordered, plain, positive
from fedprivjax.theory.lowy_razaviyayn._rounds import Load, load_at, min_rounds
from fedprivjax.theory.lowy_razaviyayn.minibatch import Variance
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants, curvatures, precision


def recursion_step(*, contraction: ArrayLike, cap: ArrayLike, start: ArrayLike, drift: ArrayLike, rounds: int) -> Any:
    """Step size of a method whose errors obey a recursion, such as SGD on a strongly convex loss.

    In each round t, the recursion is `r_{t+1} ≤ (1 − aη)r_t − bηs_t + cη²`, where η is the step size. For SGD, r_t is
    the expected squared distance to the optimum, and s_t is the expected excess loss. Moreover, `a` is the strong
    convexity, and b is 1. `recursion_bound` bounds a mean of the s_t.

    Args:
        contraction: `a` in the recursion.
        cap: g, reciprocal of the largest allowed step size: η is at most 1/g.
        start: r_0, the error at the start.
        drift: c in the recursion, such as `strong_drift`; may be 0.
        rounds: T, number of rounds.

    Returns:
        `η = min{1/g, ln(max{2, a²r_0T²/c})/(aT)}`.

    Source: Lowy & Razaviyayn 2023, Lemma E.9 (Stich 2019).

    >>> round(recursion_step(contraction=0.1, cap=1.0, start=1.0, drift=1.0, rounds=10), 6)
    0.693147
    """
    counts(rounds=rounds)
    a, start = positive("contraction", contraction), nonnegative("start", start)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(a**2 * start * rounds**2 / nonnegative("drift", drift), nan=2.0, posinf=np.inf)
    return plain(np.minimum(1 / positive("cap", cap), np.log(np.maximum(2, ratio)) / (a * rounds)))


def recursion_bound(*, contraction: ArrayLike, start: ArrayLike, drift: ArrayLike, rounds: int, step: ArrayLike) -> Any:
    """Bound on the mean excess loss of a method whose errors obey a recursion.

    In each round t, the recursion is `r_{t+1} ≤ (1 − aη)r_t − bηs_t + cη²`, where η is the step size. For SGD, r_t is
    the expected squared distance to the optimum, s_t is the expected excess loss, and b is 1 (`recursion_step`).

    Args:
        contraction: `a` in the recursion; for SGD, the strong convexity.
        start: r_0, the error at the start.
        drift: c in the recursion, such as `strong_drift`.
        rounds: T, number of rounds.
        step: η, any step size below 1/a.

    Returns:
        `a·r_0/((1 − aη)^{−T} − 1) + cη`. The result is an upper bound on b·s̄, where s̄ is the mean of s_0, …, s_{T−1}
        with the weights `averaging_weights`.

    Raises:
        Refusal: unless contraction·step is below 1.

    Source: Stich 2019, Lemma 2; Lowy & Razaviyayn 2023, Lemma E.9.

    >>> recursion_bound(contraction=0.5, start=3.0, drift=1.0, rounds=2, step=1.0)
    1.5
    """
    counts(rounds=rounds)
    a, step = positive("contraction", contraction), positive("step", step)
    growth = -rounds * np.log1p(-_below_one(a * step))
    with np.errstate(over="ignore"):
        forgotten = a * nonnegative("start", start) / np.expm1(growth)
    return plain(forgotten + nonnegative("drift", drift) * step)


def averaging_weights(*, rounds: int, step: float, strong_convexity: float = 0.0) -> np.ndarray:
    """Weights of the iterates in the output of minibatch SGD on a strongly convex loss; shape [rounds].

    The weights sum to 1. They increase with the round, except that they are equal if the strong convexity is 0.

    Args:
        rounds: R, number of rounds.
        step: η, step size.
        strong_convexity: μ, strong convexity of the loss.

    Returns:
        Weights in proportion to `(1 − μη)^{−(r+1)}` for r = 0, …, R − 1.

    Raises:
        Refusal: unless strong_convexity·step is below 1.

    Source: Lowy & Razaviyayn 2023, Lemma E.9.

    >>> averaging_weights(rounds=2, step=0.5, strong_convexity=1.0).round(6)
    array([0.333333, 0.666667])
    """
    counts(rounds=rounds)
    rate = _below_one(positive("step", step) * nonnegative("strong_convexity", strong_convexity))
    logs = -np.arange(1, rounds + 1) * np.log1p(-rate)
    return np.exp(logs - np.asarray(scipy.special.logsumexp(logs)))


def strong_drift(variance: Variance) -> float:
    """Constant c of the error cη² that a step of size η adds in minibatch SGD.

    The loss is strongly convex. A step adds at most cη² to the expected squared distance to the optimum. Pass c as
    `drift` to `recursion_step` and `recursion_bound`.

    Args:
        variance: variance of a round's gradient at the optimum, from `worst_variance` or `population_variance`.

    Returns:
        `2·(sampling + clients) + noise`, from the fields of `variance`.

    Source: Lowy & Razaviyayn 2023, Lemma E.9 and equation (21).

    >>> strong_drift(Variance(sampling=1.0, clients=0.5, noise=2.0))
    5.0
    """
    return 2 * (variance.sampling + variance.clients) + variance.noise


def strong_step(
    *, rounds: int, diameter: ArrayLike, smoothness: ArrayLike, strong_convexity: ArrayLike, variance: Variance
) -> Any:
    """Step size of minibatch SGD for a strongly convex loss, with weighted averaging of iterates.

    The weights are `averaging_weights`.

    Args:
        rounds: R, number of rounds.
        diameter: D, bound on the distance from the start to the optimum.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        variance: variance of a round's gradient at the optimum, from `worst_variance` or `population_variance`.

    Returns:
        `η = min{1/(4β), ln(max{2, μ²D²R²/c})/(μR)}` with `c = 2·(sampling + clients) + noise`, from the fields of
        `variance`. If c exceeds μ²D²R, the step size `minibatch_step` with equal weights often has a smaller bound.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.2 and Lemma E.9.

    >>> strong_step(rounds=100, diameter=1.0, smoothness=1.0, strong_convexity=1.0, variance=Variance(0.0, 0.0, 0.0))
    0.25
    """
    mu, beta = curvatures(strong_convexity, smoothness)
    start = positive("diameter", diameter) ** 2
    return recursion_step(contraction=mu, cap=4 * beta, start=start, drift=strong_drift(variance), rounds=rounds)


def strong_step_bound(
    *,
    step: ArrayLike,
    rounds: int,
    diameter: ArrayLike,
    smoothness: ArrayLike,
    strong_convexity: ArrayLike,
    variance: Variance,
    stability: ArrayLike = 0.0,
) -> Any:
    """Bound on the excess loss of minibatch SGD on a strongly convex loss, at any step size up to 1/(4β).

    The bound is for the mean of the iterates with `averaging_weights`. With `stability` 0, the bound is on the excess
    empirical loss. With `stability` from the function `strong_stability`, the bound is on the excess population loss.

    Args:
        step: η, step size, at most 1/(4β).
        rounds: R, number of rounds.
        diameter: D, bound on the distance from the start to the optimum.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        variance: variance of a round's gradient at the optimum (`worst_variance`).
        stability: α, bound on the difference of population and empirical loss.

    Returns:
        `α + μD²/((1 − μη)^{−R} − 1) + cη` with `c = 2·(sampling + clients) + noise`, from the fields of `variance`.

    Raises:
        Refusal: if the step size exceeds 1/(4β).

    Source: Lowy & Razaviyayn 2023, Lemma E.4, with the sum of Lemma E.9 evaluated exactly.

    >>> strong_step_bound(step=0.25, rounds=1, diameter=1.0, smoothness=1.0, strong_convexity=1.0,
    ...                   variance=Variance(0.0, 0.0, 4.0))
    4.0
    """
    mu, beta = curvatures(strong_convexity, smoothness)
    step = positive("step", step)
    ordered("step", step, "1/(4·smoothness)", 1 / (4 * beta))
    start, drift = positive("diameter", diameter) ** 2, strong_drift(variance)
    empirical = recursion_bound(contraction=mu, start=start, drift=drift, rounds=rounds, step=step)
    return plain(nonnegative("stability", stability) + empirical)


def strong_rounds(
    problem: ProblemConstants,
    *,
    batch: int,
    smoothness: float,
    strong_convexity: float,
    load: Load,
    formal: bool = False,
) -> int:
    """Number of rounds of minibatch SGD for a smooth strongly convex loss.

    After these rounds, the excess population loss is of the order `(L²/(μM˜))·(1/n + dξ˜)` (`strong_rate`).

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        batch: K, number of records in a batch.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load (`privacy_load`); positive. If ξ˜ depends on the number of rounds, give a function.
        formal: True uses 1/(dξ˜) instead of p/K in the formula below, as the formal statement of the theorem does.

    Returns:
        The smallest integer R with `R ≥ max{(8β/μ)·ln(βD²μM˜/(dL²ξ˜)), p/K}` and `p = min{n, 1/(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.2, informal and formal statement.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> strong_rounds(problem, batch=10, smoothness=1.0, strong_convexity=1.0, load=0.01)
    12
    """
    counts(batch=batch)
    mu, beta = curvatures(strong_convexity, smoothness)
    scale = float(beta * mu * problem.diameter**2 / problem.lipschitz**2 * problem.per_round)

    def need(rounds: int) -> float:
        xi = load_at(load, rounds)
        unbounded = float("inf") if xi == 0 else 1 / (problem.dimension * xi)
        second = unbounded if formal else float(precision(problem, xi)) / batch
        return max(8 * beta / mu * np.log(scale * unbounded), second)

    return min_rounds(need)


def strong_rate(problem: ProblemConstants, *, strong_convexity: ArrayLike, load: ArrayLike) -> Any:
    """Excess population loss of minibatch SGD for a strongly convex loss, up to a constant and logarithms.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters) and L (Lipschitz
            constant).
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `(L²/(μM˜))·(1/n + dξ˜)`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.2.

    >>> problem = ProblemConstants(records=4, per_round=2, dimension=5, diameter=1.0, lipschitz=2.0)
    >>> strong_rate(problem, strong_convexity=1.0, load=0.05)
    1.0
    """
    terms = 1 / problem.records + problem.dimension * nonnegative("load", load)
    scale = problem.lipschitz**2 / positive("strong_convexity", strong_convexity)
    return plain(scale / problem.per_round * terms)


def _below_one(rate: np.ndarray) -> np.ndarray:
    if not (rate < 1).all():
        raise Refusal(f"strong_convexity·step must be below 1, got {np.max(rate)}")
    return rate
