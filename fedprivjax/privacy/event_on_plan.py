"""Privacy event of a calibrated protocol on a plan, after all checks that its guarantee relies on."""

from math import isfinite

import numpy as np

from fedprivjax.checks.refusal import Refusal, clients_named
from fedprivjax.checks.restated import PLAIN_NUMBERS, require_of_package, require_restated, stated_by
from fedprivjax.plan.arguments import require_same_sampler, require_valid_plan
from fedprivjax.plan.participation import PUBLIC, Participation
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.target import PLAN
from fedprivjax.privacy.terms import PUBLIC_PARTICIPATION, RECORD, Assumption, Terms
from fedprivjax.problem.problem import Origin
from fedprivjax.problem.program import require_isolated_records
from fedprivjax.problem.projection_check import require_true_projection


def event_of(protocol, problem, plan) -> Event:
    """Return the privacy event of a calibrated protocol on a plan.

    Raises:
        Refusal: if the plan has several epochs and the method's guarantee assumes that each record is used once; if the
            plan's records or weights are not those of its sampler; if the method's `check` rejects the problem or
            plan; if the event's trust model differs from the protocol's; or if the event accounts for other
            participation than the plan's, see `_require_accounted`.
    """
    require_runnable(protocol, problem, plan)
    with clients_named(problem.client_names):
        return checked_event(protocol, problem, plan)


def checked_event(protocol, problem, plan) -> Event:
    """Return the event of `event_of`, for a protocol that is runnable on the plan."""
    protocol.check(problem, plan)
    _require_someone(plan.schedule)
    require_valid_plan(plan, problem)
    if plan.repeats and not privacy_of(protocol).several_epochs and protocol.noise_std != 0:
        raise Refusal(f"order must use each sample once, as {protocol.name}'s guarantee assumes, got {plan.order!r}")
    event = protocol.event(problem, plan)
    machines, mus = plan.size.machines, event.mus
    if mus is not None and mus.machines != machines:
        raise Refusal(
            f"exposure of {protocol.name}'s event must have a number for each of the {machines} machines, got "
            f"{mus.machines}. Compute it for facts.plan.size.machines, or set for_machines of the privacy object"
        )
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
    elif (protocol.calibrate_to == PLAN or _counts_others(event)) and protocol.noise_std != 0:
        known = {one.name for one in event.terms.assumptions}
        if not known & {"noise of the schedule", "noise of schedules"}:
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


def _counts_others(event: Event) -> bool:
    """Return True if a guarantee may count noise of other machines."""
    return bool(event.terms.adversary) or any(one.name == "noise of others" for one in event.terms.assumptions)


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
            f"{event.terms.relation}. Set rounds, and use neither BySize nor delays per_record"
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


def require_runnable(protocol, problem, plan) -> None:
    if not _without_noise(protocol):
        require_restated(protocol, protocol.minibatches, problem)
        require_of_package(plan=plan, schedule=plan.schedule, partition_table=problem.partition_table)
        require_isolated_records(problem)
    require_trusted(protocol, plan.schedule.secret)
    if plan.schedule.late is not None:
        protocol.rounds.check_late(problem, plan)
    require_true_projection(problem.constraint, problem.start)
    if problem.machine_weights is not None and not privacy_of(protocol).weighs_machines:
        remedy = "Use a method that samples minibatches from each machine's own records"
        raise Refusal(
            f"machine_weights must not be set for {protocol.name}, which weights all messages equally. {remedy}"
        )
    require_same_sampler(plan, protocol.minibatches, protocol.name)
    machines, only = plan.size.machines, privacy_of(protocol).for_machines
    if only not in (None, machines):
        raise Refusal(
            f"machines must be {only}, for which the graph or the privacy of {protocol.name} is defined, got "
            f"{machines}. Use {only} machines, or another graph"
        )
