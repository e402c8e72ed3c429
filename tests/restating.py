"""Statements of planted faults and custom classes: what they inherit, as their own, and refusals without them."""

import sys
from dataclasses import fields
from functools import cache
from inspect import getattr_static
from itertools import count
from types import ModuleType

import jax
import pytest
from flax import struct

from fedprivjax import Refusal
from fedprivjax.method.protocol import Pair
from fedprivjax.method.theory import THEORIES, theory_of

HOST = {"bounded", "event", "hiding", "mechanism", "needed_noise", "noise_of", "of_noise", "records", "view"}

BUGS = count(1)


def states(*names):
    """Return a decorator that defines inherited names in a class again, as if they were true of it."""

    def restated(cls):
        for name in names:
            setattr(cls, name, getattr_static(cls, name))
        return cls

    return restated


def refused(make, changed, missing, of):
    """Assert that a private run is refused in one line before anything compiles.

    Args:
        make: function that prepares the run.
        changed: name that is overridden.
        missing: names of the statement, as text.
        of: class that makes it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", None)
        with pytest.raises(Refusal, match=f"^{changed} must be overridden together with {missing}, which ") as refusal:
            make()
    assert "\n" not in str(refusal.value)
    assert f" of {of}. Define {missing} in " in str(refusal.value)


def unsealed(**others):
    """Return a function that copies a privacy object, which refuses subclasses, with other definitions.

    The copy states the same event as its own. Its program is that of the sealed object if only the host reads what
    differs.
    """

    @cache
    def kind(sealed):
        own = {"event": sealed.event, **others}
        if not others.keys() <= HOST:
            own.setdefault("traced", property(lambda private: private))
        sealed.__final__ = False
        try:
            return of_the_package("Unsealed", sealed, **own)
        finally:
            sealed.__final__ = True

    return lambda private: kind(type(private))(**{one.name: getattr(private, one.name) for one in fields(private)})


def planted(method, copy):
    """Return the pair of a method's algorithm and a copy of its privacy object, see `unsealed`."""
    algorithm, private = method.algorithm, copy(method.privacy)
    THEORIES[type(algorithm), type(private)] = theory_of(algorithm, method.privacy)
    names = "mu", "epsilon", "noise_std", "step_size", "step_scale"
    return Pair(algorithm, privacy=private, **{name: getattr(method, name) for name in names})


def buggy(method, **others):
    """Return a class of the package itself with other definitions than a method's, as if the package had this bug.

    It has the method's name, in a module of its own.
    """
    return of_the_package(method.__name__, method, **others)


def of_the_package(name, parent, **others):
    """Return a class in a module of its own, which passes for one of the package."""
    module = ModuleType(f"fedprivjax.planted{next(BUGS)}")
    sys.modules[module.__name__] = module
    kind = struct.dataclass(type(name, (parent,), {"__module__": module.__name__, **others}))
    setattr(module, name, kind)
    return kind
