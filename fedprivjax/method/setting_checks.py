"""Validation of settings that protocols share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import NUMBERS, require_choice, require_float32, require_one, require_positive
from fedprivjax.method.server_step import set_optimizers
from fedprivjax.noise.message_factors import Given, Materialised, SumFactor, rows_of
from fedprivjax.privacy.target import require_alone

SMALLEST_CLIP = 1e-12  # squares of smaller coordinates would underflow in float32, below 1e-19


def check_steps(protocol) -> None:
    """Set the optimisers of a protocol. Raise Refusal if one of them, a step or the clip is invalid."""
    set_optimizers(protocol)
    numbers = {name: getattr(protocol, name, None) for name in (*NUMBERS, "clip")}
    for name, value in numbers.items():
        if isinstance(value, list | tuple):  # arrays may be leaves of stacked protocols
            require_one(name, value)
    for name in ("step_size", "step_scale"):
        require_positive(name, getattr(protocol, name), optional=name == "step_size")
    require_clip("clip", numbers["clip"])


def require_clip(name: str, clip: Any) -> None:
    """Raise Refusal if a clip is not positive, or so small that float32 norms underflow. None and traced values pass.

    >>> require_clip("update_clip", 1e-20)
    Traceback (most recent call last):
    fedprivjax.Refusal: update_clip must be at least 1e-12, so that norms do not underflow, got 1e-20
    """
    require_positive(name, clip, optional=True)
    if isinstance(clip, int | float | np.number) and clip < SMALLEST_CLIP:
        raise Refusal(f"{name} must be at least {SMALLEST_CLIP:g}, so that norms do not underflow, got {clip}")


def check_numbers(protocol, *targets: str) -> None:
    """Raise Refusal if a target ("mu" or "epsilon"), the noise, a step or the clip is invalid."""
    check_steps(protocol)
    for target in targets:
        level = getattr(protocol, target)
        if isinstance(level, list | tuple):
            raise Refusal(
                f"{target} must be one number, got {list(level)}: a sweep takes several, as "
                f'over={{"{target}": [...]}}, and relative_privacy=[...] gives every machine its own privacy'
            )
        require_positive(target, level, optional=True, infinite=True)
    check_noise(protocol, *targets)


def check_noise(protocol, *targets: str) -> None:
    """Raise Refusal if the noise is negative or not finite, or if several of the targets and the noise are given."""
    numbers = {name: getattr(protocol, name) for name in (*targets, "noise_std")}
    given = {name: value for name, value in numbers.items() if isinstance(value, int | float | np.number)}
    if not 0 <= given.get("noise_std", 0) < np.inf:
        raise Refusal(f"noise_std must be finite and not negative, got {protocol.noise_std}")
    require_float32("noise_std", given.get("noise_std", 0))
    require_alone(given)


def fixed_schedule(noise_schedule: Any, names: Iterable[str], factors: Mapping[str, type] = {}) -> Any:
    """Return a noise schedule as a static setting: one of `names`, a tuple of numbers, or a factor of running sums.

    Args:
        noise_schedule: name, list of numbers, or factor: a name, {name: its setting}, a `SumFactor`, a matrix, or an
            object with `materialize(n)`, which returns a matrix.
        names: names of noise schedules.
        factors: classes of `SumFactor` by name; empty if factors are not allowed.
    """
    if isinstance(noise_schedule, SumFactor) and factors:
        return noise_schedule
    if isinstance(noise_schedule, Mapping) and factors:
        return _factor_of_table(noise_schedule, factors)
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, (*names, *factors))
        return factors[noise_schedule]() if noise_schedule in factors else noise_schedule
    if hasattr(noise_schedule, "materialize") and factors:
        return Materialised(noise_schedule)
    if not (isinstance(noise_schedule, Sequence) or hasattr(noise_schedule, "__array__")):
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}")
    try:
        numbers: Any = np.asarray(noise_schedule)
        return Given(rows_of(numbers)) if factors and numbers.ndim == 2 else tuple(float(value) for value in numbers)
    except (TypeError, ValueError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}") from None


def _factor_of_table(table: Mapping[str, Any], factors: Mapping[str, type]) -> SumFactor:
    if len(table) != 1:
        raise Refusal(f"noise_schedule must be one name with its setting, got {dict(table)!r}")
    ((name, value),) = table.items()
    require_choice("noise_schedule", name, factors)
    return factors[name](value)
