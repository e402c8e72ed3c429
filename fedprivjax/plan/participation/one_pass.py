"""Participation of every machine at most once, in cohorts of one size or of announced sizes."""

from dataclasses import dataclass, field, replace

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.participation.dropouts import Dropouts
from fedprivjax.plan.participation.interface import Participation
from fedprivjax.plan.participation.sizes import moment, thinned
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True)
class OnePass(Participation):
    """Every machine at most once: the machines permuted and cut into cohorts of `per_round`, without the remainder.

    With `dropouts`, machines drop out independently, as in `Dropouts(OnePass(machines, per_round), dropouts)`.

    >>> OnePass(10, 3).draw(3, np.random.default_rng(0)).participants.shape
    (3, 3)
    """

    machines: int
    per_round: int
    dropouts: float = 0.0
    at_most_once = True
    exchangeable = True

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.dropouts < 1:
            raise Refusal(f"dropouts must be at least 0 and below 1, got {self.dropouts}")

    @property
    def varies(self) -> bool:
        return self.dropouts > 0

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        planned = replace(self, dropouts=0.0)
        return thinned(planned.cohort_size_pmf, self.dropouts) if self.varies else super().cohort_size_pmf

    @property
    def rounds_given(self) -> int | None:
        return self.machines // self.per_round

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if self.varies:
            return Dropouts(replace(self, dropouts=0.0), self.dropouts).draw(rounds, rng)
        most = self.machines // self.per_round
        if rounds > most:
            raise Refusal(f"rounds must be at most {most} for one pass over the machines, got {rounds}")
        cohorts = rng.permutation(self.machines)[: rounds * self.per_round].astype(np.int32)
        return Schedule(self.machines, cohorts.reshape(rounds, self.per_round))


@dataclass(frozen=True)
class Cohorts(Participation):
    """Every machine at most once: the machines permuted and cut into cohorts of given, announced sizes.

    Args:
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
        object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))
        require_at_least("machines", self.machines, 1)
        if not self.sizes or min(self.sizes) < 1 or sum(self.sizes) > self.machines:
            raise Refusal(
                f"sizes must be at least 1 and add up to at most the {self.machines} machines, "
                f"got {len(self.sizes)} that add up to {sum(self.sizes)}"
            )

    @property
    def per_round(self) -> int:
        return max(self.sizes)

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Probability mass function of the cohort size of a uniformly random round, float64 [per_round]."""
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
