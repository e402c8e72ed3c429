"""Checks that custom classes have the decorator that their base class requires."""

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, ClassVar

from jax.tree_util import all_leaves

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_keywords, require_real

PYTREE, FROZEN = "flax.struct.dataclass", "dataclass(frozen=True)"


class ConstructorSignature:
    """Signature of a class's constructor for `help` and editors, without fields that are derived before a run.

    Keyword arguments that base classes declare come last.
    """

    def __get__(self, instance: Any, cls: type["Decorated"]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        made = cls.made()
        of_classes = [getattr(base, "__dataclass_fields__", {}) for base in made.__mro__]
        known = () if made.__init__ is object.__init__ else inspect.signature(made.__init__).parameters.values()
        hidden = {"self", *(name for name, field in of_classes[0].items() if field.metadata.get("derived"))}
        listed = [one for one in known if one.name not in hidden]
        named = [one for one in listed if one.kind is one.KEYWORD_ONLY]
        named.sort(key=lambda one: sum(one.name in fields for fields in of_classes))
        return inspect.Signature([*(one for one in listed if one not in named), *named])


class Decorated:
    """Base class of classes whose subclasses must be dataclasses.

    Attributes:
        kind: name of the class in messages.
        decorator: decorator that a subclass needs.
        elsewhere: remedies for settings that belong to another class, by name.
        instead: remedy for a subclass of a final class, which is refused.

    >>> class Custom(Decorated):
    ...     kind, decorator = "sampler", FROZEN
    ...     batch: int
    >>> Custom(2)
    Traceback (most recent call last):
    fedprivjax.Refusal: sampler Custom must be a dataclass(frozen=True), got a class without that decorator
    """

    kind: ClassVar[str]
    decorator: ClassVar[str]
    elsewhere: ClassVar[Mapping[str, str]] = {}
    instead: ClassVar[str] = ""
    __signature__ = ConstructorSignature()

    def __init_subclass__(cls, **options: Any):
        """Raise Refusal for a subclass of a final class."""
        super().__init_subclass__(**options)
        for sealed in (base for base in cls.__bases__ if vars(base).get("__final__", False)):
            raise subclassed(sealed, cls)

    def __new__(cls, *args: Any, **settings: Any):
        """Raise Refusal for an unknown setting, a complex number, or arguments of a class without its decorator."""
        if (args or settings) and cls.__init__ is object.__init__:
            raise without_decorator(cls)
        known, decorated = settings_of(cls), "__dataclass_fields__" in vars(cls)
        if known is None or (not decorated and "__init__" in vars(cls)):  # a constructor of its own
            return super().__new__(cls)
        whole = len(args) + len(settings) >= len(known)  # a copy or an unflattened object, with every field
        derived = () if whole or not decorated else derived_of(cls)
        for name, value in (*zip(known, args, strict=False), *settings.items()):
            require_real(name, value)
        for name in (name for name in settings if name not in known or name in derived):
            if not decorated:
                raise without_decorator(cls)
            if name in cls.elsewhere:
                raise Refusal(f"unknown setting of {cls.__name__} {name!r}. {cls.elsewhere[name]}")
            if name in derived:
                raise Refusal(f"{name} must be left out of {cls.__name__}, which derives it before a run. Remove it")
            require_keywords(cls.__name__, [name], [one for one in known if one not in derived_of(cls)])
        return super().__new__(cls)

    @classmethod
    def made(cls) -> type:
        """Return the class of the objects that a call of this class returns."""
        return cls


@cache
def settings_of(cls: type) -> tuple[str, ...] | None:
    """Return the argument names of a class's constructor, or None if it takes any."""
    known = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return None if any(one.kind is one.VAR_KEYWORD for one in known) else tuple(one.name for one in known)


@cache
def derived_of(cls: type) -> tuple[str, ...]:
    """Return the fields of a dataclass with the metadata `derived`, which are set before a run."""
    return tuple(one.name for one in vars(cls)["__dataclass_fields__"].values() if one.metadata.get("derived"))


def require_decorated(value: Decorated) -> None:
    """Raise Refusal if an object's class lacks its decorator.

    Without it, the object is not a pytree, or its constructor does not set all fields.
    """
    cls = type(value)
    if all_leaves([value]) if cls.decorator == PYTREE else _bare(cls):
        raise without_decorator(cls)


def _bare(cls: type) -> bool:
    """Return True if a class has fields that no constructor sets. A class that defines `__init__` has none."""
    if "__dataclass_fields__" in vars(cls) or "__init__" in vars(cls):
        return False
    declared = [each for each in vars(cls).get("__annotations__", {}).values() if "ClassVar" not in str(each)]
    return bool(declared) or (not is_dataclass(cls) and cls.__init__ is object.__init__)


def subclassed(parent: type[Decorated], cls: type) -> Refusal:
    """Return the Refusal for a subclass of a class that must have none."""
    remedy = parent.instead if issubclass(parent, Decorated) else f"Subclass {parent.__mro__[1].__name__}"
    return Refusal(
        f"{parent.__name__} must not be subclassed, because guarantees rely on its own functions, got {cls.__name__}. "
        f"{remedy}"
    )


def without_decorator(cls: type[Decorated]) -> Refusal:
    """Return the Refusal for a class without its decorator."""
    return Refusal(f"{cls.kind} {cls.__name__} must be a {cls.decorator}, got a class without that decorator")
