"""Machines that are alike: accounting for one of each kind is enough."""

from collections.abc import Sequence

import numpy as np


def alike(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Groups of machines that agree in every column.

    A constant column costs one comparison, any other one sort of numbers, so that a million machines are no matter.

    Args:
        columns: of one or more settings, [machines] each.

    Returns:
        The first machine of every group, int [groups], and every machine's group, int [machines].

    >>> first, group = alike([np.array([5, 7, 5, 5]), np.array([1.0, 1.0, 2.0, 1.0]), np.full(4, 3)])
    >>> first.tolist(), group.tolist()
    ([0, 2, 1], [0, 2, 1, 0])
    """
    first, group = np.zeros(1, int), np.zeros(len(columns[0]), int)
    for column in columns:
        if (column == column[:1]).all():
            continue
        values, code = np.unique(column, return_inverse=True)
        _, first, group = np.unique(group * values.size + code, return_index=True, return_inverse=True)
    return first, group
