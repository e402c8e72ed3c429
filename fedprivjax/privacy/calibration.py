"""Calibration of noise and step size to a privacy target, on the host in float64 before anything is compiled."""

from dataclasses import replace
from math import inf, isfinite, isinf
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.plan.arguments import require_problem, require_protocol
from fedprivjax.privacy.event_on_plan import checked_event, event_of, require_runnable
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of, with_noise_std
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.target import PLAN, TARGETS, Target, TargetRatio, cached_min_noise

SENSITIVITY_UNKNOWN = (
    "clip must be set, because the loss has no finite gradient bound here "
    "(feature_bound, lipschitz, smoothness or a ball is missing)"
)
SLACK = 1e-6  # relative tolerance for rounding when a target is checked


def calibrate(
    protocol: Any, problem, plan, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None
) -> Any:
    """Return a copy of the protocol with noise that meets its privacy target.

    In the copy, `noise_std` and `step_size` are set, and `mu` and `epsilon` are None. If `epsilon` is a list of one
    number per machine, it is kept. By default, a formula of the protocol gives the noise. If the protocol has an
    `adversary`, or `calibrate_to="plan"`, the noise is the smallest one that meets the target on the given plan. In
    both cases, the privacy on this plan is checked against the target, except for a noise rule that only claims to
    meet the target.

    Args:
        protocol: method with its settings.
        problem: data, loss and constraint set.
        plan: run plan.
        mu: target μ of Gaussian differential privacy, instead of the protocol's `mu` or `epsilon`.
        epsilon: target ε at `delta`, one number or one per machine, instead of the protocol's `mu` or `epsilon`.
        delta: δ at which ε is targeted and stated.

    Raises:
        Refusal: if neither the arguments nor the protocol give a target, if both `mu` and `epsilon` are given, or if
            one is given and the protocol has a `noise_std`. Also if a default setting needs constants that the problem
            lacks, or if the noise gives less privacy on this plan than the target requires.
    """
    protocol = require_protocol(protocol)
    require_problem(problem)
    return calibrate_and_check(protocol, problem, plan, target_of(protocol, mu=mu, epsilon=epsilon, delta=delta))[0]


def guarantee(protocol, problem, plan, delta: float = 1e-5) -> PrivacyGuarantee:
    """Return the privacy guarantee of a protocol on a run's plan.

    Args:
        protocol: method with its settings. If it has a target, the noise is computed first.
        problem: data, loss and constraint set.
        plan: run plan, which has the machines that take part in each round and the records of each message.
        delta: δ at which ε is stated.

    Returns:
        A guarantee with a privacy parameter of every machine. The parameter is μ of Gaussian differential privacy (GDP)
        if it is known, and (ε, δ) otherwise, as for secretly sampled records. The guarantee also states the protected
        unit, neighbouring relation, trust model, theorem and assumptions.
    """
    protocol = require_protocol(protocol)
    require_problem(problem)
    if getattr(protocol, "known", None) is not None:  # read in a run, perhaps on another problem
        protocol = replace(protocol, known=None)
    if not privacy_of(protocol).calibrated:
        protocol = calibrate(protocol, problem, plan, delta=delta)
    return event_of(protocol, problem, plan).guarantee(delta)


def target_of(protocol, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None) -> Target:
    """Return the given target, or the protocol's target if none is given.

    If the protocol has a `noise_std`, its own ε per machine sets only the ratios of the machines' noise.

    Raises:
        Refusal: if there is no target or more than one.
    """
    if mu is None and epsilon is None:
        ratios = protocol.noise_std is not None and np.ndim(protocol.epsilon) > 0
        mu, epsilon = protocol.mu, None if ratios else protocol.epsilon
    target = Target(mu=mu, epsilon=epsilon, noise_std=protocol.noise_std, delta=delta)
    return privacy_of(protocol).machine_target(target)


def given_target(protocol, target: Target, delta: float) -> Target:
    """Return the given target for this protocol. The protocol may have the same target, or the largest machine's.

    Raises:
        Refusal: if the protocol has another target, or the target's δ differs from `delta`.
    """
    for name in TARGETS:
        own, given = getattr(protocol, name), getattr(target, name)
        proportions = name == "epsilon" and np.ndim(own) and protocol.noise_std is not None
        same = given is not None and (np.array_equal(own, given) or (np.ndim(own) == 0 and np.max(given) == own))
        if own is not None and not proportions and not same:
            raise Refusal(f"{name} must be left out of {protocol.name} if a target is given, got {own}")
    if target.delta is not None and target.delta != delta:
        raise Refusal(f"delta must be the target's ({target.delta:g}), got {delta:g}")
    return privacy_of(protocol).machine_target(target)


