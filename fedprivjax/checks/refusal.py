"""The exception raised for invalid input, and warnings that point to the user's code.

Any other exception indicates a bug.
"""

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fedprivjax.checks.printable import message_text

PACKAGE = __name__.partition(".")[0]


class Refusal(ValueError):
    """Exception for invalid settings or data. Its one-line message has the name, the condition and the given value.

    Raised before anything is compiled. The command line prints the message and exits with status 2. The text of the
    message has no control characters, and at most 200 characters of a value.

    Attributes:
        machine: index of the machine that the message names as "machine <index>", or None.
    """

    __module__ = "fedprivjax"  # the public module

    def __init__(self, *args: object, machine: int | None = None):
        super().__init__(*args)
        self.machine = machine

    def __str__(self) -> str:
        return message_text(Exception.__str__(self))

    @property
    def setting(self) -> str:
        """Name of the setting that the message is about.

        >>> Refusal("clip must be positive, got -1.0").setting, Refusal("unknown trust 'sever'").setting
        ('clip', 'trust')
        """
        found = re.match(r"(?:unknown )?(\w+)", str(self))
        return found.group(1) if found else ""


class Undefined(Refusal, TypeError):
    """A method is missing that a custom class must define."""


@contextmanager
def within(place: str | Callable[[Refusal], str]) -> Iterator[None]:
    """Prefix the message of a Refusal raised in the block with a place, such as a section of a file.

    Args:
        place: the place, or a function that finds it from the Refusal.

    >>> with within("[[protocol]] 'ours'"):
    ...     raise Refusal("clip must be positive, got -1.0")
    Traceback (most recent call last):
    fedprivjax.Refusal: [[protocol]] 'ours': clip must be positive, got -1.0
    """
    try:
        yield
    except Refusal as refusal:
        refusal.args = (f"{place(refusal) if callable(place) else place}: {refusal}",)
        raise


@contextmanager
def clients_named(names: Sequence[str]) -> Iterator[None]:
    """Replace the machine's index by its client's name in a Refusal raised in the block.

    Args:
        names: names of the clients in the order of their machines, or empty if there are none.

    >>> with clients_named(["north", "south"]):
    ...     raise Refusal("shares must be at most the 4 of machine 1, got 5", machine=1)
    Traceback (most recent call last):
    fedprivjax.Refusal: shares must be at most the 4 of client 'south', got 5
    """
    try:
        yield
    except Refusal as refusal:
        if refusal.machine is not None and names:
            refusal.args = (str(refusal).replace(f"machine {refusal.machine}", f"client {names[refusal.machine]!r}"),)
            refusal.machine = None
        raise


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
