"""Two ways to each guarantee: what a theorem says of the noise, beside what an accountant says of the same releases."""

from collections.abc import Sequence
from math import inf, isnan, nan
from typing import NamedTuple

from fedprivjax.checks.values import require_between
from fedprivjax.privacy.accountant_result import EXACT, LOWER, UPPER, Opinion
from fedprivjax.privacy.events import Event

AGREEMENT = 1e-3  # relative
STATED = "the stated guarantee's"  # by its own accounting, beside a claim
AGREES, BELOW, REFUTED, OPEN, NONE = "agrees", "at or below", "refuted", "not proved", "nothing claimed"


class Entry(NamedTuple):
    """One line of the ledger, of the worst machine.

    Attributes:
        theorem: what is held against the accountant: a published rule's claim where one made the noise, else where the
            stated guarantee is proved.
        epsilon: the ε that it gives, or claims; NaN where it claims none.
        accountant: the second way, in words; empty where there is none.
        accountant_epsilon: its ε; NaN where there is none.
        lower: an ε below which nothing is valid, by whoever knows the largest; NaN where nobody does.
        verdict: "agrees" (to a part in a thousand, with an exact accountant), "at or below" (the accountant's ε is),
            "refuted" (no such ε holds), "not proved" (neither bounded nor refuted), "nothing claimed".
        valid: the smallest ε that is proved, by any of the ways; inf where none is.
        opinions: all that was said.
    """

    theorem: str
    epsilon: float
    accountant: str
    accountant_epsilon: float
    lower: float
    verdict: str
    valid: float
    opinions: tuple[Opinion, ...]


def entry(event: Event, delta: float) -> Entry:
    """An event's guarantee by both ways, at δ.

    Raises:
        Refusal: a δ outside (0, 1).

    >>> from fedprivjax.privacy.events import GaussianEvent
    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.terms import Terms
    >>> event = GaussianEvent(2.0, 2.0, Grouped.of([1.0, 0.5]), Terms("none", "a theorem"), lambda machine: [2.0] * 4)
    >>> line = entry(event, 1e-5)
    >>> round(line.epsilon, 2), round(line.accountant_epsilon, 2), line.verdict
    (4.38, 4.38, 'agrees')
    """
    require_between("delta", delta, 0, 1)
    stated = event.epsilon(delta)
    opinions = event.opinions(delta)
    theorem, epsilon = event.terms.theorem, stated
    if event.claim is not None:
        theorem, epsilon = event.claim.theorem, event.claim.epsilon(delta)
        if event.proved:
            opinions = (*opinions, Opinion(STATED, stated, UPPER))
    own = [stated] if event.proved else []
    valid = min([*own, *(one.epsilon for one in opinions if one.kind != LOWER)], default=inf)
    lower = max((one.epsilon for one in opinions if one.kind != UPPER), default=nan)
    second = _second(opinions, epsilon)
    verdict = _verdict(epsilon, opinions, lower, proved=event.proved and event.claim is None)
    return Entry(theorem, epsilon, second.accountant, second.epsilon, lower, verdict, valid, opinions)


def _second(opinions: Sequence[Opinion], epsilon: float) -> Opinion:
    """The exact one; else the least upper bound, but where that is above the theorem's ε and a lower value is known."""
    for one in opinions:
        if one.kind == EXACT:
            return one
    uppers = sorted((one for one in opinions if one.kind == UPPER), key=lambda one: one.epsilon)
    lowers = sorted((one for one in opinions if one.kind == LOWER), key=lambda one: -one.epsilon)
    refuted = lowers and lowers[0].epsilon > epsilon * (1 + AGREEMENT)
    if uppers and (uppers[0].epsilon <= epsilon or refuted or not lowers):
        return uppers[0]
    return lowers[0] if lowers else Opinion("", nan, UPPER)


def _verdict(epsilon: float, opinions: Sequence[Opinion], lower: float, *, proved: bool) -> str:
    if isnan(epsilon) or epsilon == inf:
        return NONE
    slack = AGREEMENT * epsilon + 1e-9
    exact = [one.epsilon for one in opinions if one.kind == EXACT]
    if any(abs(one - epsilon) <= slack for one in exact):
        return AGREES
    if lower > epsilon + slack:
        return REFUTED
    bounded = any(one.epsilon <= epsilon + slack for one in opinions if one.kind != LOWER)
    return BELOW if bounded or (proved and lower <= epsilon + slack) else OPEN
