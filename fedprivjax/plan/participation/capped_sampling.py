r"""Distinct machines a round by weight, where each may be drawn so many times in all.

With c_i draws left to machine i and R rounds left, rounds of m can still be filled if and only if the slack

    s = Σ_i min(c_i, R) − m·R ≥ 0                                                            (Gale 1957; Ryser 1957)

Let F be the machines with c_i ≥ R. Drawing S makes min(c_i, R) of a machine in F one less either way, and of another
one less if it is in S; so the slack after the round is s − |F| + |S ∩ F|. It stays non-negative if and only if S has at
least |F| − s of F, at most m as s ≥ (|F| − m)·R. These are drawn first; while the slack is larger than |F| nothing is.
"""

from collections.abc import Callable

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation.weighted_sampling import EVERY, Urn, by_clocks

Factor = Callable[[np.ndarray], np.ndarray]  # what a machine's weight is multiplied by, from its draws left


def rounds_filled(caps: np.ndarray, per_round: int) -> int:
    """The most rounds T that machines with so many draws each can fill: the largest with Σ_i min(c_i, T) ≥ m·T.

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
    """Distinct machines of every round, int32 [rounds, per_round].

    Args:
        phases: weights [period, machines], of rounds 0, 1, … and over again.
        caps: draws of each machine in all, int [machines].
        factor: from a machine's draws left to what its weight is multiplied by; it never grows, and is 0 at 0.

    Raises:
        Refusal: caps, or with several phases a course of draws, that leave a round too few machines.
    """
    left, slack = caps.copy(), int(np.minimum(caps, rounds).sum()) - per_round * rounds
    settled = len(phases) == 1  # else who can be drawn changes, and no slack is known
    if settled and slack < 0:
        most = rounds_filled(caps, per_round)
        raise Refusal(f"rounds must be at most {most}, which is what machines' caps allow, got {rounds}")
    urns = [Urn(lambda at, weights=weights: weights[at] * factor(left[at])) for weights in phases]
    rows = np.empty((rounds, per_round), np.int32)
    for round in range(rounds):
        urn = urns[round % len(urns)]
        due = np.flatnonzero(left >= rounds - round) if settled else np.empty(0, int)
        must = due[by_clocks(urn.weights(due), due.size - slack, rng)] if due.size > slack else due[:0]
        if not settled and np.count_nonzero(urn.weights(EVERY)) < per_round:
            raise Refusal(f"most must leave {per_round} machines to every round, got fewer in round {round + 1}")
        drawn = np.append(must, urn.draw(per_round - must.size, rng, must))
        slack -= due.size - np.isin(drawn, due, assume_unique=True).sum()
        left[drawn] -= 1
        rows[round] = drawn
    return rows
