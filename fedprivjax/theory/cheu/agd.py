"""P_AGD: one pass of Lan's AC-SA on shuffled sums (Algorithm 4, Theorem 4.3).

Round t = 1..T has `α_t = 2/(t + 2)` and the step `(t + 1)/(2(β + S))`, which corresponds to the penalty
`L_t·‖θ − θ_t‖²` with `L_t = (β + S)/(t + 1)`. With half of this penalty the method diverges even without noise.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, plain, positive


def agd_mixing(rounds: int) -> np.ndarray:
    """Weights of the new point in the running average, `α_t = 2/(t + 2)` for t = 1..T; shape [rounds].

    >>> agd_mixing(2)
    array([0.66666667, 0.5       ])
    """
    counts(rounds=rounds)
    return 2 / np.arange(3.0, rounds + 3)


def agd_steps(*, rounds: int, smoothness: float, spread: float) -> np.ndarray:
    """Steps `(t + 1)/(2(β + S))` for t = 1..T; shape [rounds].

    Source: Cheu et al. 2022, Algorithm 4, with the missing penalty restored from Lan's proof.

    >>> agd_steps(rounds=2, smoothness=1.0, spread=1.0)
    array([0.5 , 0.75])
    """
    counts(rounds=rounds)
    total = positive("smoothness", smoothness) + nonnegative("spread", spread)
    return np.arange(2.0, rounds + 2) / (2 * total)


def agd_spread(*, rounds: ArrayLike, deviation: ArrayLike, distance: ArrayLike, form: str = "optimal") -> Any:
    """Scale S that shortens the steps because of the noise.

    * "optimal" minimises `agd_bound`: `S = (σ/(2D))·√(Σ_{t≤T} (t+1)²)`, about `(T+2)^{3/2}·σ/(√12·D)`;
    * "paper": `S = (T+2)^{3/2}·σ/D`.

    Args:
        rounds: T.
        deviation: σ, the square root of `oracle_variance`.
        distance: D, bound on the distance from the start to the minimum (on its root mean square for a random start).

    Source: "paper": Cheu et al. 2022, Lemma 4.4. "optimal": derived here.

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
    """Expected excess loss after T rounds, for any S > 0, and also for S = 0 if σ = 0.

    `2/((T+1)(T+2))·[gap + (β + S)·D² + σ²·Σ_{t≤T} (t+1)²/(4S)]`

    At the optimal S it is about `2βD²/T² + 1.155·σD/√T + 2·gap/T²`. At the paper's S, 2.17 replaces 1.155.

    Args:
        rounds: T.
        smoothness: β.
        spread: S.
        distance: D, bound on the distance from the start to the minimum (on its root mean square for a random start).
        variance: σ², `oracle_variance`.
        gap: bound on the excess loss at the start, such as L·D.

    Source: derived here by Lan's proof. Cheu et al. 2022, Lemma 4.4 states its order, with σ for σ². Explicit.

    >>> agd_bound(rounds=2, smoothness=1.0, spread=13**0.5, distance=1.0, variance=4.0, gap=1.0)
    1.535...
    """
    t, variance = at_least_one("rounds", rounds), nonnegative("variance", variance)
    spread = nonnegative("spread", spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        noisy = np.where(variance > 0, variance * _squares(t) / (4 * spread), 0.0)
    start = (nonnegative("smoothness", smoothness) + spread) * positive("distance", distance) ** 2
    return plain(shrinkage(t) * (nonnegative("gap", gap) + start + noisy))


def shrinkage(rounds: ArrayLike) -> Any:
    """Factor of the start's contribution after T rounds: `Γ = 2/((T+1)(T+2))`.

    >>> shrinkage(2)
    0.16666666666666666
    """
    t = at_least_one("rounds", rounds)
    return plain(2 / ((t + 1) * (t + 2)))


def _squares(rounds: np.ndarray) -> np.ndarray:
    """Return `Σ_{t≤T} (t+1)²`."""
    return (rounds + 1) * (rounds + 2) * (2 * rounds + 3) / 6 - 1
