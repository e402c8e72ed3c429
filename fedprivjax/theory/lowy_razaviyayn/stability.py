"""Difference of population and empirical loss after minibatch SGD, from its stability (Lemmas E.1 and E.2)."""

from typing import Any

from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import counts, plain, positive
from fedprivjax.theory.lowy_razaviyayn.problem import ProblemConstants


def uniform_stability(problem: ProblemConstants, *, step: ArrayLike, rounds: int) -> Any:
    """Bound on the difference of population and empirical loss after minibatch SGD on a convex loss.

    If only some machines take part in a round, the bound is loose, because M replaces the number of all machines.

    Args:
        problem: constants n (records of a machine), M (machines in a round) and L (Lipschitz constant).
        step: η, step size. The theorem requires η ≤ 1/β for a loss of smoothness β, which is not checked.
        rounds: R, number of rounds.

    Returns:
        `α = 2L²Rη/(nM)`.

    Source: Lowy & Razaviyayn 2023, Lemmas E.1 and E.2.

    >>> problem = ProblemConstants(records=5, per_round=2, dimension=25, diameter=1.0, lipschitz=1.0)
    >>> uniform_stability(problem, step=0.5, rounds=10)
    1.0
    """
    counts(rounds=rounds)
    records_in_all = problem.records * problem.per_round
    return plain(2 * problem.lipschitz**2 * rounds * positive("step", step) / records_in_all)


def strong_stability(problem: ProblemConstants, *, strong_convexity: ArrayLike) -> Any:
    """Bound on the difference of population and empirical loss after minibatch SGD on a strongly convex loss.

    The bound is the same for any number of rounds.

    Args:
        problem: constants n (records of a machine), M (machines in a round) and L (Lipschitz constant).
        strong_convexity: μ, strong convexity of the loss.

    Returns:
        `α = 4L²/(μ(Mn − 1))`.

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
