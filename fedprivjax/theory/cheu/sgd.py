"""P_SGD: one pass of projected SGD on shuffled sums, averaged over iterates (Algorithm 3, Theorem 4.1)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.theory._numbers import at_least_one, counts, one, plain, positive
from fedprivjax.theory.cheu.batches import candidates
from fedprivjax.theory.cheu.noise import Noise, noise_at


class Choice(NamedTuple):
    """Batch size with its rounds, step, and bound on the expected excess loss."""

    per_round: int
    rounds: int
    step: float
    bound: float


def sgd_bound(
    *, users: ArrayLike, per_round: ArrayLike, distance: ArrayLike, lipschitz: ArrayLike, noise: Noise
) -> Any:
    """Expected excess loss of P_SGD at its best step: `D·L·√((1 + C/b²)/T)` with `T = ⌊n/b⌋`, or inf if b > n.

    Args:
        users, per_round: n and b.
        distance: D, bound on the distance from the start to the minimum (in the paper, the diameter).
        noise: C.

    Source: Cheu et al. 2022, proof of Theorem 4.1. Explicit.

    >>> round(sgd_bound(users=20_000, per_round=29, distance=2.0, lipschitz=1.0, noise=862.0), 4)
    0.1084
    """
    b = at_least_one("per_round", per_round)
    rounds = np.floor(at_least_one("users", users) / b)
    with np.errstate(divide="ignore"):
        return plain(positive("distance", distance) * _length(b, lipschitz, noise) / np.sqrt(rounds))


def sgd_step(
    *, rounds: ArrayLike, per_round: ArrayLike, distance: ArrayLike, lipschitz: ArrayLike, noise: Noise
) -> Any:
    """Step that attains `sgd_bound`: `η = D/(L·√((1 + C/b²)T))`.

    Source: Cheu et al. 2022, proof of Theorem 4.1, whose η has the same order.

    >>> sgd_step(rounds=4, per_round=1, distance=2.0, lipschitz=1.0, noise=3.0)
    0.5
    """
    length = _length(at_least_one("per_round", per_round), lipschitz, noise)
    return plain(positive("distance", distance) / (length * np.sqrt(at_least_one("rounds", rounds))))


def sgd_best_per_round(noise: ArrayLike) -> Any:
    """Batch size that minimises `sgd_bound` for large n: `b* = √C` with C the `noise`, a real number.

    Source: derived here, by minimising `sgd_bound`; the paper's b = √d·ln(d/δ)/ε is of the same order.

    >>> sgd_best_per_round(841.0)
    29.0
    """
    return plain(np.sqrt(positive("noise", noise)))


def sgd_scan(*, users: int, distance: float, lipschitz: float, noise: Noise, per_round: int | None = None) -> Choice:
    """Return the integer batch size with the smallest `sgd_bound`, or the given one, with its rounds, step and bound.

    >>> sgd_scan(users=20_000, distance=2.0, lipschitz=1.0, noise=862.0)
    Choice(per_round=29, rounds=689, step=0.0535..., bound=0.108...)
    """
    counts(users=users)
    distance, lipschitz = one(positive, "distance", distance), one(positive, "lipschitz", lipschitz)
    problem = {"distance": distance, "lipschitz": lipschitz, "noise": noise}
    tried = candidates(users, per_round)
    bounds = np.atleast_1d(sgd_bound(users=users, per_round=tried, **problem))
    best = int(np.argmin(bounds))
    b, rounds = int(tried[best]), users // int(tried[best])
    return Choice(b, rounds, float(sgd_step(rounds=rounds, per_round=b, **problem)), float(bounds[best]))


def _length(per_round: np.ndarray, lipschitz: ArrayLike, noise: Noise) -> np.ndarray:
    """Bound on the root mean squared norm of a noisy mean gradient."""
    return positive("lipschitz", lipschitz) * np.sqrt(1 + noise_at(noise, per_round) / per_round**2)
