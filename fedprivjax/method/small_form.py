"""Small forms of methods: examples of their settings, and copies of protocols for audits with few machines."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from fedprivjax.checks.numbers import kinds_of_parts, leaves_of

BATCH = 3  # largest number of records in a message of an audit
EPOCH = 4  # batches that a machine's records make up in an audit


def audit_settings(method: Any) -> dict[str, Any]:
    """Return settings, besides a privacy target, for an audit of a method: the first of its `examples`."""
    return examples_of(method)[0]


def examples_of(method: Any) -> tuple[dict[str, Any], ...]:
    """Return sets of settings, without noise and step size, that together allow every option of a method.

    They are its `examples`, or a clip of 1 if it states none.
    """
    return getattr(method, "examples", ()) or ({"clip": 1.0} if "clip" in leaves_of(method) else {},)


def scaled_down(protocol: Any, machines: int) -> Any:
    """Return a protocol for an audit with this number of machines and short epochs.

    It has a small batch, the smallest ε and δ of all machines, and relative privacy for this number of machines. The
    privacy target, clip, noise schedule, sampler, trust model and noise rule are unchanged. The metadata `small` of a
    field is a function that returns the value of another setting in an audit.

    >>> from fedprivjax import NoisyMinibatchSGD
    >>> scaled_down(NoisyMinibatchSGD(epsilon=(1.0, 2.0), batch=600, sampler="poisson"), 4).batch
    3
    """
    small: dict[str, Callable[[Any], Any]] = {
        "epsilon": _least,
        "delta": _least,
        "batch": lambda batch: min(int(np.max(batch)), BATCH),
        "rate": of_short_epochs,  # at which a few records are used
        "relative_privacy": partial(_ratios, machines=machines),
    }
    own = _changes(protocol, small)
    for name, known in (("algorithm", {}), ("privacy", small)):
        if name in kinds_of_parts(protocol):
            part = getattr(protocol, name)
            own[name] = replace(part, **_changes(part, known))
    return replace(protocol, **own)


def of_short_epochs(value: Any) -> Any:
    """Return a rate, or the weight of one batch, of at least one epoch of an audit; None stays None."""
    return None if value is None else max(float(value), 1 / EPOCH)


def _changes(part: Any, small: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the changed settings of a protocol or one of its parts, by name."""
    changes = {one.name: one.metadata.get("small", small.get(one.name)) for one in fields(part) if one.init}
    given = {name: getattr(part, name) for name, change in changes.items() if change is not None}
    return {name: changes[name](value) for name, value in given.items() if value is not None}  # type: ignore[misc]


def _least(values: Any) -> Any:
    return min(values) if isinstance(values, tuple) else values


def _ratios(ratios: Any, *, machines: int) -> tuple[float, ...]:
    """Return the relative privacy of another number of machines, evenly spaced quantiles of the ratios."""
    return tuple(np.quantile(ratios, np.linspace(1, 0, machines)).tolist())
