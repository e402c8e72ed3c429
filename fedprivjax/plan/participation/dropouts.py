"""Dropouts (scheduled machines that send nothing), and schemes of one pass over the machines: `OnePass`, `Cohorts`."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_items
from fedprivjax.plan.participation.interface import (
    Around,
    Participation,
    as_integers,
    floats,
    moment,
    thinned,
    thinned_cohorts,
    thinned_subsets,
)
from fedprivjax.plan.participation.validate import checked_draw
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Dropouts(Around):
    """Any participation scheme with dropouts: machines that are scheduled in a round but send nothing.

    Machines drop out independently of each other and of earlier rounds. A machine that drops out uses no record.
    Guarantees count machines that drop out as if they had sent.

    If all machines of a round drop out, one of them is kept, so that no round is empty. The kept machine is uniformly
    random. If participation is secret, no machine is kept: a round may be empty, and sums are divided by the mean
    number of machines that send.

    Args:
        scheme: participation scheme that schedules the machines, before dropouts.
        rate: probability that a machine drops out of a round, at least 0 and below 1: one number, or one per machine,
            [machines].

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
        self.take()
        rates = floats("dropouts", self.rate, "one rate or one for each machine")
        if rates.ndim and rates.shape != (self.machines,):
            raise Refusal(f"dropouts must be one rate or one for each of {self.machines} machines, got {rates.size}")
        wrong = rates[~((rates >= 0) & (rates < 1))]
        if wrong.size:
            raise Refusal(f"dropouts must be at least 0 and below 1, got {wrong.flat[0]}")

    @property
    def rates(self) -> np.ndarray:
        """Probability of each machine to drop out of a round; float64 [machines]."""
        return np.broadcast_to(np.asarray(self.rate, float), self.machines)

    @property
    def varies(self) -> bool:
        return bool(self.scheme.varies or self.rates.any())

    @property
    def secret(self) -> bool:
        return bool(self.scheme.secret)

    @property
    def mean_size(self) -> float:
        """Mean number of machines that send in a round, without those that drop out."""
        if not self.secret:
            return super().mean_size
        if not self._equal_rates and not self.scheme.exchangeable:
            raise Refusal(f"dropouts must be one rate for {self.scheme} to have one mean cohort size")
        return self.scheme.mean_size * float(np.mean(1 - self.rates))

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Probabilities that 1, 2, … machines of a round send and do not drop out; float64 [per_round].

        Raises:
            Refusal: if rates differ and the scheduled machines are not a uniformly random subset, because the
                probabilities then differ between rounds. Also if participation is secret. Use `expected` and `mean` of
                a sampled schedule instead.
        """
        if self.secret:
            raise Refusal(f"participation must be public for a distribution after dropouts, got {self.scheme}")
        if self._equal_rates:
            return thinned(self.scheme.cohort_size_pmf, float(self.rates[0]))
        if not self.scheme.exchangeable:
            raise Refusal(f"dropouts must be one rate for {self.scheme} to have one cohort-size distribution")
        return thinned_subsets(self.scheme.cohort_size_pmf, self.rates)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        planned = checked_draw(self.scheme, rounds, rng)
        if planned.announced:
            raise Refusal("dropouts must be left out if cohort sizes are announced")
        if planned.late is not None:
            raise Refusal(f"dropouts must be left out with late answers, got {self.scheme}. Use Uniform, for example")
        if not self.rates.any():
            return planned
        if planned.hours is not None:
            raise Refusal(f"dropouts must be inside of delays, got {str(self.scheme)[:80]}. Use Timed(Dropouts(…), …)")
        if planned.dropped is not None:
            raise Refusal(f"dropouts must be given once, got others from {str(self.scheme)[:80]}")
        rates = np.where(planned.scheduled, self.rates[planned.participants], 1.0)
        chance = rng.random(rates.shape)
        dropped = planned.scheduled & (chance < rates)
        if self.secret:  # the same divisor whoever drops out, and no rule for empty rounds
            return replace(planned, dropped=dropped, mean=self.mean_size, expected=self.mean_size)
        empty = np.flatnonzero(~(planned.scheduled & ~dropped).any(axis=1))
        nearest = np.where(planned.scheduled, chance, -1.0)[empty] / rates[empty]
        dropped[empty, nearest.argmax(axis=1)] = False
        defined = self._equal_rates or self.scheme.exchangeable
        pmf = self.cohort_size_pmf if defined else thinned_cohorts(rates)  # the mixture of the rounds' distributions
        return replace(planned, dropped=dropped, mean=1 / moment(pmf, -1), expected=moment(pmf, 1))

    @property
    def _equal_rates(self) -> bool:
        return np.ndim(self.rate) == 0 or np.ptp(self.rates) == 0


@dataclass(frozen=True)
class OnePass(Participation):
    """Participation of every machine at most once, in a random order: `per_round` machines per round.

    The run ends when fewer than `per_round` machines are left. These machines never take part.

    >>> OnePass(10, 3).draw(3, np.random.default_rng(0)).participants.shape
    (3, 3)
    """

    machines: int
    per_round: int
    at_most_once = True
    exchangeable = True

    @property
    def rounds_given(self) -> int | None:
        return self.machines // self.per_round

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        most = self.machines // self.per_round
        if rounds > most:
            raise Refusal(f"rounds must be at most {most} for one pass over the machines, got {rounds}")
        cohorts = rng.permutation(self.machines)[: rounds * self.per_round].astype(np.int32)
        return Schedule(self.machines, cohorts.reshape(rounds, self.per_round))


@dataclass(frozen=True)
class Cohorts(Participation):
    """Participation of every machine at most once, in a random order, in cohorts of given sizes.

    A cohort is the machines of one round. The sizes are public: machines know before a round how many of them take
    part.

    Args:
        machines: total number of machines.
        sizes: number of machines of each round.

    >>> Cohorts(10, (2, 2, 5)).draw(3, np.random.default_rng(0)).present.sum(axis=1).tolist()
    [2, 2, 5]
    """

    machines: int
    sizes: tuple[int, ...] = field(repr=False)
    varies = True
    at_most_once = True
    exchangeable = True

    def __post_init__(self):
        for size in require_items("sizes", self.sizes):
            require_at_least("sizes", size, 1)
        object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))
        require_at_least("machines", self.machines, 1)
        as_integers(self, "machines")
        if not self.sizes or sum(self.sizes) > self.machines:
            raise Refusal(
                f"sizes must be at least 1 and add up to at most the {self.machines} machines, "
                f"got {len(self.sizes)} that add up to {sum(self.sizes)}"
            )

    @property
    def per_round(self) -> int:
        return max(self.sizes)

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Fractions of all rounds that have 1, 2, … machines; float64 [per_round]."""
        return _shares_of(np.array(self.sizes))

    @property
    def rounds_given(self) -> int | None:
        return len(self.sizes)

    def examples(self, rounds: int) -> int:
        return sum(self.sizes[:rounds])

    def most_rounds(self, examples: int) -> int:
        return int(np.searchsorted(np.cumsum(self.sizes), examples, side="right"))

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if rounds > len(self.sizes):
            raise Refusal(f"rounds must be at most the cohorts ({len(self.sizes)}), got {rounds}")
        sizes = np.array(self.sizes[:rounds])
        first = np.cumsum(sizes) - sizes
        slots = (first[:, None] + np.arange(sizes.max())) % self.machines  # empty slots hold machines of other rounds
        rows = rng.permutation(self.machines)[slots].astype(np.int32)
        pmf = _shares_of(sizes)
        return Schedule(self.machines, rows, sizes, 1 / moment(pmf, -1), announced=True, expected=moment(pmf, 1))


def _shares_of(sizes: np.ndarray) -> np.ndarray:
    """Return the fraction of rounds with each size, from size 1, float64 [largest size]."""
    return np.bincount(sizes)[1:] / sizes.size
