"""Algorithm 1 on Moreau envelopes, for losses that are not smooth (Theorem 2.2): smoothness, rounds, bounds.

Use the smoothness of an envelope as β in the step sizes. The noise and the Lipschitz constant do not change, since the
gradient of an envelope on the constraint set is at most as long as that of the loss. Arguments such as `per_round` and
`load` are as for convex losses.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import one, plain, positive, single
from fedprivjax.theory.lowy_razaviyayn._rounds import Load, load_at, min_rounds
from fedprivjax.theory.lowy_razaviyayn.minibatch import minibatch_bound
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants, precision


def envelope_smoothness(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Smoothness of the Moreau envelope on which to run minibatch SGD, for a convex loss.

    The loss need not be smooth. The envelope is a smooth lower approximation of the loss.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `(L√M˜/D)·min{√n, 1/√(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> envelope_smoothness(problem, load=0.01)
    8.0
    """
    return plain(problem.lipschitz / problem.diameter * np.sqrt(problem.per_round * precision(problem, load)))


def envelope_strong_smoothness(problem: ProblemConstants, *, strong_convexity: ArrayLike, load: ArrayLike) -> Any:
    """Smoothness of the Moreau envelope on which to run minibatch SGD, for a strongly convex loss.

    The loss need not be smooth. The envelope is a smooth lower approximation of the loss.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round) and d (parameters).
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `μM˜·min{n, 1/(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> envelope_strong_smoothness(problem, strong_convexity=0.5, load=0.01)
    8.0
    """
    mu = positive("strong_convexity", strong_convexity)
    return plain(mu * problem.per_round * precision(problem, load))


def envelope_strong_convexity(*, strong_convexity: ArrayLike, smoothness: ArrayLike) -> Any:
    """Strong convexity of the Moreau envelope of a strongly convex loss, to use for the step size.

    The envelope is a smooth lower approximation of the loss, and is less strongly convex than the loss.

    Args:
        strong_convexity: μ, strong convexity of the loss.
        smoothness: b, smoothness of the envelope.

    Returns:
        `μb/(μ + b)`, which is close to μ if b is much larger than μ.

    >>> envelope_strong_convexity(strong_convexity=1.0, smoothness=3.0)
    0.75
    """
    mu, smoothness = positive("strong_convexity", strong_convexity), positive("smoothness", smoothness)
    return plain(mu * smoothness / (mu + smoothness))


def nonsmooth_rounds(problem: ProblemConstants, *, load: Load) -> int:
    """Number of rounds of minibatch SGD for a convex loss that need not be smooth.

    After these rounds, `nonsmooth_bound` bounds the excess population loss.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round) and d (parameters).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`). If ξ˜ depends on the
            number of rounds, give a function from the number of rounds to ξ˜.

    Returns:
        The smallest integer R with `R ≥ M˜·min{n, 1/(dξ˜)}`.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_rounds(problem, load=0.01)
    16
    """
    problem = single(problem)
    return min_rounds(lambda rounds: problem.per_round * float(precision(problem, load_at(load, rounds))))


def nonsmooth_bound(problem: ProblemConstants, *, load: ArrayLike) -> Any:
    """Bound on the excess population loss of minibatch SGD for a convex loss that need not be smooth.

    SGD runs on a Moreau envelope (`envelope_smoothness`), a smooth lower approximation of the loss.

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        load: ξ˜, privacy load, which is proportional to the noise variance (`privacy_load`).

    Returns:
        `545·(LD/√M˜)·max{1/√n, √(dξ˜)}`. The result is the paper's bound. The factor 545 could be halved, because the
        paper takes 2L as the Lipschitz constant of the envelope, but L suffices.

    Source: Lowy & Razaviyayn 2023, Theorem 2.2.

    >>> problem = ProblemConstants(records=100, per_round=4, dimension=25, diameter=1.0, lipschitz=2.0)
    >>> nonsmooth_bound(problem, load=0.01)
    272.5
    """
    return plain(minibatch_bound(problem, load=load) * (545 / 272))


def nonsmooth_strong_rounds(problem: ProblemConstants, *, strong_convexity: float, load: Load) -> int:
    """Number of rounds of minibatch SGD for a strongly convex loss that need not be smooth.

    After these rounds, the excess population loss is of the order `(L²/(μM˜))·(1/n + dξ˜)` (`strong_rate`).

    Args:
        problem: constants n (records of a machine), M˜ (machines in a round), d (parameters), D (distance from the
            start to the optimum) and L (Lipschitz constant).
        strong_convexity: μ, strong convexity of the loss.
        load: ξ˜, privacy load (`privacy_load`); positive. If ξ˜ depends on the number of rounds, give a function.

    Returns:
        The smallest integer R with `R ≥ max{8M˜p·ln(bD²μM˜/(dL²ξ˜)), 1/(dξ˜)}`, `p = min{n, 1/(dξ˜)}` and `b = μM˜p`.

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
