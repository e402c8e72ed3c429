"""P_AGD: one pass of Lan's AC-SA on shuffled sums (Algorithm 4, Theorem 4.3).

Round t = 1..T has `α_t = 2/(t + 2)` and steps by `(t + 1)/(2(β + S))`, which is the penalty `L_t·‖θ − θ_t‖²` with
`L_t = (β + S)/(t + 1)`; with half of that penalty the method diverges even without noise.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, plain, positive


def agd_mixing(rounds: int) -> np.ndarray:
    """The weights α_t of the new point in the running average: `α_t = 2/(t + 2)`, t = 1..T, [rounds].

    >>> agd_mixing(2)
    array([0.66666667, 0.5       ])
    """
    counts(rounds=rounds)
    return 2 / np.arange(3.0, rounds + 3)


def agd_steps(*, rounds: int, smoothness: float, spread: float) -> np.ndarray:
    """The steps `(t + 1)/(2(β + S))`, t = 1..T, [rounds].

    Source: Cheu et al. 2022, Algorithm 4, the lost penalty restored from Lan's proof.

    >>> agd_steps(rounds=2, smoothness=1.0, spread=1.0)
    array([0.5 , 0.75])
    """
    counts(rounds=rounds)
    total = positive("smoothness", smoothness) + nonnegative("spread", spread)
    return np.arange(2.0, rounds + 2) / (2 * total)


def agd_spread(*, rounds: ArrayLike, deviation: ArrayLike, distance: ArrayLike, form: str = "optimal") -> Any:
    """The scale S that slows the steps down for the noise.

    * "optimal", the least `agd_bound`: `S = (σ/(2D))·√(Σ_{t≤T} (t+1)²)`, about `(T+2)^{3/2}·σ/(√12·D)`;
    * "paper": `S = (T+2)^{3/2}·σ/D`.

    Args:
        rounds: T.
        deviation: σ, the root of `oracle_variance`.
        distance: D, from the start to the minimum at most (its root mean square, where the start is random).

    Source: "paper": Cheu et al. 2022, Lemma 4.4. "optimal": ours.

    >>> agd_spread(rounds=2, deviation=1.0, distance=1.0, form="paper")
    8.0
    >>> round(agd_spread(rounds=2, deviation=2.0, distance=1.0) ** 2, 6)
    13.0
    """
    require_choice("form", form, ("optimal", "paper"))
    t = at_least_one("rounds", rounds)
    scale = nonnegative("deviation", deviation) / positive("distance", distance)
    return plain(scale * ((t + 2) ** 1.5 if form == "paper" else np.sqrt(_squares(t)) / 2))


def agd_bound(
    *,
    rounds: ArrayLike,
    smoothness: ArrayLike,
    spread: ArrayLike,
    distance: ArrayLike,
    variance: ArrayLike,
    gap: ArrayLike,
) -> Any:
    """The expected excess loss after T rounds, for any S > 0 (S = 0 too where σ = 0).

    `2/((T+1)(T+2))·[gap + (β + S)·D² + σ²·Σ_{t≤T} (t+1)²/(4S)]`

    At the optimal S it is about `2βD²/T² + 1.155·σD/√T + 2·gap/T²` (2.17 in place of 1.155 at the paper's).

    Args:
        rounds: T.
        smoothness: β.
        spread: S.
        distance: D; its mean square may be over a random start.
        variance: σ², `oracle_variance`.
        gap: the excess loss at the start, at most; L·D always is.

    Source: ours, by Lan's proof; Cheu et al. 2022, Lemma 4.4 is its order (σ there for σ²). Explicit.

    >>> agd_bound(rounds=2, smoothness=1.0, spread=13**0.5, distance=1.0, variance=4.0, gap=1.0)
    1.535...
    """
    t, variance, spread = (
        at_least_one("rounds", rounds),
        nonnegative("variance", variance),
        nonnegative("spread", spread),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        noisy = np.where(variance > 0, variance * _squares(t) / (4 * spread), 0.0)
    start = (nonnegative("smoothness", smoothness) + spread) * positive("distance", distance) ** 2
    return plain(shrinkage(t) * (nonnegative("gap", gap) + start + noisy))


def shrinkage(rounds: ArrayLike) -> Any:
    """What the start still counts after T rounds: `Γ = 2/((T+1)(T+2))`.

    >>> shrinkage(2)
    0.16666666666666666
    """
    t = at_least_one("rounds", rounds)
    return plain(2 / ((t + 1) * (t + 2)))


def _squares(rounds: np.ndarray) -> np.ndarray:
    """`Σ_{t≤T} (t+1)²`."""
    return (rounds + 1) * (rounds + 2) * (2 * rounds + 3) / 6 - 1
