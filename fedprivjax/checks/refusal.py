"""The exception raised for invalid input. Any other exception indicates a bug."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Refusal(ValueError):
    """Settings or data that cannot be used: one line with the name, what was expected, and what was given.

    Raised before anything is compiled. The command line prints the line and exits with status 2.

    Attributes:
        machine: index of the machine that the line names as "machine <index>", or None.
    """

    __module__ = "fedprivjax"  # the name that users import it by

    def __init__(self, *args: object, machine: int | None = None):
        super().__init__(*args)
        self.machine = machine


class Undefined(Refusal, TypeError):
    """A method that a custom class must define and does not."""


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put a place, such as a section of a file, before the line of a Refusal raised in the block.

    >>> with within("[[protocol]] 'ours'"):
    ...     raise Refusal("clip must be positive, got -1.0")
    Traceback (most recent call last):
    fedprivjax.Refusal: [[protocol]] 'ours': clip must be positive, got -1.0
    """
    try:
        yield
    except Refusal as refusal:
        refusal.args = (f"{place}: {refusal}",)
        raise


@contextmanager
def clients_named(names: Sequence[str]) -> Iterator[None]:
    """Name the client, in place of its machine's index, in a Refusal raised in the block.

    Args:
        names: of the clients, in the order of their machines; empty if they have none.

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
