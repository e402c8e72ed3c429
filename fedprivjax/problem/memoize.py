"""What follows from an object that does not change, computed once."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import numpy as np


class Once:
    """An object that keeps what was computed from it."""

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """What follows from the object and the name alone, computed at the first call by this name."""
        if name not in self._known:
            self._known[name] = value = compute()
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # others get the same array
        return self._known[name]
