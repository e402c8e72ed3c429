"""How different machines are: averages over the worst of them, and what choosing among them costs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, ordered, plain
from fedprivjax.theory.lowy_razaviyayn.cohorts import checked, harmonic_machines, second_moment_machines


class Effective(NamedTuple):
    """What stands for all machines in a bound: how many in a round, and their value (a load, a variance)."""

    per_round: float
    value: float

    @property
    def ratio(self) -> float:
        """value / per_round, the form in which it enters every bound."""
        return self.value / self.per_round


def top_averages(values: ArrayLike) -> np.ndarray:
    """The mean of the m largest values, for every m: `ā_m = (1/m)·Σ_{i≤m} a_(i)`, [machines].

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> top_averages([1.0, 3.0, 2.0])
    array([3. , 2.5, 2. ])
    """
    values = np.sort(_per_machine(values))[::-1]
    return np.cumsum(values) / np.arange(1, values.size + 1)


def expected_top(values: ArrayLike, pmf: ArrayLike) -> float:
    """The root mean square of the top average over a random number of machines: `√E[(ā_{M_r})²]`.

    Φ² is this of the squared deviations φ_i², Σ² of the noise variances σ_i², Ψ and Ξ of the loads ψ_i and ξ_i.

    Args:
        values: one per machine, or one for all.
        pmf: probabilities of 1, 2, …, machines in a round.

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> expected_top([1.0, 3.0], pmf=[0.0, 1.0])
    2.0
    """
    pmf = checked(pmf)
    return float(np.sqrt(pmf @ top_averages(_for_machines(values, pmf.size)) ** 2))


def average_or_max(values: ArrayLike, pmf: ArrayLike) -> Effective:
    """The better of the two ways to bound `E[ā_{M_r}/M_r]`: the mean top average over M′, or the largest value over M.

    Args:
        values: one per machine, or one for all: loads, noise variances, squared deviations.
        pmf: probabilities of 1, 2, …, machines in a round.

    Returns:
        (M′, √E[ā²]) where that has the smaller ratio, else (M, max). The paper prints √M′ and √M for the first entry,
        and means M′ and M wherever it uses it.

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> average_or_max([4.0, 0.0], pmf=[0.0, 1.0])
    Effective(per_round=2.0, value=2.0)
    """
    average = Effective(second_moment_machines(pmf), expected_top(values, pmf))
    largest = Effective(harmonic_machines(pmf), float(np.max(_for_machines(values, len(checked(pmf))))))
    return average if average.ratio <= largest.ratio else largest


def client_variance(*, diversity: ArrayLike, machines: int, per_round: ArrayLike) -> Any:
    """What choosing machines adds to the variance of one of them: `Υ² = (1 − (M−1)/(N−1))·υ²`, 0 for one machine.

    Args:
        diversity: υ², the mean squared distance of the machines' gradients to their mean, or υ*², the mean of their
            squares at the optimum.
        per_round: M, the harmonic mean of the number of machines in a round.

    Source: Lowy & Razaviyayn 2023, section 1.

    >>> client_variance(diversity=2.0, machines=5, per_round=3)
    1.0
    """
    counts(machines=machines)
    per_round = at_least_one("per_round", per_round)
    ordered("per_round", per_round, "machines", machines)
    diversity = nonnegative("diversity", diversity)
    share = 0.0 if machines == 1 else 1 - (per_round - 1) / (machines - 1)
    return plain(np.maximum(share, 0.0) * diversity)


def client_diversity(gradients: ArrayLike) -> float:
    """υ² at a point: the mean squared distance of the machines' gradients to their mean.

    Args:
        gradients: one row per machine, [machines, dimension].

    >>> client_diversity([[1.0, 0.0], [-1.0, 0.0]])
    1.0
    """
    gradients = np.asarray(gradients, float)
    return float(np.mean(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1)))


def _per_machine(values: ArrayLike) -> np.ndarray:
    values = nonnegative("values", values)
    if values.ndim != 1 or values.size == 0:
        raise Refusal(f"values must be one per machine, got shape {values.shape}")
    return values


def _for_machines(values: ArrayLike, machines: int) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim and values.shape != (machines,):
        raise Refusal(f"values must be one per machine ({machines}), got shape {values.shape}")
    return np.broadcast_to(nonnegative("values", values), machines)
