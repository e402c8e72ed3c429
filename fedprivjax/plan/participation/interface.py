"""What a law of participation is: the whole contract, with defaults for what most laws share."""

from dataclasses import replace
from typing import Any, Self

import numpy as np

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.participation.sizes import moment
from fedprivjax.plan.schedule import Schedule


class Participation(Decorated):
    """Who takes part: subclass it (as a frozen dataclass) for a law of your own.

    A law must define `machines` (N, in all), `per_round` (the most that a round may have, the width of its schedule)
    and `draw`; everything else has the default that stands here. One whose number of machines differs from round to
    round also says `varies = True` and defines `cohort_size_pmf`. A law knows no data: it is public. What it draws is
    checked before a run: shapes, no machine twice in a round, indices in range.

    Attributes:
        machines: N.
        per_round: the most machines that a round may have.
        varies: whether their number differs from round to round.
        at_most_once: whether no machine takes part twice.
        exchangeable: whether a round's machines, given their number, are a uniformly random subset.
        depends_on_sizes: whether the schedule depends on how many examples machines have, which is then public.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pairs(Participation):
    ...     machines: int
    ...     per_round = 2
    ...     def draw(self, rounds, rng):
    ...         first = 2 * rng.integers(self.machines // 2, size=rounds)
    ...         return Schedule(self.machines, np.stack([first, first + 1], axis=1))
    >>> Pairs(4).draw(2, np.random.default_rng(0)).participants.tolist()
    [[2, 3], [2, 3]]
    """

    kind, decorator = "participation", FROZEN
    machines: Any
    per_round: Any
    varies: Any = False
    at_most_once: Any = False
    exchangeable: Any = False
    depends_on_sizes: Any = False

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        """A schedule of so many rounds, by no other randomness than `rng`'s.

        Where the number of machines varies, empty slots stand at the end of a row and hold other machines.
        """
        raise Undefined(f"{type(self).__name__} must define draw(rounds, rng)")

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """The probability of each number of machines present, from 1 up: float64 [per_round].

        Default: always `per_round` of them.
        """
        if self.varies:
            raise Undefined(f"{type(self).__name__} must define cohort_size_pmf, as the number of its machines varies")
        law = np.zeros(self.per_round)
        law[-1] = 1.0
        return law

    @property
    def mean_size(self) -> float:
        """E[M_r], the mean number of machines present in a round.

        >>> from fedprivjax import Varying
        >>> Varying.between(10, 2, 4).mean_size
        3.0
        """
        return moment(self.cohort_size_pmf, 1)

    def inverse_moment(self, power: float = 1) -> float:
        """E[M_r^(−power)] of the number of machines present in a round, exactly.

        >>> from fedprivjax import Varying
        >>> Varying.between(10, 1, 2).inverse_moment(), Varying.between(10, 1, 2).inverse_moment(2)
        (0.75, 0.625)
        """
        return moment(self.cohort_size_pmf, -power)

    @property
    def rounds_given(self) -> int | None:
        """Rounds of a schedule that has an end of its own; None where any number can be drawn."""
        return None

    def examples(self, rounds: int) -> int:
        """Examples that so many rounds take from a pool, one a machine."""
        return rounds * self.per_round

    def most_rounds(self, examples: int) -> int:
        """Rounds for which a pool of so many is enough."""
        return examples // self.per_round

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """Rounds for which machines of so many fresh messages each, [machines], are enough, whoever is drawn."""
        return int(shares.min())

    def fitted(self, shares: np.ndarray | None) -> Self:
        """The law for machines of so many fresh messages each, int [machines]; None where they never run out."""
        return self

    def resized(self, **sizes: int) -> Self:
        """The law with another number of `machines` in all, or `per_round`, as a sweep over them needs it.

        Raises:
            Refusal: a size that is no setting of the law.
        """
        law: Any = self  # a dataclass, as every law
        for name in sizes.keys() - getattr(law, "__dataclass_fields__", {}).keys():
            raise Refusal(f"{name} must be a setting of the participation to be swept, got {self}")
        return replace(law, **sizes)


def check_sizes(machines: int, per_round: int) -> None:
    """Refuse a cohort that there are not machines enough for."""
    require_at_least("machines", machines, 1)
    require_at_least("per_round", per_round, 1)
    if per_round > machines:
        raise Refusal(f"per_round must be at most machines ({machines}), got {per_round}")
