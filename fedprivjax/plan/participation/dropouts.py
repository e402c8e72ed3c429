"""Dropouts: scheduled machines that send nothing."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation.interface import Participation
from fedprivjax.plan.participation.sizes import moment, thinned, thinned_cohorts, thinned_subsets
from fedprivjax.plan.participation.validate import checked_draw
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Dropouts(Participation):
    """Any participation scheme with dropouts, independent between machines and rounds.

    A machine that drops out sends nothing and uses no sample. If all machines of a round would drop out, one stays: the
    machine with the largest ratio of its uniform random number to its rate. Among machines of equal rate, each stays
    with the same probability. Guarantees are for the planned schedule of `scheme`: they count dropouts as if they had
    sent.

    Args:
        scheme: the scheme that schedules the machines.
        rate: probability that a machine drops out, at least 0 and below 1: one for all, or one for each, [machines].

    >>> from fedprivjax import Full
    >>> scheme = Dropouts(Full(2), 0.5)
    >>> scheme.cohort_size_pmf.round(9).tolist(), round(scheme.mean_size, 9), round(scheme.inverse_moment(), 9)
    ([0.75, 0.25], 1.25, 0.875)
    """

    scheme: Participation
    rate: Any

    def __post_init__(self):
        if not isinstance(self.scheme, Participation):
            raise Refusal(f"scheme must be a Participation, such as Uniform(100, 10), got {str(self.scheme)[:80]}")
        rates = _numbers(self.rate)
        if rates.ndim and rates.shape != (self.machines,):
            raise Refusal(f"dropouts must be one rate or one for each of {self.machines} machines, got {rates.size}")
        wrong = rates[~((rates >= 0) & (rates < 1))]
        if wrong.size:
            raise Refusal(f"dropouts must be at least 0 and below 1, got {wrong.flat[0]}")

    @property
    def machines(self) -> int:
        return self.scheme.machines

    @property
    def per_round(self) -> int:
        return self.scheme.per_round

    @property
    def rates(self) -> np.ndarray:
        """Dropout rate of each machine, float64 [machines]."""
        return np.broadcast_to(_numbers(self.rate), self.machines)

    @property
    def varies(self) -> bool:
        return bool(self.scheme.varies or self.rates.any())

    @property
    def at_most_once(self) -> bool:
        return self.scheme.at_most_once

    @property
    def depends_on_sizes(self) -> bool:
        return self.scheme.depends_on_sizes

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Exact probability mass function of the number of machines that send, from 1, float64 [per_round].

        Raises:
            Refusal: if rates differ and the scheme is not exchangeable, because the distribution then differs between
                rounds. A sampled schedule has `expected` and `mean`.
        """
        if np.ndim(self.rate) == 0 or np.ptp(self.rates) == 0:
            return thinned(self.scheme.cohort_size_pmf, float(self.rates[0]))
        if not self.scheme.exchangeable:
            raise Refusal(f"dropouts must be one rate for {self.scheme} to have one cohort-size distribution")
        return thinned_subsets(self.scheme.cohort_size_pmf, self.rates)

    @property
    def rounds_given(self) -> int | None:
        return self.scheme.rounds_given

    def examples(self, rounds: int) -> int:
        return self.scheme.examples(rounds)

    def most_rounds(self, examples: int) -> int:
        return self.scheme.most_rounds(examples)

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        return self.scheme.rounds_of_shares(shares)

    def fitted(self, shares: np.ndarray | None) -> "Dropouts":
        return replace(self, scheme=self.scheme.fitted(shares))

    def resized(self, **sizes: int) -> "Dropouts":
        return replace(self, scheme=self.scheme.resized(**sizes))

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        planned = checked_draw(self.scheme, rounds, rng)
        if planned.announced:
            raise Refusal("dropouts must be left out if cohort sizes are announced")
        if not self.rates.any():
            return planned
        if planned.dropped is not None:
            raise Refusal(f"dropouts must be given once, got others from {str(self.scheme)[:80]}")
        rates = np.where(planned.scheduled, self.rates[planned.participants], 1.0)
        chance = rng.random(rates.shape)
        dropped = planned.scheduled & (chance < rates)
        empty = np.flatnonzero(~(planned.scheduled & ~dropped).any(axis=1))
        nearest = np.where(planned.scheduled, chance, -1.0)[empty] / rates[empty]
        dropped[empty, nearest.argmax(axis=1)] = False
        law = self._law_of(rates)
        return replace(planned, dropped=dropped, mean=1 / moment(law, -1), expected=moment(law, 1))

    def _law_of(self, rates: np.ndarray) -> np.ndarray:
        """Return `cohort_size_pmf`, or if it is undefined, the mixture of its rounds' cohort-size distributions."""
        alike = np.ndim(self.rate) == 0 or self.scheme.exchangeable or np.ptp(self.rates) == 0
        return self.cohort_size_pmf if alike else thinned_cohorts(rates)


def _numbers(rate) -> np.ndarray:
    try:
        return np.asarray(rate, float)
    except (TypeError, ValueError):
        raise Refusal(f"dropouts must be one rate or one for each machine, got {str(rate)[:80]}") from None
