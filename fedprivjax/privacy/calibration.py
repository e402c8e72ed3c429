"""Calibration of noise and step size to a privacy target, on the host in float64 before anything is compiled."""

from dataclasses import replace
from math import inf, isfinite, isinf
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.checks.restated import PLAIN_NUMBERS, require_of_package, require_restated, stated_by
from fedprivjax.plan.arguments import require_problem, require_protocol, require_same_sampler, require_valid_plan
from fedprivjax.plan.participation import PUBLIC, Participation
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.of_protocol import privacy_of, with_noise_std
from fedprivjax.privacy.target import PLAN, TARGETS, Target, TargetRatio, cached_min_noise
from fedprivjax.privacy.terms import PUBLIC_PARTICIPATION, RECORD, REPLACE_ONE, Assumption, Terms
from fedprivjax.problem.problem import Origin
from fedprivjax.problem.program import require_isolated_records
from fedprivjax.problem.projection_check import require_true_projection

SENSITIVITY_UNKNOWN = (
    "clip must be set, because the loss has no finite gradient bound here "
    "(feature_bound, lipschitz, smoothness or a ball is missing)"
)
SLACK = 1e-6  # relative tolerance for rounding when a target is checked


def calibrate(
    protocol: Any, problem, plan, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None
) -> Any:
    """Return a copy of the protocol with `noise_std` and `step_size` set and its target cleared.

    The noise follows the protocol's rule. With `calibrate_to = "plan"` it is the smallest noise that meets the target
    on the sampled plan. In both cases the realised privacy on the plan is checked against the target.

    Args:
        plan: sampled run plan.
        mu: GDP target. Without `mu` and `epsilon`, the protocol's target or `noise_std` is used.
        epsilon: target ε at `delta`, one number or one per machine.
        delta: δ at which ε is targeted and stated.

    Raises:
        Refusal: if there is no target or more than one, if a default needs constants that the problem lacks, or if the
            noise gives less privacy on this plan than the target requires.
    """
    protocol = require_protocol(protocol)
    require_problem(problem)
    return calibrate_and_check(protocol, problem, plan, target_of(protocol, mu=mu, epsilon=epsilon, delta=delta))[0]


def guarantee(protocol, problem, plan, delta: float = 1e-5) -> PrivacyGuarantee:
    """Return the privacy guarantee of a protocol on a run's plan.

    Args:
        protocol: calibrated protocol, or one with a target or `noise_std`.

    Returns:
        μ-GDP per machine with the conversions to (ε, δ), or ε alone if records are sampled. Includes unit, relation,
        trust model, theorem and assumptions.
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

    If the protocol has a `noise_std`, an ε per machine sets only the ratios of the machines' noise.

    Raises:
        Refusal: if there is no target or more than one.
    """
    if mu is None and epsilon is None:
        mu, epsilon = protocol.mu, protocol.epsilon
    if protocol.noise_std is not None and np.ndim(epsilon):
        epsilon = None
    return privacy_of(protocol).machine_target(
        Target(mu=mu, epsilon=epsilon, noise_std=protocol.noise_std, delta=delta)
    )


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
    _require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        target = privacy_of(protocol).machine_target(target)
        calibrated = protocol.calibrate(problem, plan, target)
        event = _event(calibrated, problem, plan)
        require_met(calibrated, event, target)
    return calibrated, event


def event_of(protocol, problem, plan) -> Event:
    """Return the privacy event of a calibrated protocol on a plan.

    Raises:
        Refusal: if the plan has several epochs and the method's guarantee assumes that each record is used once; if the
            plan's records or weights are not those of its sampler; if the method's `check` rejects the problem or
            plan; if the event's trust model differs from the protocol's; or if the event accounts for other
            participation than the plan's, see `_require_accounted`.
    """
    _require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        return _event(protocol, problem, plan)


def _event(protocol, problem, plan) -> Event:
    """Return the event of `event_of`, for a protocol that is runnable on the plan."""
    protocol.check(problem, plan)
    _require_someone(plan.schedule)
    require_valid_plan(plan, problem)
    if plan.repeats and not privacy_of(protocol).several_epochs and protocol.noise_std != 0:
        raise Refusal(f"order must use each sample once, as {protocol.name}'s guarantee assumes, got {plan.order!r}")
    event = protocol.event(problem, plan)
    trust = privacy_of(protocol).trust
    if event.terms.trust != trust:
        raise Refusal(
            f"trust of {protocol.name} must equal its event's trust ({event.terms.trust!r}), because the noise and "
            f"the adversary's view depend on it, got {trust!r}"
        )
    if event.participation is not None or not _without_noise(protocol):
        _require_accounted(protocol.name, event, plan.schedule)
    if plan.schedule.secret is not None:
        scheme = {"scheme": str(plan.schedule.secret)}
        event = event.without(PUBLIC_PARTICIPATION).assuming(Assumption("secret participation", scheme))
    elif (protocol.calibrate_to == PLAN or event.terms.adversary) and protocol.noise_std != 0:
        event = event.assuming(Assumption("noise of the schedule"))
    source = stated_by(getattr(protocol, "privacy", None))
    if source is not None:
        if _without_noise(protocol) and isfinite(event.epsilon(1e-5)):
            raise Refusal(
                f"epsilon of {source} must be infinite without noise, got an event that ignores noise_std = 0. Pass "
                f"noise_std to the event"
            )
        event = event.assuming(Assumption("stated by", {"source": source}))
    if event.terms.zeroes:
        event = event.assuming(Assumption("public machines", {"machines": plan.size.machines}))
    if plan.depends_on_sizes or problem.weighted_by_size:
        event = _with_public_sizes(event, problem)
    parts = "; ".join(not_covered(problem, event.terms))
    return event.assuming(Assumption("not covered data", {"parts": parts})) if parts else event


