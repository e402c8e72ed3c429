"""`[[protocol]]` with an algorithm: its keys, and `privacy`, the table of a privacy object."""

from collections.abc import Container, Mapping
from dataclasses import MISSING, fields
from math import isnan
from typing import Any

from fedprivjax.checks.decorated import without_decorator
from fedprivjax.checks.numbers import kinds_of_parts
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.experiment.names import made, resolve
from fedprivjax.method.encoders import Encoder
from fedprivjax.method.integer_sums import IntegerSums
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.pairing import PRIVACY_KINDS, base_of, privacy_for
from fedprivjax.method.work_privacy import WorkPrivacy
from fedprivjax.plan.samplers.local import LocalWork
from fedprivjax.protocols import FedAvg

ALGORITHM, PRIVACY = "algorithm", "privacy"  # fields of a pair
WORK = ("local_epochs", "local_steps", "batch", "sampler", "rate")  # keys of `work`, as in `fedavg`


def gathered(algorithm: type, settings: Mapping[str, Any], own: list[str]) -> dict[str, Any]:
    """Return the settings of a pair, with those of the algorithm in one table.

    Args:
        own: names of settings of the algorithm next to those of the pair.

    Raises:
        Refusal: a table is missing, or a number of the algorithm is none.
    """
    if not isinstance(settings.get(PRIVACY), Mapping):
        known = " or ".join(map(repr, _kinds_for(algorithm)))
        raise Refusal(
            f"privacy must be a table for the algorithm {algorithm.__name__}, with kind {known}, got "
            f"{settings.get(PRIVACY)!r}"
        )
    if not isinstance(settings.get(ALGORITHM, {}), Mapping):
        raise Refusal(f"algorithm must be a table of settings, got {settings[ALGORITHM]!r}")
    table = {**settings.get(ALGORITHM, {}), **{key: settings[key] for key in settings if key in own}}
    _require_numbers(algorithm, table, ALGORITHM)
    return {key: value for key, value in settings.items() if key not in own} | {ALGORITHM: table}


def _require_numbers(kind: Any, table: Mapping[str, Any], place: str) -> None:
    """Raise Refusal unless the values of all settings of a custom class that can be swept are numbers."""
    for one in fields(kind):
        if one.name not in table or not one.metadata.get("pytree_node", True) or "part" in one.metadata:
            continue
        value = table[one.name]
        several = isinstance(value, list) and one.metadata.get("several")
        if not all(map(_is_number, value if several else [value])):
            raise Refusal(
                f"{one.name} must be a number, got {value!r}. Put several into grid, as {place}.{one.name}, and "
                f"declare a setting that is not a number as struct.field(pytree_node=False)"
            )


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and not isnan(value)


def without_value(kind: Any, given: Container[str]) -> dict[str, None]:
    """Return the numbers of a class that have neither a default nor a value in a table, by name. A sweep gives them."""
    numbers = (one for one in fields(kind) if one.metadata.get("pytree_node", True) and one.name not in given)
    return {one.name: None for one in numbers if one.default is MISSING and one.default_factory is MISSING}


def private(algorithm: type, table: Mapping[str, Any], part: Any, context: Any) -> Any:
    """Return the privacy object that a table describes.

    Args:
        part: function from the name, the class and the table of a component to the component.
        context: arguments of `parse`, see `names.resolve`.
    """
    path, given = str(table.get("kind")), {key: value for key, value in table.items() if key != "kind"}
    if ":" not in path:
        require_choice("kind of privacy", path, _kinds_for(algorithm))
    kind = _custom(algorithm, path, context) if ":" in path else PRIVACY_KINDS[path]
    for key in given:
        require_choice("key of privacy", key, ["kind", *names_of(kind)])
    if kind not in PRIVACY_KINDS.values():
        _require_numbers(kind, given, PRIVACY)
    if "work" in given or kind in (LocalPrivacy, IntegerSums):
        given["work"] = _work(given.get("work"))
    objects = kinds_of_parts(kind) | ({"encoder": Encoder} if issubclass(kind, WorkPrivacy) else {})
    parts = {name: part(name, one, given[name]) for name, one in objects.items() if name in given}
    return made(PRIVACY, path, kind, {**without_value(kind, given), **given, **parts}, kind)


def _custom(algorithm: type, path: str, context: Any) -> Any:
    """Return the class of custom privacy objects for an algorithm that a path "module:Class" names."""
    base = base_of(algorithm)
    kind = resolve(PRIVACY, path, {}, context)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        needed = f"a subclass of {base.__name__} for the algorithm {algorithm.__name__}"
        raise Refusal(f"privacy {path!r} must be {needed}, got {kind!r}")
    if "__dataclass_fields__" not in vars(kind):
        raise without_decorator(kind)
    return kind


def _kinds_for(algorithm: type) -> list[str]:
    """Return the kinds of privacy objects that an algorithm can have."""
    known = privacy_for(algorithm)
    return [kind for kind, one in PRIVACY_KINDS.items() if one in known]


def _work(table: Any) -> LocalWork:
    """Return the sampler of local steps that a table describes."""
    if not isinstance(table, Mapping):
        raise Refusal(f"work of privacy must be a table, such as {{ local_epochs = 1, batch = 10 }}, got {table!r}")
    for key in table:
        require_choice("key of work", key, WORK)
    return FedAvg(**table, noise_std=0.0).work


def names_of(kind: Any) -> list[str]:
    """Return the names of the settings of a method, an algorithm or a privacy object."""
    return [one.name for one in fields(kind) if one.init and not one.metadata.get("derived")]
