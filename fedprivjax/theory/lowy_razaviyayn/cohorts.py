"""Random numbers of machines in a round: their probabilities and means.

The distribution of M_r, the number of machines in a round, is a float array `pmf` of shape [machines], where
`pmf[m - 1]` is the probability of m machines.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.theory._numbers import counts


def uniform_cohort(*, machines: int, min_machines: int, max_machines: int) -> np.ndarray:
    """Probabilities of m = 1, …, N machines in a round if m is uniform between two limits; shape [machines].

    Args:
        machines: N, number of all machines.
        min_machines: least number of machines in a round.
        max_machines: largest number of machines in a round.

    Raises:
        Refusal: unless 1 ≤ min_machines ≤ max_machines ≤ machines.

    >>> uniform_cohort(machines=3, min_machines=2, max_machines=3)
    array([0. , 0.5, 0.5])
    """
    counts(machines=machines, min_machines=min_machines)
    require_at_least("max_machines", max_machines, min_machines)
    if max_machines > machines:
        raise Refusal(f"max_machines must be at most machines ({machines}), got {max_machines}")
    pmf = np.zeros(machines)
    pmf[min_machines - 1 : max_machines] = 1 / (max_machines - min_machines + 1)
    return pmf


def binomial_cohort(*, machines: int, rate: float) -> np.ndarray:
    """Probabilities of m = 1, …, N machines in a round if machines take part independently; shape [machines].

    The probabilities are conditional on at least one machine in the round.

    Args:
        machines: N, number of all machines.
        rate: probability with which a machine takes part.

    Raises:
        Refusal: if the rate is outside (0, 1].

    >>> binomial_cohort(machines=2, rate=0.5).round(6)
    array([0.666667, 0.333333])
    """
    counts(machines=machines)
    if not 0 < rate <= 1:
        raise Refusal(f"rate must be above 0 and at most 1, got {rate}")
    pmf = scipy.stats.binom.pmf(np.arange(1, machines + 1), machines, rate)
    return pmf / pmf.sum()


def harmonic_machines(pmf: ArrayLike) -> float:
    """Harmonic mean of the random number of machines in a round.

    Args:
        pmf: probabilities of m = 1, 2, …, N machines in a round, for N machines in all.

    Returns:
        `M = 1/E[1/M_r]`, where M_r is the random number.

    Source: Lowy & Razaviyayn 2023, Assumption 3.

    >>> harmonic_machines([0.5, 0.0, 0.5])
    1.5
    """
    pmf = checked(pmf)
    return float(1 / (pmf @ (1 / sizes(pmf))))


def second_moment_machines(pmf: ArrayLike) -> float:
    """Mean 1/√E[1/M_r²] of the random number M_r of machines in a round.

    This mean is at most the harmonic mean (`harmonic_machines`). Bounds for unequal machines use both means
    (`average_or_max`).

    Args:
        pmf: probabilities of m = 1, 2, …, N machines in a round, for N machines in all.

    Returns:
        `M′ = 1/√E[1/M_r²]`. The paper prints the root inside the expectation, but its proofs use M′.

    Source: Lowy & Razaviyayn 2023, Assumption 3.

    >>> round(second_moment_machines([0.5, 0.0, 0.5]), 6)
    1.341641
    """
    pmf = checked(pmf)
    return float(1 / np.sqrt(pmf @ (1 / sizes(pmf) ** 2)))


def checked(pmf: ArrayLike) -> np.ndarray:
    """Return the pmf as an array. Raise Refusal unless it is a list of probabilities that sum to 1."""
    array = np.asarray(pmf, float)
    if array.ndim != 1 or array.size == 0:
        raise Refusal(f"pmf must be a list of probabilities of 1..machines, got shape {array.shape}")
    if not (array >= 0).all():
        raise Refusal(f"pmf must be at least 0, got {array.min()}")
    if not abs(array.sum() - 1) < 1e-9:
        raise Refusal(f"pmf must sum to 1, got {array.sum()}")
    return array


def sizes(pmf: np.ndarray) -> np.ndarray:
    return np.arange(1, pmf.size + 1, dtype=float)