def calibrate_and_check(protocol, problem, plan, target: Target) -> tuple[Any, Event]:
    """Return the protocol calibrated for a plan, and its privacy event on that plan.

    Raises:
        Refusal: as in `calibrate`.
    """
    require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        target = privacy_of(protocol).machine_target(target)
        calibrated = protocol.calibrate(problem, plan, target)
        event = checked_event(calibrated, problem, plan)
        require_met(calibrated, event, target)
    return calibrated, event


def require_met(protocol, event: Event, target: Target) -> None:
    """Raise Refusal if a protocol's event gives less privacy than its target requires.

    The message states both numbers. Published rules whose target is only a claim are not checked.
    """
    if not privacy_of(protocol).target_is_claim and exceeds(event, target):
        both, machine = _both(event, target)
        raise Refusal(f"{protocol.name} must give at most {both}", machine=machine)


def exceeds(event: Event, target: Target) -> bool:
    """Return True if an event is not known to meet a target, up to rounding (`SLACK`)."""
    return target.given_noise is None and not event.target_ratio(target).ratio <= 1 + SLACK


def gaussian_rule(target: Target, sensitivity: float) -> float:
    """Return `sensitivity/μ`, the noise of mechanisms with exposure at most 1, or the target's noise if it is given.

    Raises:
        Refusal: if the sensitivity is unknown, or if the target has one ε per machine.
    """
    target.require_one()
    if target.given_noise is not None:
        return target.given_noise
    if not isfinite(sensitivity):
        raise Refusal(SENSITIVITY_UNKNOWN)
    return float(sensitivity) / target.largest_mu


def noise_for(protocol, problem, plan, target: Target) -> float:
    """Return the given noise, or the noise that meets the target by the rule `calibrate_to`.

    All other fields that the event needs must be set.
    """
    if target.given_noise is not None:
        return target.given_noise
    if protocol.calibrate_to != PLAN and protocol.adversary is None:
        return protocol.rounds.needed_noise(problem, plan, target)
    rule = privacy_of(protocol).noise_rule
    if rule != "accountant":
        setting = "calibrate_to = 'plan'" if protocol.adversary is None else f"adversary {protocol.adversary}"
        raise Refusal(f"noise_rule must be 'accountant' with {setting}, got {rule!r}")
    return solved_noise(protocol, problem, plan, target)


def solved_noise(protocol, problem, plan, target: Target) -> float:
    """Return the smallest `noise_std`, from above, at which a protocol's event on a plan meets the target.

    A target ε is required at the protocol's `target_delta`.

    Raises:
        Refusal: if no noise meets the target.
    """
    if target.given_noise is not None:
        return target.given_noise
    delta = privacy_of(protocol).target_delta(problem, target)

    def event_at(noise_std: float) -> Event:
        return with_noise_std(protocol, noise_std).event(problem, plan)

    def target_ratio(noise_std: float, only: Any = None) -> TargetRatio:
        return event_at(noise_std).target_ratio(target, delta, only)

    def quick_ratio(noise_std: float, only: Any = None) -> TargetRatio:
        return event_at(noise_std).quick_target_ratio(target, delta, only)

    event = event_at(1.0)
    sensitivity = float(event.sensitivity)
    if sensitivity == inf:
        raise Refusal(SENSITIVITY_UNKNOWN)
    cache_key = None if event.cache_key is None else (*event.cache_key, *target.cache_key, np.asarray(delta, float))
    noise_std = cached_min_noise(cache_key, target_ratio, sensitivity if sensitivity > 0 else 1.0, quick_ratio)
    if isinf(noise_std):
        raise Refusal(f"{protocol.name} must have an event that meets {target} at some noise_std, and none does")
    return noise_std


def _both(event: Event, target: Target) -> tuple[str, int | None]:
    """Return text of the target and the realised privacy, and the machine that it names, or None."""
    if np.ndim(target.epsilon):
        ratios = event.target_ratios(target)
        worst = int(np.argmax(ratios))
        required = np.ravel(target.epsilon)[worst]
        given = ratios[worst] * required
        where = f"ε = {required:g} at δ = {target.delta:g} on machine {worst}"
        return f"{where}, and its noise on this plan gives {up(given, 4)}", worst
    if target.mu is not None and event.mus is not None:
        return f"{target}, and its noise on this plan gives {up(event.mu, 4)}-GDP", None
    return f"{target}, and its noise on this plan gives ε = {up(event.epsilon(target.stated_delta), 4)}", None
