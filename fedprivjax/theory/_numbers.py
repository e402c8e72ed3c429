"""Validation of the theorems' arguments, as float64 arrays. Arguments out of range raise Refusal."""

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least

_Constants = TypeVar("_Constants")


def validate(constants: Any, **checks: Callable[[str, ArrayLike], Any]) -> None:
    """Replace fields of a frozen dataclass by their checked values."""
    for name, check in checks.items():
        object.__setattr__(constants, name, check(name, getattr(constants, name)))


def single(constants: _Constants) -> _Constants:
    """Return validated constants with a float for every array. Raise Refusal if a constant has several values."""
    scalars = copy(constants)
    for name, value in vars(constants).items():
        if isinstance(value, np.ndarray):
            object.__setattr__(scalars, name, one(_array, name, value))
    return scalars


def positive_or_inf(name: str, value: ArrayLike) -> np.ndarray:
    array = _array(name, value)
    return _refuse(name, array, ~(array > 0), "positive")


def positive(name: str, value: ArrayLike) -> np.ndarray:
    array = _array(name, value)
    return _refuse(name, array, ~((array > 0) & np.isfinite(array)), "positive and finite")


def nonnegative(name: str, value: ArrayLike) -> np.ndarray:
    array = _array(name, value)
    return _refuse(name, array, ~((array >= 0) & np.isfinite(array)), "at least 0 and finite")


def at_least_one(name: str, value: ArrayLike) -> np.ndarray:
    array = _array(name, value)
    return _refuse(name, array, ~((array >= 1) & np.isfinite(array)), "at least 1 and finite")


def probability(name: str, value: ArrayLike) -> np.ndarray:
    array = _array(name, value)
    return _refuse(name, array, ~((array > 0) & (array < 1)), "between 0 and 1")


def one(check: Callable[[str, ArrayLike], np.ndarray], name: str, value: ArrayLike) -> float:
    """Return the checked value as a float. Raise Refusal if it is an array."""
    array = check(name, value)
    if array.ndim:
        raise Refusal(f"{name} must be a single number, got shape {array.shape}")
    return array.item()


def counts(**values: int) -> None:
    for name, value in values.items():
        require_at_least(name, value, 1)


def ordered(low_name: str, low: ArrayLike, high_name: str, high: ArrayLike) -> None:
    """Raise Refusal if `low > high`, apart from a relative rounding error of 1e-9."""
    low, high = np.broadcast_arrays(low, high)
    wrong = low > high * (1 + 1e-9)
    if wrong.any():
        raise Refusal(f"{low_name} must be at most {high_name} ({high[wrong][0]}), got {low[wrong][0]}")


def plain(value: Any) -> Any:
    return np.asarray(value).item() if np.ndim(value) == 0 else value


def inverse(value: ArrayLike) -> np.ndarray:
    """Return 1/value, inf at 0."""
    with np.errstate(divide="ignore"):
        return 1 / np.asarray(value, float)


def _array(name: str, value: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise Refusal(f"{name} must be a number, got {value!r}") from None


def _refuse(name: str, value: np.ndarray, wrong: np.ndarray, expected: str) -> np.ndarray:
    if wrong.any():
        raise Refusal(f"{name} must be {expected}, got {value[wrong].flat[0]}")
    return value
