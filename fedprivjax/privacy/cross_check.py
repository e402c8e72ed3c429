"""Cross-check of guarantees: ε of the theorem, compared with ε of an accountant for the same releases."""

from collections.abc import Sequence
from math import inf, isnan, nan
from typing import NamedTuple

from fedprivjax.checks.values import require_between
from fedprivjax.privacy.accountants.dp_accounting_backend import EXACT, LOWER, UPPER, AccountantResult
from fedprivjax.privacy.events import Event

AGREEMENT = 1e-3  # relative tolerance
STATED = "the stated guarantee's"  # name of the guarantee's own accounting, if a claim is checked
AGREES, BELOW, REFUTED, OPEN, NONE = "agrees", "at or below", "refuted", "not proved", "nothing claimed"


class Entry(NamedTuple):
    """One row of the cross-check table, for the worst machine.

    Attributes:
        theorem: source of the checked ε: the claim of a published noise rule, or else the theorem of the guarantee.
        epsilon: ε of the theorem or claim, or NaN if none is claimed.
        accountant: name of the second accountant, or empty if there is none.
        accountant_epsilon: ε of the second accountant, or NaN if there is none.
        only_lower: True if `accountant_epsilon` is only a lower bound, which an adversary achieves.
        lower: largest known lower bound on ε, or NaN if there is none.
        verdict: "agrees" (with an exact accountant, to a part in a thousand), "at or below" (the accountant's ε is at
            or below `epsilon`), "refuted" (no such ε holds), "not proved" (neither bounded nor refuted), "nothing
            claimed".
        valid: smallest proved ε of all results, or inf if there is none.
        results: results of all accountants.
    """

    theorem: str
    epsilon: float
    accountant: str
    accountant_epsilon: float
    only_lower: bool
    lower: float
    verdict: str
    valid: float
    results: tuple[AccountantResult, ...]


def entry(event: Event, delta: float) -> Entry:
    """Return the cross-check of an event's guarantee at δ.

    Raises:
        Refusal: if δ is outside (0, 1).

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
    results = event.accountant_results(delta)
    theorem, epsilon = event.terms.theorem, stated
    if event.claim is not None:
        theorem, epsilon = event.claim.theorem, event.claim.epsilon(delta)
        if event.proved:
            results = (*results, AccountantResult(STATED, stated, UPPER))
    own = [stated] if event.proved else []
    valid = min([*own, *(one.epsilon for one in results if one.kind != LOWER)], default=inf)
    lower = max((one.epsilon for one in results if one.kind != UPPER), default=nan)
    second = _second(results, epsilon)
    verdict = _verdict(epsilon, results, lower, proved=event.proved and event.claim is None)
    shown = second.accountant, second.epsilon, second.kind == LOWER
    return Entry(theorem, epsilon, *shown, lower, verdict, valid, results)


def _second(results: Sequence[AccountantResult], epsilon: float) -> AccountantResult:
    """Return the result to compare with the theorem's ε.

    It is the exact result if there is one. Otherwise it is the smallest upper bound if that is at most the theorem's ε,
    if a lower bound refutes the theorem's ε, or if there is no lower bound. Otherwise it is the largest lower bound.
    """
    for one in results:
        if one.kind == EXACT:
            return one
    uppers = sorted((one for one in results if one.kind == UPPER), key=lambda one: one.epsilon)
    lowers = sorted((one for one in results if one.kind == LOWER), key=lambda one: -one.epsilon)
    refuted = lowers and lowers[0].epsilon > epsilon * (1 + AGREEMENT)
    if uppers and (uppers[0].epsilon <= epsilon or refuted or not lowers):
        return uppers[0]
    return lowers[0] if lowers else AccountantResult("", nan, UPPER)


def _verdict(epsilon: float, results: Sequence[AccountantResult], lower: float, *, proved: bool) -> str:
    if isnan(epsilon) or epsilon == inf:
        return NONE
    slack = AGREEMENT * epsilon + 1e-9
    exact = [one.epsilon for one in results if one.kind == EXACT]
    if any(abs(one - epsilon) <= slack for one in exact):
        return AGREES
    if lower > epsilon + slack:
        return REFUTED
    bounded = any(one.epsilon <= epsilon + slack for one in results if one.kind != LOWER)
    return BELOW if bounded or (proved and lower <= epsilon + slack) else OPEN
