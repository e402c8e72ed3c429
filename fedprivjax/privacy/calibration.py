"""From a privacy target to noise and step: host, float64, before anything is compiled."""

from math import isfinite, sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy import gdp
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
    if not protocol.calibrated:
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
    _require_own_sampler(protocol, plan)
    calibrated = protocol.calibrate(problem, plan, target)
    event = event_of(calibrated, problem, plan)
    require_met(calibrated, event, target)
    return calibrated, event


def event_of(protocol, problem, plan) -> Event:
    """What a calibrated protocol does to privacy on a plan.

    Raises:
        Refusal: a plan of several epochs, for a method whose guarantee assumes that each sample is used once; a problem
            or plan that the method's `check` refuses.
    """
    _require_own_sampler(protocol, plan)
    protocol.check(problem, plan)
    if plan.schedule.filled is not None and plan.sampler is None and not protocol.varying_cohorts:
        raise Refusal(
            f"participation must have a fixed number of machines a round for {protocol.name}, got {plan.schedule}"
        )
    if plan.repeats and not protocol.several_epochs and protocol.noise_std != 0:
        raise Refusal(f"order must use each sample once, as {protocol.name}'s guarantee assumes, got {plan.order!r}")
    return protocol.event(problem, plan)


def _require_own_sampler(protocol, plan) -> None:
    if plan.sampler != protocol.minibatches:
        drawn, needed = plan.sampler or "one sample a message", protocol.minibatches or "one sample a message"
        raise Refusal(f"plan must be drawn by {protocol.name}'s own sampler, {needed}, got one drawn by {drawn}")


def require_met(protocol, event: Event, target: Target) -> None:
    """Refuse an event of a protocol that gives less privacy than its target asks for.

    Raises:
        Refusal: with both numbers; not for published rules whose target is only a claim.
    """
    if not protocol.claims_only and exceeds(event, target):
        raise Refusal(f"{protocol.name} must give at most {_both(event, target)}")


def exceeds(event: Event, target: Target, slack: float = SLACK) -> bool:
    """Whether an event is not known to give the privacy that a target asks for, up to rounding (`slack`, relative)."""
    if target.noise_std is not None or target.non_private:
        return False
    if np.ndim(target.epsilon):
        return not _excess(event, target).max() <= 1 + slack
    if event.mus is not None:
        return not event.mu <= target.largest_mu * (1 + slack)
    return not event.epsilon(target.stated_delta) <= target.worst_epsilon * (1 + slack)


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
        return not exceeds(protocol.with_noise_std(noise_std).event(problem, plan), target, slack=0.0)

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


def _excess(event: Event, target: Target) -> np.ndarray:
    """Every machine's ε over the one that is asked for it, [machines]."""
    return _epsilons(event, target) / np.asarray(target.epsilon, float)


def _epsilons(event: Event, target: Target) -> np.ndarray:
    """Every machine's ε at the target's δ, [machines]."""
    if event.mus is None:
        return event.epsilons(target.stated_delta).each
    return event.mus.map(lambda mus: gdp.epsilon(mus, target.stated_delta)).each


def _both(event: Event, target: Target) -> str:
    """What is asked for and what the noise gives, in words."""
    if np.ndim(target.epsilon):
        worst = int(np.argmax(_excess(event, target)))
        asked, given = np.ravel(target.epsilon)[worst], _epsilons(event, target)[worst]
        return f"ε = {asked:g} at δ = {target.delta:g} on machine {worst}, and its noise on this plan gives {given:.4g}"
    if target.mu is not None and event.mus is not None:
        return f"{target}, and its noise on this plan gives {event.mu:.4g}-GDP"
    return f"{target}, and its noise on this plan gives ε = {event.epsilon(target.stated_delta):.4g}"
