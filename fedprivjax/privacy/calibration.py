"""From a privacy target to noise and step: host, float64, before anything is compiled."""

from math import inf, isfinite, isinf
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.plan.arguments import plain_numbers, require_problem, require_protocol
from fedprivjax.plan.validate_plan import require_as_said, require_same_sampler
from fedprivjax.privacy.events import Event, Excess
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.min_noise import cached_min_noise
from fedprivjax.privacy.target import PLAN, Target
from fedprivjax.privacy.terms import REPLACE_ONE, Assumption
from fedprivjax.problem.projection_check import require_true_projection

SENSITIVITY_UNKNOWN = (
    "clip must be set, for the loss has no finite gradient bound here "
    "(feature_bound, lipschitz, smoothness or a ball is missing)"
)
SLACK = 1e-6  # relative: what rounding may add to a target


def calibrate(
    protocol: Any, problem, plan, *, mu: float | None = None, epsilon: Any = None, delta: float | None = None
) -> Any:
    """A new protocol with `noise_std` and `step_size` filled in, and its target spent.

    The noise is by the protocol's own rule, or with `calibrate_to = "plan"` the least that the drawn plan needs; what
    the plan makes of it is held against the target.

    Args:
        plan: the drawn plan.
        mu: GDP target, or `epsilon` with `delta`. None of them: the protocol's own target or `noise_std`.
        delta: at which ε is asked for, and stated.

    Raises:
        Refusal: no target or two, a default that the problem's constants do not allow, or noise that gives less
            privacy on this plan than the target asks for.
    """
    require_protocol(protocol)
    require_problem(problem)
    protocol = plain_numbers(protocol)
    return settle(protocol, problem, plan, target_of(protocol, mu=mu, epsilon=epsilon, delta=delta))[0]


def guarantee(protocol, problem, plan, delta: float = 1e-5) -> PrivacyGuarantee:
    """The guarantee of a protocol on the plan that is really used.

    Args:
        protocol: calibrated, or with a target or `noise_std` of its own.

    Returns:
        μ-GDP per machine with the conversions to (ε, δ), or ε alone where records are sampled; with its unit,
        relation, trust model, theorem and assumptions.
    """
    require_protocol(protocol)
    require_problem(problem)
    protocol = plain_numbers(protocol)
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
    return protocol.asked(Target(mu=mu, epsilon=epsilon, noise_std=protocol.noise_std, delta=delta))


def settle(protocol, problem, plan, target: Target) -> tuple[Any, Event]:
    """A protocol calibrated for a plan, and what it does to privacy there.

    Raises:
        Refusal: as `calibrate`.
    """
    _require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        target = protocol.asked(target)
        calibrated = protocol.calibrate(problem, plan, target)
        event = event_of(calibrated, problem, plan)
        require_met(calibrated, event, target)
    return calibrated, event


def event_of(protocol, problem, plan) -> Event:
    """What a calibrated protocol does to privacy on a plan.

    Raises:
        Refusal: a plan of several epochs, for a method whose guarantee assumes that each sample is used once; a plan of
            other records or weights than its sampler's; a problem or plan that the method's `check` refuses; an event
            of another trust than the protocol's.
    """
    _require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        protocol.check(problem, plan)
    _require_someone(plan.schedule)
    require_as_said(plan, problem)
    if plan.repeats and not protocol.several_epochs and protocol.noise_std != 0:
        raise Refusal(f"order must use each sample once, as {protocol.name}'s guarantee assumes, got {plan.order!r}")
    event = protocol.event(problem, plan)
    if event.terms.trust != protocol.trust:
        raise Refusal(
            f"trust of {protocol.name} must be that of its event's terms ({event.terms.trust!r}), for its noise and "
            f"what is seen of a run follow it, got {protocol.trust!r}"
        )
    if protocol.calibrate_to == PLAN and protocol.noise_std != 0:
        event = event.assuming(Assumption("noise of the schedule"))
    return _with_public_sizes(event, problem) if plan.depends_on_sizes or problem.weighted_by_size else event


