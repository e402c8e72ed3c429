"""Validation of settings that protocols share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import NUMBERS, require_choice, require_one, require_positive
from fedprivjax.noise.sums import Given, SumFactor

SMALLEST_CLIP = 1e-12  # squares of smaller coordinates would underflow in float32, below 1e-19


def check_steps(protocol) -> None:
    """Raise Refusal if a step or the clip is invalid."""
    for name in (*NUMBERS, "clip"):
        if isinstance(getattr(protocol, name), list | tuple):  # arrays may be leaves of stacked protocols
            require_one(name, getattr(protocol, name))
    for name in ("step_size", "step_scale", "clip"):
        require_positive(name, getattr(protocol, name), optional=True)
    require_clip(protocol.clip)


def check_numbers(protocol, target: str) -> None:
    """Raise Refusal if the target ("mu" or "epsilon"), the noise, a step or the clip is invalid."""
    level, noise_std = getattr(protocol, target), protocol.noise_std
    check_steps(protocol)
    if isinstance(level, list | tuple):
        raise Refusal(
            f'{target} must be one number, got {list(level)}: a sweep takes several, as over={{"{target}": [...]}}, '
            f"and relative_privacy=[...] gives every machine its own privacy"
        )
    require_positive(target, level, optional=True, infinite=True)
    require_noise_std(noise_std)
    if noise_std is not None and isinstance(level, int | float | np.number):
        raise Refusal(f"give {target} or noise_std, not both, got {target} = {level} and noise_std = {noise_std}")


def check_settings(protocol) -> None:
    """Raise Refusal if a setting is invalid for protocols with a target μ or ε."""
    check_numbers(protocol, "mu")
    check_numbers(protocol, "epsilon")
    require_one_level(protocol)
    require_choice("trust", protocol.trust, ("server", "none"))


def require_one_level(protocol) -> None:
    """Raise Refusal if both μ and ε are given."""
    mu, epsilon = protocol.mu, protocol.epsilon
    if all(isinstance(level, int | float | np.number) for level in (mu, epsilon)):
        raise Refusal(f"give mu or epsilon, not both, got mu = {mu} and epsilon = {epsilon}")


def require_noise_std(noise_std: Any) -> None:
    """Raise Refusal if the noise is a number that is negative or not finite."""
    if isinstance(noise_std, int | float | np.number) and not 0 <= noise_std < np.inf:
        raise Refusal(f"noise_std must be finite and not negative, got {noise_std}")


def require_clip(clip: Any) -> None:
    """Raise Refusal if the bound is so small that norms above it are 0 in float32."""
    if isinstance(clip, int | float | np.number) and clip < SMALLEST_CLIP:
        raise Refusal(f"clip must be at least {SMALLEST_CLIP:g}, so that norms do not underflow, got {clip}")


def fixed_schedule(noise_schedule: Any, names: Iterable[str], factors: Mapping[str, type] = {}) -> Any:
    """Return a noise schedule as a static setting: one of `names`, a tuple of numbers, or a factor of running sums.

    Args:
        noise_schedule: name, list of numbers, or factor: a name, {name: its setting}, a `SumFactor` or a matrix.
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
    if not isinstance(noise_schedule, Sequence | np.ndarray):
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}")
    try:
        if factors and np.ndim(noise_schedule) == 2:
            return Given(tuple(tuple(float(value) for value in row) for row in noise_schedule))
        return tuple(float(value) for value in noise_schedule)
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
