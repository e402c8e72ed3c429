"""A protocol's release from its settings, and the noise that a target needs."""

from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.accountants.binomial import ACCOUNTINGS, ROUNDINGS
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.interface import Protocol
from fedprivjax.protocols.releases.bits import ShuffledBits
from fedprivjax.protocols.releases.gaussian import GaussianRelease
from fedprivjax.protocols.releases.interface import Release, record_uses
from fedprivjax.protocols.settings import require_clip, require_noise_std

TRUSTS = ("shuffler", "none", "server", "pan-private")


def release_of(protocol: Any) -> Release:
    """The release that a protocol's settings name."""
    if protocol.trust != "shuffler":
        return GaussianRelease(protocol.trust, protocol.clip)
    how = {name: getattr(protocol, name) for name in ("levels", "rounding", "accounting", "honest")}
    return ShuffledBits("shuffler", protocol.clip, protocol.sums, **how)


def check_release(protocol: Any) -> None:
    """Refuse settings that no release allows."""
    require_positive("epsilon", protocol.epsilon, optional=True, infinite=True)
    for name in ("step_size", "step_scale", "clip"):
        require_positive(name, getattr(protocol, name), optional=True)
    require_clip(protocol.clip)
    require_noise_std(protocol.noise_std)
    if protocol.noise_std is not None and isinstance(protocol.epsilon, int | float | np.number):
        both = f"epsilon = {protocol.epsilon} and noise_std = {protocol.noise_std}"
        raise Refusal(f"give epsilon or noise_std, not both, got {both}")
    require_choice("trust", protocol.trust, TRUSTS)
    require_choice("rounding", protocol.rounding, ROUNDINGS)
    require_choice("accounting", protocol.accounting, ACCOUNTINGS)
    if protocol.levels is not None:
        require_at_least("levels", protocol.levels, 1)
    if not 0 < protocol.honest <= 1:
        raise Refusal(f"honest must be above 0 and at most 1, got {protocol.honest}")
    only_bits = {"levels": None, "rounding": "averaged", "accounting": "exact", "honest": 1.0}
    for name, default in only_bits.items():
        if protocol.trust != "shuffler" and getattr(protocol, name) != default:
            raise Refusal(f"{name} must go with trust = 'shuffler', got trust = {protocol.trust!r}")


def noise_for(protocol: Protocol, problem: Problem, plan: Plan, target: Target) -> float:
    """The σ with which the protocol's release meets the target on a plan."""
    if target.noise_std is not None or target.non_private:
        return float(target.noise_std or 0.0)
    if not record_uses(plan).any():
        raise Refusal("participation must have at least one machine send a message")
    release: Release = protocol.release  # type: ignore[attr-defined]
    return release.needed(problem, plan, target)
