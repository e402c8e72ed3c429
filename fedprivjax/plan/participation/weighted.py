"""Weighted participation: public weights, which may vary periodically, and caps; or in proportion to remaining data."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedprivjax.checks.keywords import known_keywords
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.participation.interface import Participation
from fedprivjax.plan.participation.weighted_sampling import draw_capped, draw_weighted, rounds_filled
from fedprivjax.plan.schedule import Schedule

NIGHT = 1e-12  # smaller weights are 0 up to rounding


@dataclass(frozen=True, eq=False)
class Weighted(Participation):
    """`per_round` distinct machines, sampled one after another with probability proportional to public weights.

    With weights w of the round and c_i draws left, the next machine is i with probability ∝ w_i·1{c_i > 0} among those
    not yet sampled in this round. If the caps leave no choice (as many draws left as rounds), such machines come first,
    so that every round is filled. Sampling takes a few microseconds per sampled machine, for any number of machines,
    and 24 bytes per weight. With caps, every round takes time proportional to the number of machines.

    Args:
        weights: public weight of each machine, or such a list for each round in turn. Weights are at least 0, of shape
            [machines] or [period, machines]; weight 0 is not available.
        max_uses: largest number of rounds of a machine, for all or for each, [machines]. None means no bound.

    >>> Weighted(4, 2, [0.0, 1.0, 1.0, 0.0]).draw(2, np.random.default_rng(0)).total.tolist()
    [0, 2, 2, 0]
    """

    machines: int
    per_round: int
    weights: Sequence[float] | Sequence[Sequence[float]] | np.ndarray = field(repr=False)
    max_uses: int | Sequence[int] | np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        weights = _floats("weights", self.weights)
        if weights.ndim not in (1, 2) or weights.shape[-1] != self.machines or not weights.size:
            wanted = f"[machines] or [period, machines] = [..., {self.machines}]"
            raise Refusal(f"weights must be {wanted}, got {list(weights.shape)}")
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise Refusal("weights must be at least 0 and finite, got others")
        object.__setattr__(self, "weights", np.atleast_2d(weights))
        object.__setattr__(self, "max_uses", _caps("max_uses", self.max_uses, self.machines))
        available = np.count_nonzero(self.phases, axis=1)
        if available.min() < self.per_round:
            where = f" in round {available.argmin()} of the period" if len(self.phases) > 1 else ""
            given = f"{available.min()}{where}"
            raise Refusal(f"weights must be positive for at least per_round ({self.per_round}) machines, got {given}")

    @classmethod
    @known_keywords
    def diurnal(
        cls,
        machines: int,
        per_round: int,
        peaks: Sequence[float] | np.ndarray,
        strength: float = 1.0,
        period: int = 24,
        max_uses: int | Sequence[int] | np.ndarray | None = None,
    ) -> "Weighted":
        """Machines whose weights follow a daily cycle.

        Machine i has the weight w_{r,i} = max(0, 1 + strength·cos(2π·(r − peak_i)/period)) in round r.

        Args:
            peaks: round of the period with the largest weight of each machine, [machines].
            strength: amplitude of the weights about their mean, at least 0. With 0 all rounds have equal weights. With
                1 a machine is unavailable in one round of the period, with 2 in a third of them.
            period: number of rounds of a day.
            max_uses: largest number of rounds of a machine, for all or for each. None means no bound.

        >>> Weighted.diurnal(4, 1, [0, 0, 2, 2], period=4).phases.round(2).tolist()[:2]
        [[2.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
        """
        require_at_least("period", period, 1)
        require_at_least("machines", machines, 1)
        peaks = _floats("peaks", peaks)
        if peaks.shape != (machines,) or not np.isfinite(peaks).all():
            raise Refusal(f"peaks must be a number for each of {machines} machines, got {list(peaks.shape)}")
        if np.ndim(strength) or not np.isfinite(_floats("strength", strength)) or strength < 0:
            raise Refusal(f"strength must be a number of at least 0, got {strength}")
        waves = 1 + strength * np.cos(2 * np.pi * (np.arange(period)[:, None] - peaks) / period)
        return cls(machines, per_round, np.where(waves > NIGHT, waves, 0.0), max_uses)

    @property
    def phases(self) -> np.ndarray:
        """Weights of each round of the period, float64 [period, machines]."""
        return np.asarray(self.weights)

    @property
    def caps(self) -> np.ndarray | None:
        """Largest number of draws of each machine, 0 if it is never available, int [machines], or None for no bound."""
        return None if self.max_uses is None else np.where(self.phases.any(axis=0), np.asarray(self.max_uses), 0)

    @property
    def rounds_given(self) -> int | None:
        return None if self.caps is None else rounds_filled(self.caps, self.per_round)

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """As in the base class. Only machines that may be sampled more often than they have messages set a limit."""
        drawn = self.phases.any(axis=0)
        short = drawn if self.caps is None else self.caps > shares
        return int(shares[short].min()) if short.any() else int(shares.sum()) // self.per_round

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        if self.caps is None:
            return Schedule(self.machines, draw_weighted(self.phases, self.per_round, rounds, rng))
        rows = draw_capped(self.phases, self.caps, self.per_round, rounds, rng, factor=lambda left: left > 0)
        return Schedule(self.machines, rows)


@dataclass(frozen=True, eq=False)
class BySize(Participation):
    """`per_round` distinct machines with fresh examples, sampled in proportion to their remaining examples.

    With c_i messages left for machine i, the next machine is i with probability ∝ c_i among those not yet sampled in
    this round. If a later round could otherwise not be filled, machines with as many messages left as rounds come first
    (`weighted_sampling`). All T rounds are therefore full, where T is the largest number with Σ_i min(n_i, T) ≥ m·T. If
    no machine has more than T examples, fewer than m of all examples remain unused.

    Dataset sizes are then public. Replace-one neighbouring allows this; add-or-remove-one does not.

    Args:
        shares: number of messages for which each machine has fresh examples, int [machines]; None takes it from the
            problem.

    >>> BySize(3, 2, [4, 1, 1]).rounds_given, BySize(3, 2, [3, 2, 1]).draw(3, np.random.default_rng(0)).total.tolist()
    (2, [3, 2, 1])
    """

    machines: int
    per_round: int
    shares: Sequence[int] | np.ndarray | None = field(default=None, repr=False)
    depends_on_sizes = True

    def __post_init__(self):
        super().__post_init__()
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
        equal = np.ones((1, self.machines))
        rows = draw_capped(equal, self.known, self.per_round, rounds, rng, factor=lambda left: left.astype(float))
        return Schedule(self.machines, rows)


def _floats(name: str, values) -> np.ndarray:
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise Refusal(f"{name} must be numbers, of one length each, got {str(values)[:80]}") from None


def _caps(name: str, values, machines: int) -> np.ndarray | None:
    """Return the caps as int [machines], or None for no bound."""
    if values is None:
        return None
    caps = _floats(name, values)
    if caps.ndim and caps.shape != (machines,):
        raise Refusal(f"{name} must be one integer or one for each of {machines} machines, got {caps.size}")
    wrong = caps[~((caps >= 1) & (caps % 1 == 0))]
    if wrong.size:
        raise Refusal(f"{name} must be an integer of at least 1, got {wrong.flat[0]:g}")
    return np.broadcast_to(caps, machines).astype(int)
