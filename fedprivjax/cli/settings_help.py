"""Settings of the entries of `fedprivjax list`: types, defaults, and help lines from docstrings."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from fedprivjax.experiment.section import Reflected, arguments

SECTION = re.compile(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}\w[\w, ]*?):((?: .*)?(?:\n {8}.*)*)", re.MULTILINE)
END = re.compile(r"(?<=[.;])(?<!et al\.)\s")
NONE = re.compile(r"(?<=or )None\b|(?<=always )None\b|(?<=default )None\b")
PLAIN = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "none", Any: "any"}
HIDDEN = ("labels", "cached")  # arguments that files cannot set
UNSET, REQUIRED = "unset", "required"  # defaults as text


class Setting(NamedTuple):
    """A setting: its name, its type and default as text, and one line of help."""

    name: str
    kind: str
    default: str
    help: str


def settings_of(thing: Any) -> list[Setting]:
    """Return the settings of a dataclass, a section of an experiment file, or a function.

    None is "unset" in defaults and help, since files have no such value and "none" is a value of some settings.

    >>> def loader(count: int, *, noise: float = 0.5):
    ...     '''Load.
    ...
    ...     Args:
    ...         count: number of examples.
    ...         noise: standard deviation of the labels. Not private.
    ...     '''
    >>> for setting in settings_of(loader):
    ...     print(*setting, sep=" | ")
    count | integer | required | number of examples.
    noise | number | 0.5 | standard deviation of the labels.
    """
    texts = help_of(thing)
    if inspect.isclass(thing) and issubclass(thing, Reflected):
        texts |= {name: text for name, text in help_of(thing.maker).items() if name in thing.keys}
    return [
        Setting(name, kind, default, NONE.sub(UNSET, texts.get(name, ""))) for name, kind, default in _declared(thing)
    ]


def help_of(thing: Any) -> dict[str, str]:
    """Return the help on each argument or attribute in the docstrings of an object and of its bases."""
    found: dict[str, str] = {}
    for each in inspect.getmro(thing)[::-1] if inspect.isclass(thing) else [thing]:
        for names, text in _entries(inspect.cleandoc(each.__doc__ or "")):
            found |= dict.fromkeys(names, short(" ".join(text.split())))
    return found


def short(text: str) -> str:
    """Return the first sentence or clause of a text, and its sentence on the default.

    >>> short('"none" (all is seen; no server) or "server". It is public. Default: "none". See `TRUST`.')
    '"none" (all is seen; no server) or "server". Default: "none".'
    >>> short("a scale, see Reddi et al. 2021; the default is 1.")
    'a scale, see Reddi et al. 2021'
    """
    ends = [found.end() for found in END.finditer(text)]
    ends = [end for end in ends if text.count("(", 0, end) == text.count(")", 0, end)]
    first, *others = (text[start:end].strip() for start, end in pairwise([0, *ends, len(text)]))
    return " ".join([first.rstrip(";"), *(each for each in others if each.startswith("Default"))])


def type_text(annotation: Any) -> str:
    """Return a type as text. The empty choice is left out, since it stands for an unset key.

    >>> type_text(float | list[float] | None), type_text(Literal["", "server", "none"])
    ('number or list of number', 'server or none')
    """
    if get_origin(annotation) is Annotated:
        return type_text(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(str(each) for each in get_args(annotation) if each != "")
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        kinds = [type_text(each) for each in get_args(annotation) if each is not NoneType]
        return " or ".join(dict.fromkeys(kinds))
    origin = get_origin(annotation) or annotation
    if inspect.isclass(origin) and issubclass(origin, BaseModel):
        kind = origin.model_fields.get("kind")
        return "table" if kind is None or kind.is_required() else "name or table"
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "table"
    if inspect.isclass(origin) and origin is not str and hasattr(origin, "__iter__"):
        inside = [each for each in get_args(annotation) if each is not Ellipsis]
        return f"list of {type_text(inside[0])}" if inside else "list"
    return PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _declared(thing: Any) -> Iterator[tuple[str, str, str]]:
    """Yield names, types and defaults."""
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        for name, field in thing.model_fields.items():
            if not field.exclude and (name != "kind" or field.is_required()):
                made = field.get_default(call_default_factory=True)
                if made is None and issubclass(thing, Reflected) and name in thing.keys:
                    made = arguments(thing.maker)[name].default
                yield name, type_text(field.annotation), _default(made)
    elif inspect.isclass(thing):
        hints = inspect.get_annotations(thing, eval_str=False)
        for field in fields(thing):  # pyright: ignore[reportArgumentType]  # a dataclass
            if field.init and field.name not in HIDDEN and not field.metadata.get("derived"):
                number, annotation = field.metadata.get("pytree_node", True), hints.get(field.name, field.type)
                if field.type is Any and "part" in field.metadata and not field.metadata.get("number"):
                    number, annotation = False, str | field.metadata["part"]
                made = field.default if field.default_factory is MISSING else field.default_factory()
                kind = "number" if number and field.type is Any else type_text(annotation)
                yield field.name, kind, _default(made)
    else:
        for name, each in inspect.signature(thing).parameters.items():
            if name not in HIDDEN and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
                yield name, type_text(each.annotation), _default(each.default)


def _default(value: Any) -> str:
    """Return a default as text."""
    if value in (MISSING, PydanticUndefined, inspect.Parameter.empty):
        return REQUIRED
    if isinstance(value, BaseModel):
        return "that of its keys"
    return UNSET if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _entries(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the names and text of each entry under `Args:` and `Attributes:`."""
    for section in SECTION.findall(f"{text}\n"):
        for names, entry in ENTRY.findall(section):
            yield [name.strip(" *") for name in names.split(",")], entry
