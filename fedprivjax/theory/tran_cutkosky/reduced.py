"""Settings and bounds of Algorithm 2, momentum with reduced tree noise, for cyclic order only (Theorem 9)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, counts, one, plain, positive
from fedprivjax.theory.tran_cutkosky import problem as tree
from fedprivjax.theory.tran_cutkosky.momentum import MIN_ALPHA, GradientBound, MomentumSettings, momentum_bound
from fedprivjax.theory.tran_cutkosky.privacy import reduced_sensitivities
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants


class ReducedSettings(NamedTuple):
    """Settings of reduced-noise momentum (Tran & Cutkosky 2022, Algorithm 2), from `reduced_settings`.

    Each field is a number for one run, or an array with one entry per run.

    * `rounds`: number of rounds;
    * `alpha`: weight of a new gradient in the momentum;
    * `step_size`: length of a step;
    * `reset_rate`: γ in (0, 1/2]. An epoch has N rounds. The anchor of an epoch is its first iterate. An anchor
      gradient is a gradient at the anchor of its round's epoch. In round t, the method needs a private sum S_t of the
      anchor gradients of the last N rounds. Let A_t be a new noisy sum of these gradients, and let D_t be a noisy sum
      of their changes since the previous epoch. From round 2N on, `S_t = γ·A_t + (1 − γ)·(S_{t−N} + D_t)`.
    """

    rounds: Any
    alpha: Any
    step_size: Any
    reset_rate: Any


def reduced_settings(
    *, records: int, epsilon: float, dimension: int, rounds: int | None = None, form: str = "corrected"
) -> ReducedSettings:
    """Settings of reduced-noise momentum (Algorithm 2) by the paper's Theorem 9.

    Args:
        records: N, number of records, at least 2.
        epsilon: ε of the privacy budget.
        dimension: d, number of parameters.
        rounds: T, number of rounds, or None for the theorem's number.
        form: lower limit of α, the weight of a new gradient in the momentum: 1.7/N for "corrected", or 1/N for "paper".
            By Proposition 14, the paper's bound on the noise requires α of at least about 1.7/N.

    Returns:
        The number T of rounds, the weight α of a new gradient in the momentum, the step length η, and the reset rate γ.

        * T of the theorem is `N^{7/3}·ε^{4/3}/d^{2/3}`, rounded up to whole epochs of N rounds;
        * `α = N^{3/4}·ε/(T^{3/4}·√d)`, but at most 1 and at least the lower limit;
        * `η = 1/√(NT)`;
        * `γ = ηN`. `ReducedSettings` explains the reset rate.

    Raises:
        Refusal: if T, given or by the theorem, is smaller than 4N, because γ must be at most 1/2.

    Source: Tran & Cutkosky 2022, Theorem 9.

    >>> reduced_settings(records=60_000, epsilon=2.0, dimension=7850).rounds // 60_000
    14986
    >>> reduced_settings(records=64, epsilon=2.0, dimension=10, rounds=1024)
    ReducedSettings(rounds=1024, alpha=0.079..., step_size=0.00390625, reset_rate=0.25)
    """
    require_choice("form", form, MIN_ALPHA)
    counts(records=records, dimension=dimension)
    tree.at_least_two(records)
    epsilon, n = one(positive, "epsilon", epsilon), float(records)
    if rounds is None:
        best = n ** (7 / 3) * epsilon ** (4 / 3) / dimension ** (2 / 3)
        if best < 4 * n:
            raise Refusal(f"rounds must be at least 4·records ({4 * n:.0f}), the theorem's are {best:.6g}. Set rounds")
        rounds = tree.whole_epochs(records, best)
    counts(rounds=rounds)
    _, t = (float(value) for value in tree.checked_rounds(records, rounds))
    reset_rate = float(_checked_reset(np.sqrt(n / t)))
    alpha = np.clip((n / t) ** 0.75 * epsilon / np.sqrt(dimension), min(MIN_ALPHA[form] / n, 1.0), 1)
    return ReducedSettings(rounds, float(alpha), float(1 / np.sqrt(n * t)), reset_rate)


def reduced_noise_norm(
    problem: ProblemConstants,
    settings: ReducedSettings,
    *,
    noise_multiplier: ArrayLike,
    form: str = "corrected",
) -> Any:
    """Bound on the expected norm of the noise of reduced-noise momentum (Algorithm 2) in a round.

    The method computes the momentum from noisy sums of anchors, differences and residuals (`Sensitivities`).

    Args:
        problem: constants d (parameters), G (Lipschitz constant), N (records, at least 2) and L (smoothness).
        settings: T rounds, weight α of a new gradient in the momentum (at least 1/N), step length η, and reset rate γ
            in (0, 1/2] (`ReducedSettings`).
        noise_multiplier: σ, from `momentum_multiplier` with the algorithm "reduced".
        form: "corrected", or "paper" for the bound of the paper.

    Returns:
        For "corrected", the bound depends on

        * δ_G, δ_Δ and δ_r: sensitivities of sums of anchors, differences and residuals (`reduced_sensitivities`);
        * V_1 and V_2: bounds on numbers of noisy sums that contain one record (`early` and `late` of
          `reduced_node_counts`);
        * `K = 2(1 + ⌈log₂N⌉)/(1 − (1−α)^N/(1−γ))²`.

        With these numbers, let

        * `A = V_1·δ_G²·(⌊log₂N⌋ + K)`, for anchors of the first two epochs;
        * `B = V_2·K·(γ²δ_G² + (1−γ)²δ_Δ²)/(γ(2−γ))`, for later anchors and for differences;
        * `C = V_2·δ_r²·⌊log₂(T+1)⌋`, for residuals.

        The bound is `ασ·√(d·(A + B + C))`.

        For "paper", the bound is `ασ√d·log₂T·(48G + 32G√(γT/N) + 64ηNL√(T/(γN)) + 4ηNL√(3T/N))`.

    Source: Tran & Cutkosky 2022, Lemma 7 ("paper") and its proof ("corrected"). Constants are explicit.

    >>> settings = reduced_settings(records=64, epsilon=2.0, dimension=10, rounds=1024)
    >>> problem = ProblemConstants(records=64, dimension=10, lipschitz=1.0, smoothness=1.0)
    >>> forms = ("corrected", "paper")
    >>> [round(reduced_noise_norm(problem, settings, noise_multiplier=1.0, form=form)) for form in forms]
    [43, 617]
    """
    require_choice("form", form, ("corrected", "paper"))
    n, t = tree.checked_rounds(tree.at_least_two(problem.records), settings.rounds)
    alpha, gamma = tree.checked_alpha(n, settings.alpha), _checked_reset(settings.reset_rate)
    delta = reduced_sensitivities(problem, step_size=settings.step_size)
    scale = alpha * positive("noise_multiplier", noise_multiplier) * np.sqrt(problem.dimension)
    if form == "paper":
        g, moved = problem.lipschitz, delta.differences / 4
        old = 32 * g * np.sqrt(gamma * t / n) + 64 * moved * np.sqrt(t / (gamma * n)) + 4 * moved * np.sqrt(3 * t / n)
        return plain(scale * np.log2(t) * (48 * g + old))
    early, late = tree.reduced_node_counts(records=n, rounds=t)
    weights = 2 * (1 + tree.ceil_log2(n)) / (1 - tree.decay(alpha, n) / (1 - gamma)) ** 2
    first = delta.anchors**2 * early * (tree.floor_log2(n) + weights)
    mixed = (gamma * delta.anchors) ** 2 + ((1 - gamma) * delta.differences) ** 2
    rest = late * (weights * mixed / (gamma * (2 - gamma)) + tree.floor_log2(t + 1) * delta.residuals**2)
    return plain(scale * np.sqrt(first + rest))


def reduced_bound(
    problem: ProblemConstants, settings: ReducedSettings, *, gap: ArrayLike, noise: ArrayLike
) -> GradientBound:
    """Bound on the expected gradient norm of reduced-noise momentum (Algorithm 2), as five terms.

    The bound is for a uniformly random iterate.

    The term `variance` for sampled records is proved only for epochs that are shuffled independently. The method,
    however, requires the same order in all epochs.

    Args:
        problem: constants N (records), G (Lipschitz constant) and L (smoothness).
        settings: T rounds (at least N), weight α of a new gradient in the momentum (in [1/N, 1]), length η of a step,
            and reset rate (in (0, 1/2]).
        gap: bound on the excess loss at the start.
        noise: expected norm of the noise in the momentum, averaged over rounds. For d parameters, give √d times the
            root mean square of the noise in a coordinate. Or give the bound `reduced_noise_norm`.

    Returns:
        A `GradientBound`.

    Source: Tran & Cutkosky 2022, Theorem 9 and Lemmas 5 and 11. The term `start` is added here.

    >>> settings = reduced_settings(records=10**6, epsilon=1.0, dimension=10)
    >>> problem = ProblemConstants(records=10**6, dimension=10, lipschitz=1.0, smoothness=1.0)
    >>> round(reduced_bound(problem, settings, gap=1.0, noise=0.0).variance, 5)
    0.00782
    """
    _checked_reset(settings.reset_rate)
    unreset = MomentumSettings(settings.rounds, settings.alpha, settings.step_size)
    return momentum_bound(problem, unreset, gap=gap, noise=noise)


def reduced_rate(*, records: ArrayLike, dimension: ArrayLike, epsilon: ArrayLike, sampling: bool = True) -> Any:
    """Expected gradient norm of reduced-noise momentum (Algorithm 2), up to constants and logarithms.

    Args:
        records: N, number of records.
        dimension: d, number of parameters.
        epsilon: ε of the privacy budget.
        sampling: False omits 1/√N, the part that is not due to privacy.

    Returns:
        `d^{1/3}/(εN)^{2/3} + 1/√N`.

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
