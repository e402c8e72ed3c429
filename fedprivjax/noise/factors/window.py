"""Which nodes of a tree make up a window, the last rounds of so many, and the normals that a round draws for them."""

from typing import Any, NamedTuple

import numpy as np


class Normals(NamedTuple):
    """A round's standard normals: of both windows' nodes, and of the residuals' newest.

    Attributes:
        nodes: of the anchors' and of the differences', 0 in slots that nothing fills, [2, slots, d].
        age: rounds from each node's end to now, int [slots].
        later: whether it ends after 2N, bool [slots].
        residual: [d].
    """

    nodes: Any
    age: Any
    later: Any
    residual: Any


def window(round: Any, epoch: int, numbers: Any = np) -> tuple[np.ndarray, Any, Any]:
    """The nodes that make up the last `epoch` rounds, or all rounds so far where these are fewer: COMPOSE, in slots.

    Returns:
        level, int [slots], and index, int [..., slots], of nodes [index·2^level + 1, (index + 1)·2^level]; and which
        slots are filled, bool [..., slots].

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
    """Whether a round's node of the residuals' tree holds nothing: a leaf at an anchor, which needs no noise."""
    return ((round - 1) % epoch == 0) & (round % 2 == 1)
