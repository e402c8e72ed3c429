"""Algorithm 2, accelerated minibatch SGD (AC-SA of Ghadimi & Lan): schedules, the scale v, stages, explicit bounds.

`variance` is V², the total mean squared error of a round's mean gradient (`empirical_variance(...).total` or
`population_variance(...).total`). `gap` is Δ, a bound on the excess loss at the start.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, one, ordered, plain, positive

_FORMS = ("strong", "convex", "tight")


class Stage(NamedTuple):
    """One of the successive runs of accelerated SGD that `acsa_stages` returns.

    Each run starts at the output of the previous run.

    * `rounds`: number of rounds of the run;
    * `v`: number in the step size `2r/(4v + μr(r + 1))` of the r-th round of the run, where μ is the strong convexity
      of the loss. A larger v means shorter steps.
    """

    rounds: int
    v: float


def acsa_mixing(rounds: int) -> np.ndarray:
    """Weights of the newest iterate in the running average of accelerated SGD's iterates; shape [rounds].

    The weight of round r, counted from 1, is `2/(r + 1)`.

    Source: Lowy & Razaviyayn 2023, section 2 and appendix E.5 (Ghadimi & Lan 2012).

    >>> acsa_mixing(3).round(6)
    array([1.      , 0.666667, 0.5     ])
    """
    counts(rounds=rounds)
    return 2 / np.arange(2.0, rounds + 2)


def acsa_step_weights(rounds: int, v: float) -> np.ndarray:
    """Weights of the proximal term in the steps of accelerated SGD; shape [rounds].

    The proximal term is the squared distance to the previous iterate. A small weight gives a long step.

    Args:
        rounds: number of rounds.
        v: scale of the weights, for example from `acsa_v`. A larger v means shorter steps.

    Returns:
        `4v/(r(r + 1))` for r = 1, …, rounds.

    Source: Lowy & Razaviyayn 2023, appendix E.5 (Ghadimi & Lan 2012).

    >>> acsa_step_weights(3, v=3.0)
    array([6., 2., 1.])
    """
    counts(rounds=rounds)
    r = np.arange(1.0, rounds + 1)
    return 4 * one(positive, "v", v) / (r * (r + 1))


def acsa_v(
    *,
    rounds: int,
    smoothness: ArrayLike,
    form: str = "tight",
    variance: ArrayLike = 0.0,
    diameter: ArrayLike | None = None,
) -> Any:
    """Number v in the step sizes of a single run of accelerated SGD.

    The step size of round r is `2r/(4v + μr(r + 1))`, where μ is the strong convexity of the loss (with its
    regulariser). For a convex loss, μ is 0.

    Args:
        rounds: R, number of rounds.
        smoothness: β, smoothness of the loss. A regulariser adds its modulus to β.
        form: form of `acsa_bound` to minimise. "strong" is for a strongly convex loss. "convex" and "tight" are for a
            convex loss.
        variance: V², mean squared error of a round's gradient; not needed for "strong".
        diameter: D, bound on the distance from the start to the optimum; not needed for "strong".

    Returns:
        The number v depends on the form.

        * for "strong": `2β`;
        * for "convex": `max{2β, √(2V²R(R+1)(R+2)/(3D²))}`;
        * for "tight": `max{2β, (V/D)·√(R(R+1)(2R+1)/12)}`.

    Source: derived here, by minimising `acsa_bound`. The paper leaves v open (appendix E.5).

    >>> acsa_v(rounds=2, smoothness=0.5, form="tight", variance=10.0, diameter=1.0)
    5.0
    """
    require_choice("form", form, _FORMS)
    counts(rounds=rounds)
    least = 2 * positive("smoothness", smoothness)
    if form == "strong":
        return plain(least)
    if diameter is None:
        raise Refusal(f"diameter must be given for the form {form!r}, got None")
    sums = 2 * (rounds + 2) / 3 if form == "convex" else (2 * rounds + 1) / 12
    best = np.sqrt(nonnegative("variance", variance) * rounds * (rounds + 1) * sums) / positive("diameter", diameter)
    return plain(np.maximum(least, best))


def acsa_bound(
    *,
    rounds: int,
    v: ArrayLike,
    diameter: ArrayLike,
    variance: ArrayLike,
    form: str = "tight",
    strong_convexity: ArrayLike | None = None,
) -> Any:
    """Bound on the excess loss after one run of accelerated SGD.

    Args:
        rounds: R, number of rounds.
        v: number that sets the step sizes, at least twice the smoothness of the loss (`acsa_v`). Round r has the step
            size `2r/(4v + μr(r + 1))`. For a convex loss, μ = 0.
        diameter: D, bound on the distance from the start to the optimum.
        variance: V², mean squared error of a round's gradient.
        form: which bound: "strong" is for a strongly convex loss; "convex" and "tight" are for a convex loss.
        strong_convexity: μ, strong convexity of the loss; used by "strong" only.

    Returns:
        `2vD²/(R(R+1))` plus a term for the variance of gradients.

        * for "strong": `8V²/(μ(R+1))`;
        * for "convex": `4V²(R+2)/(3v)`;
        * for "tight": `V²(2R+1)/(6v)`.

    Source: derived here, from Ghadimi & Lan 2012.

    >>> acsa_bound(rounds=2, v=5.0, diameter=1.0, variance=6.0, form="tight")
    2.666666666666667
    """
    require_choice("form", form, _FORMS)
    counts(rounds=rounds)
    v, variance = positive("v", v), nonnegative("variance", variance)
    start = 2 * v * positive("diameter", diameter) ** 2 / (rounds * (rounds + 1))
    if form == "strong":
        if strong_convexity is None:
            raise Refusal("strong_convexity must be given for the form 'strong', got None")
        return plain(start + 8 * variance / (positive("strong_convexity", strong_convexity) * (rounds + 1)))
    factor = 4 * (rounds + 2) / 3 if form == "convex" else (2 * rounds + 1) / 6
    return plain(start + factor * variance / v)


def acsa_regularization(*, rounds: int, variance: ArrayLike, diameter: ArrayLike, factor: float = 0.5) -> Any:
    """Modulus λ of the regulariser `(λ/2)‖w − w_0‖²`, which is added to a convex loss to make it strongly convex.

    Here w denotes the parameters, and w_0 the start. The paper's Theorem E.1 prints the centre 0 instead of w_0.

    Args:
        rounds: R, number of rounds.
        variance: V², mean squared error of a round's gradient.
        diameter: D, bound on the distance from the start to the optimum.
        factor: a positive number: 1/2 in the paper's Theorem E.1, and 1 in the paper's Lemma E.11.

    Returns:
        `λ = factor·V/(D√R)`.

    Source: Lowy & Razaviyayn 2023, Theorem E.1 and Lemma E.11.

    >>> acsa_regularization(rounds=4, variance=16.0, diameter=2.0)
    0.5
    """
    counts(rounds=rounds)
    deviation = np.sqrt(nonnegative("variance", variance))
    return plain(one(positive, "factor", factor) * deviation / (positive("diameter", diameter) * np.sqrt(rounds)))


def acsa_regularized_bound(
    *, rounds: int, smoothness: ArrayLike, variance: ArrayLike, diameter: ArrayLike, factor: float = 0.5
) -> Any:
    """Bound on the excess loss of accelerated SGD on a convex loss with a regulariser.

    Accelerated SGD minimises the loss plus the regulariser `(λ/2)‖w − w_0‖²` for the parameters w and the start w_0,
    where `λ = factor·V/(D√R)` (`acsa_regularization`). The step size of round r is `2r/(8(β + λ) + λr(r + 1))`. The
    bound is on the excess of the loss without the regulariser.

    Args:
        rounds: R, number of rounds.
        smoothness: β, smoothness of the loss without the regulariser.
        variance: V², mean squared error of a round's gradient, positive.
        diameter: D, bound on the distance from the start to the optimum.
        factor: positive number in λ: 1/2 in the paper's Theorem E.1, and 1 in the paper's Lemma E.11.

    Returns:
        `4(β+λ)D²/(R(R+1)) + 8V²/(λ(R+1)) + λD²/2`.

    Source: derived here, from `acsa_bound` with μ := λ and the value of the regulariser at the optimum.

    >>> acsa_regularized_bound(rounds=4, smoothness=2.0, variance=16.0, diameter=2.0)
    54.2
    """
    lam = acsa_regularization(rounds=rounds, variance=positive("variance", variance), diameter=diameter, factor=factor)
    v = acsa_v(rounds=rounds, smoothness=np.asarray(positive("smoothness", smoothness)) + lam, form="strong")
    run = acsa_bound(rounds=rounds, v=v, diameter=diameter, variance=variance, form="strong", strong_convexity=lam)
    return plain(run + lam * np.asarray(diameter, float) ** 2 / 2)


def acsa_stages(
    *,
    rounds: int,
    gap: float,
    smoothness: float,
    strong_convexity: float,
    variance: float,
    printed: bool = False,
) -> list[Stage]:
    """Successive runs (stages) of accelerated SGD on a strongly convex loss.

    Each stage halves the bound on the excess loss. There are as many stages as fit into the rounds. Remaining rounds
    are not used. If the first stage does not fit, the result is one stage of all rounds with v_1 = 2β, which need not
    halve the bound.

    Args:
        rounds: R, number of all rounds.
        gap: Δ, bound on the excess loss at the start.
        smoothness: β, smoothness of the loss.
        strong_convexity: μ, strong convexity of the loss.
        variance: V², mean squared error of a round's gradient, with noise that is calibrated for all R rounds.
        printed: True replaces the factor R_k(R_k+1)(R_k+2) in the formula for v_k below by its reciprocal, which the
            paper prints.

    Returns:
        Stages k = 1, 2, …. Stage k has R_k rounds, and its r-th round has the step size `2r/(4v_k + μr(r + 1))` with

        * `R_k = ⌈max{4√(2β/μ), 128V²/(3μΔ·2^{−(k+1)})}⌉`;
        * `v_k = max{2β, √(μV²R_k(R_k+1)(R_k+2)/(3Δ·2^{−(k−1)}))}`.

    Source: Lowy & Razaviyayn 2023, proof of Theorem E.1.2 (Ghadimi & Lan 2013), corrected.

    >>> acsa_stages(rounds=20, gap=1.0, smoothness=1.0, strong_convexity=0.5, variance=0.01)
    [Stage(rounds=8, v=2.0), Stage(rounds=8, v=2.0)]
    >>> acsa_stages(rounds=7, gap=1.0, smoothness=1.0, strong_convexity=0.5, variance=0.01)
    [Stage(rounds=7, v=2.0)]
    """
    counts(rounds=rounds)
    gap, variance = one(positive, "gap", gap), one(nonnegative, "variance", variance)
    mu, beta = one(positive, "strong_convexity", strong_convexity), one(positive, "smoothness", smoothness)
    ordered("strong_convexity", mu, "smoothness", beta)
    stages, left = [], rounds
    while True:
        noise = variance / (3 * gap) if variance else 0.0
        length = np.ceil(max(4 * np.sqrt(2 * beta / mu), 512 * noise / mu))
        if length > left:
            return stages or [Stage(rounds, 2 * beta)]
        cube = length * (length + 1) * (length + 2)
        best = np.sqrt(mu * noise / cube if printed else mu * noise * cube)
        stages.append(Stage(int(length), float(max(2 * beta, best))))
        left, gap = left - int(length), gap / 2


def acsa_stages_bound(stages: list[Stage], *, gap: float, strong_convexity: float, variance: float) -> float:
    """Bound on the excess loss after successive runs of accelerated SGD on a strongly convex loss.

    Each run starts at the output of the previous run.

    Args:
        stages: `Stage(rounds=R_k, v=v_k)` for each run k = 1, 2, ….
        gap: Δ_0, bound on the excess loss at the start.
        strong_convexity: μ, strong convexity of the loss.
        variance: V², mean squared error of a round's gradient.

    Returns:
        The last Δ_k. Here Δ_k bounds the excess loss after run k:
        `Δ_k = 4v_kΔ_{k−1}/(μR_k(R_k+1)) + V²·min{(2R_k+1)/(6v_k), 8/(μ(R_k+1))}`.

    Source: derived here, from `acsa_bound` with `D² = 2Δ_{k−1}/μ`.

    >>> acsa_stages_bound([Stage(7, 2.0)], gap=1.0, strong_convexity=0.5, variance=0.0)
    0.2857142857142857
    """
    gap, variance = one(positive, "gap", gap), one(nonnegative, "variance", variance)
    mu = one(positive, "strong_convexity", strong_convexity)
    for rounds, v in stages:
        noise = variance * min((2 * rounds + 1) / (6 * v), 8 / (mu * (rounds + 1)))
        gap = 4 * v * gap / (mu * rounds * (rounds + 1)) + noise
    return gap
