"""What listens to a run while it runs: a compiled program calls it by a number, so that another is no other program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import jax

_NUMBERS = count(1)
_LISTENING: dict[int, Callable[[int], None]] = {}


def tell(listener: Any, done: Any) -> None:
    """In a traced function: call the listener of this number with how much is done, from the host."""
    jax.debug.callback(_hear, listener, done, ordered=True)


def _hear(listener: Any, done: Any) -> None:
    hear = _LISTENING.get(int(listener))
    if hear is not None:
        hear(int(done))


@contextmanager
def listening(hear: Callable[[int], None]) -> Iterator[int]:
    """The number of a listener, which is told until the block ends; what it raises is raised at the end.

    >>> heard = []
    >>> with listening(heard.append) as number:
    ...     jax.jit(tell)(number, 3)
    >>> heard
    [3]
    """
    number, raised = next(_NUMBERS), []

    def carefully(done: int) -> None:
        if raised:
            return
        try:
            hear(done)
        except BaseException as error:  # raised where the run was started, not in the device's thread
            raised.append(error)

    _LISTENING[number] = carefully
    try:
        yield number
        jax.effects_barrier()
    finally:
        del _LISTENING[number]
    if raised:
        raise raised[0]
