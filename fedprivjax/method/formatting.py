"""Text of a protocol: its name and the settings that differ from the defaults."""

from dataclasses import MISSING, fields
from types import FunctionType
from typing import Any

import numpy as np

NAMED = 3  # largest number of names that are listed


def formatted(protocol: Any) -> str:
    """Return the protocol as one short line. Arrays are summarised. `repr` is complete.

    >>> from fedprivjax import DPMu2
    >>> formatted(DPMu2(mu=2.0, clip=0.5))
    'DPMu2 with clip = 0.5, mu = 2'
    """
    changed = changed_settings(protocol)
    return f"{type(protocol).__name__}{' with ' if changed else ''}{', '.join(changed)}"


def changed_settings(settings: Any, *but: str) -> list[str]:
    """Return a dataclass's settings that differ from their defaults, each as text, but those in `but`.

    Derived fields are left out.
    """
    changed = []
    for field in fields(settings):
        if field.metadata.get("derived") or field.name in but:
            continue
        value = getattr(settings, field.name)
        default: Any = None if field.default is MISSING else field.default
        if np.shape(value) != np.shape(default) or np.any(np.asarray(value) != np.asarray(default)):
            changed.append(f"{field.name} = {formatted_value(value)}")
    return changed


def formatted_value(value: Any) -> str:
    """Return the text of a setting's value. Several numbers are given by their count and range.
    Few names are listed.

    >>> formatted_value((1.0, 3.0, 2.0)), formatted_value(0.25), formatted_value("subset"), formatted_value(("a", "b"))
    ('3 numbers from 1 to 3', '0.25', 'subset', 'a, b')
    """
    if isinstance(value, str | bool) or value is None:
        return str(value)
    if np.ndim(value):
        numbers = np.asarray(value)
        if not numbers.size:
            return "no numbers"
        if numbers.dtype.kind == "U" and numbers.size <= NAMED:
            return ", ".join(numbers.ravel().tolist())
        if numbers.dtype.kind not in "iuf":
            return f"{numbers.size} values"
        return f"{numbers.size} numbers from {numbers.min():.4g} to {numbers.max():.4g}"
    if isinstance(value, FunctionType):
        return value.__qualname__.partition(".")[0]  # optax names a schedule after its factory
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
