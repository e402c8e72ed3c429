"""Theorem 9: the sensitivity-reduced method (Algorithm 2), its settings and its bound, for cyclic order only."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, counts, one, plain, positive
from fedprivjax.theory.tran_cutkosky._setting import (
    ceil_log2,
    checked_alpha,
    checked_rounds,
    decay,
    floor_log2,
    whole_epochs,
)
from fedprivjax.theory.tran_cutkosky.momentum import GradientBound, MomentumSettings, momentum_bound
from fedprivjax.theory.tran_cutkosky.nodes import at_least_two, reduced_node_counts
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants
from fedprivjax.theory.tran_cutkosky.sensitivities import reduced_sensitivities

_MIN_ALPHA = {"corrected": 1.7, "paper": 1.0}  # times 1/N; Proposition 14 requires 1 + log 2


class ReducedSettings(NamedTuple):
    """Settings T, α, η and γ of Algorithm 2: numbers, or arrays for the bounds of many runs."""

    rounds: Any
    alpha: Any
    step_size: Any
    reset_rate: Any


def reduced_settings(
    *, records: int, epsilon: float, dimension: int, rounds: int | None = None, form: str = "corrected"
) -> ReducedSettings:
    """Rounds, α, step and reset rate of Theorem 9.

    `T = N^{7/3}·ε^{4/3}/d^{2/3}` is rounded up to whole epochs, `η = 1/√(NT)` and `γ = ηN`.
    `α = N^{3/4}·ε/(T^{3/4}·√d)` is clipped to at most 1 and at least 1.7/N ("corrected") or 1/N ("paper"). At the
    theorem's T, the formula gives 1/N, which is less than the paper's Proposition 14 requires. `reduced_bound` holds
    for it nevertheless.

    Args:
        records: N, at least 2.
        rounds: T, or None for that of the theorem, which is very large.

    Raises:
        Refusal: if T, given or by the theorem, is smaller than 4N, because γ must be at most 1/2.

    Source: Tran & Cutkosky 2022, Theorem 9.

    >>> reduced_settings(records=60_000, epsilon=2.0, dimension=7850).rounds // 60_000
    14986
    >>> reduced_settings(records=64, epsilon=2.0, dimension=10, rounds=1024)
    ReducedSettings(rounds=1024, alpha=0.079..., step_size=0.00390625, reset_rate=0.25)
    """
    require_choice("form", form, _MIN_ALPHA)
    counts(records=records, dimension=dimension)
    at_least_two(records)
    epsilon, n = one(positive, "epsilon", epsilon), float(records)
    if rounds is None:
        best = n ** (7 / 3) * epsilon ** (4 / 3) / dimension ** (2 / 3)
        if best < 4 * n:
            raise Refusal(f"rounds must be at least 4·records ({4 * n:.0f}), the theorem's are {best:.6g}. Set rounds")
        rounds = whole_epochs(records, best)
    counts(rounds=rounds)
    _, t = (float(value) for value in checked_rounds(records, rounds))
    reset_rate = float(_checked_reset(np.sqrt(n / t)))
    alpha = np.clip((n / t) ** 0.75 * epsilon / np.sqrt(dimension), min(_MIN_ALPHA[form] / n, 1.0), 1)
    return ReducedSettings(rounds, float(alpha), float(1 / np.sqrt(n * t)), reset_rate)


def reduced_noise_norm(
    problem: ProblemConstants,
    settings: ReducedSettings,
    *,
    noise_multiplier: ArrayLike,
    form: str = "corrected",
) -> Any:
    """Bound on the mean norm of Algorithm 2's noise in a round, with noise of `√V·σδ` on every node.

    * "corrected": `ασ√d` times the square root of
      `δ_G²·V_<·(⌊log₂N⌋ + nC²) + nC²/(γ(2−γ))·V_>·(γ²δ_G² + (1−γ)²δ_Δ²) + ⌊log₂(T+1)⌋·V_>·δ_r²`,
      where `C = 1/(1 − (1−α)^N/(1−γ))` is the sum of the weights of old epochs, `n = 2(1 + ⌈log₂N⌉)` is a bound on the
      nodes of an epoch, and V and δ are `reduced_node_counts` and `reduced_sensitivities`;
    * "paper": `ασ√d·log₂T·(48G + 32G√(γT/N) + 64ηNL√(T/(γN)) + 4ηNL√(3T/N))`.

    Args:
        problem: constants with N of at least 2.
        settings: T, η, α of at least 1/N, and γ in (0, 1/2].
        noise_multiplier: σ, `reduced_multiplier`.

    Source: Tran & Cutkosky 2022, Lemma 7 ("paper"), and its proof with the sum of the weights ("corrected"). Explicit.

    >>> settings = reduced_settings(records=64, epsilon=2.0, dimension=10, rounds=1024)
    >>> problem = ProblemConstants(records=64, dimension=10, lipschitz=1.0, smoothness=1.0)
    >>> forms = ("corrected", "paper")
    >>> [round(reduced_noise_norm(problem, settings, noise_multiplier=1.0, form=form)) for form in forms]
    [43, 617]
    """
    require_choice("form", form, ("corrected", "paper"))
    n, t = checked_rounds(at_least_two(problem.records), settings.rounds)
    alpha, gamma = checked_alpha(n, settings.alpha), _checked_reset(settings.reset_rate)
    delta = reduced_sensitivities(problem, step_size=settings.step_size)
    scale = alpha * positive("noise_multiplier", noise_multiplier) * np.sqrt(problem.dimension)
    if form == "paper":
        g, moved = problem.lipschitz, delta.differences / 4
        old = 32 * g * np.sqrt(gamma * t / n) + 64 * moved * np.sqrt(t / (gamma * n)) + 4 * moved * np.sqrt(3 * t / n)
        return plain(scale * np.log2(t) * (48 * g + old))
    early, late = reduced_node_counts(records=n, rounds=t)
    weights = 2 * (1 + ceil_log2(n)) / (1 - decay(alpha, n) / (1 - gamma)) ** 2
    first = delta.anchors**2 * early * (floor_log2(n) + weights)
    mixed = (gamma * delta.anchors) ** 2 + ((1 - gamma) * delta.differences) ** 2
    rest = late * (weights * mixed / (gamma * (2 - gamma)) + floor_log2(t + 1) * delta.residuals**2)
    return plain(scale * np.sqrt(first + rest))


def reduced_bound(
    problem: ProblemConstants, settings: ReducedSettings, *, gap: ArrayLike, noise: ArrayLike
) -> GradientBound:
    """Expected gradient norm of Algorithm 2's output, by term. The bound is `.total`.

    The terms are those of `momentum_bound`, because both methods are equal without noise. The reset rate, at most 1/2,
    only affects the noise.

    The bound is explicit, but its term 6G√α is proved only for epochs that are shuffled independently, whereas the
    method requires the same order in all epochs. The paper does not mention this. With `reduced_noise_norm`, the bound
    is below that of Algorithm 1 only for N above about 10¹² (at d = 100, ε = 1). The actual noise of the mechanism is
    much smaller.

    Args:
        settings: as for `momentum_bound`, and γ in (0, 1/2].
        gap: bound on F(w_1) − inf F (the paper's R).
        noise: mean over rounds of the mean norm of the noise in the momentum: √d times the root mean square of the
            mechanism in use, or `reduced_noise_norm`.

    Source: Tran & Cutkosky 2022, Theorem 9 (Lemmas 5, 7 and 11), with the term of a momentum that starts at 0.

    >>> settings = reduced_settings(records=10**6, epsilon=1.0, dimension=10)
    >>> problem = ProblemConstants(records=10**6, dimension=10, lipschitz=1.0, smoothness=1.0)
    >>> round(reduced_bound(problem, settings, gap=1.0, noise=0.0).variance, 5)
    0.00782
    """
    _checked_reset(settings.reset_rate)
    unreset = MomentumSettings(settings.rounds, settings.alpha, settings.step_size)
    return momentum_bound(problem, unreset, gap=gap, noise=noise)


def reduced_rate(*, records: ArrayLike, dimension: ArrayLike, epsilon: ArrayLike, sampling: bool = True) -> Any:
    """Rate of Algorithm 2, without constants and logarithms: `d^{1/3}/(εN)^{2/3} + 1/√N`.

    Args:
        sampling: False omits 1/√N.

    Source: Tran & Cutkosky 2022, Theorem 9.

    >>> round(reduced_rate(records=1000, dimension=27, epsilon=1.0, sampling=False), 9)
    0.03
    """
    require_flag("sampling", sampling)
    n = at_least_one("records", records)
    private = np.cbrt(at_least_one("dimension", dimension)) / np.cbrt(positive("epsilon", epsilon) * n) ** 2
    return plain(private + (1 / np.sqrt(n) if sampling else 0.0))


def _checked_reset(reset_rate: ArrayLike) -> np.ndarray:
    gamma = positive("reset_rate", reset_rate)
    wrong = gamma > 0.5 * (1 + 1e-9)
    if wrong.any():
        raise Refusal(f"reset_rate must be at most 1/2 (4 epochs or more), got {gamma[wrong].flat[0]:.6g}")
    return gamma
