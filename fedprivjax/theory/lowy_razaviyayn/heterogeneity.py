"""Heterogeneity of the machines: averages over the worst machines, and the variance of choosing among them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, ordered, plain
from fedprivjax.theory.lowy_razaviyayn.cohorts import checked, harmonic_machines, second_moment_machines


class Effective(NamedTuple):
    """Effective number of machines in a round and effective value (a load or a variance) in a bound."""

    per_round: float
    value: float

    @property
    def ratio(self) -> float:
        """Ratio value / per_round, through which both enter every bound."""
        return self.value / self.per_round


def top_averages(values: ArrayLike) -> np.ndarray:
    """Means of the m largest values, `ā_m = (1/m)·Σ_{i≤m} a_(i)` for m = 1, …, machines; shape [machines].

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> top_averages([1.0, 3.0, 2.0])
    array([3. , 2.5, 2. ])
    """
    values = np.sort(_per_machine(values))[::-1]
    return np.cumsum(values) / np.arange(1, values.size + 1)


def expected_top(values: ArrayLike, pmf: ArrayLike) -> float:
    """Root mean square of `top_averages` over a random number of machines: `√E[(ā_{M_r})²]`.

    In the paper it is Φ² for the squared deviations φ_i², Σ² for the noise variances σ_i², and Ψ and Ξ for the loads
    ψ_i and ξ_i.

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
    """Return the smaller of two bounds on `E[ā_{M_r}/M_r]`, as its number of machines and its value.

    Args:
        values: one per machine, or one for all: loads, noise variances, squared deviations.
        pmf: probabilities of 1, 2, …, machines in a round.

    Returns:
        (M′, √E[ā²]) if its ratio √E[ā²]/M′ is at most the ratio of the largest value to M, else (M, largest value). The
        paper prints √M′ and √M for the first entry, but uses M′ and M.

    Source: Lowy & Razaviyayn 2023, appendix E.1.

    >>> average_or_max([4.0, 0.0], pmf=[0.0, 1.0])
    Effective(per_round=2.0, value=2.0)
    """
    average = Effective(second_moment_machines(pmf), expected_top(values, pmf))
    largest = Effective(harmonic_machines(pmf), float(np.max(_for_machines(values, len(checked(pmf))))))
    return average if average.ratio <= largest.ratio else largest


def client_variance(*, diversity: ArrayLike, machines: int, per_round: ArrayLike) -> Any:
    """Variance due to choosing the machines of a round: `Υ² = (1 − (M−1)/(N−1))·υ²`, or 0 for one machine.

    Args:
        diversity: υ², the mean squared distance of the machines' gradients to their mean; or υ*², the mean squared norm
            of their gradients at the optimum.
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
    """Diversity υ² at a point: the mean squared distance of the machines' gradients to their mean.

    Args:
        gradients: gradient of each machine, shape [machines, dimension].

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
