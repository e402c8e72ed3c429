"""Conditions on relation and samples: records that can be added, and records whose public uses can be counted."""

from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Poisson, Sampler
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.terms import Assumption

SAMPLES_KNOWN = "adaptive composition of Gaussian mechanisms; which records are used is known"
PER_MACHINE = "records"  # a δ of 1/n² for a machine of n records
NEVER_USED = 1e-300  # number of uses of the records of machines that never take part


def require_addable(relation: str, sampler: Sampler) -> tuple[Assumption, ...]:
    """Return the assumptions under which a relation between records holds for a sampler.

    Raises:
        Refusal: if records cannot be added or removed, because the sampler depends on their number.

    >>> [str(one) for one in require_addable("add-or-remove-one", Poisson(10, rate=0.1))]
    ['the probability 0.1 of a record and the divisor 10 of a sum are public constants']
    """
    if relation == REPLACE_ONE:
        return ()
    if type(sampler) is not Poisson or sampler.rate is None:
        raise Refusal(
            f"relation must be {REPLACE_ONE!r} for records with {sampler}, whose use depends on their number, got "
            f"{relation!r}. Use sampler = 'poisson' with a batch and a public rate"
        )
    return (Assumption("public rate", {"rate": sampler.rate, "batch": sampler.batch}),)


def require_addable_settings(settings: Any) -> None:
    """Raise Refusal if records cannot be added or removed under the settings of a `RecordMechanism`."""
    relation = settings.relation
    require_addable(relation, settings.sampler)
    if settings.whole_message:
        raise Refusal(
            f"relation must be {REPLACE_ONE!r} with messages that are clipped as a whole, which one more record "
            f"changes by twice the clip, got {relation!r}. Clip every record's gradient"
        )
    if settings.noise_rule != "accountant":
        raise Refusal(
            f"noise_rule must be 'accountant' with relation = {relation!r}, because published rules are for replaced "
            f"records, got {settings.noise_rule!r}"
        )
    if settings.delta == PER_MACHINE:
        raise Refusal(
            f"delta must be a number with relation = {relation!r}, because dataset sizes are private, got "
            f"{settings.delta!r}"
        )


def require_countable(relation: str, plan: Plan) -> None:
    """Raise Refusal if the uses of records cannot be counted in a plan whose samples are public."""
    if relation != REPLACE_ONE:
        raise Refusal(
            f"relation must be {REPLACE_ONE!r} if the used records are public, got {relation!r}. Keep the samples "
            f"secret"
        )
    if plan.schedule.dropped is not None:
        raise Refusal(
            "dropouts must be left out if the used records are public: after one, records are used in other messages "
            "than planned"
        )
