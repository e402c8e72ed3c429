"""Participation with a random number of machines in each round, by any cohort-size distribution."""

from dataclasses import dataclass, field

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords, require_at_least, require_between, require_positive
from fedprivjax.plan.participation.fixed import Uniform
from fedprivjax.plan.participation.interface import Participation, binomial_pmf, check_sizes
from fedprivjax.plan.schedule import Schedule

TAIL = 4.0  # standard deviations above the mean beyond which a binomial cohort size is sampled again


@dataclass(frozen=True)
class Varying(Participation):
    """A random number of machines in each round, then a uniformly random subset of that size.

    Args:
        sizes: probability of each number of machines, from 1 up; its length is the largest.

    >>> Varying.binomial(100, 0.1).per_round
    22
    """

    machines: int
    sizes: tuple[float, ...] = field(repr=False)
    varies = True
    exchangeable = True

    def __post_init__(self):
        object.__setattr__(self, "sizes", _probabilities(self.sizes))
        check_sizes(self.machines, len(self.sizes))
        if not min(self.sizes) >= 0 or not abs(sum(self.sizes) - 1) <= 1e-6:
            raise Refusal(f"sizes must be probabilities that add up to 1, got a sum of {sum(self.sizes):g}")

    @classmethod
    @known_keywords
    def between(cls, machines: int, min_machines: int, max_machines: int) -> "Varying":
        """Every number of machines from `min_machines` to `max_machines`, equally likely.

        Args:
            min_machines: smallest number of machines in a round.
            max_machines: largest number of machines in a round.
        """
        require_at_least("min_machines", min_machines, 1)
        require_at_least("max_machines", max_machines, min_machines)
        count = max_machines - min_machines + 1
        return cls(machines, tuple(float(min_machines <= m) / count for m in range(1, max_machines + 1)))

    @classmethod
    def binomial(cls, machines: int, rate: float, tail: float = TAIL) -> "Varying":
        """Public participation of every machine in every round, independently, with probability `rate`.

        A round without any machine is sampled again, and so is a round of more than ⌈Np + tail·√(Np(1 − p))⌉ machines.
        The rule is public and part of the distribution: every moment, and the schedule's width, includes it.

        Args:
            rate: probability that a machine takes part in a round.
            tail: largest cohort, in standard deviations above the mean.
        """
        require_at_least("machines", machines, 1)
        require_between("rate", rate, 0, 1)
        require_positive("tail", tail)
        return cls(machines, tuple(binomial_pmf(machines, rate, tail)))

    @property
    def per_round(self) -> int:
        return len(self.sizes)

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        weights = np.array(self.sizes)
        return weights / weights.sum()

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        filled = rng.choice(np.arange(1, self.per_round + 1), rounds, p=self.cohort_size_pmf)
        drawn = Uniform(self.machines, self.per_round).draw(rounds, rng).participants
        rows = rng.permuted(drawn, axis=1)  # a random subset in a random order
        return Schedule(self.machines, rows, filled, 1 / self.inverse_moment(), expected=self.mean_size)


def _probabilities(sizes) -> tuple[float, ...]:
    try:
        return tuple(map(float, sizes))
    except (TypeError, ValueError):
        raise Refusal(f"sizes must be a list of probabilities, got {str(sizes)[:80]}") from None
