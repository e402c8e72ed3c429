"""Tree nodes that cover a window of the last rounds, and the normals that a round samples for them."""

from typing import Any, NamedTuple

import numpy as np


class Normals(NamedTuple):
    """Standard normals of a round: of both windows' nodes, and of the residuals' newest node.

    Attributes:
        nodes: normals of the anchors' and of the differences' nodes, 0 in empty slots, [2, slots, d].
        age: rounds from each node's end to now, int [slots].
        later: True for nodes that end after 2N, bool [slots].
        residual: normals of the residuals' node, [d].
    """

    nodes: Any
    age: Any
    later: Any
    residual: Any


def window(round: Any, epoch: int, numbers: Any = np) -> tuple[np.ndarray, Any, Any]:
    """Return the nodes that cover the last `epoch` rounds, or all rounds if there are fewer (the paper's COMPOSE).

    Returns:
        level, int [slots], and index, int [..., slots], of nodes [index·2^level + 1, (index + 1)·2^level]; and a mask
        of the filled slots, bool [..., slots].

    >>> level, index, filled = window(9, 6)
    >>> [(i * 2**k + 1, (i + 1) * 2**k) for k, i in zip(level[filled].tolist(), index[filled].tolist())]
    [(4, 4), (9, 9), (5, 8)]
    """
    left, right = numbers.maximum(round - epoch, 0), numbers.asarray(round)
    index, filled = [], []
    for _ in range(epoch.bit_length()):
        taken = (left < right) & (left % 2 == 1)
        index.append(left)
        filled.append(taken)
        left = left + taken
        taken = (left < right) & (right % 2 == 1)
        right = right - taken
        index.append(right)
        filled.append(taken)
        left, right = left >> 1, right >> 1
    return np.repeat(np.arange(epoch.bit_length()), 2), numbers.stack(index, -1), numbers.stack(filled, -1)


def empty(round: Any, epoch: int) -> Any:
    """Return True if a round's node of the residuals' tree is empty: a leaf at an anchor, which needs no noise."""
    return ((round - 1) % epoch == 0) & (round % 2 == 1)
