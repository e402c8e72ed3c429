"""Refusals of arguments of another kind than a run takes: swapped, a class for an object, a name, a number."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fedprivjax.checks.decorated import Decorated, require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import NUMBERS, called, require_one, require_positive
from fedprivjax.plan.participation import check_participation
from fedprivjax.problem.problem import Problem

INFINITE = ("mu", "epsilon")  # which is non-private
POSITIVE = (*INFINITE, "step_size", "step_scale", "clip")


def require_arguments(protocol: Any, problem: Any, participation: Any) -> None:
    """Refuse a protocol, problem or participation that is none, in words that say what to write.

    >>> import numpy as np
    >>> from fedprivjax import DPMu2, Full, Softmax, linear_problem
    >>> require_arguments(linear_problem(np.eye(2), [0, 1], Softmax(2)), DPMu2(mu=1.0), Full(2))
    Traceback (most recent call last):
    fedprivjax.Refusal: protocol must come first, then problem and participation, got a Problem as protocol
    """
    _require_single_precision()
    require_protocol(protocol)
    require_problem(problem)
    check_participation(participation)


def _require_single_precision() -> None:
    """Raise Refusal in jax's 64-bit mode, which programs do not support."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        raise Refusal("jax_enable_x64 must be off, for programs compute in float32, got on. Unset JAX_ENABLE_X64")


def require_protocol(protocol: Any) -> None:
    """Refuse what is no protocol's object, and several values where it takes one number.

    >>> from fedprivjax import DPMu2
    >>> require_protocol(DPMu2)
    Traceback (most recent call last):
    fedprivjax.Refusal: protocol must be an object, such as DPMu2(...), got the class DPMu2
    """
    if isinstance(protocol, Problem):
        raise Refusal("protocol must come first, then problem and participation, got a Problem as protocol")
    if isinstance(protocol, type):
        raise Refusal(f"protocol must be an object, such as {protocol.__name__}(...), got {called(protocol)}")
    if not is_dataclass(protocol):
        raise Refusal(
            f"protocol must be an object of a flax.struct.dataclass, such as DPMu2(mu=1.0), got {called(protocol)}"
        )
    if isinstance(protocol, Decorated):
        require_decorated(protocol)
    for name in [field.name for field in fields(protocol) if field.name in NUMBERS]:
        require_one(name, getattr(protocol, name))
    _require_settings(plain_numbers(protocol))


def plain_numbers(protocol: Any) -> Any:
    """Return the protocol with Python numbers in place of arrays: a number for a scalar array, tuples for others.

    A custom protocol's leaf stays an array if its default is an array or missing.

    Raises:
        Refusal: a number that may be swept is given as an array with axes (ε of each machine excepted), or the
            protocol rejects the number.

    >>> from fedprivjax import DPMu2
    >>> plain_numbers(DPMu2(mu=np.array(2.0))).mu
    2.0
    """
    arrays = {name: value for name, value in _settings(protocol).items() if isinstance(value, np.ndarray | jax.Array)}
    arrays = {name: value for name, value in arrays.items() if not isinstance(value, Tracer)}
    own_arrays = {name for name, default in protocol.leaves().items() if default is MISSING or np.ndim(default)}
    arrays = {name: value for name, value in arrays.items() if name not in own_arrays or not value.ndim}
    swept = protocol.numbers().keys() - {"epsilon"}
    for name, value in arrays.items():
        if name in swept:
            require_one(name, value)
    plain = {name: value.item() if not value.ndim else _nested(value.tolist()) for name, value in arrays.items()}
    return protocol.with_numbers(plain) if plain else protocol


def _settings(protocol: Any) -> dict[str, Any]:
    """A protocol's settings by name, with those of its parts, without values that calibration derives."""
    own = {field.name: getattr(protocol, field.name) for field in fields(protocol) if "derived" not in field.metadata}
    return own | protocol.numbers()


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def _require_settings(protocol: Any) -> None:
    """Refuse settings that no protocol may have, one's own among them, which need not look at theirs."""
    for field in (field for field in fields(protocol) if field.metadata.get("pytree_node", True)):
        name, value = field.name, getattr(protocol, field.name)
        if isinstance(value, str):
            static = "a setting that is none must be a struct.field(pytree_node=False)"
            raise Refusal(f"{name} must be a number, got {value!r}: {static}")
        if name in POSITIVE and isinstance(value, int | float | np.number):
            require_positive(name, value, infinite=name in INFINITE)
        if name == "noise_std" and isinstance(value, int | float | np.number) and not 0 <= value < np.inf:
            raise Refusal(f"noise_std must be finite and not negative, got {value}")


def require_problem(problem: Any) -> None:
    """Refuse what is no problem.

    >>> import numpy as np
    >>> require_problem(np.eye(3))
    Traceback (most recent call last):
    fedprivjax.Refusal: problem must be a Problem, ... linear_problem(X, y, loss) make it, got an array of shape (3, 3)
    """
    if not isinstance(problem, Problem):
        makers = "as from_dataset(data) and linear_problem(X, y, loss) make it"
        raise Refusal(f"problem must be a Problem, {makers}, got {called(problem)}")
