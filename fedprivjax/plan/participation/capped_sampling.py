r"""Weighted sampling of distinct machines per round, with a cap on the total number of draws of each machine.

With c_i draws left for machine i and R rounds left, rounds of m can still be filled if and only if the slack

    s = Σ_i min(c_i, R) − m·R ≥ 0                                                            (Gale 1957; Ryser 1957)

Let F be the machines with c_i ≥ R. After a round with machines S, min(c_i, R) is one less for every machine in F, and
for every other machine in S. The slack after the round is therefore s − |F| + |S ∩ F|. It stays non-negative if and
only if S contains at least |F| − s machines of F, which is at most m because s ≥ (|F| − m)·R. These machines are
sampled first. If the slack is at least |F|, there are none.
"""

from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation.weighted_sampling import EVERY, Urn, by_clocks

Factor = Callable[[np.ndarray], np.ndarray]  # factor of a machine's weight, from its remaining draws


def rounds_filled(caps: np.ndarray, per_round: int) -> int:
    """Return the largest number of rounds T that machines with these caps can fill: Σ_i min(c_i, T) ≥ m·T.

    Σ_i min(c_i, T) − m·T is concave in T and 0 at 0.

    >>> rounds_filled(np.array([5, 1, 1, 1]), 2)
    3
    """
    low, high = 0, int(caps.sum()) // per_round
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(caps, middle).sum() >= per_round * middle else (low, middle - 1)
    return low


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
