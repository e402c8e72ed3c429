r"""Weighted sampling without replacement: one machine after another, with probability ∝ weight among the others.

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
from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal

CLOCKS = 4096  # largest number of machines for which only clocks are used
TRIES = 8  # batches of draws with replacement, after which clocks choose the rest
Factor = Callable[[np.ndarray], np.ndarray]  # factor of a machine's weight, from its remaining draws
Weights = Callable[[np.ndarray | slice], np.ndarray]  # map from machine indices to their current weights

EVERY = slice(None)


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
