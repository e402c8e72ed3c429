"""Weighted sampling without replacement: one machine after another, with probability ∝ weight among the others.

    P(i_1, …, i_m) = Π_k w_{i_k} / (Σ_j w_j − w_{i_1} − … − w_{i_{k−1}})

Exponential clocks of rates w ring in this order. Draws with replacement without their repetitions have the same
distribution, and cost nothing for machines that are not sampled.
"""

from collections.abc import Callable

import numpy as np

CLOCKS = 4096  # largest number of machines for which only clocks are used
TRIES = 8  # batches of draws with replacement, after which clocks choose the rest
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
