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
    """zCDP parameter of releasing sums of records, each with Gaussian noise in proportion to its sensitivity: `Vρ²/2`.

    The Rényi divergence of order a is then `a·Vρ²/2`, for every a. Later releases may depend on earlier ones.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise; the same for all sums.

    Source: Tran & Cutkosky 2022, Theorem 10.

    >>> composition_zcdp(nodes=8, ratio=0.5)
    1.0
    """
    return plain(nonnegative("nodes", nodes) * nonnegative("ratio", ratio) ** 2 / 2)


def composition_epsilon(*, nodes: ArrayLike, ratio: ArrayLike, delta: ArrayLike, form: str = "exact") -> Any:
    """ε of releasing sums of records, each with Gaussian noise in proportion to its sensitivity.

    Here V and ρ are `nodes` and `ratio`, and ε is for a given δ.

    * "exact": the smallest ε, that of Gaussian differential privacy (GDP) with parameter √V·ρ;
    * "renyi": by Rényi divergences of the best order, `Vρ²/2 + ρ·√(2V·log(1/δ))`;
    * "paper": `2ρ·√(V·log(1/δ))`, which is at least "renyi" if `ρ√V ≤ 2(2 − √2)·√log(1/δ)`. The factor 2(2 − √2) is
      1.17; the paper has 1.

    Args:
        nodes: V, largest number of sums that contain one record.
        ratio: ρ, sensitivity of a sum divided by the standard deviation of its noise.

    Raises:
        Refusal: if the condition of "paper" does not hold.

    Source: Tran & Cutkosky 2022, Theorem 10. At the paper's order, ε is `Vρ²/2 + 1.5ρ√(V·log(1/δ))`, which differs from
    the printed one. The condition of "paper" is derived here.

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
    """ε of private momentum (Algorithm 1 or 2) at a given noise multiplier σ, for a given δ.

    * "exact": the smallest ε, that of Gaussian differential privacy (GDP) with parameter √k/σ;
    * "renyi": by Rényi divergences, `k/(2σ²) + √(2k·log(1/δ))/σ`.

    Args:
        noise_multiplier: σ.
        algorithm: "tree" for Algorithm 1, which has k = 1 binary tree of noisy sums, or "reduced" for Algorithm 2, k =
            3.

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
    """Noise multiplier σ at which private momentum (Algorithm 1 or 2) is (ε, δ)-DP, see `momentum_epsilon`.

    * "exact" and "renyi": the smallest σ, by the inverse of `momentum_epsilon`; "renyi" is
      `√k/(√(2·log(1/δ) + 2ε) − √(2·log(1/δ)))`;
    * "paper": `2·√log(1/δ)/ε` for Algorithm 1 and `4·√log(1/δ)/ε` for Algorithm 2, which suffice for
      `ε ≤ momentum_max_epsilon(δ)`, about 2.34·log(1/δ) and 4.13·log(1/δ).

    Here k is the number of trees of noisy sums: 1 for Algorithm 1 ("tree"), 3 for Algorithm 2 ("reduced").

    Raises:
        Refusal: if the condition of "paper" does not hold.

    Source: Tran & Cutkosky 2022, Theorem 4, whose condition δ ≥ exp(−ε) has the inequality reversed, and Theorem 8,
    which states no condition.

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
    """Largest ε for which the noise multiplier σ of the paper suffices.

    It solves μ²/2 + μ√(2·log(1/δ)) = ε with μ = √k/σ: the left side is ε by Rényi divergences. It is
    `4(2 − √2)·log(1/δ)` for Algorithm 1, which has k = 1 tree, and `(32/3 − 8√(2/3))·log(1/δ)` for Algorithm 2, k = 3.

    Source: derived here, to replace the condition of Tran & Cutkosky 2022, Theorem 4; Theorem 8 states none.

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
    """Sensitivities to one record of nodes in the three trees of reduced-noise momentum (Algorithm 2).

    `anchors` is for gradients at an anchor, an epoch's first iterate (G in the paper). `differences` is for their
    differences from epoch to epoch (Δ). `residuals` is for gradients minus those of the same record at the anchor (r).
    """

    anchors: Any
    differences: Any
    residuals: Any


def reduced_sensitivities(problem: ProblemConstants, *, step_size: ArrayLike, form: str = "corrected") -> Sensitivities:
    """Bounds on the sensitivity to one record of nodes in the three trees of reduced-noise momentum (Algorithm 2).

    A node is a noisy sum over successive rounds, in which older ones count less. δ_G, δ_Δ and δ_r are for the trees of
    `Sensitivities`. The bounds hold if all epochs have the same order of records, and a gradient's weight in the
    momentum is at least 1/N.

    * "corrected": `δ_G = 4G` and `δ_Δ = δ_r = 4ηNL`, for nodes of any length;
    * "short": `2G`, `2ηNL` and `2η(N−1)L`, for nodes of at most N rounds, which contain a record once. In the trees of
      G and Δ, the method uses only such nodes;
    * "paper": `4G`, `2ηNL` and `2ηNL`. Its δ_r is too small for nodes of the residuals' tree longer than an epoch.

    The sensitivity of a given node is `node_sensitivity` times 2G or 2ηNL, or `residual_sensitivity`.

    Args:
        problem: constants G (Lipschitz constant), L (smoothness) and N (records, at least 2).
        step_size: η, length of a step.

    Source: Tran & Cutkosky 2022, Theorem 8, with the geometric factor that its δ_Δ and δ_r lack. The constants of
    Lemma 7 correspond to 8ηNL.

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
    """Sensitivity to one record of a sum of residuals over rounds y to z: `2ηL·max_p p·Σ_{t at p} (1−α)^{z−t}`.

    A residual is a gradient minus that of the same record at the epoch's first iterate. The sum discounts older ones.
    In the formula, t runs over the rounds that use the record at position p of an epoch, counted from 0. The value is
    attained in cyclic order. It is at most 2η(N−1)L for N rounds, and 3.17η(N−1)L for any number.

    Args:
        first: y, first round of the sum, counted from 1.
        last: z, last round of the sum.
        records: N.
        alpha: α, weight of a gradient in the momentum.
        step_size: η, length of a step.
        smoothness: L.

    Source: derived here, for F^r of Tran & Cutkosky 2022, Theorem 8.

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
