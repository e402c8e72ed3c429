"""Base class of the sections of an experiment file, and helpers for their types."""

import inspect
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict

STRUCTURAL = {
    "machines": "number of machines",
    "per_round": "machines in a round",
    "rounds": "number of rounds",
    "records": "records of each machine",
}
OWN = "module:name"  # kind of user-defined objects, given by import path
THEORY = "theory"  # value of a key that the protocol's own bound chooses


class Settings(BaseModel):
    """Base class of the sections of an experiment file: immutable, and strict about keys and types.

    Attributes:
        gathered: fields whose keys may be written in the section itself, such as those of a loss in `[problem]`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    gathered: ClassVar[tuple[str, ...]] = ()

    def but(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not validated."""
        return self.model_copy(update=changes)


def models_in(annotation) -> list[type[Settings]]:
    """Return the section classes that occur in a field's type, several for a union.

    >>> class Cells(Settings):
    ...     count: int
    >>> models_in(list[Cells] | None)
    [<class '...Cells'>]
    """
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def several(annotation) -> bool:
    """Return True if a field's type is a union of several types other than None.

    >>> several(int | list[int]), several(float | None)
    (True, False)
    """
    union = isinstance(annotation, UnionType) or get_origin(annotation) is Union
    return union and len([part for part in get_args(annotation) if part is not NoneType]) > 1


def owners(union) -> dict[str, list[str]]:
    """Return the keys of a union's members except `kind`, each with the kinds that have it."""
    members = kinds(union)
    keys = dict.fromkeys(key for model in members.values() for key in model.model_fields if key != "kind")
    return {key: [kind for kind, model in members.items() if key in model.model_fields] for key in keys}


def summaries(union) -> dict[str, str]:
    """Return the first paragraph of each kind's docstring."""
    return {kind: summary(model) for kind, model in kinds(union).items()}


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def kinds(union) -> dict[str, type[Settings]]:
    """Return the members of a union by `kind`, its discriminator."""
    return {model.model_fields["kind"].default: model for model in models_in(union)}
