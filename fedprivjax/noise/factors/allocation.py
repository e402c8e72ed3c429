"""How noise is shared out over groups of nodes: the standard deviations of all, relative to the first group's."""

from math import sqrt

import numpy as np

from fedprivjax.noise.factors.windowed import Groups

ALLOCATIONS = {
    "optimal": "the least noise in the momentum at the privacy that is asked for",
    "paper": "Tran & Cutkosky's, from their counts of the nodes that hold a record",
}


def optimal(squares: np.ndarray, variances: np.ndarray) -> Groups:
    """`τ_k² ∝ √(B_k/A_k)`, least of `Σ A_k·τ_k²` at a given `Σ B_k/τ_k²`; 0 for groups that no record enters.

    Args:
        squares: B, what the most exposed record of each group contributes, [records, groups].
        variances: A, each group's part of the momentum's noise, [rounds, groups].

    >>> optimal(np.array([[16.0, 1.0, 0, 0, 0]]), np.array([[1.0, 1.0, 1.0, 0, 0]]))
    Groups(anchors=1.0, later_anchors=0.5, differences=0.0, later_differences=0.0, residuals=0.0)
    """
    exposed, weight = squares.max(axis=0), variances.mean(axis=0)
    stds = np.divide(exposed, weight, out=np.ones_like(weight), where=weight > 0) ** 0.25
    stds = np.where(exposed > 0, stds, 0.0)
    return Groups(*(stds / stds[0]).tolist())


def shared(squares: np.ndarray, stds: Groups) -> np.ndarray:
    """`Σ_k B_k/τ_k²` of every record, [records]; infinite where a group that it enters has no noise.

    >>> shared(np.array([[4.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]), Groups(2.0, 0.0, 1.0, 1.0, 1.0)).tolist()
    [1.0, inf]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, squares / np.square(stds), 0.0).sum(axis=1)


def paper(epoch: int, rounds: int, drift: float) -> Groups:
    """`√V·δ` with V of nodes that end by 2N and of later ones, `V_> = 4T/(3N)·V_<`; residuals have V_> throughout.

    δ is 4G for the anchors' nodes, and 2ηNL for the others'.

    Args:
        drift: η·L/G.
    """
    later, small = sqrt(4 * rounds / (3 * epoch)), drift * epoch / 2
    return Groups(1.0, later, small, later * small, later * small)
