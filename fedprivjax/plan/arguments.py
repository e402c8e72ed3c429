"""Type checks of a run's arguments: swapped arguments, classes instead of objects, names, numbers."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fedprivjax.checks.decorated import Decorated, require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import NUMBERS, called, require_float32, require_one, require_positive
from fedprivjax.plan.participation import check_participation
from fedprivjax.problem.problem import Problem

INFINITE = ("mu", "epsilon")  # may be infinite, which means non-private
POSITIVE = (*INFINITE, "step_size", "step_scale", "clip")


def require_arguments(protocol: Any, problem: Any, participation: Any) -> Any:
    """Return the protocol with plain numbers, as `require_protocol` does, and check the other arguments.

    Raises:
        Refusal: unless the arguments are a protocol, a problem and a participation scheme, in this order.

    >>> import numpy as np
    >>> from fedprivjax import DPMu2, Full, Softmax, linear_problem
    >>> require_arguments(linear_problem(np.eye(2), [0, 1], Softmax(2)), DPMu2(mu=1.0), Full(2))
    Traceback (most recent call last):
    fedprivjax.Refusal: protocol must come first, then problem and participation, got a Problem as protocol
    """
    _require_single_precision()
    protocol = require_protocol(protocol)
    require_problem(problem)
    check_participation(participation)
    return protocol


def _require_single_precision() -> None:
    """Raise Refusal in jax's 64-bit mode, which programs do not support."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        raise Refusal("jax_enable_x64 must be off, because programs compute in float32, got on. Unset JAX_ENABLE_X64")


def require_protocol(protocol: Any) -> Any:
    """Return the protocol with plain numbers, see `plain_numbers`. Custom protocols need not repeat these checks.

    Raises:
        Refusal: if `protocol` is not a protocol object, or if a setting is invalid for every protocol, such as several
            values of a setting that takes one number.

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
    protocol = plain_numbers(protocol)
    for field in fields(protocol):
        name, value = field.name, getattr(protocol, field.name)
        if name in NUMBERS:
            require_one(name, value)
        if not field.metadata.get("pytree_node", True):
            continue
        _require_no_text(name, value)
        if not isinstance(value, int | float | np.number):
            continue
        if name in POSITIVE:
            require_positive(name, value, infinite=name in INFINITE)
        if name == "noise_std" and not 0 <= value < np.inf:
            raise Refusal(f"noise_std must be finite and not negative, got {value}")
        require_float32(name, value)
    for name, value in protocol.numbers().items():
        _require_no_text(name, value)
    return protocol


def _require_no_text(name: str, value: Any) -> None:
    """Raise Refusal for a text in the place of a number."""
    if isinstance(value, str):
        static = "Declare a setting that is not a number as struct.field(pytree_node=False)"
        raise Refusal(f"{name} must be a number, got {value!r}. {static}")


def plain_numbers(protocol: Any) -> Any:
    """Return the protocol with arrays replaced by Python numbers: a number for a scalar array, tuples for others.

    A custom protocol's leaf stays an array if its default is an array or missing.

    Raises:
        Refusal: if a sweepable number is given as an array with axes (except ε of each machine), or the protocol
            rejects the number.

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
    """Return the settings of a protocol and its components by name, without values that calibration derives."""
    own = {field.name: getattr(protocol, field.name) for field in fields(protocol) if "derived" not in field.metadata}
    return own | protocol.numbers()


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def require_problem(problem: Any) -> None:
    """Raise Refusal if `problem` is not a Problem.

    >>> import numpy as np
    >>> require_problem(np.eye(3))
    Traceback (most recent call last):
    fedprivjax.Refusal: problem must be a Problem, ... linear_problem(X, y, loss), got an array of shape (3, 3)
    """
    if not isinstance(problem, Problem):
        makers = "such as from_dataset(data) or linear_problem(X, y, loss)"
        raise Refusal(f"problem must be a Problem, {makers}, got {called(problem)}")
