"""Theorem 6: normalised SGD with tree-aggregated momentum (Algorithm 1), its settings and its bound."""

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, probability
from fedprivjax.theory.tran_cutkosky._setting import checked_alpha, checked_rounds, floor_log2, whole_epochs
from fedprivjax.theory.tran_cutkosky.nodes import node_count, sensitivity_cap
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants


class MomentumSettings(NamedTuple):
    """T, α and η of Algorithm 1: numbers, or arrays for the bounds of many runs."""

    rounds: Any
    alpha: Any
    step_size: Any


class GradientBound(NamedTuple):
    """Terms that bound E‖∇F(w)‖ of an iterate w drawn uniformly.

    `optimisation` is `3·gap/(2ηT) + 3Lη/4`, `bias` `6ηNL + 3ηL/α`, of old gradients, `variance` `6G√α`, of sampled
    records, `noise` 3 times the noise's mean norm, and `start` `3G(1−α)/(αT)`, of a momentum that begins at 0.
    """

    optimisation: Any
    bias: Any
    variance: Any
    noise: Any
    start: Any

    @property
    def total(self) -> Any:
        return self.optimisation + self.bias + self.variance + self.noise + self.start


def momentum_settings(
    *, records: int, epsilon: float, delta: float, dimension: int, rounds: int | None = None
) -> MomentumSettings:
    """The rounds, α and step of Theorem 6.

    `T·log₂T = εN²/√(d·log(1/δ))`, rounded up to whole epochs, `α = εN/(T·log₂T·√(d·log(1/δ)))` in [1/N, 1], which is
    1/N at that T, and `η = 1/√(NT)`.

    Args:
        records: N.
        rounds: a T to take instead, as where it is capped; α is larger then.

    Raises:
        ValueError: for fewer rounds than records, the theorem's or given.

    Source: Tran & Cutkosky 2022, Theorem 6.

    >>> settings = momentum_settings(records=60_000, epsilon=2.0, delta=1e-6, dimension=7850)
    >>> settings.rounds // 60_000, round(settings.alpha * 60_000, 9)
    (19, 1.0)
    """
    counts(records=records, dimension=dimension)
    epsilon, delta = one(positive, "epsilon", epsilon), one(probability, "delta", delta)
    load = epsilon * float(records) ** 2 / np.sqrt(dimension * np.log(1 / delta))  # T·log₂T
    if rounds is None:
        best = load * np.log(2) / float(scipy.special.lambertw(load * np.log(2)).real)
        if best < records:
            raise Refusal(f"rounds must be at least records ({records}), the theorem's are {best:.6g}: give others")
        rounds = whole_epochs(records, best)
    counts(rounds=rounds)
    checked_rounds(records, rounds)
    alpha = load / records / (float(rounds) * np.log2(max(float(rounds), 2.0)))
    return MomentumSettings(
        rounds, float(np.clip(alpha, 1 / records, 1)), 1 / float(np.sqrt(float(records) * float(rounds)))
    )


def momentum_noise_norm(
    problem: ProblemConstants,
    *,
    rounds: ArrayLike,
    alpha: ArrayLike,
    noise_multiplier: ArrayLike,
    order: str = "reshuffled",
    form: str = "counted",
) -> Any:
    """The mean norm of Algorithm 1's noise in a round, at most, where every node has the same: `Δσ·√(d·V·nodes)`.

    * "counted": Δ is 2αG times `sensitivity_cap` of the order, V `node_count`, and a round's sum has ⌊log₂(T+1)⌋ nodes;
    * "paper": `Δ = 4αG`, `V = 4(T/N)·log₂T` and log₂T nodes, whatever the order.

    Args:
        rounds: T.
        noise_multiplier: σ, `momentum_multiplier`.
        order: of an epoch, "cyclic" or "reshuffled"; not for "paper".

    Source: Tran & Cutkosky 2022, Lemma 12 ("paper"), whose log₂T is less than the nodes where T + 1 is a power of 2.

    >>> problem = ProblemConstants(records=256, dimension=1, lipschitz=1.0, smoothness=1.0)
    >>> settings = {"rounds": 2048, "alpha": 1 / 256, "noise_multiplier": 1.0}
    >>> [round(momentum_noise_norm(problem, form=form, **settings), 2) for form in ("counted", "paper")]
    [0.59, 0.97]
    """
    require_choice("form", form, ("counted", "paper"))
    n, t = checked_rounds(problem.records, rounds)
    scale = checked_alpha(n, alpha) * problem.lipschitz * positive("noise_multiplier", noise_multiplier)
    if form == "paper":
        return plain(8 * scale * np.log2(t) * np.sqrt(problem.dimension * t / n))
    cap = 2 * sensitivity_cap(records=n, alpha=alpha, order=order)
    return plain(scale * cap * np.sqrt(problem.dimension * node_count(records=n, rounds=t) * floor_log2(t + 1)))


