"""Conversion of raw rows to a problem's features, and of predictions to the target's values."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called


@dataclass(frozen=True, eq=False)
class RawRows:
    """Preparation of the rows of an array. Subclasses prepare other kinds of rows. Host data, compared by identity.

    Attributes:
        width: number of prepared features, with the constant.
        bias: whether the last prepared feature is a constant 1, which raw rows do not have.
        classes: names of the classes, or empty for predicted classes as numbers.
        names: names of the prepared features, without the constant, or empty if unknown.
    """

    width: int
    bias: bool = False
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def features(self, rows: Any) -> np.ndarray:
        """Return prepared features, float32, shape [rows, width].

        Args:
            rows: prepared rows, [rows, width], or raw ones, [rows, width − 1] if `bias`. Images are flattened.

        Raises:
            Refusal: if rows are not numbers, or of another width.
        """
        flat = _flat(rows)
        if self.bias and flat.shape[1] == self.width - 1:
            out = np.ones((len(flat), self.width), np.float32)
            out[:, :-1] = flat
            return out
        if flat.shape[1] != self.width:
            raw = f", or {self.width - 1} without the constant" if self.bias else ""
            raise Refusal(f"rows must have {self.width} features{raw}, got {flat.shape[1]}")
        return flat.astype(np.float32, copy=False)

    def outcome(self, predictions: np.ndarray) -> np.ndarray:
        """Return predicted classes by name if names are known, and other predictions unchanged; shape [rows]."""
        return np.asarray(self.classes)[predictions] if self.classes else predictions

    def feature_names(self) -> list[str]:
        """Return the names of the prepared features. Unknown names are x[0], x[1], …"""
        names = list(self.names) or [f"x[{index}]" for index in range(self.width - self.bias)]
        return [*names, "constant"] if self.bias else names

    def as_mapping(self) -> dict[str, Any]:
        """Return the preparation as a mapping for JSON. `from_mapping` reads it."""
        return {"kind": "array", **{each.name: getattr(self, each.name) for each in fields(self)}}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "RawRows":
        """Return the preparation from the mapping of `as_mapping`."""
        return cls(mapping["width"], mapping["bias"], tuple(mapping["classes"]), tuple(mapping["names"]))


def _flat(rows: Any) -> np.ndarray:
    """Return rows of numbers as [rows, features]."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame | pandas.Series):
        remedy = "A DataFrame goes with data of a table without feature maps"
        raise Refusal(f"rows must be an array of features, got a {type(rows).__name__}. {remedy}")
    try:
        array = np.asarray(rows)
    except ValueError:
        raise Refusal(f"rows must have one length, got {called(rows)}") from None
    if array.dtype.kind not in "fiub":
        raise Refusal(f"rows must be numbers, got {array.dtype}. Convert them as the training data")
    if array.ndim < 2:
        raise Refusal(f"rows must be [rows, features], got shape {array.shape}")
    if not len(array):
        raise Refusal("rows must be one or more, got none")
    return array.reshape(len(array), -1)
