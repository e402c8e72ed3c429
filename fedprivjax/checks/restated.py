"""Check that a subclass which changes an object states anew what guarantees read from it.

Guarantees read statements from objects, such as a sampler's secrecy or an encoder's bound on norms. A statement is true
for the functions of the class that defines it. It says nothing about functions that a subclass overrides.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from inspect import getattr_static
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.decorated import subclassed
from fedprivjax.checks.refusal import PACKAGE, Refusal

TEXTS = ("name", "description", "words", "label", "kind", "decorator", "elsewhere", "instead", "stated")
GENERATED = ("replace", "_flax_dataclass")  # written into a class by flax
CONVERSIONS = ("__jax_array__", "__array__", "__float__")
MAKING = ("__new__", "__post_init__", "__getattr__")  # run again in a program, where a pytree is made of arrays
# classes of numbers that have one value wherever they are read
PLAIN_NUMBERS = (bool, int, float, *np.sctypeDict.values())


@dataclass(frozen=True)
class Stated:
    """Rule on subclasses of a class of the package, as the class attribute `stated`.

    A subclass that overrides a name defines the statement as well, or a class below it does.

    Attributes:
        by: names of the statement.
        free: names that may be overridden without it. Names in `TEXTS`, and new defaults of fields, are always free.
        concrete: True if the class itself makes a statement, False if its own definitions claim nothing.
        void: values, by name, with which an object claims nothing.
        instead: second remedy in messages.
    """

    by: tuple[str, ...]
    free: tuple[str, ...] = ()
    concrete: bool = False
    void: Mapping[str, Any] = field(default_factory=dict)
    instead: str = ""


def require_restated(*objects: Any) -> None:
    """Raise Refusal if the class of an object, or of an object in its fields, inherits a statement and changes more.

    Classes of the package are exempt. Custom ones without a `stated` are skipped. The equality of the others must
    compare all fields, because results are cached by it. Settings are checked again by the class that makes the
    statement, because a subclass may leave its `__post_init__` out.
    """
    for part in (part for one in objects for part in _with_parts(one)):
        _require_own_value(part)
        _require_no_final_base(type(part))
        if _base(type(part)) is None and not of_package(type(part)):
            continue
        broken = _broken(type(part))
        if broken is not None and not _claims_nothing(part):
            raise Refusal(broken)
        _require_functions_of_class(part)
        _require_compared(type(part))
        _check_settings(part)


def _require_own_value(value: Any) -> None:
    """Raise Refusal for a number of a class that may have another value in guarantees than in programs."""
    if isinstance(value, jax.Array | type) or type(value) in (*PLAIN_NUMBERS, np.ndarray, np.memmap):
        return
    if isinstance(value, int | float) or any(hasattr(value, name) for name in CONVERSIONS):
        raise Refusal(
            f"a number of a private run must be of a class of Python, NumPy or JAX, got {value!r:.60} of "
            f"{type(value).__name__}. Use float({type(value).__name__}(...)) if it is one number"
        )


@cache
def _require_no_final_base(cls: type) -> None:
    """Raise Refusal for a custom class below a final one, which its definition should have refused."""
    if not of_package(cls):
        for sealed in (one for one in cls.__mro__[1:] if vars(one).get("__final__", False) and of_package(one)):
            raise subclassed(sealed, cls)


def stated_by(value: Any) -> str | None:
    """Return "module:Class" of the custom class that states an object's event, or None for a class of the package."""
    owner = None if _base(type(value)) is None else _owner(type(value), _rule(type(value)).by[0])
    return None if owner is None or of_package(owner) else f"{owner.__module__}:{owner.__qualname__}"


def require_of_package(**objects: Any) -> None:
    """Raise Refusal unless the class of each object, by name, is one of the package. None is skipped."""
    for name, value in objects.items():
        if value is not None and not of_package(type(value)):
            given = f"an object of the subclass {type(value).__name__}"
            raise Refusal(f"{name} must be of a class of the package, because guarantees count it, got {given}")


