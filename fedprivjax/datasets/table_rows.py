"""Preparation of a table's rows: the features of its columns, and the units of its target."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import lazy_loader
import numpy as np

from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.datasets.columns import Feature, complete, numeric
from fedprivjax.datasets.dataset import with_constant
from fedprivjax.datasets.preparation import Columns, Frame, Preparation, checked
from fedprivjax.problem.raw_rows import RawRows

pd: Any = lazy_loader.load("pandas")

WARNED = 10  # largest number of columns that have a warning each
SLACK = 1e-9  # relative rounding error of a norm that is not reported


@dataclass(frozen=True, eq=False)
class TableRows(RawRows):
    """Preparation of the rows of a frame, as those of the table that a dataset was made from.

    Attributes:
        columns: conversion of each column to features, in order.
        fill: public values for missing ones, by column.
        listed: columns whose categories are public.
        bound: bound on the norm of a row's features, before the constant. Longer rows are shortened to it.
        middle, scale: a predicted number p of a scaled target is middle + scale·p in the target's units.
    """

    columns: tuple[Feature, ...] = ()
    fill: Mapping[str, Any] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    bound: float = inf
    middle: float = 0.0
    scale: float = 1.0

    def features(self, rows: Any) -> np.ndarray:
        """Return prepared features, float32, shape [rows, width].

        Args:
            rows: frame with the columns of the features, or an array of prepared features, [rows, width].

        Raises:
            Refusal: if a column is missing, or has a value that training would have rejected, such as a new category.
        """
        if not isinstance(rows, pd.DataFrame):
            return RawRows(self.width).features(rows)
        frame = self._complete(rows)
        matrix = matrix_of(self.columns, frame)
        for each, moved in outside(self.columns, frame):
            warn(f"{moved} values of {each.column!r} in rows are outside of its bounds {limits(each)}: moved to them")
        short = np.count_nonzero(np.linalg.norm(matrix, axis=1) > self.bound * (1 + SLACK))
        if short:
            warn(f"{short} rows have features of norm above feature_bound = {self.bound:g}: shortened to it")
        matrix = shortened(matrix, self.bound)
        return with_constant(matrix) if self.bias else matrix.astype(np.float32)

    def outcome(self, predictions: np.ndarray) -> np.ndarray:
        return super().outcome(predictions) if self.classes else self.middle + self.scale * predictions

    def as_mapping(self) -> dict[str, Any]:
        mapping = super().as_mapping()
        return mapping | {"kind": "table", "columns": [column._asdict() for column in self.columns]}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "TableRows":
        numbers = {name: float(mapping[name]) for name in ("bound", "middle", "scale")}
        columns = tuple(_feature_of(column) for column in mapping["columns"])
        return cls(**{**_tuples(mapping), **numbers, "columns": columns})

    def _complete(self, rows: Frame) -> Frame:
        """Return the columns of the features without missing values."""
        given = checked(Columns(rows, {}, "rows"))
        names = [column.column for column in self.columns]
        bare = [name for name in names if name not in given.frame]
        if bare:
            raise Refusal(f"rows must have all columns of the features, got none of {', '.join(map(repr, bare[:12]))}")
        known = {column.column: column.categories or () for column in self.columns if column.column in self.listed}
        return complete(given, names, Preparation("", fill=self.fill, categories=known))


def outside(columns: Iterable[Feature], frame: Frame) -> Iterator[tuple[Feature, int]]:
    """Yield the columns that have values outside of their public bounds, and the number of these values."""
    for each in columns:
        if each.categories is None and each.low > -inf:
            values = numeric(each.column, frame[each.column])
            moved = int(np.count_nonzero((values < each.low) | (values > each.high)))
            if moved:
                yield each, moved


def warn_of_clipped(columns: Iterable[Feature], frame: Frame) -> None:
    """Warn of training and test values outside of public bounds, by column, the most frequent first."""
    found = sorted(outside(columns, frame), key=lambda pair: -pair[1])
    for each, moved in found[:WARNED]:
        rows = f"{100 * moved / len(frame):.3g}% of {len(frame)} rows lie outside {limits(each)} and are moved to it"
        warn(f"{each.column}: {rows}. No guarantee covers this count")
    if found[WARNED:]:
        warn(f"{len(found) - WARNED} more columns have values outside of their bounds. No guarantee covers this count")


def limits(column: Feature) -> str:
    """Return the public bounds of a column as text."""
    return f"[{column.low:g}, {column.high:g}]"


def feature_names(columns: Sequence[Feature]) -> tuple[str, ...]:
    """Return the name of each feature: the column's, or "column=category".

    >>> feature_names([Feature("age"), Feature("likes", ("no", "yes"))])
    ('age', 'likes=no', 'likes=yes')
    """
    return tuple(
        name
        for each in columns
        for name in ([each.column] if each.categories is None else [f"{each.column}={one}" for one in each.categories])
    )


def matrix_of(columns: Sequence[Feature], frame: Frame) -> np.ndarray:
    """Return the features of columns, float64, shape [rows, numbers]."""
    return np.concatenate([column.of(frame) for column in columns], axis=1).astype(float)


def shortened(matrix: np.ndarray, bound: float) -> np.ndarray:
    """Return rows of features, with those of a norm above `bound` scaled to it."""
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix * np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny))


def _tuples(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in mapping.items() if name != "kind"
    }


def _feature_of(mapping: Mapping[str, Any]) -> Feature:
    numbers = {name: float(mapping[name]) for name in ("low", "high", "middle", "scale", "length")}
    categories = mapping["categories"]
    return Feature(**{**mapping, **numbers, "categories": None if categories is None else tuple(categories)})
