"""Relative privacy: each machine's share of the largest privacy level, and the noise that follows from it."""

from collections.abc import Sequence

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import LEVELS

ONE_NOISE = {  # trust models in which one noise is for all machines
    "server": "whose noise is one for all machines",
    "pan-private": "whose noise is one for all users",
    "shuffler": "behind which all messages of a round hide each other alike",
}


def fixed_profile(protocol) -> tuple[float, ...] | None:
    """A protocol's `profile` as a static setting: a tuple of positive numbers, one for each machine."""
    profile = protocol.profile
    if profile is None:
        return None
    if protocol.trust in ONE_NOISE:
        raise Refusal(f"profile must be left out with trust = {protocol.trust!r}, {ONE_NOISE[protocol.trust]}")
    if isinstance(profile, str) or not isinstance(profile, Sequence | np.ndarray):
        raise Refusal(f"profile must be a list of numbers, one for each machine, got {profile!r}")
    for value in profile:
        require_positive("profile", value)
    if not len(profile):
        raise Refusal("profile must have one number for each machine, got none")
    if np.ndim(protocol.epsilon):
        raise Refusal(f"give profile or an epsilon for each machine, not both, got epsilon = {protocol.epsilon}")
    return tuple(float(value) for value in profile)


def follows_epsilon(protocol) -> tuple[str, ...]:
    """`Protocol.noise_follows` where machines' noises follow from the ε of each."""
    return () if protocol.profile is None else LEVELS


def privacy_shares(profile: Sequence[float] | None, machines: int) -> np.ndarray:
    """Every machine's μ as a part of the largest, float64 [machines], from a `profile` in any unit; 1 without one.

    >>> privacy_shares((2.0, 1.0), 2).tolist()
    [1.0, 0.5]
    """
    if profile is None:
        return np.ones(machines)
    if len(profile) != machines:
        raise Refusal(f"profile must have one number for each of {machines} machines, got {len(profile)}")
    return np.asarray(profile, float) / max(profile)


def asked_shares(profile: Sequence[float] | None, machines: int) -> np.ndarray | None:
    """`privacy_shares` that machines are asked to keep to; None where there is no profile."""
    return None if profile is None else privacy_shares(profile, machines)


def exposed_once(schedule: Schedule, profile: Sequence[float] | None) -> Grouped:
    """Exposure of machines whose samples touch one message each: their share, 0 for those that are never asked."""
    shares = privacy_shares(profile, schedule.machines)
    return schedule.once(("takes part", profile), lambda: Grouped.of(np.where(schedule.total > 0, shares, 0.0)))


def noise_of_shares(profile: Sequence[float] | None, machines: int) -> float:
    """√(mean of 1/share²): the noise of a mean over all machines, as a multiple of that without a profile."""
    return float(np.sqrt(np.mean(privacy_shares(profile, machines) ** -2.0)))