def _with_public_sizes(event: Event, problem) -> Event:
    """The event of a schedule or of weights that follow from dataset sizes, which replacing a record leaves alone."""
    if event.terms.relation != REPLACE_ONE:
        if problem.weighted_by_size:
            private = f"under {event.terms.relation}, where dataset sizes are private"
            raise Refusal(f"machine_weights must be a list of public numbers {private}, got 'sizes'")
        raise Refusal(
            f"participation and rounds must not follow from machines' numbers of records under "
            f"{event.terms.relation}, where these are not public: give rounds, and no law by shares"
        )
    return event.assuming(Assumption("public sizes"))


def _require_someone(schedule) -> None:
    if not schedule.varies:
        return
    empty = np.flatnonzero(~schedule.present.any(axis=1))
    if empty.size:
        raise Refusal(f"participation must leave at least one machine in every round, got none in round {empty[0] + 1}")


def _require_runnable(protocol, problem, plan) -> None:
    require_true_projection(problem.constraint, problem.start)
    if problem.machine_weights is not None and not protocol.weighs_machines:
        remedy = "Use a method that samples minibatches from each machine's own records"
        raise Refusal(f"machine_weights must be left out of {protocol.name}, whose messages count alike. {remedy}")
    require_same_sampler(plan, protocol.minibatches, protocol.name)


def require_met(protocol, event: Event, target: Target) -> None:
    """Refuse an event of a protocol that gives less privacy than its target asks for.

    Raises:
        Refusal: with both numbers; not for published rules whose target is only a claim.
    """
    if not protocol.target_is_claim and exceeds(event, target):
        both, machine = _both(event, target)
        raise Refusal(f"{protocol.name} must give at most {both}", machine=machine)


def exceeds(event: Event, target: Target, slack: float = SLACK) -> bool:
    """Whether an event is not known to give the privacy that a target asks for, up to rounding (`slack`, relative)."""
    return target.given_noise is None and not event.excess(target).ratio <= 1 + slack


def gaussian_rule(target: Target, sensitivity: float) -> float:
    """`sensitivity/μ`, the noise of mechanisms whose exposure is at most 1; a given noise as it is.

    Raises:
        Refusal: a sensitivity that is not known; an ε for each machine.
    """
    target.require_one()
    if target.given_noise is not None:
        return target.given_noise
    if not isfinite(sensitivity):
        raise Refusal(SENSITIVITY_UNKNOWN)
    return float(sensitivity) / target.largest_mu


def solved_noise(protocol, problem, plan, target: Target) -> float:
    """The least `noise_std`, from above, at which a protocol's event on a plan meets the target.

    An ε is asked for at the protocol's `asked_delta`.

    Raises:
        Refusal: where no noise does.
    """
    if target.given_noise is not None:
        return target.given_noise
    delta = protocol.asked_delta(problem, target)

    def excess(noise_std: float, who: Any = None) -> Excess:
        return protocol.with_noise_std(noise_std).event(problem, plan).excess(target, delta, who)

    event = protocol.with_noise_std(1.0).event(problem, plan)
    sensitivity = float(event.sensitivity)
    if sensitivity == inf:
        raise Refusal(SENSITIVITY_UNKNOWN)
    cache_key = None if event.cache_key is None else (*event.cache_key, *target.cache_key, np.asarray(delta, float))
    noise_std = cached_min_noise(cache_key, excess, sensitivity if sensitivity > 0 else 1.0)
    if isinf(noise_std):
        raise Refusal(f"{protocol.name} must have an event that meets {target} at some noise_std, and none does")
    return noise_std


def _both(event: Event, target: Target) -> tuple[str, int | None]:
    """Text of the target and of what the noise gives, and the machine that it names, if any."""
    if np.ndim(target.epsilon):
        over = event.over(target)
        worst = int(np.argmax(over))
        asked = np.ravel(target.epsilon)[worst]
        given = over[worst] * asked
        where = f"ε = {asked:g} at δ = {target.delta:g} on machine {worst}"
        return f"{where}, and its noise on this plan gives {given:.4g}", worst
    if target.mu is not None and event.mus is not None:
        return f"{target}, and its noise on this plan gives {event.mu:.4g}-GDP", None
    return f"{target}, and its noise on this plan gives ε = {event.epsilon(target.stated_delta):.4g}", None
