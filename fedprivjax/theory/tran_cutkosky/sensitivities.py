"""Sensitivities of Algorithm 2's three trees (anchors, differences, residuals), without the factor α.

The anchor of an epoch is its first iterate. Steps have length η. Consecutive anchors are therefore at most ηN apart,
and the iterate at position p = 0..N−1 of an epoch is at most pη from the anchor.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, one, plain, positive
from fedprivjax.theory.tran_cutkosky._setting import checked_alpha, decay, recurrences
from fedprivjax.theory.tran_cutkosky.nodes import at_least_two, checked_node
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants


class Sensitivities(NamedTuple):
    """Sensitivities for gradients at anchors (G in the paper), their differences over an epoch (Δ), residuals (r)."""

    anchors: Any
    differences: Any
    residuals: Any


def reduced_sensitivities(problem: ProblemConstants, *, step_size: ArrayLike, form: str = "corrected") -> Sensitivities:
    """Bounds on the sensitivity of a node of Algorithm 2 to one record, if records are cyclic and α ≥ 1/N.

    * "corrected": `δ_G = 4G` and `δ_Δ = δ_r = 4ηNL`, for nodes of any length;
    * "short": `2G`, `2ηNL` and `2η(N−1)L`, for nodes of at most N rounds, which contain a record once. In the trees of
      G and Δ, the method uses only such nodes;
    * "paper": `4G`, `2ηNL` and `2ηNL`. Its δ_r is too small for nodes of the residuals' tree longer than an epoch.

    The sensitivity of a given node is `node_sensitivity` times 2G or 2ηNL, or `residual_sensitivity`.

    Args:
        problem: constants with N of at least 2.
        step_size: η.

    Source: Tran & Cutkosky 2022, Theorem 8, with the geometric factor that its δ_Δ and δ_r lack. The constants of
    Lemma 7 correspond to 8ηNL.

    >>> problem = ProblemConstants(records=10, dimension=1, lipschitz=1.0, smoothness=2.0)
    >>> reduced_sensitivities(problem, step_size=0.01)
    Sensitivities(anchors=4.0, differences=0.8, residuals=0.8)
    """
    require_choice("form", form, ("corrected", "short", "paper"))
    n, lipschitz = at_least_two(problem.records), problem.lipschitz
    reach = positive("step_size", step_size) * problem.smoothness
    if form == "short":
        return Sensitivities(plain(2 * lipschitz), plain(2 * n * reach), plain(2 * (n - 1) * reach))
    moved = plain((2 if form == "paper" else 4) * n * reach)
    return Sensitivities(plain(4 * lipschitz), moved, moved)


def residual_sensitivity(
    *, first: int, last: int, records: int, alpha: float, step_size: float, smoothness: float
) -> float:
    """Sensitivity of a node of the residuals' tree to one record: `2ηL·max_p p·Σ_{t at p} (1−α)^{z−t}`.

    Here p is the position of the record in an epoch, counted from 0. The value is attained in cyclic order. It is at
    most 2η(N−1)L for a node of N rounds, and 3.17η(N−1)L for any node.

    Args:
        first: y, counted from 1.
        last: z.
        records: N.
        step_size: η.
        smoothness: L.

    Source: derived here, for F^r of Tran & Cutkosky 2022, Theorem 8.

    >>> residual_sensitivity(first=1, last=4, records=4, alpha=0.25, step_size=0.5, smoothness=1.0)
    3.0
    """
    counts(first=first, last=last, records=records)
    checked_node(first, last)
    alpha = one(lambda _, value: checked_alpha(records, value), "alpha", alpha)
    reach = one(positive, "step_size", step_size) * one(nonnegative, "smoothness", smoothness)
    latest = np.arange(max(first, last - records + 1), last + 1)  # last round of every record in the node
    often = recurrences(alpha, records, (latest - first) // records + 1)
    away = np.where(latest == last, 1.0, decay(alpha, np.maximum(last - latest, 1)))
    return float(2 * reach * np.max((latest - 1) % records * away * often))