def of_package(cls: type) -> bool:
    """Return True for a class that a module of this package defines, and not only names."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__.partition(".")[0] == PACKAGE and getattr(module, cls.__name__, None) is cls


def _with_parts(value: Any) -> Iterator[Any]:
    """Yield an object and, if it is a dataclass, the objects in its fields."""
    yield value
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _with_parts(getattr(value, one.name, None))


@cache
def _require_compared(cls: type) -> None:
    """Raise Refusal for a custom dataclass whose equality ignores a field, because results are cached by equality."""
    owner = next(one for one in cls.__mro__ if "__eq__" in vars(one))
    if of_package(cls) or owner is object or not is_dataclass(cls):
        return
    ignored = [one.name for one in fields(cls) if not one.compare or one.name not in _fields(owner)]
    if ignored:
        raise Refusal(
            f"{ignored[0]} must be compared by the equality of {cls.__name__}, by which guarantees are cached. Remove "
            f"compare = False and eq = False. In place of an array, use a tuple"
        )


def _require_functions_of_class(value: Any) -> None:
    """Raise Refusal if a function or property of an object's class is replaced on the object itself."""
    cls = type(value)
    for name in getattr(value, "__dict__", {}).keys() - _fields(cls):
        inherited = getattr_static(cls, name, None)
        if (callable(inherited) or hasattr(inherited, "__get__")) and not isinstance(inherited, cached_property):
            raise Refusal(
                f"{name} must be defined by the class {cls.__name__}, which guarantees rely on, got another one on the "
                f"object. Remove it"
            )


def _check_settings(value: Any) -> None:
    """Check an object's settings as the class does that makes the first statement, or the nearest of the package."""
    cls = type(value)
    if not of_package(cls):
        covered = _covered(cls, _owner(cls, _rule(cls).by[0]) or cls)
        checks = (vars(one).get("__post_init__") for one in covered)
        next(filter(None, checks), lambda _: None)(value)


def _claims_nothing(value: Any) -> bool:
    void = _rule(type(value)).void
    return bool(void) and all(getattr_static(value, name, None) is claim for name, claim in void.items())


@cache
def _base(cls: type) -> type | None:
    """Return the nearest class of the package that has a rule of its own, or None."""
    return next((one for one in cls.__mro__ if isinstance(vars(one).get("stated"), Stated) and of_package(one)), None)


def _rule(cls: type) -> Stated:
    base: Any = _base(cls)
    return base.stated


@cache
def _broken(cls: type) -> str | None:
    """Return the message for a class that inherits a statement and changes what it is about, or None."""
    base = _base(cls)
    if base is None:
        return None
    rule, missing = _rule(cls), {}
    for name in rule.by:
        owner = _owner(cls, name)
        claims = owner is not None and (rule.concrete or owner not in base.__mro__)
        change = _change(cls, owner, rule) if owner is not None and claims else None
        if change is not None:
            missing[name] = owner, *change
    if not missing:
        return None
    (owner, changing, changed), (first, *_) = next(iter(missing.values())), missing
    names = " and ".join(filter(None, (", ".join([*missing][:-1]), [*missing][-1])))
    remedy = f"Define {names} in {changing.__name__} as well{rule.instead}"
    return (
        f"{changed} must be overridden together with {names}, which guarantees rely on, got {changed} of "
        f"{changing.__name__} and {first} of {_public_name(cls, owner, changing)}. {remedy}"
    )


def _public_name(cls: type, owner: type, changing: type) -> str:
    """Return the name of a custom class, or that of the package's class from which a changing class has a statement."""
    heirs = cls.__mro__[cls.__mro__.index(changing) + 1 :]
    return next((one.__name__ for one in heirs if issubclass(one, owner) and of_package(owner)), owner.__name__)


def _owner(cls: type, name: str) -> type | None:
    """Return the class that defines a name, as an attribute or as a field, or None."""
    return next((one for one in cls.__mro__ if name in vars(one) or name in _new_fields(one)), None)


def _new_fields(cls: type) -> set[str]:
    """Return the fields that a dataclass adds to those of its bases, which need no default in the class."""
    return _fields(cls).difference(*map(_fields, cls.__mro__[1:]))


def _fields(cls: type) -> set[str]:
    return {one.name for one in fields(cls)} if is_dataclass(cls) else set()


def _change(cls: type, owner: type, rule: Stated) -> tuple[type, str] | None:
    """Return a class that changes what a statement covers, with the name that it overrides, or None."""
    covered = _covered(cls, owner)
    for one in cls.__mro__:
        if one not in covered:
            for name in (*vars(one), *_new_fields(one)):  # a field without a default is no attribute of its class
                if name not in rule.free and _overrides(one, name, covered):
                    return one, name
    return None


def _covered(cls: type, owner: type) -> list[type]:
    """Return the classes that a statement covers: those that its owner inherits from, and those of the package."""
    return [one for one in cls.__mro__ if issubclass(owner, one) or of_package(one)]


def _overrides(cls: type, name: str, covered: list[type]) -> bool:
    """Return True if a class changes an attribute that covered classes may use. Another default of a field is none."""
    if name in TEXTS or name in GENERATED:
        return False
    if name.startswith("__") and name.endswith("__"):
        return name == "__getattribute__" or (name in MAKING and hasattr(cls, "_flax_dataclass"))
    if any(name in _fields(one) for one in covered):
        value = vars(cls).get(name)
        return callable(value) or hasattr(value, "__get__")
    return any(name in vars(one) for one in covered)
