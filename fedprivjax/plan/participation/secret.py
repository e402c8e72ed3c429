"""Secret participation: random cohorts that only a trusted server knows, which amplifies privacy."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_probability
from fedprivjax.plan.participation.cohorts import Uniform
from fedprivjax.plan.participation.interface import Participation, as_integers, binomial_quantile
from fedprivjax.plan.schedule import Schedule
from fedprivjax.problem.devices import require_counted

CUT = 1e-12  # largest probability that a round has more machines than the schedule is wide


@dataclass(frozen=True)
class PoissonCohorts(Participation):
    """Secret participation of every machine in every round, independently with probability `rate`.

    Only a trusted server learns who takes part, and how many. In an empty round, only noise is released. Sums are
    divided by the public constant rate·machines, the mean number of machines in a round.

    A schedule has room for `per_round` machines. A round with more machines has the tiny probability `cut`, and is
    sampled again. Guarantees account for such rounds: they add `cut` to δ for every round.

    Args:
        machines: total number of machines.
        rate: probability that a machine takes part in a round, above 0 and at most 1.

    Raises:
        Refusal: if `machines` is below 1, or `rate` is not a probability above 0.

    >>> scheme = PoissonCohorts(1000, 0.1)
    >>> scheme.mean_size, scheme.per_round, scheme.cut < 1e-12
    (100.0, 173, True)
    """

    machines: int
    rate: float
    varies = True
    exchangeable = True
    secret = True

    def __post_init__(self):
        require_at_least("machines", self.machines, 1)
        require_counted(machines=self.machines)
        as_integers(self, "machines")
        object.__setattr__(self, "rate", require_probability("rate", self.rate))

    @property
    def per_round(self) -> int:
        """Limit on the number of machines in a round. It is also the number of slots of a round.

        If a sampled round has more machines, it is sampled again. This has probability at most 1e-12.
        """
        return _width(self.machines, self.rate)

    @property
    def cut(self) -> float:
        """Probability that a round has more than `per_round` machines and is sampled again."""
        # bounds of Poisson sampling hold without it, too: given the other machines, a machine takes part with
        # probability `rate` if there is room for it, and never otherwise
        return float(scipy.special.bdtrc(self.per_round, self.machines, self.rate))

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Probabilities that 1, 2, … machines take part in a round; float64 [per_round].

        They sum to 1 minus the probability of an empty round.
        """
        pmf = scipy.stats.binom.pmf(np.arange(1, self.per_round + 1), self.machines, self.rate)
        return pmf / (1 - self.cut)

    @property
    def mean_size(self) -> float:
        """Mean number of machines in a round, rate·machines, by which sums over a round are divided."""
        return self.rate * self.machines

    def inverse_moment(self, power: float = 1) -> float:
        """Raise Refusal: the mean of 1/M^power does not exist, because a round may have M = 0 machines."""
        raise Refusal(f"participation must have no empty rounds for a mean of 1/M, got {self}. Use mean_size")

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        filled = rng.binomial(self.machines, self.rate, rounds)
        while (beyond := filled > self.per_round).any():
            filled[beyond] = rng.binomial(self.machines, self.rate, np.count_nonzero(beyond))
        drawn = Uniform(self.machines, self.per_round).draw(rounds, rng).participants
        rows = rng.permuted(drawn, axis=1)  # the filled slots are a random subset
        return Schedule(self.machines, rows, filled, self.mean_size, expected=self.mean_size, secret=self)


@dataclass(frozen=True)
class SecretSubsets(Participation):
    """Secret participation of a uniformly random subset of `per_round` machines, sampled again in each round.

    Only a trusted server learns who takes part. The scheme `Uniform` samples the same subsets, but they are public.

    >>> SecretSubsets(100, 10).draw(3, np.random.default_rng(0))
    Schedule: 3 rounds of 10 of 100 machines on average, participation secret
    """

    machines: int
    per_round: int
    exchangeable = True
    secret = True

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        rows = Uniform(self.machines, self.per_round).draw(rounds, rng).participants
        return Schedule(self.machines, rows, secret=self)


@dataclass(frozen=True)
class CyclicPoisson(Participation):
    """Secret participation in public groups, which take turns. Each machine of a group takes part at random.

    Round t, counted from 0, belongs to group g = t mod `groups`. Group g has the machines g, g + groups, g + 2·groups,
    … in the stored order. In a round of its group, each machine takes part independently with probability `rate`.

    The groups are public and do not depend on the data. Only a trusted server learns which machines of a group take
    part, and how many. A round may be empty. Sums are divided by the mean number of machines in a round.

    Args:
        machines: total number of machines.
        groups: number of groups. It must divide `machines`.
        rate: probability that a machine takes part in a round of its group, above 0 and at most 1.

    Source: Choquette-Choo et al. 2023, Algorithm 2.

    >>> scheme = CyclicPoisson(1000, groups=5, rate=0.5)
    >>> scheme.mean_size, scheme.turns(12)[:5].tolist()
    (100.0, [3, 3, 2, 2, 2])
    """

    machines: int
    groups: int
    rate: float
    varies = True
    secret = True

    def __post_init__(self):
        require_at_least("machines", self.machines, 1)
        require_at_least("groups", self.groups, 1)
        as_integers(self, "machines", "groups")
        object.__setattr__(self, "rate", require_probability("rate", self.rate))
        if self.machines % self.groups:
            raise Refusal(f"groups must divide machines ({self.machines}), got {self.groups}")

    @property
    def of_group(self) -> PoissonCohorts:
        """Participation scheme of the machines of one group, in those rounds in which the group has its turn.

        Machine i is in group i mod `groups`. Group g has its turn in the rounds t, from 0, with t mod `groups` = g. In
        these rounds, each machine of the group takes part independently with probability `rate`.
        """
        return PoissonCohorts(self.machines // self.groups, self.rate)

    @property
    def per_round(self) -> int:
        """Limit on the number of machines in a round. It is also the number of slots of a round.

        If a sampled round has more machines, it is sampled again. This has probability at most 1e-12.
        """
        return self.of_group.per_round

    @property
    def cut(self) -> float:
        """Probability that a round has more than `per_round` machines and is sampled again."""
        return self.of_group.cut

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Probabilities that 1, 2, … machines take part in a round; float64 [per_round].

        They sum to 1 minus the probability of an empty round.
        """
        return self.of_group.cohort_size_pmf

    @property
    def mean_size(self) -> float:
        """Mean number of machines in a round, rate·machines/groups, by which sums over a round are divided."""
        return self.of_group.mean_size

    def inverse_moment(self, power: float = 1) -> float:
        """Raise Refusal: the mean of 1/M^power does not exist, because a round may have M = 0 machines."""
        return self.of_group.inverse_moment(power)

    def turns(self, rounds: int) -> np.ndarray:
        """Return each machine's number of turns in the first `rounds` rounds; int [machines].

        A machine has a turn when its group has a turn. Machine i is in group i mod `groups`. Group g has its turn in
        the rounds t, from 0, with t mod `groups` = g. In other rounds, the machines of the group do not take part.

        Args:
            rounds: number of rounds.
        """
        return -((np.arange(self.machines) % self.groups - rounds) // self.groups)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        drawn = self.of_group.draw(rounds, rng)
        rows = drawn.participants * self.groups + np.arange(rounds)[:, None] % self.groups
        return replace(drawn, machines=self.machines, participants=rows.astype(np.int32), secret=self)


@cache
def _width(machines: int, rate: float) -> int:
    return max(1, int(binomial_quantile(CUT, machines, rate)))
