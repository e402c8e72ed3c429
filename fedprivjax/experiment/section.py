"""Sections of an experiment file: their base class, those that are generated from constructors, and their errors.

Pydantic's validation errors become one line that names the key of the file.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin

import numpy as np
from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import condition, require_choice, unquoted
from fedprivjax.experiment.names import Unimported, made, resolve, taken_by

STRUCTURAL = {
    "machines": "number of machines",
    "per_round": "machines in a round",
    "rounds": "number of rounds",
    "records": "records of each machine",
}
OWN = "module:name"  # key of the section of user-defined objects, whose kind is an import path
THEORY = "theory"  # value of a key that the protocol's own bound chooses
TABLES = ("model_type", "model_attributes_type", "dict_type", "union_tag_not_found")


class Settings(BaseModel):
    """Base class of the sections of an experiment file: immutable, and strict about keys and types.

    Attributes:
        gathered: fields of type dict whose keys are written in the section itself, such as `over` of `[sweep]`.
    """

    model_config = {"extra": "forbid", "frozen": True, "strict": True}
    gathered: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, raw: Any, info: Any) -> Any:
        raw = {"kind": raw} if isinstance(raw, str) and "kind" in cls.model_fields else raw
        if not isinstance(raw, Mapping):
            return raw
        for name in (name for name in cls.reserved() if name in raw):
            raise Refusal(f"{name} must be left out, for its name is reserved, got {raw[name]!r}")
        return cls.prepared(raw, info.context)

    @classmethod
    def reserved(cls) -> list[str]:
        """Return the names of fields that are no keys of the file."""
        return [name for name, field in cls.model_fields.items() if field.exclude]

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        """Return the section's table before its keys are validated. Default: unchanged.

        Args:
            context: arguments of `parse`, see `names.resolve`.
        """
        return raw

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
    """Return True if a type annotation is a union of two or more types, not counting None.

    Args:
        annotation: type of a field of a section of an experiment file.

    >>> several(int | list[int]), several(float | None)
    (True, False)
    """
    union = isinstance(annotation, UnionType) or get_origin(annotation) is Union
    return union and len([part for part in get_args(annotation) if part is not NoneType]) > 1


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def kinds(union) -> dict[str, type[Settings]]:
    """Return the members of a union by `kind`, its discriminator."""
    return {model.model_fields["kind"].default: model for model in models_in(union)}


class Reflected(Settings):
    """Base class of sections whose keys are arguments of a constructor, in addition to declared keys.

    Attributes:
        what: role of the object in messages, such as "loss".
        place: dotted key of the section in messages about a setting of the object, or "" to name the setting alone.
        base: class of the object.
        maker: class or function that makes the section's object.
        keys: arguments that the file gives.
        filled: arguments that the file does not give.
    """

    what: ClassVar[str]
    place: ClassVar[str] = ""
    base: ClassVar[type]
    maker: ClassVar[Any] = None
    keys: ClassVar[tuple[str, ...]] = ()
    filled: ClassVar[tuple[str, ...]] = ()
    if TYPE_CHECKING:
        kind: str

    def made(self, **filled: Any) -> Any:
        """Return the constructor's object for the section's keys and those `filled` arguments that it takes."""
        known = arguments(type(self).maker)
        given = {name: getattr(self, name) for name in type(self).keys}
        tuples = {name: tuple(value) for name, value in given.items() if get_origin(known[name].annotation) is tuple}
        filled = {name: value for name, value in filled.items() if name in known}
        with keyed(self.place, given):
            return type(self).maker(**given | tuples | filled)


@contextmanager
def keyed(place: str, keys: Collection[str]) -> Iterator[None]:
    """Prefix the message of a Refusal raised in the block with a section, if the message is about one of its keys.

    Args:
        place: dotted key of the section, or "" for no prefix.
        keys: keys of the section.

    >>> with keyed("problem.model", ["hidden"]):
    ...     raise Refusal("hidden must be at least 1, got 0")
    Traceback (most recent call last):
    fedprivjax.Refusal: problem.model.hidden must be at least 1, got 0
    """
    try:
        yield
    except Refusal as refusal:
        if place and refusal.setting in keys:
            refusal.args = (f"{place}.{refusal}",)
        raise


class Imported(Reflected):
    """User-defined object by import path, or class or function that is called with the table's further keys.

    The module is installed or next to the experiment file. An argument of the class or function is a key of the table,
    also if the section has a key of the same name: the section's key then has its default.

    Attributes:
        shared: sizes of the run, which are keys of the section and also arguments of an object that takes them.
        object_settings: arguments of the object that the file gives.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    kind: str = OWN
    found: Any = Field(default=None, exclude=True, repr=False)
    object_settings: dict[str, Any] = Field(default={}, exclude=True)

    @classmethod
    def reserved(cls) -> list[str]:
        return []  # every name may be one of the object's arguments

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        found = resolve(cls.what, raw["kind"], {}, context)
        keys = {name for name in raw if name in cls._keys(found)}
        given = {name: value for name, value in raw.items() if name not in keys}
        return {**{name: raw[name] for name in keys}, "found": found, "object_settings": given}

    @classmethod
    def _keys(cls, found: Any) -> list[str]:
        """Return the names of the section's keys that are no arguments of the object.

        For objects of finished results, whose arguments are not known, they are the kind and the sizes of the run.
        """
        kept = ("kind", *cls.shared)
        if isinstance(found, Unimported):
            return [*kept]
        keys = [name for name, field in cls.model_fields.items() if not field.exclude]
        taken = taken_by(found)
        return [name for name in keys if name in kept or name not in taken]

    @model_serializer(mode="wrap")
    def _flat(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the table as the file gives it: the section's keys next to the object's arguments."""
        keys = self._keys(self.found)
        return {**{name: value for name, value in write(self).items() if name in keys}, **self.object_settings}

    def made(self, **filled: Any) -> Any:
        """Return the user-defined object, made with its arguments. Lists become tuples."""
        given = {name: tuple(one) if isinstance(one, list) else one for name, one in self.object_settings.items()}
        return made(self.what, self.kind, self.found, given, self.base)


def arguments(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function by name, with their annotations evaluated."""
    return inspect.signature(maker, eval_str=True).parameters


def sections(
    base: type[Reflected],
    makers: Mapping[str, Any],
    extra: Mapping[str, Mapping[str, Any]] = {},
    custom: type[Imported] = Imported,
    default: str | None = None,
) -> Any:
    """Return the union of the sections of all kinds, with `kind` as the discriminator, and of user-defined objects.

    Args:
        base: keys that all kinds share.
        makers: constructor of each kind, or a subclass of `base` that declares all its keys.
        extra: further keys of a kind as `create_model` takes them: type and default by name.
        custom: section of user-defined objects, without the keys of `base`.
        default: kind of a table without `kind`.
    """

    def key(raw: Any) -> Any:
        table = {"kind": raw} if isinstance(raw, str) else raw
        kind = table.get("kind", default) if isinstance(table, Mapping) else getattr(table, "kind", None)
        return OWN if isinstance(kind, str) and ":" in kind else kind

    models = {kind: _section(base, kind, maker, extra.get(kind, {})) for kind, maker in makers.items()}
    both = (custom, base)
    models[OWN] = create_model(OWN, __base__=both, __doc__=custom.__doc__)
    tagged = [Annotated[model, Tag(kind)] for kind, model in models.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(key)]  # noqa: UP007  # a union of a computed tuple


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
    for name, one in known.items():
        default = list(one.default) if isinstance(one.default, tuple) else one.default
        fields[name] = (file_type(one.annotation), ... if default is one.empty else default)
    model = create_model(kind, __base__=base, __doc__=summary(maker), **fields)
    model.maker, model.keys = maker, tuple(known)
    return model


@dataclass(frozen=True)
class Place:
    """Place in an experiment file.

    Attributes:
        path: dotted key.
        model: class of the section.
        kind: in a union, the chosen kind, or None.
        union: all members of the union by kind, or empty.
    """

    path: str
    model: type[Settings]
    kind: str | None
    union: dict[str, type[Settings]]


def refuse(
    error: ValidationError, model: type[Settings], labels: Sequence[str] = (), raw: Mapping[str, Any] = {}
) -> NoReturn:
    """Raise Refusal for the first error of a validation.

    Args:
        model: class of the validated section.
        labels: labels of the protocols, in the order of the file.
        raw: the validated tables, for the names of objects in remedies.
    """
    first = _first(error.errors())
    place = _place(first["loc"], model)
    path, kind = place.path, place.kind
    match first["loc"]:
        case ("protocol", int(entry), _, *_) if entry < len(labels) and labels[entry]:
            path = f"[[protocol]] {labels[entry]!r}: {path.split('.', 2)[2]}"
    match first["type"]:
        case "float_type" | "int_type":
            what = "a number" if first["type"] == "float_type" else "an integer"
            what += " or a list of numbers" if first["loc"][:2] == ("sweep", "over") else ""
            of_list = path.rpartition(".")[0] if isinstance(first["loc"][-1], int) else path
            raise Refusal(f"{of_list} must be {what}, got {unquoted(first['input'])}")
        case "list_type" if isinstance(first["input"], Mapping) and "." not in path:
            raise Refusal(f"{path} must be a list of tables under [[{path}]], got [{path}]. Double the brackets")
        case "list_type":
            raise Refusal(f"{path} must be a list, got {first['input']!r}")
        case "value_error":
            raise first["ctx"]["error"]
        case "extra_forbidden":
            _refuse_key(str(first["loc"][-1]), first["input"], _place(first["loc"][:-1], model), model, raw)
        case "missing":
            raise Refusal(f"{path} must be given" + (f" for kind {kind!r}" if kind else ""))
        case "union_tag_not_found" if isinstance(first["input"], Mapping):
            raise Refusal(f"{path}.kind must be given")
        case "union_tag_invalid":
            named = isinstance(first["input"], str)
            require_choice(path if named else f"{path}.kind", first["ctx"]["tag"], place.union)
        case "literal_error":
            require_choice(path, first["input"], re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    wanted = condition(first["msg"])
    if first["type"] in TABLES:
        of_kind = "." in path and (place.union or "kind" in place.model.model_fields)
        wanted = "be a name or a table with kind" if of_kind else "be a table"
    raise Refusal(f"{path} must {wanted}, got {first['input']!r}")


def _first(errors: Sequence[Any]) -> Any:
    """Return the most useful error: the first, or an unknown key near a missing one, which is probably misspelt."""
    first = errors[0]
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    around = [error for error in unknown if first["loc"][: len(error["loc"]) - 1] == error["loc"][:-1]]
    return around[0] if around and first["type"] == "missing" else first


def _refuse_key(key: str, value: Any, place: Place, file: type[Settings], raw: Mapping[str, Any]) -> None:
    """Raise Refusal for a key that a section does not have, with the place where it belongs.

    Args:
        value: value of the key.
        place: place of the section.
        file: class of all settings.
        raw: the validated tables.
    """
    if key == "kind" and place.path:
        _refuse_kind(value, place)
    if key == "options" and issubclass(place.model, Reflected):
        raise Refusal(f"{place.path}.options must be left out, got {value!r}. Its entries are keys of [{place.path}]")
    owners = [repr(name) for name, model in place.union.items() if key in model.model_fields]
    if owners and place.kind:
        raise Refusal(f"{place.path}.{key} must go with kind {' or '.join(owners)}, got kind {place.kind!r}")
    fields = place.model.model_fields
    for name, field in fields.items():
        models = models_in(field.annotation)
        if key != "kind" and len(models) > 1 and place.path and any(key in model.model_fields for model in models):
            given = reduce(lambda table, part: table.get(part, {}), f"{place.path}.{name}".split("."), raw)
            kind = str(given.get("kind") if isinstance(given, Mapping) else given)
            kind = kind if key in getattr(kinds(field.annotation).get(kind), "model_fields", {}) else "…"
            raise Refusal(f'{place.path}.{key} must be in a table, such as {name} = {{ kind = "{kind}", {key} = … }}')
    elsewhere = [] if key == "kind" else sections_with(key, file)
    if place.kind and (parent := place.path.rpartition(".")[0]):  # an object's key has no meaning in other sections
        elsewhere = [one for one in elsewhere if one == f"[{parent}]"]
    if 1 <= len(elsewhere) <= 2 and place.path and not place.path.startswith("protocol."):
        raise Refusal(f"{key} must be in {' or '.join(elsewhere)}, got it in [{place.path}]. Move it")
    known = [name for name, field in fields.items() if not field.exclude]
    require_choice(f"key in [{place.path}]" if place.path else "key in the experiment", key, known)


def _refuse_kind(value: Any, place: Place) -> None:
    """Raise Refusal for a kind next to the tables of a section's objects, if one of them can be of this kind."""
    for name, field in place.model.model_fields.items():
        known = {kind for model in models_in(field.annotation) for kind in _kinds_of(model)}
        if isinstance(value, str) and value in known:
            raise Refusal(f'{place.path}.kind must be in a table, got {value!r}. Write {name} = {{ kind = "{value}" }}')


def _kinds_of(model: type[Settings]) -> tuple[Any, ...]:
    """Return the kinds of a section whose `kind` is one of some names."""
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind is not None else ()


def sections_with(key: str, file: type[Settings]) -> list[str]:
    """Return the headings of the file's sections that have a key. A list of sections, such as `[[protocol]]`, is none.

    >>> class Run(Settings):
    ...     rounds: int
    >>> class File(Settings):
    ...     run: Run
    >>> sections_with("rounds", File)
    ['[run]']
    """
    fields = {name: field.annotation for name, field in file.model_fields.items()}
    sections = {name: models_in(kind) for name, kind in fields.items() if get_origin(kind) is not list}
    return [f"[{name}]" for name, models in sections.items() if any(key in model.model_fields for model in models)]


def _place(loc: Sequence[int | str], model: type[Settings]) -> Place:
    """Return the place of a pydantic location. Keys of a gathered field belong to the section itself."""
    shown: list[str] = []
    hidden, kind, union = False, None, {}
    parts = iter(map(str, loc))
    for part in parts:
        if part in union and kind is None:
            model, kind = union[part], part
            continue
        shown = [*(shown[:-1] if hidden else shown), part]
        hidden = part in model.gathered
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inside = models_in(annotation)
        if inside:
            kind = None
            union = kinds(annotation) if len(inside) > 1 else {}
            model = inside[0] if len(inside) == 1 else model
        elif several(annotation):
            next(parts, None)  # pydantic's name of a plain union's member, which is not a key
    return Place(".".join(shown), model, kind, union)
