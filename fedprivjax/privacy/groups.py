"""Machines that are alike: accounting for one of each kind is enough."""

from collections.abc import Sequence

import numpy as np


def alike(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Groups of machines that agree in every column.

    A constant column costs one comparison, small integers are counted, any other column is sorted: a million machines
    are no matter.

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
        _, code = codes(column)
        first, group = codes(group * (int(code.max()) + 1) + code)
    return first, group


def codes(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct value occurs first, in the values' order, and which value each entry has.

    Small integers are counted, all else is sorted.

    >>> first, code = codes(np.array([7, 3, 7]))
    >>> first.tolist(), code.tolist()
    ([1, 0], [1, 0, 1])
    """
    if not np.issubdtype(column.dtype, np.integer) or np.ptp(column) > 4 * column.size:
        _, first, code = np.unique(column, return_index=True, return_inverse=True)
        return first, code
    shifted = column - column.min()
    present = np.bincount(shifted) > 0
    code = (np.cumsum(present) - 1)[shifted]
    first = np.empty(int(present.sum()), int)
    first[code[::-1]] = np.arange(column.size)[::-1]  # the last that is written is the first
    return first, code
