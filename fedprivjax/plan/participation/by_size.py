"""Participation in proportion to the remaining data, so that unequal datasets are used up together."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation.capped_sampling import draw_capped, rounds_filled
from fedprivjax.plan.participation.interface import Participation, check_sizes
from fedprivjax.plan.schedule import Schedule


@dataclass(frozen=True, eq=False)
class BySize(Participation):
    """`per_round` distinct machines with fresh examples, sampled in proportion to their remaining examples.

    With c_i messages left for machine i, the next machine is i with probability ∝ c_i among those not yet sampled in
    this round. If a later round could otherwise not be filled, machines with as many messages left as rounds come first
    (`capped_sampling`). All T rounds are therefore full, where T is the largest number with Σ_i min(n_i, T) ≥ m·T. If
    no machine has more than T examples, fewer than m of all examples remain unused.

    Dataset sizes are then public. Replace-one neighbouring allows this; add-or-remove-one does not.

    Args:
        shares: number of messages for which each machine has fresh examples, int [machines]; None takes it from the
            problem.

    >>> law = BySize(3, 2, [4, 1, 1])
    >>> law.rounds_given, BySize(3, 2, [3, 2, 1]).draw(3, np.random.default_rng(0)).total.tolist()
    (2, [3, 2, 1])
    """

    machines: int
    per_round: int
    shares: Sequence[int] | np.ndarray | None = field(default=None, repr=False)
    depends_on_sizes = True

    def __post_init__(self):
        check_sizes(self.machines, self.per_round)
        if self.shares is not None:
            object.__setattr__(self, "shares", self._checked(np.asarray(self.shares)))

    def _checked(self, shares: np.ndarray) -> np.ndarray:
        if shares.shape != (self.machines,) or not np.issubdtype(shares.dtype, np.integer) or shares.min() < 0:
            given = f"{shares.dtype} {list(shares.shape)}"
            raise Refusal(f"shares must be an integer of at least 0 for each of {self.machines} machines, got {given}")
        some = np.count_nonzero(shares)
        if some < self.per_round:
            raise Refusal(f"shares must be positive on at least per_round ({self.per_round}) machines, got {some}")
        return shares.astype(int)

    @property
    def known(self) -> np.ndarray:
        """The number of messages of each machine, int [machines].

        Raises:
            Refusal: if `shares` is None.
        """
        if self.shares is None:
            raise Refusal("shares must be given for BySize unless machines own records and use each of them once")
        return np.asarray(self.shares)

    @property
    def rounds_given(self) -> int | None:
        return None if self.shares is None else rounds_filled(self.known, self.per_round)

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        if (self.known > shares).any():
            worst = int(np.argmax(self.known > shares))
            most = f"the {shares[worst]} of machine {worst}"
            raise Refusal(f"shares must be at most {most}, got {self.known[worst]}", machine=worst)
        return rounds_filled(self.known, self.per_round)

    def fitted(self, shares: np.ndarray | None) -> "BySize":
        if self.shares is not None or shares is None or shares.size != self.machines:
            return self
        return replace(self, shares=shares)

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        alike = np.ones((1, self.machines))
        rows = draw_capped(alike, self.known, self.per_round, rounds, rng, factor=lambda left: left.astype(float))
        return Schedule(self.machines, rows)
