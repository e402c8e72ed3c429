"""Relative privacy: each machine's share of the largest privacy level, and the noise that follows from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_positive
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.per_machine import Grouped

ONE_NOISE = {  # trust models in which all machines share one noise
    "server": "which adds one noise for all machines",
    "pan-private": "which adds one noise for all users",
    "shuffler": "which protects all messages of a round equally",
}


def shared_privacy(ratios: Any, trust: str) -> tuple[float, ...] | None:
    """Return relative privacy as a static setting, a tuple of positive numbers, or None.

    Raises:
        Refusal: it is no list of positive numbers, or one noise protects all machines in the trust model.
    """
    if ratios is None:
        return None
    if trust in ONE_NOISE:
        raise Refusal(f"relative_privacy must be left out with trust = {trust!r}, {ONE_NOISE[trust]}")
    listed = isinstance(ratios, Sequence | np.ndarray) and not isinstance(ratios, str | bytes)
    if not listed or getattr(ratios, "ndim", 1) != 1 or any(np.ndim(value) for value in ratios):
        shown = called(ratios) if isinstance(ratios, np.ndarray) else repr(ratios)
        raise Refusal(f"relative_privacy must be a list of numbers, one for each machine, got {shown}")
    for value in ratios:
        require_positive("relative_privacy", value)
    if not len(ratios):
        raise Refusal("relative_privacy must have one number for each machine, got none")
    return tuple(float(value) for value in ratios)


def privacy_shares(ratios: Sequence[float] | None, machines: int) -> np.ndarray:
    """Return each machine's μ divided by the largest, from ratios in any unit; float64 [machines], 1 without ratios.

    >>> privacy_shares((2.0, 1.0), 2).tolist()
    [1.0, 0.5]
    """
    if ratios is None:
        return np.ones(machines)
    if len(ratios) != machines:
        raise Refusal(f"relative_privacy must have one number for each of {machines} machines, got {len(ratios)}")
    return np.asarray(ratios, float) / max(ratios)


def relative_noise(ratios: Sequence[float] | None, machines: int) -> np.ndarray:
    """Noise of each machine relative to the one with the largest privacy level; float64, shape [machines].

    >>> relative_noise((2.0, 1.0), 2).tolist()
    [1.0, 2.0]
    """
    return 1 / privacy_shares(ratios, machines)


def exposed_once(schedule: Schedule, ratios: Sequence[float] | None) -> Grouped:
    """Return the exposure of machines whose samples affect one message each.

    It is the machine's privacy share, or 0 if the machine is never scheduled.
    """
    shares = privacy_shares(ratios, schedule.machines)
    return schedule.once(("takes part", ratios), lambda: Grouped.of(np.where(schedule.total > 0, shares, 0.0)))


def noise_of_shares(ratios: Sequence[float] | None, machines: int) -> float:
    """Return √(mean of 1/share²): the noise of a mean over all machines, divided by that without ratios."""
    return float(np.sqrt(np.mean(privacy_shares(ratios, machines) ** -2.0)))