def momentum_bound(
    problem: ProblemConstants, settings: MomentumSettings, *, gap: ArrayLike, noise: ArrayLike
) -> GradientBound:
    """The expected gradient norm of Algorithm 1's output, term by term; `.total` is the bound.

    `3·gap/(2ηT) + 3Lη/4 + 6ηNL + 3ηL/α + 6G√α + 3·noise + 3G(1−α)/(αT)`

    For any step, α and noise, so for any T: `momentum_settings(rounds=T)` has the theorem's others. Every epoch must be
    freshly shuffled (after its first one, a cyclic order depends on the iterates, and 6G√α is not proved).

    Args:
        settings: rounds T of at least N, α in [1/N, 1] and η, the length of a step.
        gap: a bound on F(w_1) − inf F (the paper's R).
        noise: the mean over rounds of the noise's mean norm in the momentum: of the mechanism at hand (√d times its
            root mean square), or `momentum_noise_norm`.

    Source: Tran & Cutkosky 2022, Lemmas 5 and 11. Explicit; with the paper's noise, 48 stands where its Theorem 6 has
    12, and its d^{1/4}·d^{1/4} is d^{1/4}.

    >>> problem = ProblemConstants(records=100, dimension=10, lipschitz=1.0, smoothness=0.1)
    >>> settings = MomentumSettings(rounds=10_000, alpha=0.01, step_size=1e-3)
    >>> bound = momentum_bound(problem, settings, gap=1.0, noise=0.05)
    >>> [round(term, 3) for term in bound], round(bound.total, 3)
    ([0.15, 0.09, 0.6, 0.15, 0.03], 1.02)
    """
    n, t = checked_rounds(problem.records, settings.rounds)
    alpha, step = checked_alpha(n, settings.alpha), positive("step_size", settings.step_size)
    smooth = step * problem.smoothness
    terms = (
        3 * nonnegative("gap", gap) / (2 * step * t) + 3 * smooth / 4,
        6 * n * smooth + 3 * smooth / alpha,
        6 * problem.lipschitz * np.sqrt(alpha),
        3 * nonnegative("noise", noise),
        3 * problem.lipschitz * (1 - alpha) / (alpha * t),
    )
    return GradientBound(*(plain(term) for term in terms))


def momentum_rate(*, records: ArrayLike, dimension: ArrayLike, epsilon: ArrayLike, sampling: bool = True) -> Any:
    """Algorithm 1's rate: `d^{1/4}/√(εN) + 1/√N`, constants and logarithms left out.

    Args:
        sampling: False leaves 1/√N out.

    Source: Tran & Cutkosky 2022, Theorem 6.

    >>> momentum_rate(records=100, dimension=16, epsilon=1.0, sampling=False)
    0.2
    """
    require_flag("sampling", sampling)
    n = at_least_one("records", records)
    private = at_least_one("dimension", dimension) ** 0.25 / np.sqrt(positive("epsilon", epsilon) * n)
    return plain(private + (1 / np.sqrt(n) if sampling else 0.0))
