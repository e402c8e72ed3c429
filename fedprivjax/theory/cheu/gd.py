"""P_GD: projected gradient descent with every user in every round, averaged over iterates (Algorithm 5, Theorem 4.9).

`round_noise` is C_r, the noise constant of one round's sum at its part of the privacy budget: `T·C` in the Gaussian
limit. The T sums of a user compose, so C_r grows with the rounds, unlike C in the one-pass methods.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.theory._numbers import at_least_one, nonnegative, plain, positive


def gd_bound(
    *,
    users: ArrayLike,
    rounds: ArrayLike,
    step: ArrayLike,
    distance: ArrayLike,
    lipschitz: ArrayLike,
    round_noise: ArrayLike,
    smoothness: ArrayLike,
    envelope: bool = True,
    generalization: bool = True,
) -> Any:
    """Expected excess population loss: `D²/(2ηT) + (η/2)·L²(1 + C_r/n²) + L²Tη/n + L²/(2β)`.

    The terms are optimisation, noise, generalisation and, on envelopes, smoothing. Generalisation is by uniform
    stability, which is not proved for rounding noise, because that noise depends on the data.

    Args:
        step: η, at most 2/β for the stability.
        distance: D, bound on the distance from the start to the minimum.
        round_noise: C_r.
        smoothness: β, of the envelopes or the loss.
        envelope: False for a smooth loss, which has no last term.
        generalization: False omits the third term, for the empirical excess loss.

    Raises:
        Refusal: if η > 2/β.

    Source: Cheu et al. 2022, Lemmas B.4 and B.5, proof of Theorem 4.9. Explicit.

    >>> gd_bound(users=100, rounds=25, step=0.25, distance=1.0, lipschitz=1.0, round_noise=1e4, smoothness=4.0)
    0.5175
    """
    n, t, eta = at_least_one("users", users), at_least_one("rounds", rounds), positive("step", step)
    beta, squared = positive("smoothness", smoothness), positive("lipschitz", lipschitz) ** 2
    wrong = eta * beta > 2 * (1 + 1e-9)
    if wrong.any():
        raise Refusal(f"step must be at most 2/smoothness, got step·smoothness = {(eta * beta)[wrong].flat[0]:.6g}")
    descent = positive("distance", distance) ** 2 / (2 * eta * t)
    noisy = eta / 2 * (1 + nonnegative("round_noise", round_noise) / n**2)
    stable = t * eta / n if generalization else 0.0
    smoothing = 1 / (2 * beta) if envelope else 0.0
    return plain(descent + squared * (noisy + stable + smoothing))


def gd_step(
    *,
    users: ArrayLike,
    rounds: ArrayLike,
    distance: ArrayLike,
    lipschitz: ArrayLike,
    round_noise: ArrayLike,
    smoothness: ArrayLike | None = None,
    generalization: bool = True,
) -> Any:
    """Step that minimises `gd_bound`: `η = D/(L·√(T·(1 + C_r/n² + 2T/n + 1/2)))`.

    The term 1/2 is due to envelopes with `β = 2/η`, the largest β that the step allows. A smooth loss does not have it,
    and its η is at most 2/β.

    Args:
        smoothness: β of a smooth loss, or None for envelopes.

    Source: derived here; the paper's `η = D/(L√T)` is of the same order.

    >>> round(gd_step(users=100, rounds=25, distance=1.0, lipschitz=1.0, round_noise=1e4), 6)
    0.11547
    """
    n, t = at_least_one("users", users), at_least_one("rounds", rounds)
    terms = 1 + nonnegative("round_noise", round_noise) / n**2 + (2 * t / n if generalization else 0.0)
    if smoothness is None:
        terms = terms + 0.5
    best = positive("distance", distance) / (positive("lipschitz", lipschitz) * np.sqrt(t * terms))
    return plain(best if smoothness is None else np.minimum(best, 2 / positive("smoothness", smoothness)))
