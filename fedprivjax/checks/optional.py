"""Members that an object need not have, with defaults that stand beside their readers."""

from collections.abc import Iterator
from inspect import getattr_static
from typing import Any

MISSING = object()


class Optionals:
    """Members of a protocol: its own where it has them, else those of this class.

    >>> class Costs(Optionals):
    ...     bits = 32
    >>> class Signs:
    ...     bits = 1
    >>> Costs(Signs()).bits, Costs(object()).bits
    (1, 32)
    """

    def __init__(self, protocol: Any):
        self._protocol = protocol

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            for one in self._holders():
                if getattr_static(one, name, MISSING) is not MISSING:
                    return getattr(one, name)
        return object.__getattribute__(self, name)

    def _holders(self) -> Iterator[Any]:
        """Yield the objects whose members come before those of this class."""
        yield self._protocol


def names_of(*kinds: type[Optionals]) -> tuple[str, ...]:
    """Return the names of the members that these classes read."""
    return tuple(name for kind in kinds for name in vars(kind) if not name.startswith("_"))
