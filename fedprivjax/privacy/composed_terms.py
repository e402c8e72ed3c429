"""Statement of the guarantee of several runs, from the statements of the single runs."""

from collections.abc import Iterator
from dataclasses import replace

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy.terms import RECORD, REPLACE_ONE, Assumption, Terms

SAME, DISJOINT = "same", "disjoint"
RECORDS = {
    SAME: "a record may be in both runs",
    DISJOINT: "no record is in both runs, and a public rule fixes which run may use it",
}
COVERS = {  # trust models whose view is computed from another's: the view of the key determines the others
    "none": ("shuffler", "pan-private", "server"),
    "shuffler": ("server",),
    "pan-private": ("server",),
}


def composed_terms(first: Terms, second: Terms, records: str, *, by_machine: bool) -> Terms:
    """Return the terms of a run followed by another one.

    Args:
        records: "same" or "disjoint".
        by_machine: True if parameters are composed machine by machine.

    Raises:
        Refusal: if unit, relation or trust model do not fit, or disjoint records are not the protected unit.

    >>> one, two = Terms("none", "theorem A"), Terms("server", "theorem B", (Assumption("secret samples"),))
    >>> both = composed_terms(one, two, SAME, by_machine=False)
    >>> both.trust, both.theorem, str(both.assumptions[0])
    ('server', 'composition of: theorem A; theorem B', 'run 2: which records are used is secret')
    """
    _require_alike(first, second)
    if records == DISJOINT and first.unit != RECORD:
        remedy = f'A unit with records in both runs is in both. Set records = "{SAME}", or compose before for_user'
        raise Refusal(f"unit must be {RECORD!r} for disjoint records, got {first.unit!r}. {remedy}")
    theorems = (*_theorems(first), *_theorems(second))
    return replace(
        first,
        trust=_weaker_trust(first.trust, second.trust),
        theorem=f"composition of: {'; '.join(theorems)}",
        assumptions=tuple(_assumptions(first, second, records, by_machine)),
        composed=theorems,
    )


def _theorems(terms: Terms) -> tuple[str, ...]:
    return terms.composed or (terms.theorem,)


def _require_alike(first: Terms, second: Terms) -> None:
    """Raise Refusal unless both protect the same unit under the same relation."""
    if first.unit != second.unit:
        remedy = "Convert with for_user or for_group"
        raise Refusal(f"other must protect the same unit, {first.unit!r}, got {second.unit!r}. {remedy}")
    if first.stated_relation != second.stated_relation:
        remedy = f"Convert with for_relation({REPLACE_ONE!r})"
        got = f"{first.stated_relation!r}, got {second.stated_relation!r}"
        raise Refusal(f"other must have the same neighbouring relation, {got}. {remedy}")


def _weaker_trust(first: str, second: str) -> str:
    """Return the trust model with the smaller view, if it is computed from the larger view."""
    if first == second or second in COVERS.get(first, ()):
        return second
    if first in COVERS.get(second, ()):
        return first
    raise Refusal(f"other must have a trust model that {first!r} covers, or that covers {first!r}, got {second!r}")


def _assumptions(first: Terms, second: Terms, records: str, by_machine: bool) -> Iterator[Assumption]:
    """Yield the assumptions of both with the numbers of their runs, and those of the composition."""
    ones, others = len(_theorems(first)), len(_theorems(second))
    added = [Assumption("independent runs"), Assumption("planned runs")]
    added += [Assumption("same machines")] * by_machine
    held: list[Assumption] = []
    for terms, before, count in ((first, 0, ones), (second, ones, others)):
        for one in terms.assumptions:
            runs = tuple(before + run for run in one.runs or range(1, count + 1))
            place = next((place for place, known in enumerate(held) if _alike(known, one)), None)
            if place is None:
                held.append(replace(one, runs=runs))
            else:
                held[place] = replace(one, runs=(*held[place].runs, *runs))
    yield from (one for one in held if one.name not in {each.name for each in added})
    if records == DISJOINT:
        yield Assumption("disjoint records", {"first": ones}, tuple(range(1, ones + others + 1)))
    yield from added


def _alike(one: Assumption, other: Assumption) -> bool:
    """Return True if both are the same about single runs. "disjoint records" is about runs together."""
    return (one.name, one.values) == (other.name, other.values) and one.name != "disjoint records"
