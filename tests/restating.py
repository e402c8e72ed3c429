"""Statements of planted faults and custom classes: what they inherit, as their own, and refusals without them."""

from dataclasses import fields
from functools import cache
from inspect import getattr_static

import jax
import pytest

from fedprivjax import Refusal


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
    """Return a function that copies a privacy object, which refuses subclasses, with other definitions."""

    @cache
    def kind(sealed):
        sealed.__final__ = False
        try:
            return type("Unsealed", (sealed,), others)
        finally:
            sealed.__final__ = True

    return lambda private: kind(type(private))(**{one.name: getattr(private, one.name) for one in fields(private)})
