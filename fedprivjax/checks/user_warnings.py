"""Warnings, at the line of whoever called the package."""

import inspect
import warnings

PACKAGE = __name__.partition(".")[0]


def warn(message: str) -> None:
    """Warn of something at the first line outside of the package that led to it."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
