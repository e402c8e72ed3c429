"""Sections of an experiment file: their base class, and those that are generated from constructors."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

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


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def kinds(union) -> dict[str, type[Settings]]:
    """Return the members of a union by `kind`, its discriminator."""
    return {model.model_fields["kind"].default: model for model in models_in(union)}


class Reflected(Settings):
    """Base class of sections whose keys are arguments of a constructor, in addition to declared keys.

    Attributes:
        maker: class or function that makes the section's object.
        keys: key of each argument that the file gives, by the argument's name.
        filled: arguments that the file does not give.
        renamed: keys that differ from the argument's name.
        types: types of keys that replace `file_type`, by the argument's type.
    """

    maker: ClassVar[Any] = None
    keys: ClassVar[Mapping[str, str]] = {}
    filled: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[Mapping[str, str]] = {}
    types: ClassVar[Mapping[Any, Any]] = {}
    if TYPE_CHECKING:
        kind: str

    def made(self, **filled: Any) -> Any:
        """Return the constructor's object for the section's keys and those `filled` arguments that it takes."""
        known = arguments(type(self).maker)
        given = {name: getattr(self, key) for name, key in type(self).keys.items()}
        tuples = {name: tuple(value) for name, value in given.items() if get_origin(known[name].annotation) is tuple}
        return type(self).maker(**given | tuples | {name: value for name, value in filled.items() if name in known})


def arguments(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function by name, with their annotations evaluated."""
    return inspect.signature(maker, eval_str=True).parameters


def sections(base: type[Reflected], makers: Mapping[str, Any], extra: Mapping[str, Mapping[str, Any]] = {}) -> Any:
    """Return the union of the sections of all kinds, with `kind` as the discriminator.

    Args:
        base: keys that all kinds share.
        makers: constructor of each kind, or a subclass of `base` that declares all its keys.
        extra: further keys of a kind as `create_model` takes them: type and default by name.
    """
    models = [_section(base, kind, maker, extra.get(kind, {})) for kind, maker in makers.items()]
    return Annotated[Union[tuple(models)], Field(discriminator="kind")]  # noqa: UP007  # a union of a computed tuple


def with_options(base: type[Reflected], function: Callable[..., Any], kinds: Iterable[str]) -> type[Reflected]:
    """Return a section with the keyword-only arguments of a function as keys that a file may leave out.

    Args:
        base: keys that are declared already.
        kinds: choices of the key `kind`.
    """
    options: dict[str, Any] = {
        name: (file_type(one.annotation) | None, None)
        for name, one in arguments(function).items()
        if one.kind is one.KEYWORD_ONLY and name not in base.model_fields
    }
    kind: Any = (Literal[tuple(kinds)], ...)  # pyright: ignore[reportInvalidTypeForm]
    model = create_model(base.__name__, __base__=base, __doc__=base.__doc__, kind=kind, **options)
    model.maker, model.keys = function, {name: name for name in options}
    return model


def file_type(annotation: Any) -> Any:
    """Return the type that an argument has in a file: lists for sequences, numbers for swept fields (`Any`).

    >>> file_type(tuple[int, ...]), file_type(Sequence[float] | np.ndarray), file_type(Any)
    (list[int], list[float], <class 'float'>)
    """
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return Union[tuple(file_type(each) for each in get_args(annotation) if each is not np.ndarray)]  # noqa: UP007
    if get_origin(annotation) in (tuple, Sequence):
        return list[file_type(get_args(annotation)[0])]
    return float if annotation is Any else annotation


def _section(base: type[Reflected], kind: str, maker: Any, extra: Mapping[str, Any]) -> type[Reflected]:
    fields: dict[str, Any] = {"kind": (Literal[kind], kind), **extra}  # pyright: ignore[reportInvalidTypeForm]
    if inspect.isclass(maker) and issubclass(maker, base):
        return create_model(maker.__name__, __base__=maker, __doc__=maker.__doc__, **fields)
    known = {name: one for name, one in arguments(maker).items() if name not in base.filled}
    keys = {name: base.renamed.get(name, name) for name in known}
    for name, one in known.items():
        default = list(one.default) if isinstance(one.default, tuple) else one.default
        kind_of = base.types[one.annotation] if one.annotation in base.types else file_type(one.annotation)
        fields[keys[name]] = (kind_of, ... if default is one.empty else default)
    model = create_model(kind, __base__=base, __doc__=summary(maker), **fields)
    model.maker, model.keys = maker, keys
    return model
