"""Statements of planted faults and custom classes: what they inherit, as their own."""

from inspect import getattr_static


def states(*names):
    """Return a decorator that defines inherited names in a class again, as if they were true of it."""

    def restated(cls):
        for name in names:
            setattr(cls, name, getattr_static(cls, name))
        return cls

    return restated
