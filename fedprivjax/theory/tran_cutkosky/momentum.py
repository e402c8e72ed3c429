"""Settings and bounds of Algorithm 1, normalised SGD with tree-aggregated momentum (Theorem 6)."""

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.theory._numbers import at_least_one, counts, nonnegative, one, plain, positive, probability
from fedprivjax.theory.tran_cutkosky import problem as tree
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants

MIN_ALPHA = {"corrected": 1.7, "paper": 1.0}  # times 1/N; Proposition 14 requires 1 + log 2


class MomentumSettings(NamedTuple):
    """Settings of private momentum (Tran & Cutkosky 2022, Algorithm 1), which `momentum_settings` returns.

    Each field is a number for one run, or an array with one entry per run.

    * `rounds`: number of rounds;
    * `alpha`: weight of a new gradient in the momentum;
    * `step_size`: length of a step.
    """

    rounds: Any
    alpha: Any
    step_size: Any


class GradientBound(NamedTuple):
    """Bound on the expected gradient norm of private momentum, as five terms whose sum is `total`.

    The bound is for a uniformly random iterate of Algorithm 1 or 2 of Tran & Cutkosky 2022. There are N records and T
    rounds. Steps have length η, and α is the weight of a new gradient in the momentum. The loss has the Lipschitz
    constant G, the smoothness L, and an excess of at most `gap` at the start.

    * `optimisation`: `3·gap/(2ηT) + 3Lη/4`;
    * `bias`: `6ηNL + 3ηL/α`, due to gradients at old iterates;
    * `variance`: `6G√α`, due to sampled records;
    * `noise`: 3 times the mean norm of the noise in the momentum;
    * `start`: `3G(1−α)/(αT)`, due to a momentum that starts at 0.
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
    """Settings of private momentum (Algorithm 1) by the paper's Theorem 6.

    Args:
        records: N, number of records.
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.
        dimension: d, number of parameters.
        rounds: T, number of rounds, or None for the theorem's number.

    Returns:
        The number T of rounds, the weight α of a new gradient, and the step length η.

        * T of the theorem solves `T·log₂T = εN²/√(d·log(1/δ))` and is rounded up to whole epochs;
        * `α = εN/(T·log₂T·√(d·log(1/δ)))` is clipped to [1/N, 1];
        * `η = 1/√(NT)`.

    Raises:
        Refusal: if T, given or by the theorem, is smaller than N.

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
            raise Refusal(f"rounds must be at least records ({records}), the theorem's are {best:.6g}. Set rounds")
        rounds = tree.whole_epochs(records, best)
    counts(rounds=rounds)
    tree.checked_rounds(records, rounds)
    alpha = load / records / (float(rounds) * np.log2(max(float(rounds), 2.0)))
    step_size = 1 / float(np.sqrt(float(records) * float(rounds)))
    return MomentumSettings(rounds, float(np.clip(alpha, 1 / records, 1)), step_size)


