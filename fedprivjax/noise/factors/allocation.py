"""Allocation of noise to the groups of nodes of `ReducedTrees`: standard deviations relative to the first group's."""

from math import sqrt

import numpy as np

from fedprivjax.noise.factors.reduced import Groups

ALLOCATIONS = {
    "optimal": "the smallest noise in the momentum at the target privacy",
    "paper": "that of Tran & Cutkosky, from their counts of the nodes that contain a record",
}


def optimal_stds(squares: np.ndarray, variances: np.ndarray) -> Groups:
    """Return τ with `τ_k² ∝ √(B_k/A_k)`, which minimises the noise `Σ A_k·τ_k²` for a fixed `Σ B_k/τ_k²`.

    A group without records has no noise.

    Args:
        squares: B, squared contribution of every record to each group, shape [records, groups].
        variances: A, each group's contribution to the momentum's noise variance, shape [rounds, groups].

    >>> optimal_stds(np.array([[16.0, 1.0, 0, 0, 0]]), np.array([[1.0, 1.0, 1.0, 0, 0]]))
    Groups(anchors=1.0, later_anchors=0.5, differences=0.0, later_differences=0.0, residuals=0.0)
    """
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)
    stds = np.divide(exposed, weight, out=np.ones_like(weight), where=weight > 0) ** 0.25
    stds = np.where(exposed > 0, stds, 0.0)
    return Groups(*(stds / stds[0]).tolist())


def total_squares(squares: np.ndarray, stds: Groups) -> np.ndarray:
    """Return `Σ_k B_k/τ_k²` of every record over the groups, [records]; inf if a group with the record has no noise.

    Args:
        squares: B of every record, shape [records, groups].
        stds: τ.

    >>> total_squares(np.array([[4.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]), Groups(2.0, 0.0, 1.0, 1.0, 1.0)).tolist()
    [1.0, inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, squares / np.square(stds), 0.0).sum(axis=1)


def paper_stds(epoch: int, rounds: int, drift: float) -> Groups:
    """Return the standard deviations of Theorem 8, `√V·δ` relative to the first, with `V_> = 4T/(3N)·V_<`.

    `V_>` is for nodes that end after 2N and for all residuals. δ is 4G for anchors and 2ηNL for the other nodes.

    Args:
        epoch: N.
        rounds: T.
        drift: η·L/G.

    Source: Tran & Cutkosky 2022, Theorem 8.

    >>> paper_stds(epoch=8, rounds=24, drift=0.25)
    Groups(anchors=1.0, later_anchors=2.0, differences=1.0, later_differences=2.0, residuals=2.0)
    """
    later, small = sqrt(4 * rounds / (3 * epoch)), drift * epoch / 2
    return Groups(1.0, later, small, later * small, later * small)
