"""From a privacy target to noise and step: host, float64, before anything is compiled."""

from dataclasses import replace
from math import isfinite, sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.target import Target

SENSITIVITY_UNKNOWN = (
    "clip must be set, for the loss has no finite gradient bound here "
    "(feature_bound, lipschitz, smoothness or a ball is missing)"
)
SLACK = 1e-6  # relative: what rounding may add to a target


def calibrate(
    protocol: Any, problem, plan, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None
) -> Any:
    """A new protocol with `noise_std` and `step_size` filled in, and its target spent.

    The noise is by the protocol's own rule; what the drawn plan makes of it is held against the target.

    Args:
        plan: the drawn plan.
        mu: GDP target, or `epsilon` with `delta`. None of them: the protocol's own target or `noise_std`.
        delta: at which ε is asked for, and stated.

    Raises:
        Refusal: no target or two, a default that the problem's constants do not allow, or noise that gives less
            privacy on this plan than the target asks for.
    """
    return settle(protocol, problem, plan, target_of(protocol, mu=mu, epsilon=epsilon, delta=delta))[0]


def guarantee(protocol, problem, plan, delta: float = 1e-5) -> PrivacyGuarantee:
    """The guarantee of a protocol on the plan that is really used.

    Args:
        protocol: calibrated, or with a target or `noise_std` of its own.

    Returns:
        μ-GDP per machine with the conversions to (ε, δ), or ε alone where records are sampled; with its unit,
        relation, trust model, theorem and assumptions.
    """
    if protocol.noise_std is None:
        protocol = calibrate(protocol, problem, plan, delta=delta)
    return event_of(protocol, problem, plan).guarantee(delta)


def target_of(protocol, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None) -> Target:
    """The target that is given, or else the protocol's own.

    With a `noise_std`, an ε for each machine says only in which proportions their noises are.

    Raises:
        Refusal: none, or two.
    """
    if mu is None and epsilon is None:
        mu, epsilon = protocol.mu, protocol.epsilon
    if protocol.noise_std is not None and np.ndim(epsilon):
        epsilon = None
    return Target(mu=mu, epsilon=epsilon, noise_std=protocol.noise_std, delta=delta)


def settle(protocol, problem, plan, target: Target) -> tuple[Any, Event]:
    """A protocol calibrated for a plan, and what it does to privacy there.

    Raises:
        Refusal: as `calibrate`.
    """
    calibrated = protocol.calibrate(problem, plan, target)
    event = event_of(calibrated, problem, plan)
    if exceeds(event, target) and not calibrated.claims_only:
        raise Refusal(
            f"{protocol.name} must give at most {target}, and its noise on this plan gives {_given(event, target)}"
        )
    return calibrated, event


def event_of(protocol, problem, plan) -> Event:
    """What a calibrated protocol does to privacy on a plan.

    Raises:
        Refusal: a plan of several epochs, for a method whose guarantee assumes that each sample is used once.
    """
    if plan.repeats and not protocol.several_epochs and protocol.noise_std != 0:
        raise Refusal(f"order must use each sample once, as {protocol.name}'s guarantee assumes, got {plan.order!r}")
    return protocol.event(problem, plan)


def exceeds(event: Event, target: Target) -> bool:
    """Whether an event gives less privacy than the target asks for, beyond rounding."""
    if target.noise_std is not None or target.non_private:
        return False
    if event.mus is not None and not np.ndim(target.epsilon):
        return event.mu > target.largest_mu * (1 + SLACK)
    if np.ndim(target.epsilon):
        allowed, reached = np.asarray(target.epsilon), event.epsilons(target.stated_delta).each
        return bool(np.any(reached > allowed * (1 + SLACK)))
    return event.epsilon(target.stated_delta) > target.worst_epsilon * (1 + SLACK)


def gaussian_rule(target: Target, sensitivity: float) -> float:
    """`sensitivity/μ`, the noise of mechanisms whose exposure is at most 1; a given noise as it is.

    Raises:
        Refusal: a sensitivity that is not known.
    """
    if target.noise_std is not None:
        return float(target.noise_std)
    if target.non_private:
        return 0.0
    if not isfinite(sensitivity):
        raise Refusal(SENSITIVITY_UNKNOWN)
    return float(sensitivity) / target.largest_mu


def solved_noise(protocol, problem, plan, target: Target) -> float:
    """The least `noise_std` (to a part in 10⁶, from above) at which a protocol's event on a plan meets the target.

    Raises:
        Refusal: where no noise does.
    """
    if target.noise_std is not None or target.non_private:
        return float(target.noise_std or 0.0)

    def meets(noise_std: float) -> bool:
        return not exceeds(replace(protocol, noise_std=noise_std).event(problem, plan), target)

    low, high = 1e-3, 1.0
    while not meets(high):
        low, high = high, 4 * high
        if high > 1e12:
            raise Refusal(f"{protocol.name} must have an event that meets {target} at some noise_std, and none does")
    while meets(low):
        low, high = low / 4, low
        if high < 1e-12:
            return high  # whatever the noise, nothing is exposed
    while high > low * (1 + SLACK):
        middle = sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _given(event: Event, target: Target) -> str:
    if target.mu is not None and event.mus is not None:
        return f"{event.mu:.4g}-GDP"
    return f"ε = {event.epsilon(target.stated_delta):.4g}"
