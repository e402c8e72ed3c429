"""Ctrl-C on the command line: one line with the command that resumes, and exit status 130."""

import os
import sys
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from typer.core import TyperGroup

from fedprivjax.checks.values import require_choice


class Stopped(Exception):
    """Raised on Ctrl-C, with the line to print."""


class StoppableCommands(TyperGroup):
    """Commands that raise `Stopped` on Ctrl-C, which typer would otherwise handle silently.

    An unknown command raises Refusal, which names the nearest one.
    """

    def resolve_command(self, ctx, args):
        require_choice("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("stopped") from None


def leave(status: int) -> None:
    """End the process at once, since a program that still runs in another thread would crash a normal shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def stopped_by_one_line() -> Iterator[None]:
    """Print one line on Ctrl-C, by default "stopped", and exit with status 130."""
    try:
        with interrupted_again():
            yield
    except (Stopped, KeyboardInterrupt) as stop:
        print(str(stop) or "stopped", file=sys.stderr)
        leave(130)


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
