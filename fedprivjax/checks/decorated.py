"""Checks that custom classes have the decorator that their base class requires."""

import inspect
from dataclasses import is_dataclass
from typing import Any, ClassVar

from jax.tree_util import all_leaves

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import RENAMED, require_current

PYTREE, FROZEN = "flax.struct.dataclass", "dataclass(frozen=True)"


class Decorated:
    """Base class of classes whose subclasses must be dataclasses.

    Attributes:
        kind: name of the class in messages.
        decorator: decorator that a subclass needs.

    >>> class Custom(Decorated):
    ...     kind, decorator = "sampler", FROZEN
    ...     batch: int
    >>> Custom(2)
    Traceback (most recent call last):
    fedprivjax.Refusal: sampler Custom must be a dataclass(frozen=True), got a class without that decorator
    """

    kind: ClassVar[str]
    decorator: ClassVar[str]

    def __new__(cls, *args: Any, **settings: Any):
        """Raise Refusal if a setting has a former name, or if a class without its decorator is given arguments."""
        if (args or settings) and cls.__init__ is object.__init__:
            raise without_decorator(cls)
        for former in settings.keys() & RENAMED:
            known = inspect.signature(cls.__init__).parameters
            if former not in known:
                require_current(f"setting of {cls.__name__}", former, known)
        return super().__new__(cls)


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


def without_decorator(cls: type[Decorated]) -> Refusal:
    """Return the Refusal for a class without its decorator."""
    return Refusal(f"{cls.kind} {cls.__name__} must be a {cls.decorator}, got a class without that decorator")
