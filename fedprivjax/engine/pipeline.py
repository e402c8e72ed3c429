"""A pipeline over segments of a run, or chunks of a sweep: one is copied and written while the next one is computed."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import TypeVar

from fedprivjax.engine.progress import computed, wait

Chunk = TypeVar("Chunk")
Found = TypeVar("Found")


def one_ahead(dispatch: Callable[[Chunk], Found], chunks: Iterable[Chunk]) -> Iterator[tuple[Found, float]]:
    """Yield the computed `dispatch(chunk)` and its seconds for every chunk in order, with the next one dispatched.

    A chunk that is computed before the next one is prepared is yielded at once, so that it can be stored. If a dispatch
    fails, the chunk before it is still yielded. If it is interrupted, this chunk is yielded only if it is computed.

    Args:
        dispatch: function that returns a pytree of arrays, which a device may still compute.

    Yields:
        The pytree, and the wall time in seconds from the start of its dispatch, or from the end of the chunk before it
        if that is later, to its own end.
    """
    begun: list[tuple[Found, float]] = []  # pytrees and when their dispatch began; at most two
    ended = 0.0

    def first() -> tuple[Found, float]:
        nonlocal ended
        found, began = begun.pop(0)
        wait(found)
        since, ended = max(began, ended), perf_counter()
        return found, ended - since

    for chunk in chunks:
        if begun and computed(begun[0][0]):
            yield first()
        began = perf_counter()
        try:
            begun.append((dispatch(chunk), began))
        except BaseException as error:
            if begun and (isinstance(error, Exception) or computed(begun[0][0])):
                yield first()
            raise
        if len(begun) == 2:
            yield first()
    if begun:
        yield first()


def in_turn(dispatch: Callable[[Chunk], Found], chunks: Iterable[Chunk]) -> Iterator[tuple[Found, float]]:
    """Yield as `one_ahead`, but dispatch a chunk after the one before it was used, so that the order is fixed."""
    for chunk in chunks:
        began = perf_counter()
        found = dispatch(chunk)
        wait(found)
        yield found, perf_counter() - began
