"""Condition under which a guarantee may be for adding or removing one record."""

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import Poisson, Sampler
from fedprivjax.privacy.terms import REPLACE_ONE, Assumption


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
