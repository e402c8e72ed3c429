"""Noise constant C, through which alone the bounds depend on privacy, and costs of the shuffled sums.

A sum of b gradients of norm at most L has noise of standard deviation `s·L` per coordinate. With `C = d·s²`, the mean
of the gradients has noise variance `L²C/b²`, summed over coordinates. C depends on b only by the fixed-point rounding.

The costs are messages, bits and the analyzer's time, exactly and by the orders of Corollaries B.8–B.11. A message is
one bit with the label of its coordinate. A user of a one-pass method contributes to one sum over b users, a user of
P_GD to T sums over all n users.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial.paper import default_levels, paper_vector, require_target
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, probability

Noise = float | Callable[[Any], Any]  # C, or a vectorised function from the number of users in a sum to C


def noise_at(noise: Noise, per_round: ArrayLike) -> np.ndarray:
    """Return the noise constant C for sums over `per_round` users."""
    return nonnegative("noise", noise(np.asarray(per_round, float)) if callable(noise) else noise)


def oracle_variance(*, per_round: ArrayLike, lipschitz: ArrayLike, noise: Noise, sampling: bool = True) -> Any:
    """Bound on the mean squared error of a round's gradient estimate from b new users.

    The estimate is the noisy mean of the users' gradients. Its error is the L2 distance to the gradient of the
    population loss.

    Args:
        per_round: b, number of users in the round.
        lipschitz: L, Lipschitz constant of the loss.
        noise: C = E‖Z‖²/L², where Z is the noise vector that is added to the sum of the b gradients. If C depends on b,
            give a function from b to C.
        sampling: True to include the mean squared sampling error.

    Returns:
        `σ² = L²/b + L²C/b²`, or `σ² = L²C/b²` if `sampling` is False.

    Source: Cheu et al. 2022, Theorem 3.2, with the variance of the mechanism instead of its order. Constants are
    explicit.

    >>> oracle_variance(per_round=10, lipschitz=2.0, noise=50.0)
    2.4
    """
    b = at_least_one("per_round", per_round)
    fresh = 1 / b if sampling else 0.0
    return plain(positive("lipschitz", lipschitz) ** 2 * (fresh + noise_at(noise, b) / b**2))


def gaussian_noise_constant(
    epsilon: float, delta: float, dimension: int, levels_ratio: float = 1.0, releases: int = 1
) -> float:
    """Noise constant C of Gaussian noise on a sum of gradients.

    The constant is C = E‖Z‖²/L² for the noise vector Z in the sum, and the Lipschitz constant L of the loss.

    Args:
        epsilon: ε of all releases together.
        delta: δ of all releases together.
        dimension: d, number of coordinates.
        levels_ratio: `a`, factor by which rounding the gradients to a grid increases the sensitivity. Give 1 without
            rounding.
        releases: T, number of sums to which one user contributes.

    Returns:
        `C = d·(2·σ_G·a)²·T`, where σ_G is the noise standard deviation that (ε, δ)-DP requires at sensitivity 1. Other
        noise with the same C, such as the binomial noise of a shuffled sum, is not always (ε, δ)-DP.

    Source: the analytic Gaussian mechanism (Balle & Wang 2018).

    >>> round(gaussian_noise_constant(1.0, 1e-6, 10, levels_ratio=1.1) ** 0.5, 1)
    29.4
    """
    counts(dimension=dimension, releases=releases)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    stretch = 2 * one(at_least_one, "levels_ratio", levels_ratio) / gdp.mu(epsilon, delta)
    return float(dimension * releases * stretch**2)


def paper_noise_constant(epsilon: float, delta: float, dimension: int, users: int | None = None) -> float:
    """Noise constant C of the paper's binomial noise on a sum of gradients behind a shuffler.

    The constant is C = E‖Z‖²/L² for the noise vector Z in the sum, and the Lipschitz constant L of the loss. The error
    of rounding gradients to integers is not included. Each user adds q random bits to each coordinate, and each bit is
    1 with probability p.

    Args:
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.
        dimension: d, number of coordinates.
        users: n, number of users in the sum, which determines p. None sets p to 1/2.

    Returns:
        `C = 4d·29160·(1 − p)·ln((d+1)/δ)·ln(2(d+1)/δ)/ε²`. If `users` is given, p is `90c/(⌊180c⌋ + 1)` with

        * `c = g²·ln(2(d+1)/δ)/(n·εˆ²)`;
        * `g = ⌈max(2√n, √d, 4)⌉`, the number of rounding levels;
        * `εˆ = ε/(18·√ln((d+1)/δ))`, the ε of one coordinate.

    Raises:
        Refusal: if ε > 15 or δ ≥ 1/2, which the theorem excludes.

    Source: Cheu et al. 2022, Theorem 3.2 and its proof. Constants are explicit.

    >>> int(paper_noise_constant(1.0, 1e-6, 10) ** 0.5)
    12643
    """
    counts(dimension=dimension)
    require_target(epsilon, delta)
    log, doubled = np.log((dimension + 1) / delta), np.log(2 * (dimension + 1) / delta)
    successes = 29160 * log * doubled / epsilon**2  # m·p over the squared levels
    heads = 0.5
    if users is not None:
        counts(users=users)
        levels = default_levels(users, dimension, "sqrt")
        heads = paper_vector(epsilon, delta, users, dimension, levels).probability
    return float(4 * dimension * successes * (1 - heads))


def pan_private_noise_constant(epsilon: float, delta: float, dimension: int, accounting: str = "exact") -> float:
    """Noise constant C with which the bounds of accelerated SGD hold for pan-private accelerated SGD.

    Pan-private means that the server's state is private at all times. To this end, the server adds Gaussian noise to a
    mean gradient twice, with equal variance: before the batch arrives and after it. The constant is C = E‖Z‖²/L² for
    the noise vector Z in a batch's sum of gradients, and the Lipschitz constant L of the loss.

    Args:
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.
        dimension: d, number of coordinates.
        accounting: "exact" for the noise that (ε, δ)-DP requires, or "paper" for the paper's noise.

    Returns:
        `C = 8d·σ_G²` for "exact", where σ_G is the noise standard deviation that (ε, δ)-DP requires at sensitivity 1;
        `C = 16d·ln(2/δ)/ε²` for "paper".

    Raises:
        Refusal: if ε ≥ 1 for "paper".

    Source: Cheu et al. 2022, Algorithm 6 and Theorem C.3. Constants are explicit.

    >>> round(pan_private_noise_constant(0.9, 1e-6, 10), 1)
    1736.4
    >>> round(pan_private_noise_constant(0.9, 1e-6, 10, "paper"), 1)
    2865.9
    """
    require_choice("accounting", accounting, ("exact", "paper"))
    counts(dimension=dimension)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    if accounting == "exact":
        return 2 * gaussian_noise_constant(epsilon, delta, dimension)
    if epsilon >= 1:
        raise Refusal(f"epsilon must be below 1 with the paper's pan-private noise, got {epsilon}")
    return float(16 * dimension * np.log(2 / delta) / epsilon**2)


def rounding_constant(*, users: ArrayLike, levels: ArrayLike, dimension: int) -> Any:
    """Bound on the contribution of random rounding to the noise constant of a sum of gradients.

    The noise constant is C = E‖Z‖²/L² for the noise vector Z in the sum, and the Lipschitz constant L of the loss.

    Args:
        users: n, number of users in the sum.
        levels: g, number of levels to which a coordinate is rounded.
        dimension: d, number of coordinates.

    Returns:
        `dn/g²`.

    >>> rounding_constant(users=100, levels=20, dimension=8)
    2.0
    """
    counts(dimension=dimension)
    return plain(dimension * at_least_one("users", users) / at_least_one("levels", levels) ** 2)


def messages_per_user(*, dimension: int, levels: ArrayLike, trials: ArrayLike, sums: ArrayLike = 1) -> Any:
    """Number of one-bit messages that a user sends if vectors are summed behind a shuffler.

    The number is exact. For each coordinate, a user sends the bits of the rounded value and a few noise bits.

    Args:
        dimension: d, number of parameters.
        levels: g, number of levels to which a coordinate is rounded.
        trials: q, number of noise bits per user and coordinate.
        sums: s, number of sums to which the user contributes.

    Returns:
        `s·d·(g + q)`.

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
    """Number of bits that a user sends if vectors are summed behind a shuffler. The number is exact.

    For each coordinate, a user sends g bits for the rounded value and q noise bits. Every bit is one message, and has
    the number of its coordinate as a label.

    Args:
        dimension: d, number of parameters.
        levels: g, number of levels to which a coordinate is rounded.
        trials: q, number of noise bits per user and coordinate.
        sums: s, number of sums to which the user contributes.
        labelled: False if every coordinate has a separate shuffler, so that no labels are sent.

    Returns:
        `s·d·(g + q)·(1 + ⌈log₂ d⌉)`, or `s·d·(g + q)` without labels. Here ⌈log₂ d⌉ is the number of bits of a label.

    >>> bits_per_user(dimension=10, levels=64, trials=6)
    3500.0
    """
    require_flag("labelled", labelled)
    messages = messages_per_user(dimension=dimension, levels=levels, trials=trials, sums=sums)
    label = int(np.ceil(np.log2(dimension))) if labelled else 0
    return plain(np.asarray(messages) * (1 + label))


def bits_rate(
    *,
    summed: ArrayLike,
    dimension: int,
    epsilon: ArrayLike,
    delta: float,
    rounds: ArrayLike = 1,
    printed: bool = False,
) -> Any:
    """Number of bits that a user sends if vectors are summed behind a shuffler, up to a constant factor.

    Args:
        summed: b, number of users in a sum.
        dimension: d, number of parameters.
        epsilon: ε of all sums together.
        delta: δ of all sums together.
        rounds: T, number of sums to which one user contributes.
        printed: True uses the paper's `d·T·[√b + ln(1/δ)/ε²]`. This formula omits a logarithm for the division of the
            budget over the coordinates. For gradient descent, the formula also omits the factor for the rounds.

    Returns:
        `d·T·[√b + ln²(d/δ)/ε_r²]`, where ε_r is the ε of one sum: ε for T = 1, and `ε/√(8T·ln(1/δ))` for larger T.

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
