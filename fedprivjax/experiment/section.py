"""What all sections of an experiment file share."""

from types import NoneType, UnionType
from typing import ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict

STRUCTURAL = {
    "machines": "machines in all",
    "per_round": "machines in a round",
    "rounds": "rounds",
    "records": "of a machine",
}
OWN = "module:name"  # the kind of what is one's own, by import path
THEORY = "theory"  # in the place of a number that a protocol's own bound chooses


class Settings(BaseModel):
    """A section of an experiment file: unknown keys and other types are refused, nothing changes after reading.

    Attributes:
        gathered: fields whose keys a file may write in the section itself, such as a loss's in `[problem]`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    gathered: ClassVar[tuple[str, ...]] = ()


def models_in(annotation) -> list[type[Settings]]:
    """The sections that a field's type is made of, several where it is a union.

    >>> class Cells(Settings):
    ...     count: int
    >>> models_in(list[Cells] | None)
    [<class '...Cells'>]
    """
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def several(annotation) -> bool:
    """Whether a field's type is a union of several, beside None.

    >>> several(int | list[int]), several(float | None)
    (True, False)
    """
    union = isinstance(annotation, UnionType) or get_origin(annotation) is Union
    return union and len([part for part in get_args(annotation) if part is not NoneType]) > 1


def owners(union) -> dict[str, list[str]]:
    """The keys of a union's members, but for `kind`, and the kinds that have them."""
    members = kinds(union)
    keys = dict.fromkeys(key for model in members.values() for key in model.model_fields if key != "kind")
    return {key: [kind for kind, model in members.items() if key in model.model_fields] for key in keys}


def summaries(union) -> dict[str, str]:
    """Return the first paragraph of each kind's docstring."""
    return {kind: " ".join((model.__doc__ or "").split("\n\n")[0].split()) for kind, model in kinds(union).items()}


def kinds(union) -> dict[str, type[Settings]]:
    """The members of a union that is told apart by `kind`."""
    return {model.model_fields["kind"].default: model for model in models_in(union)}
