"""Losses, models and constraint sets of one's own, by import path."""

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.names import Unimported, resolve


def resolved(what: str, raw: Any, info: ValidationInfo) -> Any:
    """A section of something of one's own, with what its path stands for as `found`.

    Args:
        what: "loss", "model" or "constraint"; the path stands under `<what>_path`.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get(f"{what}_path"), str):
        return raw
    return {**raw, "found": resolve(what, raw[f"{what}_path"], {}, info.context)}


def made(what: str, path: str, found: Any, options: Mapping[str, Any], kind: type) -> Any:
    """What a class or a function makes of its options; what is of the kind already stays.

    Raises:
        Refusal: options that it does not take, or lacks, or for what takes none; or it was not imported.
    """
    if isinstance(found, Unimported):
        found()
    if isinstance(found, kind) or not (inspect.isclass(found) or inspect.isroutine(found)):
        if options:
            raise Refusal(f"{what} {path!r} takes no options, got {next(iter(options))!r}")
        return found
    known = inspect.signature(found).parameters
    if all(each.kind is not each.VAR_KEYWORD for each in known.values()):
        for option in options:
            require_choice(f"option of {what} {path}", option, known)
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise Refusal(f"{what} {path!r} must be given its options in {what}_options, got {error}") from None
    return found(**options)
