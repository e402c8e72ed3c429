"""Sections of an experiment file: their base class, those that are generated from constructors, and their errors.

Pydantic's validation errors become one line that names the key of the file.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import UnionType
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

from fedprivjax.checks.refusal import Refusal, within
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
NAMED = 3  # largest number of kinds that a message names


class Settings(BaseModel):
    """Base class of the sections of an experiment file: immutable, and strict about keys and types."""

    model_config = {"extra": "forbid", "frozen": True, "strict": True}

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
        place: dotted key of the section before messages about the object, or "".
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
        with within(f"[{self.place}]") if self.place else nullcontext():
            return type(self).maker(**given | tuples | filled)


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


def labelled(raw: Mapping[str, Any]) -> str:
    """Return the label of a `[[protocol]]` table: its own, or else its name without the module."""
    return str(raw["label"]) if "label" in raw else str(raw.get("name", "")).rpartition(":")[2]


def place_of(label: str) -> str:
    """Return the name of a `[[protocol]]` table in messages."""
    return f"[[protocol]] {label!r}"


def refuse(error: ValidationError, file: type[Settings], raw: Mapping[str, Any]) -> NoReturn:
    """Raise Refusal for the first error of a validation, an unknown key before any other.

    Args:
        file: class of the validated settings.
        raw: the validated tables.
    """
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")  # a missing key may be misspelt
    path, given, context = _path(first["loc"], raw), first["input"], first.get("ctx", {})
    wanted = condition(first["msg"])
    if path.startswith("protocol.") and path.count(".") > 1:
        _, number, key = path.split(".", 2)
        path = f"{place_of(labelled(raw['protocol'][int(number)]))}: {key}"
    match first["type"]:
        case "value_error":
            raise context["error"]
        case "extra_forbidden":
            _refuse_key(first["loc"], file, raw)
        case "missing":
            raise Refusal(f"{path}.{first['loc'][-1]} must be given".removeprefix("."))
        case "literal_error" | "union_tag_invalid":
            known = context.get("expected") or context["expected_tags"]
            require_choice(path, context.get("tag", given), re.findall(r"'([^']*)'", known))
        case "list_type" if isinstance(given, Mapping) and "." not in path:
            wanted = f"be a list of tables under [[{path}]], with double brackets"
        case "union_tag_not_found":
            wanted = "be a name or a table with kind"
        case "model_type" | "model_attributes_type" | "dict_type":
            wanted = "be a table"
    raise Refusal(f"{path} must {wanted}, got {unquoted(given)}")


def _refuse_key(loc: Sequence[int | str], file: type[Settings], raw: Mapping[str, Any]) -> None:
    """Raise Refusal for a key that a section does not have, with the sections in it or next to it that have the key."""
    key, path = str(loc[-1]), _path(loc[:-1], raw)
    *around, section = _sections(loc[:-1], file)
    here = f"[{path}]" if path else "the experiment"
    if key == "options" and issubclass(section, Reflected):
        raise Refusal(f"options must be left out of {here}. Write its entries as keys of {here}")
    places = sections_with(key, section, path)
    for one in around[-1:]:
        places += sections_with(key, one, re.sub(r"\.\d+$", "", path).rpartition(".")[0])
    if 1 <= len(places) <= 2:
        raise Refusal(f"{key} must be in {' or '.join(places)}, got it in {here}")
    known = [name for name, field in section.model_fields.items() if not field.exclude]
    require_choice(f"key in {here}", key, known)


def sections_with(key: str, section: type[Settings], path: str = "") -> list[str]:
    """Return the headings of the sections in a section that have a key. A list of sections is none.

    Args:
        path: dotted key of the section, "" for the file.

    >>> class Run(Settings):
    ...     rounds: int
    >>> class File(Settings):
    ...     run: Run
    >>> sections_with("rounds", File)
    ['[run]']
    """
    found = []
    for name, field in section.model_fields.items():
        models = [] if get_origin(field.annotation) is list else models_in(field.annotation)
        owners = [model for model in models if key in model.model_fields and not model.model_fields[key].exclude]
        heading = f"[{path}.{name}]".replace("[.", "[")
        if owners and len(owners) < len(models):
            names = [repr(model.model_fields["kind"].default) for model in owners]
            heading += f" of kind {' or '.join(names[:NAMED])}{' or …' * (len(names) > NAMED)}"
        if owners:
            found.append(heading)
    return found


def _sections(loc: Sequence[int | str], file: type[Settings]) -> list[type[Settings]]:
    """Return the classes of the sections around a pydantic location, outermost first."""
    found, parts = [file], iter(loc)
    for part in parts:
        field = found[-1].model_fields.get(str(part))
        models = [] if field is None else models_in(field.annotation)
        if field is not None and len(models) > 1:
            found.append(kinds(field.annotation)[str(next(parts))])
        elif models:
            found.append(models[0])
    return found


def _path(loc: Sequence[int | str], raw: Any) -> str:
    """Return the dotted key of a pydantic location, without its parts that are no keys of the file."""
    shown, parts = [], [*loc]
    while parts:
        part = parts.pop(0)
        table: Any = dict(enumerate(raw)) if isinstance(raw, list) else raw
        if isinstance(table, Mapping) and part in table:
            shown.append(str(part))
            raw = table[part]
        elif "." in str(part):  # of a nested table in a sweep or a grid
            parts[:0] = str(part).split(".")
    return ".".join(shown)
