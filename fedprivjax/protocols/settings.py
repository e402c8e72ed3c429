"""Refusals of settings that no protocol allows."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive

SMALLEST_CLIP = 1e-12  # the squares of a norm's parts underflow from 1e-19 on


def check_steps(protocol) -> None:
    """Refuse steps and a clip that no protocol allows."""
    for name in ("step_size", "step_scale", "clip"):
        require_positive(name, getattr(protocol, name), optional=True)
    require_clip(protocol.clip)


def check_numbers(protocol, target: str) -> None:
    """Refuse a target ("mu" or "epsilon"), noise, steps and clip that no protocol allows."""
    level, noise_std = getattr(protocol, target), protocol.noise_std
    require_positive(target, level, optional=True, infinite=True)
    check_steps(protocol)
    require_noise_std(noise_std)
    if noise_std is not None and isinstance(level, int | float | np.number):
        raise Refusal(f"give {target} or noise_std, not both, got {target} = {level} and noise_std = {noise_std}")


def check_settings(protocol) -> None:
    """Refuse settings that no protocol with a target μ allows."""
    check_numbers(protocol, "mu")
    require_choice("trust", protocol.trust, ("server", "none"))


def require_noise_std(noise_std: Any) -> None:
    """Refuse a noise that is a number, and negative or not finite."""
    if isinstance(noise_std, int | float | np.number) and not 0 <= noise_std < np.inf:
        raise Refusal(f"noise_std must be finite and not negative, got {noise_std}")


def require_clip(clip: Any) -> None:
    """Refuse a bound so small that float32 takes norms beyond it for 0."""
    if isinstance(clip, int | float | np.number) and clip < SMALLEST_CLIP:
        raise Refusal(f"clip must be at least {SMALLEST_CLIP:g}, where norms are still numbers, got {clip}")


def fixed_schedule(noise_schedule: str | Sequence[float], names: Iterable[str]) -> str | tuple[float, ...]:
    """A noise schedule as a static setting: one of `names`, or a tuple of numbers."""
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, names)
        return noise_schedule
    if not isinstance(noise_schedule, Sequence | np.ndarray):
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}")
    try:
        return tuple(float(value) for value in noise_schedule)
    except (TypeError, ValueError):
        raise Refusal(f"noise_schedule must be a name or a list of numbers, got {noise_schedule!r}") from None
