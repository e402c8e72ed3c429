"""Weighted participation: public weights, which may vary periodically, and caps; or in proportion to remaining data.

Machines of a round are sampled without replacement, one after another, with probability ∝ weight among the others:

    P(i_1, …, i_m) = Π_k w_{i_k} / (Σ_j w_j − w_{i_1} − … − w_{i_{k−1}})

Exponential clocks of rates w ring in this order. Draws with replacement without their repetitions have the same
distribution, and cost nothing for machines that are not sampled.

The total number of draws of each machine may be capped. With c_i draws left for machine i and R rounds left, rounds of
m can still be filled if and only if the slack

    s = Σ_i min(c_i, R) − m·R ≥ 0                                                            (Gale 1957; Ryser 1957)

Let F be the machines with c_i ≥ R. After a round with machines S, min(c_i, R) is one less for every machine in F, and
for every other machine in S. The slack after the round is therefore s − |F| + |S ∩ F|. It stays non-negative if and
only if S contains at least |F| − s machines of F, which is at most m because s ≥ (|F| − m)·R. These machines are
sampled first. If the slack is at least |F|, there are none.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import known_keywords, require_at_least
from fedprivjax.plan.participation.interface import Participation, floats
from fedprivjax.plan.schedule import Schedule

CLOCKS = 4096  # largest number of machines for which only clocks are used
TRIES = 8  # batches of draws with replacement, after which clocks choose the rest
Factor = Callable[[np.ndarray], np.ndarray]  # factor of a machine's weight, from its remaining draws
Weights = Callable[[np.ndarray | slice], np.ndarray]  # map from machine indices to their current weights
EVERY = slice(None)
NIGHT = 1e-12  # smaller weights are 0 up to rounding


@dataclass(frozen=True, eq=False)
class Weighted(Participation):
    """Participation of `per_round` machines in each round, sampled one after another by public weights.

    The probability of a machine is proportional to its weight, among the machines not yet sampled in this round.

    If `max_uses` is given, a machine that has taken part this often is not sampled any more. If the weights are the
    same in all rounds, a run of at most `rounds_given` rounds never lacks machines. If a later round would otherwise
    lack machines, some of the machines with enough uses left for every remaining round are sampled first. These
    machines then take part more often than their weights imply.

    Args:
        machines: total number of machines.
        per_round: number of machines in a round.
        weights: weight of each machine, at least 0, shape [machines]. A machine of weight 0 is not available. Weights
            of shape [period, machines] differ between rounds: round t uses row t mod period.
        max_uses: largest number of rounds of a machine: one number, or one per machine, [machines]. None is no limit.

    >>> Weighted(4, 2, [0.0, 1.0, 1.0, 0.0]).draw(2, np.random.default_rng(0)).total.tolist()
    [0, 2, 2, 0]
    """

    machines: int
    per_round: int
    weights: Sequence[float] | Sequence[Sequence[float]] | np.ndarray = field(repr=False)
    max_uses: int | Sequence[int] | np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        weights = floats("weights", self.weights)
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
        """Return a scheme in which the machines' weights follow a daily cycle.

        In round r, machine i has the weight max(0, 1 + strength·cos(2π·(r − peaks[i])/period)).

        Args:
            machines: total number of machines.
            per_round: number of machines in a round.
            peaks: for each machine, the round of the day in which its weight is largest, from 0; [machines].
            strength: amplitude of the weights about 1, at least 0. With 0, all weights are 1. With 1, a machine is
                unavailable in one round of the day.
            period: number of rounds of a day.
            max_uses: largest number of rounds of a machine: one number, or one per machine, [machines]. None is no
                limit.

        >>> Weighted.diurnal(4, 1, [0, 0, 2, 2], period=4).phases.round(2).tolist()[:2]
        [[2.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]
        """
        require_at_least("period", period, 1)
        require_at_least("machines", machines, 1)
        peaks = floats("peaks", peaks)
        if peaks.shape != (machines,) or not np.isfinite(peaks).all():
            raise Refusal(f"peaks must be a number for each of {machines} machines, got {list(peaks.shape)}")
        if np.ndim(strength) or not np.isfinite(floats("strength", strength)) or strength < 0:
            raise Refusal(f"strength must be a number of at least 0, got {strength}")
        waves = 1 + strength * np.cos(2 * np.pi * (np.arange(period)[:, None] - peaks) / period)
        return cls(machines, per_round, np.where(waves > NIGHT, waves, 0.0), max_uses)

    @property
    def phases(self) -> np.ndarray:
        """Weight of each machine in each round of a period; float64 [period, machines].

        The weights repeat after the period. The period is 1 if the weights are the same in all rounds.
        """
        return np.asarray(self.weights)

    @property
    def caps(self) -> np.ndarray | None:
        """Largest number of rounds in which each machine takes part, int [machines], or None for no limit.

        It is 0 for a machine whose weights are all 0.
        """
        return None if self.max_uses is None else np.where(self.phases.any(axis=0), np.asarray(self.max_uses), 0)

    @property
    def rounds_given(self) -> int | None:
        return None if self.caps is None else rounds_filled(self.caps, self.per_round)

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """Return the largest number of rounds in which no machine can run out of unused examples.

        This holds for every schedule that may be sampled. Machines that reach `max_uses` before their examples run out
        set no limit.

        Args:
            shares: number of messages that each machine can send before its examples run out, int [machines].
        """
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
    """Participation of m = `per_round` machines in each round, in proportion to their unused examples.

    The scheme is for runs that use each example at most once. Let c_i be the number of messages that machine i can
    still send before its examples run out. The machines of a round are sampled one after another, without replacement,
    with probability proportional to c_i. If later rounds would otherwise have too few machines, some of the machines
    that can still send in every remaining round are sampled first.

    A run has at most T rounds, and T rounds by default. T is the largest number with Σ_i min(n_i, T) ≥ m·T, where n_i
    is c_i before the first round.

    The schedule reveals the machines' numbers of examples. Guarantees therefore require the neighbouring relation
    replace-one.

    Args:
        machines: total number of machines.
        per_round: m, number of machines in a round.
        shares: n, number of messages that each machine can send before its examples run out, int [machines]. This
            number is the machine's number of examples if a message uses one example. None takes the numbers from the
            problem.

    Raises:
        Refusal: if fewer than `per_round` machines have examples.

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
        """Number of messages that each machine can send before its examples run out; int [machines].

        These numbers are the setting `shares`. If it was not given, a run sets it from the problem's dataset sizes.

        Raises:
            Refusal: if `shares` is None, because it was neither given nor set by a run.
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


def _caps(name: str, values, machines: int) -> np.ndarray | None:
    """Return the caps as int [machines], or None for no bound."""
    if values is None:
        return None
    caps = floats(name, values)
    if caps.ndim and caps.shape != (machines,):
        raise Refusal(f"{name} must be one integer or one for each of {machines} machines, got {caps.size}")
    wrong = caps[~((caps >= 1) & (caps % 1 == 0))]
    if wrong.size:
        raise Refusal(f"{name} must be an integer of at least 1, got {wrong.flat[0]:g}")
    return np.broadcast_to(caps, machines).astype(int)


def by_clocks(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Sample `count` distinct indices, in sampling order. At least `count` weights must be positive.

    >>> by_clocks(np.array([0.0, 1.0, 2.0]), 2, np.random.default_rng(0)).tolist()
    [2, 1]
    """
    rings = np.full(weights.shape, np.inf)
    live = weights > 0
    rings[live] = rng.standard_exponential(np.count_nonzero(live)) / weights[live]
    first = np.argpartition(rings, count - 1)[:count]
    return first[np.argsort(rings[first])]


class Urn:
    """Rejection sampler for non-increasing weights: proposals by old weights, accepted with the ratio of new to old."""

    def __init__(self, weights: Weights):
        self.weights = weights
        self._refill()

    def _refill(self) -> None:
        self.before = np.array(self.weights(EVERY), float)
        self.ends = np.cumsum(self.before)

    def draw(self, count: int, rng: np.random.Generator, without: np.ndarray | None = None) -> np.ndarray:
        """Sample `count` distinct machines, except those in `without`."""
        apart = dict.fromkeys([] if without is None else without.tolist())
        drawn: dict[int, None] = {}
        if not count:
            return np.empty(0, int)
        for tried in range(TRIES if self.before.size > CLOCKS else 0):
            if tried == TRIES // 2:
                self._refill()
            new = self._proposed(2 * (count - len(drawn)) + 8, rng)
            drawn.update(dict.fromkeys(i for i in new.tolist() if i not in apart))
            if len(drawn) >= count:
                return np.array(list(drawn)[:count], int)
        rest = np.array(self.weights(EVERY), float)
        rest[np.array([*apart, *drawn], int)] = 0.0
        return np.append(np.array(list(drawn), int), by_clocks(rest, count - len(drawn), rng))

    def _proposed(self, count: int, rng: np.random.Generator) -> np.ndarray:
        place, kept = rng.random((2, count))
        at = np.searchsorted(self.ends, place * self.ends[-1], side="right").clip(max=self.ends.size - 1)
        return at[kept * self.before[at] < self.weights(at)]


def draw_weighted(phases: np.ndarray, per_round: int, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Sample distinct machines by periodic weights `phases` [period, machines], int32 [rounds, per_round]."""
    urns = [Urn(lambda at, weights=weights: weights[at]) for weights in phases[:rounds]]
    rows = [urns[round % len(urns)].draw(per_round, rng) for round in range(rounds)]
    return np.array(rows, np.int32)


def rounds_filled(caps: np.ndarray, per_round: int) -> int:
    """Return the largest number of rounds T that machines with these caps can fill: Σ_i min(c_i, T) ≥ m·T.

    Σ_i min(c_i, T) − m·T is concave in T and 0 at 0.

    >>> rounds_filled(np.array([5, 1, 1, 1]), 2)
    3
    """
    rounds = range(1, int(caps.sum()) // per_round + 1)
    return bisect_left(rounds, True, key=lambda count: np.minimum(caps, count).sum() < per_round * count)


def draw_capped(
    phases: np.ndarray,
    caps: np.ndarray,
    per_round: int,
    rounds: int,
    rng: np.random.Generator,
    *,
    factor: Factor,
) -> np.ndarray:
    """Sample the distinct machines of every round, int32 [rounds, per_round].

    Args:
        phases: weights of rounds 0, 1, …, repeated periodically; shape [period, machines].
        caps: largest total number of draws of each machine, int [machines].
        factor: map from a machine's remaining draws to a factor of its weight. It must be 0 at 0, and must not increase
            as draws are used.

    Raises:
        Refusal: if the caps leave too few machines for a round. With several phases this may depend on earlier draws.
    """
    left, slack = caps.copy(), int(np.minimum(caps, rounds).sum()) - per_round * rounds
    settled = len(phases) == 1  # otherwise the available machines change, and the slack is unknown
    if settled and slack < 0:
        most = rounds_filled(caps, per_round)
        raise Refusal(f"rounds must be at most {most}, the largest number that the machines' caps allow, got {rounds}")
    urns = [Urn(lambda at, weights=weights: weights[at] * factor(left[at])) for weights in phases]
    rows = np.empty((rounds, per_round), np.int32)
    for round in range(rounds):
        urn = urns[round % len(urns)]
        due = np.flatnonzero(left >= rounds - round) if settled else np.empty(0, int)
        must = due[by_clocks(urn.weights(due), due.size - slack, rng)] if due.size > slack else due[:0]
        if not settled and np.count_nonzero(urn.weights(EVERY)) < per_round:
            raise Refusal(f"max_uses must leave {per_round} machines for every round, got fewer in round {round + 1}")
        drawn = np.append(must, urn.draw(per_round - must.size, rng, must))
        slack -= due.size - np.isin(drawn, due, assume_unique=True).sum()
        left[drawn] -= 1
        rows[round] = drawn
    return rows
