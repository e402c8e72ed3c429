"""Registry of progress callbacks. A compiled program calls a callback by number, so a new one does not recompile it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import jax

_NUMBERS = count(1)
_CALLBACKS: dict[int, Callable[[int], None]] = {}


def report(number: Any, done: Any, ordered: bool = True) -> None:
    """In a traced function: call the callback of this number with the amount of finished work, on the host.

    Args:
        ordered: False if the program runs on several devices, where JAX does not order calls.
    """
    jax.debug.callback(_call, number, done, ordered=ordered)


def _call(number: Any, done: Any) -> None:
    callback = _CALLBACKS.get(int(number))
    if callback is not None:
        callback(int(done))


@contextmanager
def registered(callback: Callable[[int], None]) -> Iterator[int]:
    """Register a progress callback for the block and yield its number. Its exceptions are raised at the end.

    >>> reports = []
    >>> with registered(reports.append) as number:
    ...     jax.jit(report)(number, 3)
    >>> reports
    [3]
    """
    number, raised = next(_NUMBERS), []

    def catching(done: int) -> None:
        if raised:
            return
        try:
            callback(done)
        except BaseException as error:  # raised again in the thread that started the run
            raised.append(error)

    _CALLBACKS[number] = catching
    try:
        yield number
        jax.effects_barrier()
    finally:
        del _CALLBACKS[number]
    if raised:
        raise raised[0]
