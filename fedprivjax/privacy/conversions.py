"""Conversions of a guarantee to another unit or relation by group privacy, the only valid way.

If datasets differ in k records, a chain of k neighbouring pairs connects them. Therefore (Dong, Roth & Su 2022,
Theorem 2.14; Dwork & Roth 2014, Theorem 2.2)

    μ-GDP becomes kμ-GDP                (ε, δ) becomes (kε, δ·(e^{kε} − 1)/(e^ε − 1))
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.privacy.curve import GroupCurve, spread
from fedprivjax.privacy.terms import ADD_OR_REMOVE, RECORD, RELATIONS, REPLACE_ONE, SAMPLE

if TYPE_CHECKING:  # the guarantee's module imports this one
    from fedprivjax.privacy.guarantee import PrivacyGuarantee


def for_group(
    guarantee: "PrivacyGuarantee", size: int, unit: str | None = None, relation: str | None = None
) -> "PrivacyGuarantee":
    """Return the guarantee for groups of `size` units. Without a μ, δ increases too.

    Args:
        size: number of units in a group, k.
        unit, relation: unit and relation of the result. By default, a group of the guarantee's unit, and its relation.

    Raises:
        Refusal: if the group is so large that δ is not below 1.

    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.guarantee import PrivacyGuarantee
    >>> from fedprivjax.privacy.terms import Terms
    >>> one = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), epsilons=Grouped.of([0.5]))
    >>> two = for_group(one, 2)
    >>> two.epsilon, round(two.delta * 1e6, 3), two.unit
    (1.0, 2.649, 'any 2 of: one sample of one machine')
    """
    require_at_least("size", size, 1)
    unit = (guarantee.unit if size == 1 else f"any {size} of: {guarantee.unit}") if unit is None else unit
    terms = replace(guarantee.terms, unit=unit, relation=relation or guarantee.relation)
    derived = f"group privacy, {size} changes" if size > 1 else ""
    accounting = "; ".join(part for part in (guarantee.accounting, derived) if part)
    common = {"terms": terms, "accounting": accounting, "event": None}
    if guarantee.mus is not None:
        return replace(guarantee, mus=guarantee.mus.map(lambda mus: size * mus), **common)
    delta = spread(guarantee.epsilon, guarantee.delta, size)
    if not delta < 1 and guarantee.private:
        raise Refusal(f"size must be small enough for a δ below 1 at ε = {guarantee.epsilon:.4g}, got {size}")
    delta = delta if guarantee.private else guarantee.delta
    epsilons = guarantee.stated.map(lambda epsilons: size * epsilons)
    return replace(guarantee, delta=delta, epsilons=epsilons, listed=GroupCurve(guarantee.curve, size), **common)


def for_relation(guarantee: "PrivacyGuarantee", relation: str) -> "PrivacyGuarantee":
    """Return the guarantee for another neighbouring relation. Replacing a record is removing one and adding one.

    Raises:
        Refusal: if the change is not from add-or-remove-one to replace-one. A guarantee for replacing a record does not
            cover datasets of another size.

    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.guarantee import PrivacyGuarantee
    >>> from fedprivjax.privacy.terms import Terms
    >>> terms = Terms("none", "a theorem", relation=ADD_OR_REMOVE)
    >>> for_relation(PrivacyGuarantee(1e-6, terms, mus=Grouped.of([1.0])), REPLACE_ONE).mu
    2.0
    """
    require_choice("relation", relation, RELATIONS)
    if relation == guarantee.relation:
        return guarantee
    if (guarantee.relation, relation) != (ADD_OR_REMOVE, REPLACE_ONE):
        if any(one.name == "public sizes" for one in guarantee.assumptions):
            raise Refusal(
                f"relation must stay {guarantee.relation!r} if participation depends on dataset sizes, got {relation!r}"
            )
        raise Refusal(f"relation must stay {guarantee.relation!r}, which does not give {relation!r}")
    return for_group(guarantee, 2, guarantee.unit, relation)


def for_user(guarantee: "PrivacyGuarantee", records: int) -> "PrivacyGuarantee":
    """Return the guarantee for a user with at most `records` records, all of which are replaced.

    Raises:
        Refusal: if the guarantee's unit is not one record or one sample.

    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.guarantee import PrivacyGuarantee
    >>> from fedprivjax.privacy.terms import Terms
    >>> user = for_user(PrivacyGuarantee(1e-6, Terms("none", "a theorem"), mus=Grouped.of([1.0])), 3)
    >>> user.mu, user.unit
    (3.0, 'one user, who holds at most 3 records of one machine')
    """
    if guarantee.unit not in (RECORD, SAMPLE):
        raise Refusal(f"unit must be {RECORD!r} or {SAMPLE!r} to be converted to a user, got {guarantee.unit!r}")
    return for_group(guarantee, records, f"one user, who holds at most {records} records of one machine")
