"""Guarantees for groups of protected units, such as all records of one user.

Exact guarantees are those of μ-GDP (Dong, Roth & Su 2022, Theorem 2.14), and of an event that states the releases of a
group. Otherwise, if datasets differ in k units, a chain of k neighbouring pairs connects them, and (ε, δ) becomes
`(kε, δ·(e^{kε} − 1)/(e^ε − 1))` (Dwork & Roth 2014, Theorem 2.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, short
from fedprivjax.privacy import gdp
from fedprivjax.privacy.curve import GaussianCurve, GroupCurve, spread
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import up

if TYPE_CHECKING:  # the guarantee's module imports this one
    from fedprivjax.privacy.guarantee import PrivacyGuarantee

INVERSE = 1e-9  # relative error allowed for μ computed from ε
LARGEST_SIZE = 10**100  # units of a group, so that squares of their μ are finite


def group_size(name: str, size: Any) -> int:
    """Return the number of units of a group as a Python integer, because products of short NumPy integers overflow.

    >>> import numpy as np
    >>> group_size("size", np.uint8(200)) * 2
    400
    """
    require_at_least(name, size, 1)
    if size > LARGEST_SIZE:
        raise Refusal(f"{name} must be at most {LARGEST_SIZE:.0e}, got {short(int(size))}")
    return int(size)


def group_guarantee(
    one: "PrivacyGuarantee", size: int, unit: str, relation: str, *, exact: bool = False, one_machine: bool = False
) -> "PrivacyGuarantee":
    """Return the guarantee of `size` units, see `PrivacyGuarantee.for_group`.

    Args:
        one_machine: True if all units are records of one machine. Messages then name the size `records`.
    """
    argument = "records" if one_machine else "size"
    terms = replace(one.terms, unit=unit, relation=relation)
    derived = f"group privacy, {size} changes" if size > 1 else ""
    accounting = "; ".join(part for part in (one.accounting, derived) if part)
    common: dict[str, Any] = {"terms": terms, "accounting": accounting, "event": None}
    if one.mus is not None:
        return replace(one, mus=one.mus.map(lambda mus: size * mus), **common)
    if size > 1 and (event := _group_event(one, size, relation, exact, one_machine)) is not None:
        return _by_event(one, event, size, unit, argument)
    if one.curve.mu is not None and one.private:  # ε of every machine is that of a μ
        mus = one.stated.map(lambda epsilons: size * _mu_of(epsilons, one.delta))
        common |= {"listed": GaussianCurve(mus.max)}
        return replace(one, epsilons=mus.map(lambda mus: gdp.epsilon(mus, one.delta)), **common)
    delta = spread(one.epsilon, one.delta, size)
    if not delta < 1 and one.private:
        most = _largest(lambda k: spread(one.epsilon, one.delta, k) < 1, size)
        raise Refusal(f"{argument} must be at most {most}, for a δ below 1 at ε = {up(one.epsilon, 4)}, got {size}")
    common |= {"delta": delta if one.private else one.delta, "listed": GroupCurve(one.curve, size)}
    return replace(one, epsilons=one.stated.map(lambda epsilons: size * epsilons), **common)


def guarantee_of_machines(
    one: "PrivacyGuarantee", sizes: Sequence[int] | np.ndarray, of_size: Callable[[int], "PrivacyGuarantee"]
) -> "PrivacyGuarantee":
    """Return the guarantee of users with a largest number of records for each machine.

    Each machine has the parameter that `of_size` states for it. δ is the largest of any of these guarantees, at which
    all of them hold. Unless releases are Gaussian, the result has no curve: only ε at δ is known.

    Args:
        sizes: largest number of records of a user of each machine, [machines].
        of_size: guarantee of users with this number of records on any machine.
    """
    machines = one.stated.machines
    if np.shape(sizes) != (machines,):
        wanted = f"records must be one number, or one for each of {machines} machines, [{machines}]"
        raise Refusal(f"{wanted}, got the shape {list(np.shape(sizes))}")
    counts = [group_size("records", size) for size in sizes]
    parts = {size: of_size(size) for size in sorted(set(counts), reverse=True)}  # the largest is refused first
    largest = parts[max(counts)]
    if len(parts) == 1:
        return largest
    stated = Grouped.of([parts[size].per_machine[machine] for machine, size in enumerate(counts)])
    unit = (
        f"one user, who holds at most {min(counts)} to {max(counts)} records of one machine, a number for each machine"
    )
    gaussian = one.mus is None and one.private and all(part.curve.mu is not None for part in parts.values())
    assumptions = tuple(dict.fromkeys(each for part in parts.values() for each in part.assumptions))
    return replace(
        largest,
        delta=max(part.delta for part in parts.values()),
        terms=replace(largest.terms, unit=unit, assumptions=assumptions),
        mus=None if one.mus is None else stated,
        epsilons=stated if one.mus is None else None,
        accounting=f"{largest.accounting}, and likewise for the numbers of other machines",
        event=None,
        listed=GaussianCurve(_mu_of(stated.max, one.delta)) if gaussian else None,
    )


def _mu_of(epsilons: Any, delta: float) -> Any:
    """Return the μ of each ε at δ, from above."""
    return (1 + INVERSE) * gdp.mu(epsilons, delta)


def _group_event(one: "PrivacyGuarantee", size: int, relation: str, exact: bool, one_machine: bool) -> Any:
    """Return the event of a group, or None if none is known. If `exact`, raise Refusal instead."""
    try:
        if one.event is None or relation != one.relation:
            got = "no event, as in a loaded guarantee" if one.event is None else f"relation {relation!r}"
            raise Refusal(
                f"event and relation must be the run's for an exact guarantee of groups, got {got}. Set exact = False"
            )
        return one.event.for_group(size, one_machine)
    except Refusal:
        if exact:
            raise
        return None


def _by_event(one: "PrivacyGuarantee", event: Any, size: int, unit: str, argument: str) -> "PrivacyGuarantee":
    """Return the exact guarantee of a group at the same δ, from its event."""
    epsilons = event.epsilons(one.delta)
    if one.private and not epsilons.max < inf:
        one_machine = argument == "records"
        most = _largest(lambda k: one.event.for_group(k, one_machine).epsilons(one.delta).max < inf, size)
        raise Refusal(f"{argument} must be at most {most}, for a finite ε at δ = {one.delta:g}, got {size}")
    kept = tuple(each for each in event.terms.assumptions if each not in one.assumptions)
    terms = replace(event.terms, unit=unit, assumptions=(*one.assumptions, *kept))
    event = replace(event, terms=terms)
    stated = {"accounting": event.accounting, "event": event, "listed": event.curve if one.private else None}
    return replace(one, terms=terms, epsilons=epsilons, **stated)


def _largest(bounded: Callable[[int], bool], above: int) -> int:
    """Return the largest size of a group with a bound, by doubling and bisection. Size 1 has one, `above` has none."""
    low = 1
    while 2 * low < above and bounded(2 * low):
        low *= 2
    high = min(2 * low, above)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bounded(middle) else (low, middle)
    return low