def momentum_noise_norm(
    problem: ProblemConstants,
    *,
    rounds: ArrayLike,
    alpha: ArrayLike,
    noise_multiplier: ArrayLike,
    order: str = "reshuffled",
    form: str = "counted",
) -> Any:
    """Bound on the expected norm of the noise of private momentum (Algorithm 1) in a round.

    The momentum of a round is computed from noisy sums of gradients, the nodes of a binary tree over the rounds. Three
    numbers determine the noise of the momentum:

    * Δ, a bound on the sensitivity of a node;
    * V, a bound on the number of nodes that contain one record;
    * m, a bound on the number of nodes from which one momentum is computed.

    Args:
        problem: constants d (parameters), G (Lipschitz constant) and N (records).
        rounds: T, number of rounds.
        alpha: α, weight of a new gradient in the momentum.
        noise_multiplier: σ, from `momentum_multiplier`.
        order: order of the records, "cyclic" (the same in every epoch) or "reshuffled" (new in every epoch). The form
            "paper" ignores it.
        form: "counted" for bounds that are computed from the tree, or "paper" for the bounds of the paper.

    Returns:
        `Δσ·√(d·V·m)`. The numbers Δ, V and m depend on the form.

        * for "counted": Δ is 2αG times the largest total weight of a record in a node (`sensitivity_cap`), V is
          `node_count`, and m is ⌊log₂(T+1)⌋;
        * for "paper": `Δ = 4αG`, `V = 4(T/N)·log₂T`, and `m = log₂T`.

    Source: Tran & Cutkosky 2022, Lemma 12 ("paper").

    >>> problem = ProblemConstants(records=256, dimension=1, lipschitz=1.0, smoothness=1.0)
    >>> settings = {"rounds": 2048, "alpha": 1 / 256, "noise_multiplier": 1.0}
    >>> [round(momentum_noise_norm(problem, form=form, **settings), 2) for form in ("counted", "paper")]
    [0.59, 0.97]
    """
    require_choice("form", form, ("counted", "paper"))
    n, t = tree.checked_rounds(problem.records, rounds)
    scale = tree.checked_alpha(n, alpha) * problem.lipschitz * positive("noise_multiplier", noise_multiplier)
    if form == "paper":
        return plain(8 * scale * np.log2(t) * np.sqrt(problem.dimension * t / n))
    cap = 2 * tree.sensitivity_cap(records=n, alpha=alpha, order=order)
    squares = problem.dimension * tree.node_count(records=n, rounds=t) * tree.floor_log2(t + 1)
    return plain(scale * cap * np.sqrt(squares))


def momentum_bound(
    problem: ProblemConstants, settings: MomentumSettings, *, gap: ArrayLike, noise: ArrayLike
) -> GradientBound:
    """Bound on the expected gradient norm of private momentum (Algorithm 1), as five terms.

    The bound is for a uniformly random iterate.

    Every epoch, a pass over the records, must be shuffled independently. With one order for all epochs, the term
    `variance` for sampled records is not proved.

    Args:
        problem: constants N (records), G (Lipschitz constant) and L (smoothness).
        settings: T rounds (at least N), weight α of a new gradient in the momentum (in [1/N, 1]), and length η of a
            step.
        gap: bound R on the excess loss at the start, F(w_1) − inf F for a loss F.
        noise: expected norm of the noise in the momentum, averaged over rounds. For d parameters, give √d times the
            root mean square of the noise in a coordinate. Or give the bound `momentum_noise_norm`.

    Returns:
        A `GradientBound`.

    Source: Tran & Cutkosky 2022, Lemmas 5 and 11. The constants are from the lemmas. Theorem 6 prints other constants.

    >>> problem = ProblemConstants(records=100, dimension=10, lipschitz=1.0, smoothness=0.1)
    >>> settings = MomentumSettings(rounds=10_000, alpha=0.01, step_size=1e-3)
    >>> bound = momentum_bound(problem, settings, gap=1.0, noise=0.05)
    >>> [round(term, 3) for term in bound], round(bound.total, 3)
    ([0.15, 0.09, 0.6, 0.15, 0.03], 1.02)
    """
    n, t = tree.checked_rounds(problem.records, settings.rounds)
    alpha, step = tree.checked_alpha(n, settings.alpha), positive("step_size", settings.step_size)
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
    """Expected gradient norm of private momentum (Algorithm 1), up to constants and logarithms.

    Args:
        records: N, number of records.
        dimension: d, number of parameters.
        epsilon: ε of the privacy budget.
        sampling: False omits 1/√N, the part that is not due to privacy.

    Returns:
        `d^{1/4}/√(εN) + 1/√N`.

    Source: Tran & Cutkosky 2022, Theorem 6.

    >>> momentum_rate(records=100, dimension=16, epsilon=1.0, sampling=False)
    0.2
    """
    require_flag("sampling", sampling)
    n = at_least_one("records", records)
    private = at_least_one("dimension", dimension) ** 0.25 / np.sqrt(positive("epsilon", epsilon) * n)
    return plain(private + (1 / np.sqrt(n) if sampling else 0.0))
