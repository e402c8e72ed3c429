"""User-defined losses, models, constraint sets and participation schemes, by import path."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.names import Unimported, resolve
from fedprivjax.experiment.section import Settings


class Imported(Settings):
    """Base class of sections with a user-defined object, given by import path.

    Attributes:
        found: imported object, or `Unimported`.
        what: role of the object in messages; the options of "loss" are in `loss_options`.
        paths: key of the import path of each imported field.
    """

    what: ClassVar[str]
    paths: ClassVar[Mapping[str, str]]
    found: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any, info: ValidationInfo) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        given = {field: raw[key] for field, key in cls.paths.items() if isinstance(raw.get(key), str)}
        return {**raw, **{field: resolve(cls.what, path, {}, info.context) for field, path in given.items()}}

    def imported(self, kind: type, options: Mapping[str, Any]) -> Any:
        """Return the user-defined object, made with its options.

        Raises:
            Refusal: if options are unknown or missing, or the object is not a `kind`.
        """
        path = getattr(self, self.paths["found"])
        given = made(self.what, path, self.found, options, kind)
        if not isinstance(given, kind):
            raise Refusal(f"{self.what} {path!r} must be a fedprivjax.{kind.__name__}, got {given!r}")
        return given


def made(what: str, path: str, found: Any, options: Mapping[str, Any], kind: type) -> Any:
    """Call a user-defined class or function with its options. An object of class `kind` is returned unchanged.

    Raises:
        Refusal: if options are unknown, missing or not allowed, or the object is not imported.
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
