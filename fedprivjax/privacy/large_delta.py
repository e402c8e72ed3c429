"""Warning of a δ that is too large for the data."""

from collections.abc import Callable
from typing import Any

import numpy as np


def large_delta(delta: float, sizes: Any, name: Callable[[int], str] = "machine {}".format) -> str:
    """A warning, as text, if δ exceeds 1/n for a machine of n records; empty if it does not.

    At δ = 1/n a mechanism that publishes one of a machine's n records, chosen at random, is (0, δ)-DP.

    Args:
        sizes: numbers of records, int, shape [machines].
        name: name of a machine, by its index.

    >>> large_delta(0.01, [184, 50])
    'delta exceeds 1/n on 1 of 2 machines, got 0.01 where machine 0 has n = 184 records. Set delta below 0.0054'
    >>> large_delta(1e-5, [184, 50])
    ''
    """
    sizes = np.asarray(sizes)
    over = np.flatnonzero(delta * sizes > 1)
    if not over.size:
        return ""
    worst = int(np.argmax(sizes))
    where = f"{name(worst)} has n = {sizes[worst]} records"
    got = f"got {delta:g} where {where}. Set delta below {_rounded_down(1 / sizes[worst])}"
    return f"delta exceeds 1/n on {over.size} of {sizes.size} machines, {got}"


def large_delta_of_machines(delta: float, machines: int) -> str:
    """Return a warning as text if δ exceeds 1/M for a guarantee of one of M machines, else an empty text.

    >>> large_delta_of_machines(0.01, 500)
    'delta exceeds 1/M, got 0.01 where M = 500 machines are protected one by one. Set delta below 0.002'
    >>> large_delta_of_machines(1e-5, 500)
    ''
    """
    if not delta * machines > 1:
        return ""
    where = f"M = {machines} machines are protected one by one"
    return f"delta exceeds 1/M, got {delta:g} where {where}. Set delta below {_rounded_down(1 / machines)}"


def _rounded_down(number: float) -> str:
    """Return the number rounded down to two significant digits, as text."""
    scale = 10.0 ** (np.floor(np.log10(number)) - 1)
    return f"{np.floor(number / scale * (1 + 1e-12)) * scale:.2g}"
