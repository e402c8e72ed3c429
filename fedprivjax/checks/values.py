"""Refusals shared by the whole package: one clear line, before anything is compiled."""

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal

LIST = 12  # choices, beyond which a refusal that has a suggestion names no others


def require_positive(name: str, value: Any, *, optional: bool = False, infinite: bool = False) -> None:
    """Refuse a concrete number that is not positive (NaN included); traced values pass.

    >>> require_positive("step_size", -1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: step_size must be positive, got -1.0
    """
    if optional and value is None:
        return
    if isinstance(value, bool | str | list | tuple | dict) or value is None:
        raise Refusal(f"{name} must be a positive number, got {value!r}")
    if not isinstance(value, int | float | np.number):
        return  # a tracer, an array or a placeholder of a tree transformation
    if not value > 0:
        raise Refusal(f"{name} must be positive, got {value}")
    if np.isinf(value) and not infinite:
        raise Refusal(f"{name} must be finite, got {value}")


def require_flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False.

    >>> require_flag("cancel", "false")
    Traceback (most recent call last):
    fedprivjax.Refusal: cancel must be true or false, got 'false'
    """
    if not isinstance(value, bool | np.bool_):
        raise Refusal(f"{name} must be true or false, got {value!r}")


def require_at_least(name: str, value: int, least: int) -> None:
    """Refuse an integer below `least`.

    >>> require_at_least("rounds", 0, 1)
    Traceback (most recent call last):
    fedprivjax.Refusal: rounds must be at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise Refusal(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise Refusal(f"{name} must be at least {least}, got {value}")


def require_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a name that is none of `choices`, suggesting the nearest.

    >>> require_choice("trust", "sever", ["server", "none"])
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown trust 'sever', did you mean 'server'? (known: server, none)
    """
    known = list(choices)
    if value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f", did you mean '{near[0]}'?" if near else ""
    rest = "" if near and len(known) > LIST else f" (known: {', '.join(known)})"
    raise Refusal(f"unknown {name} {value!r}{hint}{rest}")


def require_between(name: str, value: Any, low: float, high: float) -> None:
    """Refuse a number that is not strictly between two bounds (NaN included).

    >>> require_between("delta", 2.0, 0, 1)
    Traceback (most recent call last):
    fedprivjax.Refusal: delta must be between 0 and 1, got 2.0
    """
    if not isinstance(value, int | float | np.number) or not low < value < high:
        raise Refusal(f"{name} must be between {low} and {high}, got {value}")


def require_number(name: str, value: Any) -> None:
    """Refuse what is no concrete number.

    >>> require_number("noise_std", "1")
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_std must be a number, got '1'
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise Refusal(f"{name} must be a number, got {value!r}")
