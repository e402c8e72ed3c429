"""Guarantee of two runs together, on the same records or on disjoint ones, its statement, and the runs' random streams.

Random streams of the runs that a guarantee is about are known in memory only.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice
from fedprivjax.privacy.curve import ParallelCurve, SequentialCurve
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.terms import RECORD, Assumption, Terms

if TYPE_CHECKING:  # the guarantee's module imports this one
    from fedprivjax.privacy.guarantee import PrivacyGuarantee
from typing import Any

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
CURVES = {SAME: SequentialCurve, DISJOINT: ParallelCurve}
RULES = {
    (SAME, True): "μ = √(μ₁² + μ₂²)",
    (SAME, False): "privacy loss distributions that dominate both curves, or ε₁ + ε₂ at δ₁ + δ₂",
    (DISJOINT, True): "the larger μ",
    (DISJOINT, False): "the larger ε",
}
NOISE, SAMPLES, PARTICIPATION = "noise", "samples", "participation"
NAMES = {NOISE: "noise", SAMPLES: "secret samples", PARTICIPATION: "secret participation"}


class Streams:
    """Random streams that one or several runs use, and those of them that must stay secret.

    A stream is identified by its name and seed. A seed is never printed or saved: with it, anyone could remove the
    noise. Therefore a pickled object is empty.

    Args:
        used: pairs (name, seed).
        secret: those of them that an adversary must not know.

    >>> import pickle
    >>> one, other = (Streams({(NOISE, seed), (SAMPLES, 5)}, {(NOISE, seed)}) for seed in (3, 4))
    >>> one.shared(other), one.shared(one | other), one.shared(pickle.loads(pickle.dumps(one)))
    ([], ['noise'], [])
    """

    __slots__ = ("_secret", "_used")

    def __init__(self, used: Any = (), secret: Any = ()):
        self._used, self._secret = frozenset(used), frozenset(secret)

    def __or__(self, other: "Streams") -> "Streams":
        return Streams(self._used | other._used, self._secret | other._secret)

    def shared(self, other: "Streams") -> list[str]:
        """Return the names of streams that both use, and that must stay secret for one of them."""
        both = self._used & other._used & (self._secret | other._secret)
        return sorted({NAMES[name] for name, _ in both})

    def __repr__(self) -> str:
        return "Streams()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, ()

    def __copy__(self) -> "Streams":
        return self

    def __deepcopy__(self, memo: Any) -> "Streams":
        return self


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
    _require_one_adversary(first, second)
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


def _require_one_adversary(first: Terms, second: Terms) -> None:
    """Raise Refusal unless both are against the same adversary."""
    if (first.adversary, first.sees) != (second.adversary, second.sees):
        one, other = (each.adversary or f"that of trust {each.trust!r}" for each in (first, second))
        raise Refusal(f"other must be against the same adversary, {one}, got {other}. Run both with the same adversary")


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


def composed_guarantee(
    first: "PrivacyGuarantee", second: "PrivacyGuarantee", records: str, delta: float | None
) -> "PrivacyGuarantee":
    """Return the guarantee of both runs together, see `PrivacyGuarantee.then`."""
    if not isinstance(second, type(first)):
        raise Refusal(f"other must be a guarantee, got {type(second).__name__}. Use run.guarantee")
    require_choice("records", records, RECORDS)
    _require_other_streams(first, second)
    delta = _stated_delta(first, second, records, delta)
    mus, by_machine = None, False
    if first.mus is not None and second.mus is not None:
        by_machine = first.mus.machines == second.mus.machines and _differ(first.mus, second.mus)
        mus = _mus(first.mus, second.mus, records, by_machine)
    composed = replace(
        first,
        delta=delta,
        terms=composed_terms(first.terms, second.terms, records, by_machine=by_machine),
        mus=mus,
        epsilons=Grouped.of([inf]) if mus is None else None,
        accounting=_accounting(first, second, records, mus is not None),
        event=None,
        listed=None,
        proved=first.proved and second.proved,
        streams=first.streams | second.streams,
    )
    return composed if mus is not None else _with_curve(composed, first, second, records)


def _require_other_streams(first: "PrivacyGuarantee", second: "PrivacyGuarantee") -> None:
    """Raise Refusal if both runs have a random stream in common that must be secret. The message names no seed."""
    for name in first.streams.shared(second.streams):
        remedy = "One seed is one stream, for all methods and data. Run one of them with another seed"
        raise Refusal(f"other must have {name} of its own, got the {name} of this run. {remedy}")


def _with_curve(
    composed: "PrivacyGuarantee", first: "PrivacyGuarantee", second: "PrivacyGuarantee", records: str
) -> "PrivacyGuarantee":
    """Return the composed guarantee with the ε of both curves together, for every machine."""
    machines = max(first.stated.machines, second.stated.machines)
    if not (first.private and second.private):
        return replace(composed, epsilons=_constant(inf, machines))
    curve = CURVES[records](first.curve, second.curve)
    return replace(composed, epsilons=_constant(curve.epsilon(composed.delta), machines), listed=curve)


def _differ(*each: Grouped) -> bool:
    """Return True if machines differ, and the group of each is known."""
    several = [one for one in each if one.values.size > 1]
    return bool(several) and all(one.group is not None for one in several)


def _mus(first: Grouped, second: Grouped, records: str, by_machine: bool) -> Grouped:
    rule = np.hypot if records == SAME else np.maximum
    if by_machine:
        return Grouped.of(rule(first.each, second.each))
    return _constant(float(rule(first.max, second.max)), max(first.machines, second.machines))


def _constant(value: float, machines: int) -> Grouped:
    return Grouped(np.array([value]), np.array([machines]), np.zeros(machines, np.int32))


def _stated_delta(first: "PrivacyGuarantee", second: "PrivacyGuarantee", records: str, delta: float | None) -> float:
    """Return the given δ, or that of both guarantees."""
    if delta is not None:
        require_between("delta", delta, 0, 1)
        return float(delta)
    listed = [one.curve.known_from > 0 for one in (first, second) if one.private]
    if records == SAME and any(listed) and first.private and second.private:
        both = first.delta + second.delta
        if not both < 1:
            raise Refusal(f"delta must be below 1 for both runs together, got {first.delta:g} + {second.delta:g}")
        return both
    if first.delta != second.delta:
        got = f"got {first.delta:g} and {second.delta:g}"
        raise Refusal(f"delta must be the same in both guarantees, {got}. Give delta, at least the larger one")
    return first.delta


def _accounting(first: "PrivacyGuarantee", second: "PrivacyGuarantee", records: str, gaussian: bool) -> str:
    one, two = (f"{each.headline}{f' ({each.accounting})' if each.accounting else ''}" for each in (first, second))
    how = "adaptive composition on the same records" if records == SAME else "parallel composition on disjoint records"
    return f"{how} of {one} and {two}: {RULES[records, gaussian]}"
