"""What the sums cost: messages, bits and the analyzer's time, exactly and as Corollaries B.8–B.11 have them.

A message is one bit with its coordinate's label. A user of a one-pass method sends to one sum over b users; a user of
P_GD to T sums over all n.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_flag
from fedprivjax.theory._numbers import at_least_one, counts, plain, positive, probability


def messages_per_user(*, dimension: int, levels: ArrayLike, trials: ArrayLike, sums: ArrayLike = 1) -> Any:
    """One-bit messages of a user: `d·(g + q)` a sum. Exact.

    Args:
        levels: g.
        trials: q, noise trials of a user and coordinate.
        sums: how many sums the user enters, T for P_GD.

    Source: Cheu et al. 2022, Algorithms 1 and 2.

    >>> messages_per_user(dimension=10, levels=64, trials=6, sums=2)
    1400.0
    """
    counts(dimension=dimension)
    sent = at_least_one("levels", levels) + at_least_one("trials", trials)
    return plain(dimension * sent * at_least_one("sums", sums))


def bits_per_user(
    *, dimension: int, levels: ArrayLike, trials: ArrayLike, sums: ArrayLike = 1, labelled: bool = True
) -> Any:
    """Bits of a user: each message is one, and ⌈log₂ d⌉ for its coordinate's label. Exact.

    Args:
        labelled: False for a shuffler for every coordinate, where no label is sent.

    >>> bits_per_user(dimension=10, levels=64, trials=6)
    3500.0
    """
    require_flag("labelled", labelled)
    messages = messages_per_user(dimension=dimension, levels=levels, trials=trials, sums=sums)
    label = int(np.ceil(np.log2(dimension))) if labelled else 0
    return plain(np.asarray(messages) * (1 + label))


def analyzer_time(
    *, users: ArrayLike, dimension: int, levels: ArrayLike, trials: ArrayLike, sums: ArrayLike = 1
) -> Any:
    """Messages that the analyzer adds up in all: `n·d·(g + q)` a sum. Exact; n users in all for a one-pass method.

    >>> analyzer_time(users=1000, dimension=10, levels=64, trials=6)
    700000.0
    """
    sent = messages_per_user(dimension=dimension, levels=levels, trials=trials, sums=sums)
    return plain(at_least_one("users", users) * sent)


def bits_rate(
    *,
    summed: ArrayLike,
    dimension: int,
    epsilon: ArrayLike,
    delta: float,
    rounds: ArrayLike = 1,
    printed: bool = False,
) -> Any:
    """The order of a user's bits, constant 1: `d·T·[√b + ln²(d/δ)/ε_r²]`.

    Args:
        summed: users in a sum: b for the one-pass methods (Corollaries B.8–B.10), n for P_GD (B.11).
        epsilon: ε in all.
        rounds: T sums of one user, 1 in one pass; a sum's budget is then `ε_r² = ε²/(8T·ln(1/δ))`.
        printed: the paper's `d·T·[√b + ln(1/δ)/ε²]`. It drops a logarithm that the coordinates' share of the budget
            brings in, and in P_GD the rounds' share.

    Source: Cheu et al. 2022, Corollaries B.8–B.11, corrected.

    >>> bits_rate(summed=100, dimension=10, epsilon=1.0, delta=np.exp(-10.0), printed=True)
    200.0
    """
    require_flag("printed", printed)
    counts(dimension=dimension)
    t, log = at_least_one("rounds", rounds), -np.log(probability("delta", delta))
    share = 8 * t * log * (t > 1) + (t == 1)
    noise = log if printed else share * (np.log(dimension) + log) ** 2
    each = np.sqrt(at_least_one("summed", summed)) + noise / positive("epsilon", epsilon) ** 2
    return plain(dimension * t * each)


def runtime_rate(
    *,
    users: ArrayLike,
    summed: ArrayLike,
    dimension: int,
    epsilon: ArrayLike,
    delta: float,
    rounds: ArrayLike = 1,
    printed: bool = False,
) -> Any:
    """The order of the run time, constant 1: n times `bits_rate`; without that of smoothing.

    Args: `users` n in all, the others as in `bits_rate`.

    Source: Cheu et al. 2022, Corollaries B.8–B.11.

    >>> runtime_rate(users=1000, summed=100, dimension=10, epsilon=1.0, delta=np.exp(-10.0), printed=True)
    200000.0
    """
    settings = {"summed": summed, "dimension": dimension, "epsilon": epsilon, "delta": delta}
    return plain(at_least_one("users", users) * bits_rate(**settings, rounds=rounds, printed=printed))
