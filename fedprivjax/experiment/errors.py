"""Conversion of pydantic's validation errors to one line that names the key of the file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, get_origin

from pydantic import ValidationError

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, unquoted
from fedprivjax.experiment.section import Settings, kinds, models_in, several

TABLES = ("model_type", "model_attributes_type", "dict_type")


class Place(NamedTuple):
    """Place in an experiment file.

    Attributes:
        path: dotted key.
        model: class of the section.
        kind: in a union, the name of its key and the chosen kind, or None.
        union: all members of the union by kind, or empty.
    """

    path: str
    model: type[Settings]
    kind: tuple[str, str] | None
    union: dict[str, type[Settings]]


def refuse(error: ValidationError, model: type[Settings], labels: Sequence[str] = ()) -> NoReturn:
    """Raise Refusal for the first error of a validation.

    Args:
        model: class of the validated section.
        labels: labels of the protocols, in the order of the file.
    """
    first = _first(error.errors())
    path, _, kind, union = _place(first["loc"], model)
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
            _refuse_key(str(first["loc"][-1]), _place(first["loc"][:-1], model), model)
        case "missing":
            raise Refusal(f"{path} must be given" + (f" for {kind[0]} {kind[1]!r}" if kind else ""))
        case "union_tag_not_found":
            raise Refusal(f"{path}.kind must be given")
        case "union_tag_invalid":
            gathered = path.rpartition(".")[2] in _place(first["loc"][:-1], model).model.gathered
            require_choice(path if gathered else f"{path}.kind", first["ctx"]["tag"], union)
        case "literal_error":
            require_choice(path, first["input"], re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    wanted = "be a table" if first["type"] in TABLES else first["msg"].removeprefix("Input should ")
    raise Refusal(f"{path} must {wanted}, got {first['input']!r}")


def _first(errors: Sequence[Any]) -> Any:
    """Return the most useful error: the first, or an unknown key near a missing one, which is probably misspelt."""
    first = errors[0]
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    around = [error for error in unknown if first["loc"][: len(error["loc"]) - 1] == error["loc"][:-1]]
    return around[0] if around and first["type"] == "missing" else first


def _refuse_key(key: str, place: Place, file: type[Settings]) -> None:
    owners = [repr(name) for name, model in place.union.items() if key in model.model_fields]
    if owners and place.kind:
        word, name = place.kind
        section = place.path if word == "kind" else place.path.rpartition(".")[0]
        raise Refusal(f"{section}.{key} must go with {word} {' or '.join(owners)}, got {word} {name!r}")
    fields = place.model.model_fields
    gathered = [model for name in place.model.gathered for model in models_in(fields[name].annotation)]
    known = dict.fromkeys([*fields, *(name for model in gathered for name in model.model_fields if name != "kind")])
    elsewhere = _sections_with(key, file)
    if 1 <= len(elsewhere) <= 2 and place.path and not place.path.startswith("protocol."):
        raise Refusal(f"{key} must be in {' or '.join(elsewhere)}, got it in [{place.path}]. Move it")
    require_choice(f"key in [{place.path}]" if place.path else "key in the experiment", key, known)


def _sections_with(key: str, file: type[Settings]) -> list[str]:
    """Return the headings of the file's sections that have a key. A list of sections, such as `[[protocol]]`, is none.

    >>> class Run(Settings):
    ...     rounds: int
    >>> class File(Settings):
    ...     run: Run
    >>> _sections_with("rounds", File)
    ['[run]']
    """
    fields = {name: field.annotation for name, field in file.model_fields.items()}
    sections = {name: models_in(kind) for name, kind in fields.items() if get_origin(kind) is not list}
    return [f"[{name}]" for name, models in sections.items() if any(key in model.model_fields for model in models)]


def _place(loc: Sequence[int | str], model: type[Settings]) -> Place:
    """Return the place of a pydantic location. Keys of a gathered field belong to the section itself."""
    shown: list[str] = []
    hidden, word, kind, union = False, "kind", None, {}
    tagged = False
    for part in map(str, loc):
        if tagged:  # pydantic's name of a plain union's member, which is not a key
            tagged = False
            continue
        if part in union and kind is None:
            model, kind = union[part], (word, part)
            continue
        shown = [*(shown[:-1] if hidden else shown), part]
        hidden = part in model.gathered
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inside = models_in(annotation)
        tagged = not inside and several(annotation)
        if inside:
            word, kind = part if hidden else "kind", None
            union = kinds(annotation) if len(inside) > 1 else {}
            model = inside[0] if len(inside) == 1 else model
    return Place(".".join(shown), model, kind, union)
