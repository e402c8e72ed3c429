"""Per-machine numbers stored once per group of identical machines, and the grouping of identical machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.rounding import up
from fedprivjax.problem.program import Once

MOST = 2**31  # machines in a file
LISTED = 4096  # largest number of machines whose groups are saved


@dataclass(frozen=True, eq=False)
class Grouped:
    """One number per machine, stored once for every group of machines that have the same number.

    Attributes:
        values: number of each group, float64 [groups].
        counts: number of machines in each group, int [groups].
        group: index of each machine's group, int [machines]. None if the groups were read from a file without these
            indices.

    >>> Grouped.of([2.0, 1.0, 2.0]).counts.tolist()
    [1, 2]
    """

    values: np.ndarray
    counts: np.ndarray
    group: np.ndarray | None = None

    def __str__(self) -> str:
        return f"{self.machines} machines from {up(self.min, 4)} to {up(self.max, 4)}, median {up(self.median, 4)}"

    __repr__ = __str__

    @classmethod
    def of(cls, each) -> "Grouped":
        """Return the groups of an array of shape [machines]: machines with the same number are one group."""
        each = np.asarray(each, float)
        if each.size and (each == each[0]).all():
            return cls(each[:1].copy(), np.array([each.size]), np.zeros(each.size, np.int32))
        values, group, counts = np.unique(each, return_inverse=True, return_counts=True)
        return cls(values, counts, group.astype(np.int32))

    @property
    def machines(self) -> int:
        """Number of machines in all groups together."""
        return int(self.counts.sum())

    @cached_property
    def each(self) -> np.ndarray:
        """The number of each machine separately, float64 [machines], read-only.

        Raises:
            Refusal: if machines differ and their groups were not saved.
        """
        if self.group is None and self.values.size > 1:
            raise Refusal(
                f"machines must be at most {LISTED} for each machine's number to be read from a file, "
                f"got {self.machines}"
            )
        each = np.repeat(self.values, self.counts) if self.group is None else self.values[self.group]
        each.setflags(write=False)
        return each

    @property
    def max(self) -> float:
        return float(self.values.max())

    @property
    def min(self) -> float:
        return float(self.values.min())

    @property
    def median(self) -> float:
        """Median over machines, each of which has one number."""
        order = np.argsort(self.values)
        upto = np.cumsum(self.counts[order])
        places = np.array([(upto[-1] - 1) // 2, upto[-1] // 2])
        return float(self.values[order][np.searchsorted(upto, places, side="right")].mean())

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Grouped":
        """Return the same groups with other numbers: a function applied to each group's number."""
        return replace(self, values=np.asarray(function(self.values), float))

    def as_mapping(self) -> dict[str, list]:
        """Return the groups as a mapping that JSON can store.

        Above 4096 machines, the mapping does not say which machine is in which group.
        """
        listed = self.group is not None and self.values.size > 1 and self.machines <= LISTED
        group = {"group": np.asarray(self.group).tolist()} if listed else {}
        return {"values": self.values.tolist(), "counts": self.counts.tolist(), **group}

    @classmethod
    def from_mapping(cls, mapping) -> "Grouped":
        """Return the groups that `as_mapping` saved.

        Raises:
            ValueError: if the mapping is inconsistent, such as a group index for too few machines.
        """
        group = np.array(mapping["group"], np.int32) if "group" in mapping else None
        found = cls(np.array(mapping["values"], float), np.array(mapping["counts"], int), group)
        if found.values.shape != found.counts.shape or found.values.ndim != 1 or not found.counts.size:
            raise ValueError("values and counts must have one length")
        if found.counts.min() < 1 or found.counts.sum(dtype=float) > MOST:
            raise ValueError(f"counts must be positive, with a sum of at most {MOST}")
        if group is not None and not np.array_equal(np.bincount(group, minlength=found.counts.size), found.counts):
            raise ValueError("group must have as many machines as counts")
        return found


def grouped_once(keeper: Once, array: np.ndarray, compute: Callable[[np.ndarray, Any], np.ndarray]) -> Grouped:
    """Return `Grouped.of(compute(array, keeper))`, computed once per array object.

    `keeper` also stores the array, so that its id is not reused.
    """
    return keeper.once((compute, id(array)), lambda: (array, Grouped.of(compute(array, keeper))))[1]


def group_identical(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return groups of machines that agree in every column.

    A constant column costs one comparison, small integers are counted, and other columns are sorted. This is fast
    enough for a million machines.

    Args:
        columns: one or more settings, each of shape [machines].

    Returns:
        The first machine of every group, int [groups], and every machine's group, int [machines].

    >>> first, group = group_identical([np.array([5, 7, 5, 5]), np.array([1.0, 1.0, 2.0, 1.0]), np.full(4, 3)])
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
    """Return the index of the first entry of each distinct value, ascending, and each entry's rank among the values.

    Small integers are counted, other values are sorted.

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
    first[code[::-1]] = np.arange(column.size)[::-1]  # reversed, so that the first place is written last
    return first, code
