"""Ctrl-C on the command line: one line that says how to resume, and exit status 130."""

import os
import sys
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from typer.core import TyperGroup


class Stopped(Exception):
    """Raised on Ctrl-C, with the line that is printed."""


class StoppableCommands(TyperGroup):
    """Commands whose interruption raises `Stopped`, which typer would otherwise swallow."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("stopped") from None


def leave(status: int) -> None:
    """End the process at once: a program that still runs in another thread would crash a normal shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def interrupted_again() -> Iterator[None]:
    """Interrupt again a moment later if Ctrl-C arrives in code that cannot raise, such as a JAX callback."""
    before = sys.unraisablehook

    def report(unraisable) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            Timer(0.1, interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before
