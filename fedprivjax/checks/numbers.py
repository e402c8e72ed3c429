"""Numbers of protocols and of their parts, which can be swept: by name, and copies with other numbers."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any

from flax import struct


def host_only(default: Any, *, traced: Any = MISSING, **metadata: Any) -> Any:
    """Return a static field that only the host reads. In programs it has the value `traced`, by default its default."""
    value = default if traced is MISSING else traced
    return struct.field(pytree_node=False, default=default, metadata={"traced": value, **metadata})


def without_host_settings(settings: Any) -> Any:
    """Return a copy with the metadata `traced` as values of fields, so that changing them does not recompile."""
    values = {field.name: field.metadata["traced"] for field in fields(settings) if "traced" in field.metadata}
    return replace(settings, **values)


def leaves_of(protocol: Any) -> dict[str, Any]:
    """Return a protocol's own fields that are pytree leaves, which can be swept, with their defaults or `MISSING`.

    Parts that cannot be a number instead, and fields with the metadata `derived`, which `calibrate` sets, are excluded.

    Args:
        protocol: a protocol, or its class.
    """
    leaves = [field for field in fields(protocol) if field.metadata.get("pytree_node", True)]
    parts = {field.name for field in leaves if "part" in field.metadata and not field.metadata.get("number", False)}
    other = parts | {field.name for field in leaves if field.metadata.get("derived", False)}
    return {field.name: _default(field) for field in leaves if field.name not in other}


def kinds_of_parts(protocol: Any) -> dict[str, Any]:
    """Return the classes of fields that hold an object with numbers, such as a `ServerOptimizer`, by field name.

    They are declared by their metadata, `struct.field(default=None, metadata={"part": ServerOptimizer})`. The number b1
    of the part `server` has the name "server.b1" in a sweep. The metadata `"number": True` says that the field may hold
    a number instead.

    Args:
        protocol: a protocol, or its class.
    """
    return {field.name: field.metadata["part"] for field in fields(protocol) if "part" in field.metadata}


def numbers_in(protocol: Any) -> dict[str, Any]:
    """Return all numbers of a protocol that can be swept, including those of parts, by name."""
    held = {name: getattr(protocol, name) for name in kinds_of_parts(protocol)}
    own = {name: getattr(protocol, name) for name in leaves_of(protocol) if not hasattr(held.get(name), "leaves")}
    return own | numbers_of(held)


def with_numbers(protocol: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a protocol with other numbers, by the names of `numbers_in`."""
    changes = {name: value for name, value in values.items() if "." not in name}
    for name in kinds_of_parts(protocol):
        of_part = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
        if of_part:
            changes[name] = getattr(protocol, name).with_values(of_part)
    return replace(protocol, **changes)


def numbers_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a protocol's parts by name, such as "server.b1", None for those at their default.

    A part that is None, or a number instead of an object, contributes no names.
    """
    held = {name: part for name, part in parts.items() if hasattr(part, "leaves")}
    return {f"{name}.{key}": value for name, part in held.items() for key, value in part.leaves().items()}


def _default(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
