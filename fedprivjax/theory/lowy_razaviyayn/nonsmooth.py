"""Algorithm 1 on the Moreau envelopes of losses that are not smooth (Theorem 2.2).

Use the smoothness of the envelope as β in the steps of `minibatch` and `minibatch_strong`. The noise and the Lipschitz
constant do not change, since the gradient of an envelope on the constraint set is at most as long as that of the loss.
Arguments are as in those modules.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import Load, load_at, min_rounds, one, plain, positive, single
from fedprivjax.theory.lowy_razaviyayn.loads import precision
from fedprivjax.theory.lowy_razaviyayn.minibatch import minibatch_bound
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants


def envelope_smoothness(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Smoothness of the envelope for a convex loss: `b = (L√M̃/D)·min{√n, 1/√(dξ̃)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> envelope_smoothness(problem, load=0.01)
    8.0
    """
    return plain(problem.lipschitz / problem.diameter * np.sqrt(problem.per_round * precision(problem, load)))


def envelope_strong_smoothness(problem: ProblemConstants, *, strong_convexity: ArrayLike, load: ArrayLike) -> Any:
    """Smoothness of the envelope for a strongly convex loss: `b = μM̃·min{n, 1/(dξ̃)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> envelope_strong_smoothness(problem, strong_convexity=0.5, load=0.01)
    8.0
    """
    mu = positive("strong_convexity", strong_convexity)
    return plain(mu * problem.per_round * precision(problem, load))


def envelope_strong_convexity(*, strong_convexity: ArrayLike, smoothness: ArrayLike) -> Any:
    """Strong convexity of the envelope of smoothness b of a strongly convex loss: `μb/(μ + b)`.

    Use it for the step unless b is much larger than μ.

    >>> envelope_strong_convexity(strong_convexity=1.0, smoothness=3.0)
    0.75
    """
    mu, smoothness = positive("strong_convexity", strong_convexity), positive("smoothness", smoothness)
    return plain(mu * smoothness / (mu + smoothness))


def nonsmooth_rounds(problem: ProblemConstants, *, load: Load) -> int:
    """Smallest number of rounds for `nonsmooth_bound`: `R ≥ M̃·min{n, 1/(dξ̃)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_rounds(problem, load=0.01)
    16
    """
    problem = single(problem)
    return min_rounds(lambda rounds: problem.per_round * float(precision(problem, load_at(load, rounds))))


def nonsmooth_bound(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Excess population loss for a convex loss that need not be smooth: `545·(LD/√M̃)·max{1/√n, √(dξ̃)}`.

    The paper uses 2L as the Lipschitz constant of the envelope. L suffices, with 272.5 instead of 545.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_bound(problem, load=0.01)
    272.5
    """
    return plain(minibatch_bound(problem, load=load) * (545 / 272))


def nonsmooth_strong_rounds(problem: ProblemConstants, *, strong_convexity: float, load: Load) -> int:
    """Smallest number of rounds for `strong_rate` without smoothness: `R ≥ max{8M̃p·ln(bD²μM̃/(dL²ξ̃)), 1/(dξ̃)}`.

    Here `p = min{n, 1/(dξ̃)}` and `b = μM̃p`.

    Args:
        load: positive, or a function of the rounds.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=4, per_round=2, dimension=5, diameter=1.0, lipschitz=1.0)
    >>> nonsmooth_strong_rounds(problem, strong_convexity=0.5, load=0.1)
    45
    """
    problem = single(problem)
    mu, machines = one(positive, "strong_convexity", strong_convexity), problem.per_round
    scale = (mu * problem.diameter / problem.lipschitz) ** 2 * machines**2

    def need(rounds: int) -> float:
        xi = load_at(load, rounds)
        p = float(precision(problem, xi))
        unbounded = float("inf") if xi == 0 else 1 / (problem.dimension * xi)
        return max(8 * machines * p * np.log(scale * p * unbounded), unbounded)

    return min_rounds(need)
