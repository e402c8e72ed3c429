"""From a privacy target to noise and step: host, float64, before anything is compiled."""

from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_positive
from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import PrivacyGuarantee, RecordGuarantee

SENSITIVITY_UNKNOWN = (
    "clip must be set, for the loss has no finite gradient bound here "
    "(feature_bound, lipschitz, smoothness or a ball is missing)"
)


def calibrate(
    protocol: Any, problem, plan, *, mu: float | None = None, epsilon: float | None = None, delta: float | None = None
) -> Any:
    """A new protocol with `noise_std` and `step_size` filled in, and `mu` spent.

    `noise_std = sensitivity/μ`; a step that is None becomes the protocol's theory step.

    Args:
        plan: the drawn plan, or its size (machines, per_round, rounds).
        delta: also the δ of protocols that are private by records.
        mu: GDP target; or `epsilon` and `delta`, of which the largest μ with δ(ε) ≤ δ is taken. None of them: the
            protocol's own `mu` or `noise_std`. `mu=inf` is non-private.

    Raises:
        ValueError: no target or two, or a default that the problem's constants do not allow.
    """
    if hasattr(protocol, "calibrated"):
        if mu is not None:
            raise Refusal(f"mu must be None for {type(protocol).__name__}: give epsilon (with delta)")
        return protocol.calibrated(problem, plan, epsilon=epsilon, delta=delta)
    size = getattr(plan, "size", plan)
    target = _target(protocol, mu, epsilon, delta)
    noise_std = protocol.noise_std if target is None else _noise_std(protocol, problem, size, target)
    if target is None:
        target = inf if noise_std == 0 else protocol.sensitivity(problem, size) / float(noise_std)
    step_size = protocol.step_size
    if step_size is None:
        bounded = isfinite(problem.constraint.diameter)
        step_size = float(protocol.theory_step(problem, size, target)) if bounded else inf
        if not 0 < step_size < inf:
            raise Refusal("step_size must be set: its default needs a ball, and a finite mu or a smoothness constant")
    return replace(protocol, mu=None, noise_std=float(noise_std), step_size=float(step_size))


def guarantee(protocol, problem, plan, delta: float = 1e-5) -> PrivacyGuarantee | RecordGuarantee:
    """The guarantee of a protocol on the plan that is really used.

    Args:
        protocol: calibrated, or with a `mu` or `noise_std` of its own.

    Returns:
        μ-GDP per machine with the conversions to (ε, δ) (ε alone where records are sampled), its unit, relation, trust
        model and theorem.
    """
    if protocol.noise_std is None:
        protocol = calibrate(protocol, problem, plan, delta=delta)
    return protocol.event(problem, plan).guarantee(float(protocol.noise_std), delta)


def _target(protocol, mu, epsilon, delta) -> float | None:
    if epsilon is not None:
        if mu is not None:
            raise Refusal("give mu or epsilon, not both")
        if delta is None:
            raise Refusal("delta must be given with epsilon")
        mu = float(gdp.mu(epsilon, delta))
    if mu is None and protocol.mu is None and protocol.noise_std is None:
        raise Refusal("give mu (GDP), or epsilon and delta, or noise_std; mu = inf is non-private")
    if mu is not None and protocol.noise_std is not None:
        raise Refusal(f"give mu or noise_std, not both, got mu = {mu} and noise_std = {protocol.noise_std}")
    target = protocol.mu if mu is None else mu
    require_positive("mu", target, optional=True, infinite=True)
    return None if target is None else float(target)


def _noise_std(protocol, problem, size, mu: float) -> float:
    if mu == inf:
        return 0.0
    sensitivity = protocol.sensitivity(problem, size)
    if not np.isfinite(sensitivity):
        raise Refusal(SENSITIVITY_UNKNOWN)
    return float(sensitivity) / mu
