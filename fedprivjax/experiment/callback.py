"""The callback of `[evaluation]`: a user-defined function, imported by path."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.names import Unimported, cause, resolve


@dataclass(frozen=True)
class Callback:
    """A function (index, round, metrics) whose exceptions are raised as a Refusal that names it.

    Attributes:
        path: its import path.
        function: the imported function.
    """

    path: str
    function: Callable[[dict[str, Any], int, dict[str, float]], Any]

    def __call__(self, index: dict[str, Any], round: int, metrics: dict[str, float]) -> None:
        try:
            self.function(index, round, metrics)
        except Exception as error:
            how = "Finished chunks are stored, so a run into a folder goes on with --resume"
            raise Refusal(f"callback {self.path!r} must not raise an error, got {cause(error)}. {how}") from error


def callback_of(path: str, context: Mapping[str, Path | Any] | None) -> Callback | Unimported:
    """Return the callback of a path "module:function", or `Unimported` for finished results.

    Raises:
        Refusal: if it cannot be imported, or cannot be called with (index, round, metrics).
    """
    wanted = f'callback {path!r} must be "module:function" of a function (index, round, metrics)'
    if ":" not in path:
        raise Refusal(f"{wanted}, got no colon")
    found = resolve("callback", path, {}, context)
    if isinstance(found, Unimported):
        return found
    if not callable(found):
        raise Refusal(f"{wanted}, got {found!r}")
    try:
        inspect.signature(found).bind({}, 0, {})
    except TypeError as error:
        raise Refusal(f"{wanted}, got one with {error}") from None
    except ValueError:  # some functions of C extensions have no signature
        pass
    return Callback(path, found)
