"""Composition over the nodes of a tree, noise multiplier σ, sensitivities (Theorems 4, 8 and 10).

The noise of a node is σ times √V times its sensitivity. Algorithm 1 is 1/σ-GDP (`1/(2σ²)`-zCDP). Algorithm 2 has three
groups of nodes and is √3/σ-GDP. Both require node counts and sensitivities that are at least the true ones.

Algorithm 2 has trees of anchors, differences and residuals, whose sensitivities are without the factor α. The anchor of
an epoch is its first iterate. Steps have length η. Consecutive anchors are therefore at most ηN apart, and the iterate
at position p = 0..N−1 of an epoch is at most pη from the anchor.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.privacy import gdp
from fedprivjax.theory._numbers import counts, nonnegative, one, plain, positive, probability
from fedprivjax.theory.tran_cutkosky import problem as tree
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants

_FORMS = ("exact", "renyi", "paper")
_ALGORITHMS = {"tree": (1, 2.0), "reduced": (3, 4.0)}  # groups of nodes, and σ·ε/√log(1/δ) of the paper


def composition_zcdp(*, nodes: ArrayLike, ratio: ArrayLike) -> Any:
    """zCDP parameter of releasing several sums of records, each with Gaussian noise in proportion to its sensitivity.

    Later sums may depend on earlier releases.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise; the same for all sums.

    Returns:
        `Vρ²/2`. The Rényi divergence of order α is at most α times this parameter.

    Source: Tran & Cutkosky 2022, Theorem 10.

    >>> composition_zcdp(nodes=8, ratio=0.5)
    1.0
    """
    return plain(nonnegative("nodes", nodes) * nonnegative("ratio", ratio) ** 2 / 2)


def composition_epsilon(*, nodes: ArrayLike, ratio: ArrayLike, delta: ArrayLike, form: str = "exact") -> Any:
    """ε of releasing several sums of records, each with Gaussian noise in proportion to its sensitivity.

    Later sums may depend on earlier releases.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise; the same for all sums.
        delta: δ for which ε is computed.
        form: "exact" for the smallest ε, "renyi" for a larger ε from Rényi divergences, or "paper" for the paper's
            formula.

    Returns:
        The ε depends on the form.

        * for "exact": the ε of μ-GDP (Gaussian differential privacy) with `μ = √V·ρ`;
        * for "renyi": `Vρ²/2 + ρ·√(2V·log(1/δ))`;
        * for "paper": `2ρ·√(V·log(1/δ))`, which is at least the ε of "renyi" under the condition below, and therefore
          valid.

    Raises:
        Refusal: if the form is "paper" and `ρ√V` exceeds `2(2 − √2)·√log(1/δ)`.

    Source: Tran & Cutkosky 2022, Theorem 10, which requires `ρ√V ≤ √log(1/δ)`. The weaker condition above is derived
    here.

    >>> settings = {"nodes": 4, "ratio": 0.5, "delta": 1e-5}
    >>> [round(composition_epsilon(form=form, **settings), 2) for form in ("exact", "renyi", "paper")]
    [4.38, 5.3, 6.79]
    """
    require_choice("form", form, _FORMS)
    mu = np.sqrt(nonnegative("nodes", nodes)) * nonnegative("ratio", ratio)
    if form == "paper":
        return _simple(mu, probability("delta", delta))
    return _epsilon_of(mu, delta, form)


def momentum_epsilon(
    *, noise_multiplier: ArrayLike, delta: ArrayLike, form: str = "exact", algorithm: str = "tree"
) -> Any:
    """ε of private momentum (Algorithm 1 or 2) at a given noise multiplier.

    Private momentum releases noisy sums of gradients over successive rounds. Algorithm 1 releases one group of sums,
    and Algorithm 2 releases three. The number of groups is k.

    Args:
        noise_multiplier: σ. Let V be the largest number of sums of one group that contain one record. The noise of a
            sum in this group must have a standard deviation of at least `σ·√V` times the sensitivity of the sum. Each
            group is then 1/σ-GDP (Gaussian differential privacy), and all groups together are √k/σ-GDP.
        delta: δ for which ε is computed.
        form: "exact" for the smallest ε of √k/σ-GDP, or "renyi" for a larger ε from Rényi divergences.
        algorithm: "tree" for Algorithm 1 (k = 1), or "reduced" for Algorithm 2 (k = 3).

    Returns:
        `k/(2σ²) + √(2k·log(1/δ))/σ` for "renyi".

    Source: Tran & Cutkosky 2022, Theorems 4 and 8 ("renyi").

    >>> momentum_epsilon(noise_multiplier=2.0, delta=1e-5, form="renyi")
    2.524...
    >>> momentum_epsilon(noise_multiplier=2.0, delta=1e-5)
    1.993...
    """
    require_choice("form", form, ("exact", "renyi"))
    require_choice("algorithm", algorithm, _ALGORITHMS)
    return _epsilon_of(np.sqrt(_ALGORITHMS[algorithm][0]) / positive("noise_multiplier", noise_multiplier), delta, form)


def momentum_multiplier(*, epsilon: ArrayLike, delta: ArrayLike, form: str = "exact", algorithm: str = "tree") -> Any:
    """Noise multiplier σ at which private momentum (Algorithm 1 or 2) is (ε, δ)-DP.

    Private momentum releases noisy sums of gradients over successive rounds. Algorithm 1 releases one group of sums,
    and Algorithm 2 releases three. Let V be the largest number of sums of one group that contain one record. The noise
    of a sum in this group must have a standard deviation of at least `σ·√V` times the sensitivity of the sum.

    Args:
        epsilon: ε of the privacy budget.
        delta: δ of the privacy budget.
        form: "exact" or "renyi" for the smallest σ whose `momentum_epsilon` with the same form is at most ε. "paper" is
            for the paper's σ.
        algorithm: "tree" for Algorithm 1 (k = 1 group), or "reduced" for Algorithm 2 (k = 3 groups).

    Returns:
        The σ depends on the form.

        * for "exact": a number without a closed form;
        * for "renyi": `√k/(√(2·log(1/δ) + 2ε) − √(2·log(1/δ)))`;
        * for "paper": `2·√log(1/δ)/ε` for Algorithm 1 and `4·√log(1/δ)/ε` for Algorithm 2.

    Raises:
        Refusal: if the form is "paper" and ε exceeds `momentum_max_epsilon`.

    Source: Tran & Cutkosky 2022, Theorems 4 and 8. Theorem 4 states the condition δ ≥ exp(−ε), which should read
    δ ≤ exp(−ε). Theorem 8 states no condition.

    >>> settings = {"epsilon": 2.0, "delta": 1e-5}
    >>> [round(momentum_multiplier(form=form, **settings), 2) for form in ("exact", "renyi", "paper")]
    [1.99, 2.5, 3.39]
    >>> settings["algorithm"] = "reduced"
    >>> [round(momentum_multiplier(form=form, **settings), 2) for form in ("exact", "renyi", "paper")]
    [3.45, 4.33, 6.79]
    """
    require_choice("form", form, _FORMS)
    require_choice("algorithm", algorithm, _ALGORITHMS)
    groups, factor = _ALGORITHMS[algorithm]
    if form != "paper":
        return plain(np.sqrt(groups) / _mu_of(positive("epsilon", epsilon), delta, form))
    epsilon, most = np.broadcast_arrays(positive("epsilon", epsilon), momentum_max_epsilon(delta, algorithm))
    wrong = epsilon > most * (1 + 1e-9)
    if wrong.any():
        raise Refusal(f"epsilon must be at most {most[wrong][0]:.6g} for the paper's σ, got {epsilon[wrong][0]:.6g}")
    return plain(factor * np.sqrt(np.log(1 / probability("delta", delta))) / epsilon)


def momentum_max_epsilon(delta: ArrayLike, algorithm: str = "tree") -> Any:
    """Largest ε at which the noise multiplier of the form "paper" (`momentum_multiplier`) is proved to suffice.

    At this ε, the form "paper" gives the noise multiplier of the form "renyi", the smallest that Rényi divergences
    prove. At a larger ε, it gives a smaller one.

    Args:
        delta: δ of the privacy budget.
        algorithm: "tree" for Algorithm 1 or "reduced" for Algorithm 2.

    Returns:
        `4(2 − √2)·log(1/δ)` for Algorithm 1, and `(32/3 − 8√(2/3))·log(1/δ)` for Algorithm 2.

    Source: derived here, to replace the condition of Tran & Cutkosky 2022, Theorem 4. Theorem 8 states no condition.

    >>> round(momentum_max_epsilon(1e-6), 1), round(momentum_max_epsilon(1e-6, algorithm="reduced"), 1)
    (32.4, 57.1)
    """
    require_choice("algorithm", algorithm, _ALGORITHMS)
    groups, factor = _ALGORITHMS[algorithm]
    slope = factor / np.sqrt(groups)  # ε = slope·μ·√log(1/δ)
    return plain(2 * slope * (slope - np.sqrt(2)) * np.log(1 / probability("delta", delta)))


def _epsilon_of(mu: ArrayLike, delta: ArrayLike, form: str) -> Any:
    """Return the ε of μ-GDP, exactly or by Rényi divergences."""
    return gdp.epsilon(mu, delta) if form == "exact" else gdp.paper_epsilon(mu, delta)


def _mu_of(epsilon: ArrayLike, delta: ArrayLike, form: str) -> Any:
    """Return the μ of μ-GDP with this ε, exactly or by Rényi divergences."""
    if form == "exact":
        return gdp.mu(epsilon, delta)
    log = 2 * np.log(1 / probability("delta", delta))
    epsilon = positive("epsilon", epsilon)
    return 2 * epsilon / (np.sqrt(log + 2 * epsilon) + np.sqrt(log))


def _simple(mu: np.ndarray, delta: np.ndarray) -> Any:
    mu, root = np.broadcast_arrays(mu, np.sqrt(np.log(1 / delta)))
    most = 2 * (2 - np.sqrt(2)) * root
    wrong = mu > most * (1 + 1e-9)
    if wrong.any():
        raise Refusal(
            f"ratio must be at most {most[wrong][0]:.6g}/√nodes for the paper's ε, got {mu[wrong][0]:.6g}/√nodes"
        )
    return plain(2 * mu * root)


class Sensitivities(NamedTuple):
    """Sensitivities to replacing one record, for the sums in reduced-noise momentum (Algorithm 2).

    Algorithm 2 of Tran & Cutkosky 2022 releases sums over successive rounds: the nodes of three binary trees. The
    sensitivities are of unweighted sums: the weight α of a new gradient in the momentum is applied later.
    Each tree sums one kind of vector:

    * `anchors`: gradients at an epoch's first iterate, the anchor (G in the paper);
    * `differences`: differences between the gradients at successive anchors (Δ in the paper);
    * `residuals`: gradients at the iterate of the round minus gradients of the same record at the anchor (r in the
      paper).
    """

    anchors: Any
    differences: Any
    residuals: Any


def reduced_sensitivities(problem: ProblemConstants, *, step_size: ArrayLike, form: str = "corrected") -> Sensitivities:
    """Bounds on sensitivities to replacing one record, for the sums in reduced-noise momentum.

    The bounds are for sums before they are multiplied by α, the weight of a new gradient in the momentum. They hold if
    all epochs have the same order of records, and α is at least 1/N for N records.

    Args:
        problem: constants G (Lipschitz constant), L (smoothness) and N (records, at least 2).
        step_size: η, length of a step.
        form: "corrected" gives bounds for sums over any number of rounds. "short" gives smaller bounds, which hold for
            sums over at most N rounds. "paper" gives the paper's numbers.

    Returns:
        The bounds for anchors, differences and residuals (`Sensitivities`) depend on the form.

        * for "corrected": `4G`, `4ηNL` and `4ηNL`;
        * for "short": `2G`, `2ηNL` and `2η(N−1)L`;
        * for "paper": `4G`, `2ηNL` and `2ηNL`. The bound for residuals is too small for sums over more than N rounds.

        In Algorithm 2, only sums of residuals are over more than N rounds. For anchors and differences, the bounds of
        "short" therefore suffice.

    Source: Tran & Cutkosky 2022, Theorem 8, corrected.

    >>> problem = ProblemConstants(records=10, dimension=1, lipschitz=1.0, smoothness=2.0)
    >>> reduced_sensitivities(problem, step_size=0.01)
    Sensitivities(anchors=4.0, differences=0.8, residuals=0.8)
    """
    require_choice("form", form, ("corrected", "short", "paper"))
    n, lipschitz = tree.at_least_two(problem.records), problem.lipschitz
    reach = positive("step_size", step_size) * problem.smoothness
    if form == "short":
        return Sensitivities(plain(2 * lipschitz), plain(2 * n * reach), plain(2 * (n - 1) * reach))
    moved = plain((2 if form == "paper" else 4) * n * reach)
    return Sensitivities(plain(4 * lipschitz), moved, moved)


def residual_sensitivity(
    *, first: int, last: int, records: int, alpha: float, step_size: float, smoothness: float
) -> float:
    """Sensitivity to replacing one record, for a sum of residuals in reduced-noise momentum (Algorithm 2).

    Let g be the gradient of the record of round t. The residual of the round is g at the current iterate, minus g at
    the epoch's first iterate. The sum is over the rounds t = y, …, z, and round t has the weight (1−α)^{z−t}.

    All epochs must have the same order, so that a record has the same position p = 0, …, N − 1 in every epoch.

    Args:
        first: y, first round of the sum, counted from 1.
        last: z, last round of the sum.
        records: N, number of records, also the number of rounds of an epoch.
        alpha: α, weight of a new gradient in the momentum, at least 1/N. The sum is not multiplied by α.
        step_size: η, length of a step.
        smoothness: L, smoothness of one record's loss.

    Returns:
        The largest value of `2pηL·Σ_t (1−α)^{z−t}` over the positions p. In this formula, t runs over the rounds from y
        to z that are at position p of their epoch.

    Source: derived here, for the sums of residuals (F^r) in Tran & Cutkosky 2022, Theorem 8.

    >>> residual_sensitivity(first=1, last=4, records=4, alpha=0.25, step_size=0.5, smoothness=1.0)
    3.0
    """
    counts(first=first, last=last, records=records)
    tree.checked_node(first, last)
    alpha = one(lambda _, value: tree.checked_alpha(records, value), "alpha", alpha)
    reach = one(positive, "step_size", step_size) * one(nonnegative, "smoothness", smoothness)
    latest = np.arange(max(first, last - records + 1), last + 1)  # last round of every record in the node
    often = tree.recurrences(alpha, records, (latest - first) // records + 1)
    away = np.where(latest == last, 1.0, tree.decay(alpha, np.maximum(last - latest, 1)))
    return float(2 * reach * np.max((latest - 1) % records * away * often))
