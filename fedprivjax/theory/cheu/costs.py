"""Costs of the sums: messages, bits and the analyzer's time, exactly and by the orders of Corollaries B.8–B.11.

A message is one bit with the label of its coordinate. A user of a one-pass method contributes to one sum over b users,
a user of P_GD to T sums over all n users.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_flag
from fedprivjax.theory._numbers import at_least_one, counts, plain, positive, probability


def messages_per_user(*, dimension: int, levels: ArrayLike, trials: ArrayLike, sums: ArrayLike = 1) -> Any:
    """Number of one-bit messages of a user: `d·(g + q)` per sum. Exact.

    Args:
        levels: g, rounding levels of a coordinate.
        trials: q, noise trials per user and coordinate.
        sums: number of sums to which the user contributes; T for P_GD.

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
    """Number of bits of a user: one per message, and ⌈log₂ d⌉ for the label of its coordinate. Exact.

    Args:
        labelled: False if every coordinate has a separate shuffler, so that no labels are sent.

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
    """Number of messages that the analyzer adds up: `n·d·(g + q)` per sum of a user. Exact.

    For a one-pass method, `users` is the number of users in all rounds together.

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
    """Order of the number of bits of a user, with constant 1: `d·T·[√b + ln²(d/δ)/ε_r²]`.

    Args:
        summed: users per sum: b for the one-pass methods (Corollaries B.8–B.10), n for P_GD (B.11).
        epsilon: ε of all sums together.
        rounds: T, sums of one user. It is 1 for one pass, with `ε_r = ε`; otherwise the budget of one sum is
            `ε_r² = ε²/(8T·ln(1/δ))`.
        printed: use the paper's `d·T·[√b + ln(1/δ)/ε²]`. It omits a logarithm that is due to splitting the budget over
            the coordinates and, for P_GD, the factor that is due to splitting it over the rounds.

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
    """Order of the run time, with constant 1 and without the time of smoothing: n times `bits_rate`.

    Arguments other than n, the number of users in all, are as for `bits_rate`.

    Source: Cheu et al. 2022, Corollaries B.8–B.11.

    >>> runtime_rate(users=1000, summed=100, dimension=10, epsilon=1.0, delta=np.exp(-10.0), printed=True)
    200000.0
    """
    settings = {"summed": summed, "dimension": dimension, "epsilon": epsilon, "delta": delta}
    return plain(at_least_one("users", users) * bits_rate(**settings, rounds=rounds, printed=printed))
