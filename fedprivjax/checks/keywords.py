"""Validation of keyword arguments. Messages name the nearest valid keyword."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fedprivjax.checks.values import require_keywords

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def known_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function with a check of its keywords. Editors and `help` show the original signature.

    >>> @known_keywords
    ... def walk(start, *, rounds=1):
    ...     return start + rounds
    >>> walk(1, rounds=2), str(inspect.signature(walk))
    (3, '(start, *, rounds=1)')
    >>> walk(1, round=2)
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown setting of walk 'round', did you mean 'rounds'? (known: start, rounds)
    """
    known = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        require_keywords(function.__name__, options, known)
        return function(*args, **options)

    return called
