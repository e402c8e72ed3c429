"""A number for every machine, with machines that are alike held once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Grouped:
    """One number for each machine, as groups of machines that share it.

    Attributes:
        values: each group's number, float64 [groups].
        counts: machines in each group, int [groups].
        group: the group of each machine, int [machines]; None where it is no longer known which machine is which.

    >>> Grouped.of([2.0, 1.0, 2.0]).counts.tolist()
    [1, 2]
    """

    values: np.ndarray
    counts: np.ndarray
    group: np.ndarray | None = None

    def __str__(self) -> str:
        return f"{self.machines} machines from {self.min:.4g} to {self.max:.4g}, median {self.median:.4g}"

    __repr__ = __str__

    @classmethod
    def of(cls, each) -> "Grouped":
        """From one number for each machine, [machines]."""
        each = np.asarray(each, float)
        if each.size and (each == each[0]).all():
            return cls(each[:1].copy(), np.array([each.size]), np.zeros(each.size, np.int32))
        values, group, counts = np.unique(each, return_inverse=True, return_counts=True)
        return cls(values, counts, group.astype(np.int32))

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return int(self.counts.sum())

    @cached_property
    def each(self) -> np.ndarray:
        """Every machine's number, float64 [machines], read-only; in the order of groups where `group` is None."""
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
        """The median over machines."""
        order = np.argsort(self.values)
        upto = np.cumsum(self.counts[order])
        places = np.array([(upto[-1] - 1) // 2, upto[-1] // 2])
        return float(self.values[order][np.searchsorted(upto, places, side="right")].mean())

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> "Grouped":
        """Another number for each group; groups stay as they are."""
        return replace(self, values=np.asarray(function(self.values), float))

    def as_mapping(self) -> dict[str, list]:
        """The groups as JSON takes them, without which machine is in which."""
        return {"values": self.values.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def from_mapping(cls, mapping) -> "Grouped":
        """From `as_mapping`."""
        return cls(np.array(mapping["values"], float), np.array(mapping["counts"], int))
