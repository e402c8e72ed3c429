"""Warnings that point to the user's code."""

import inspect
import sys
import warnings

from fedprivjax.checks.printable import message_text

PACKAGE = __name__.partition(".")[0]


def warn(message: str) -> None:
    """Issue a warning that points to the innermost calling line outside the package.

    Of the processes of one job (`jax.distributed`), the first alone warns.
    """
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized() and jax.process_index() > 0:
        return
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message_text(message), stacklevel=level)
