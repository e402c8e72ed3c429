"""Memoised values of immutable objects."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import numpy as np


class Once:
    """Base class of objects that cache values computed from them.

    Copies and pickles leave the cached values out: a public schedule caches values of private partitions and samples.
    """

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Return the cached value of this name, computed at the first call from the object and name only."""
        if name not in self._known:
            self._known[name] = value = compute()
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # callers share the array
        return self._known[name]
