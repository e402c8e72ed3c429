"""Algorithm 1, noisy minibatch SGD on independent data, for convex losses: steps, rounds and bounds (Theorem 2.1).

`per_round` is M̃ and `load` is ξ̃: the pair that `average_or_max` chooses, or the machines of a round and the load if all
machines are identical. L, β, μ and n are those of the worst machine. Functions that return a number of rounds also
accept a load that is a function of the rounds, since ξ contains a logarithm of R.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import (
    Load,
    counts,
    inverse,
    load_at,
    min_rounds,
    nonnegative,
    one,
    ordered,
    plain,
    positive,
    single,
)
from fedprivjax.theory.lowy_razaviyayn.loads import precision
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants
from fedprivjax.theory.lowy_razaviyayn.variance import Variance


def minibatch_step(problem: ProblemConstants, *, rounds: int, smoothness: ArrayLike, load: ArrayLike) -> Any:
    """Step for a convex loss and equally weighted iterates: `η = min{1/(4β), (D√M̃/(LR))·min{√n, 1/√(dξ̃)}}`.

    Args:
        smoothness: β; 0 drops the cap.
        load: ξ̃; 0 for no privacy.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1, which prints √M̃ for M̃.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_step(problem, rounds=10, smoothness=0.5, load=0.01)
    0.2
    """
    counts(rounds=rounds)
    step = problem.diameter * np.sqrt(problem.per_round * precision(problem, load)) / (problem.lipschitz * rounds)
    return plain(np.minimum(step, _cap(smoothness)))


def minibatch_rounds(problem: ProblemConstants, *, batch: int, smoothness: float, load: Load) -> int:
    """Smallest number of rounds for `minibatch_bound`: `R ≥ max{(βD√M̃/L)·√p, p/K}` with `p = min{n, 1/(dξ̃)}`.

    Args:
        load: ξ̃, or a function of the rounds; `bare_load` gives the number of rounds of the informal theorem.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_rounds(problem, batch=10, smoothness=6.0, load=0.01)
    12
    >>> minibatch_rounds(problem, batch=10, smoothness=6.0, load=lambda rounds: 0.001 * rounds)
    12
    """
    counts(batch=batch)
    problem = single(problem)
    slope = problem.diameter * one(nonnegative, "smoothness", smoothness) / problem.lipschitz
    slope *= np.sqrt(problem.per_round)

    def need(rounds: int) -> float:
        p = float(precision(problem, load_at(load, rounds)))
        return max(slope * np.sqrt(p), p / batch)

    return min_rounds(need)


def minibatch_bound(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Excess population loss at `minibatch_step` and `minibatch_rounds`: `272·(LD/√M̃)·max{1/√n, √(dξ̃)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.1.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> minibatch_bound(problem, load=0.01)
    136.0
    """
    scale = problem.lipschitz * problem.diameter
    return plain(272 * scale / np.sqrt(problem.per_round * precision(problem, load)))


def minibatch_step_bound(
    *,
    step: ArrayLike,
    rounds: int,
    diameter: ArrayLike,
    smoothness: ArrayLike,
    variance: Variance,
    stability: ArrayLike = 0.0,
) -> Any:
    """Excess loss at any step up to 1/(4β): `α + D²/(ηR) + 2η·(sampling + clients + noise/2)`.

    With stability α = 0 it bounds the excess empirical loss, for any data. With `uniform_stability` it bounds the
    excess population loss.

    Args:
        variance: at the optimum, by `population_variance` or `worst_variance`.
        stability: α.

    Raises:
        Refusal: if the step exceeds 1/(4·smoothness).

    Source: Lowy & Razaviyayn 2023, Lemma E.4 and (27). Equation (26) prints 4Rd for 128Rd.

    >>> minibatch_step_bound(step=0.5, rounds=4, diameter=1.0, smoothness=0.5, variance=Variance(0.25, 0.0, 0.5))
    1.0
    """
    counts(rounds=rounds)
    step = _allowed(step, smoothness)
    spread = variance.sampling + variance.clients + variance.noise / 2
    start = positive("diameter", diameter) ** 2 / (step * rounds)
    return plain(nonnegative("stability", stability) + start + 2 * step * spread)


def uniform_stability(problem: ProblemConstants, *, step: ArrayLike, rounds: int) -> Any:
    """Bound on the difference of population and empirical loss, convex: `α = 2L²Rη/(nM)`, for η ≤ 1/β.

    It is loose if only some machines take part in a round: averaging over the choice of machines would allow the number
    of all machines instead of M.

    Source: Lowy & Razaviyayn 2023, Lemmas E.1 and E.2.

    >>> problem = ProblemConstants(records=5, per_round=2, dimension=25, diameter=1.0, lipschitz=1.0)
    >>> uniform_stability(problem, step=0.5, rounds=10)
    1.0
    """
    counts(rounds=rounds)
    records_in_all = problem.records * problem.per_round
    return plain(2 * problem.lipschitz**2 * rounds * positive("step", step) / records_in_all)


def strong_stability(problem: ProblemConstants, *, strong_convexity: ArrayLike) -> Any:
    """Bound on the difference of population and empirical loss, strongly convex, any R: `α = 4L²/(μ(Mn − 1))`.

    Raises:
        Refusal: if M·n is at most 1.

    Source: Lowy & Razaviyayn 2023, Lemma E.2.

    >>> problem = ProblemConstants(records=5, per_round=1, dimension=25, diameter=1.0, lipschitz=1.0)
    >>> strong_stability(problem, strong_convexity=2.0)
    0.5
    """
    records_in_all = problem.records * problem.per_round
    if (records_in_all <= 1).any():
        raise Refusal(f"records·per_round must be above 1, got {records_in_all.min()}")
    mu = positive("strong_convexity", strong_convexity)
    return plain(4 * problem.lipschitz**2 / (mu * (records_in_all - 1)))


def _cap(smoothness: ArrayLike) -> np.ndarray:
    return inverse(4 * nonnegative("smoothness", smoothness))


def _allowed(step: ArrayLike, smoothness: ArrayLike) -> np.ndarray:
    step = positive("step", step)
    ordered("step", step, "1/(4·smoothness)", _cap(smoothness))
    return step