def not_covered(problem, terms: Terms) -> tuple[str, ...]:
    """Return texts on what follows from private records before a run, and these terms do not cover."""
    origin = Origin() if problem.partition_table is None else problem.partition_table.origin
    return (*problem.not_covered, *filter(None, (origin.values, "" if terms.same_sizes else origin.machines)))


def _with_public_sizes(event: Event, problem) -> Event:
    """Return the event with the assumption of public dataset sizes, on which the schedule or the weights depend.

    Raises:
        Refusal: if the relation is not replace-one. Only replacing a record leaves the sizes unchanged.
    """
    if event.terms.relation != REPLACE_ONE:
        if problem.weighted_by_size:
            private = f"under {event.terms.relation}, where dataset sizes are private"
            raise Refusal(f"machine_weights must be a list of public numbers {private}, got 'sizes'")
        raise Refusal(
            f"participation and rounds must not depend on dataset sizes, which are private under "
            f"{event.terms.relation}. Set rounds, and do not use BySize"
        )
    return event.assuming(Assumption("public sizes"))


def _require_accounted(name: str, event: Event, schedule: Schedule) -> None:
    """Raise Refusal unless the event's guarantee is for the schedule's secret participation, or for a public schedule.

    Amplification holds only if no adversary knows who takes part, so an event may not claim it for a public schedule or
    by another scheme. A method whose event does not account for secret participation may release who takes part.
    """
    claimed, secret = event.participation, schedule.secret
    if claimed is not None and PUBLIC_PARTICIPATION in event.terms.assumptions:
        raise Refusal(f"assumptions of {name}'s event must not say {str(PUBLIC_PARTICIPATION)!r} under {claimed}")
    if claimed == secret:
        if secret is None and _samples_machines(event):
            raise Refusal(
                f"participation of {name}'s event must name a secret scheme if its releases are sampled by machine, "
                f"got None on a public schedule, which does not amplify privacy"
            )
        return
    if claimed is None:
        raise Refusal(
            f"participation must be public for {name}, whose guarantee does not account for secret participation, got "
            f"{secret}. Use {', '.join(PUBLIC[:-1])} or {PUBLIC[-1]}"
        )
    drawn = "a public schedule" if secret is None else str(secret)
    raise Refusal(
        f"participation must be {claimed} for {name}, whose guarantee is amplified by this secret scheme, got {drawn}"
    )


def _samples_machines(event: Event) -> bool:
    """Return True if the event protects more than a record and states a dp-accounting event with sampling."""
    if event.terms.unit == RECORD or isinstance(event, GaussianEvent):
        return False
    try:
        return "ampled" in repr(event.dp_event())  # PoissonSampled, SampledWithoutReplacement, TruncatedSubsampled, …
    except Refusal:
        return False


def _require_someone(schedule: Schedule) -> None:
    if not schedule.varies or schedule.secret is not None:
        return
    empty = np.flatnonzero(~schedule.present.any(axis=1))
    if empty.size:
        raise Refusal(f"participation must leave at least one machine in every round, got none in round {empty[0] + 1}")


def require_trusted(protocol, secret: Participation | None) -> None:
    """Raise Refusal if participation is secret and a private protocol has no trusted server.

    Args:
        secret: the secret participation scheme, or None if participation is public.
    """
    trust = privacy_of(protocol).trust
    if secret is not None and trust != "server" and not _without_noise(protocol):
        raise Refusal(
            f"trust must be 'server' under secret participation, because machines' messages show who takes part, got "
            f"{trust!r} for {protocol.name} with {secret}. Use a public scheme"
        )


def _without_noise(protocol) -> bool:
    """Return True for a baseline without noise, which guarantees nothing and runs under any participation."""
    return type(protocol.noise_std) in PLAIN_NUMBERS and protocol.noise_std == 0


def _require_runnable(protocol, problem, plan) -> None:
    if not _without_noise(protocol):
        require_restated(protocol, protocol.minibatches, problem)
        require_of_package(plan=plan, schedule=plan.schedule, partition_table=problem.partition_table)
        require_isolated_records(problem)
    require_trusted(protocol, plan.schedule.secret)
    require_true_projection(problem.constraint, problem.start)
    if problem.machine_weights is not None and not privacy_of(protocol).weighs_machines:
        remedy = "Use a method that samples minibatches from each machine's own records"
        raise Refusal(
            f"machine_weights must not be set for {protocol.name}, which weights all messages equally. {remedy}"
        )
    require_same_sampler(plan, protocol.minibatches, protocol.name)


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
        return f"{where}, and its noise on this plan gives {given:.4g}", worst
    if target.mu is not None and event.mus is not None:
        return f"{target}, and its noise on this plan gives {event.mu:.4g}-GDP", None
    return f"{target}, and its noise on this plan gives ε = {event.epsilon(target.stated_delta):.4g}", None
