"""Texts about a privacy guarantee: its statement, a paragraph for a paper, and warnings of a too large δ."""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.checks.printable import printable
from fedprivjax.privacy.rounding import up

if TYPE_CHECKING:  # the guarantee's module imports this one
    from fedprivjax.privacy.guarantee import PrivacyGuarantee
    from fedprivjax.privacy.per_machine import Grouped

RATES = (0.01, 0.001)  # false-positive rates at which an attacker's true-positive rate is stated
TUNING = "hyper-parameters, data preparation and metrics of private data are not covered"
PRNG = (
    "The noise was simulated in float32 with jax's pseudo-random generator, which is not an implementation of the "
    "mechanism for deployment."
)


def headline(guarantee: "PrivacyGuarantee") -> str:
    """Return the stated parameters of the worst machine."""
    if guarantee.mus is not None:
        return f"{up(guarantee.mus.max, 4)}-GDP" if guarantee.private else "non-private: μ = inf"
    if not guarantee.private:
        return "non-private: ε = inf"
    return f"({up(guarantee.epsilon, 4)}, {guarantee.delta:g})-DP{_large(guarantee)}"


def statement(guarantee: "PrivacyGuarantee") -> str:
    """Return the guarantee as lines of text: parameters, terms, conversions, machines and assumptions.

    It is one line if no machine has a guarantee.
    """
    each, symbol = guarantee.stated, guarantee.symbol
    first = f"{headline(guarantee)} for {guarantee.unit} ({guarantee.terms.stated_relation})"
    if each.min == inf:
        return printable(first)
    lines = [
        first,
        f"covers: {guarantee.terms.covers}",
        f"theorem: {guarantee.theorem}",
        *([f"accounting: {guarantee.accounting}"] if guarantee.accounting else []),
        *([_conversions(guarantee)] if guarantee.mus is not None and guarantee.private else []),
        f"per machine ({each.machines}): {symbol} {_spread(each)}",
        *(f"assumes: {assumption}" for assumption in guarantee.assumptions),
    ]
    return printable("\n  ".join(lines))


def _spread(each: "Grouped") -> str:
    return f"min {up(each.min, 4)}, median {up(each.median, 4)}, max {up(each.max, 4)}"


def _conversions(guarantee: "PrivacyGuarantee") -> str:
    exact = f"(ε, δ) = ({up(guarantee.epsilon, 4)}, {guarantee.delta:g}) exact{_large(guarantee)}"
    paper = f"ε = {up(guarantee.paper_epsilon, 4)} by the papers' conversion"
    return f"{exact}; {paper}; {up(guarantee.zcdp, 4)}-zCDP"


def _large(guarantee: "PrivacyGuarantee") -> str:
    return " (large: ε > 10)" if guarantee.large and guarantee.private else ""


def paragraph(guarantee: "PrivacyGuarantee") -> str:
    """Return the guarantee as a paragraph.

    It states the trust model, unit, relation, released values, composition and accountant, sampling and other
    assumptions, bounds on attacks, tuning, and the source of randomness.

    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.guarantee import PrivacyGuarantee
    >>> from fedprivjax.privacy.terms import Terms
    >>> text = paragraph(PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0])))
    >>> text.split(" for ")[0]
    'The mechanism is (ε, δ) = (4.378, 1e-05)-differentially private, 1-GDP,'
    """
    subject = f"{guarantee.unit} ({guarantee.terms.stated_relation})"
    if not guarantee.private:
        return f"Nothing is guaranteed for {subject}: the run is not private."
    seen = f"Trust model: {guarantee.terms.against}. Released, and seen by the adversary: {guarantee.terms.covers}"
    level = f"(ε, δ) = ({up(guarantee.epsilon, 4)}, {guarantee.delta:g})-differentially private"
    gdp = "" if guarantee.mu is None else f", {up(guarantee.mu, 4)}-GDP,"
    accounting = f"; accounting: {guarantee.accounting}" if guarantee.accounting else ""
    assumed = "; ".join(str(one) for one in guarantee.assumptions if one.name != "not covered")  # stated under "Tuning"
    verb = "is" if guarantee.proved else "is claimed, without a proof, to be"
    return " ".join(
        [
            f"The mechanism {verb} {level}{gdp} for {subject}{_machines(guarantee)}.",
            f"{seen}; anything computed from it alone, including the trained model, is covered as post-processing.",
            f"Proof: {guarantee.theorem}{accounting}.",
            *([f"It assumes that {assumed}."] if assumed else []),
            gains(guarantee),
            *smallest(guarantee),
            f"Tuning: {TUNING}.",
            PRNG,
        ]
    )


def smallest(guarantee: "PrivacyGuarantee") -> list[str]:
    """Return a sentence on the smallest valid μ if none is stated, else none. None either if only one ε is known."""
    if guarantee.mu is not None or guarantee.curve.known_from:
        return []
    if guarantee.curve.mu is not None:
        return [f"All releases are Gaussian: ε at every δ is that of {up(guarantee.curve.mu, 4)}-GDP."]
    mu, regret, floor = guarantee.smallest_mu()
    if not mu < 100:
        return []
    return [
        f"No μ is proved. The smallest μ whose trade-off function is below this curve's for δ ≥ {floor:.2g} is "
        f"{up(mu, 3)}, which loses up to {regret:.2g} of a false-negative rate."
    ]


def _machines(guarantee: "PrivacyGuarantee") -> str:
    """Return text on the differences between machines, or empty text if all have the same parameter."""
    each, symbol = guarantee.stated, guarantee.symbol
    if each.max <= each.min * (1 + 1e-9):
        return ""
    return f"; this is the worst of {each.machines} machines, whose {symbol} is {up(each.median, 4)} in the median"


def gains(guarantee: "PrivacyGuarantee") -> str:
    """Return text with the bounds on attacks. Those of a guarantee that was read from a file, without a μ, are loose.

    >>> from fedprivjax.privacy.per_machine import Grouped
    >>> from fedprivjax.privacy.guarantee import PrivacyGuarantee
    >>> from fedprivjax.privacy.terms import Terms
    >>> gains(PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0])))
    'An attacker who knows all else has an advantage of at most 0.383, and a true-positive rate of at most 9.24% at \
false-positive rate 1%, 1.83% at 0.1%.'
    """
    shown = [f"{up(100 * guarantee.true_positive_rate(rate), 3)}%" for rate in RATES]
    alone = guarantee.curve.known_from > 0
    source = "By (ε, δ) alone, an attacker" if alone else "An attacker"
    return (
        f"{source} who knows all else has an advantage of at most {up(guarantee.advantage, 3)}, and a true-positive "
        f"rate of at most {shown[0]} at false-positive rate {RATES[0]:.0%}, {shown[1]} at {RATES[1]:.1%}."
        + alone
        * " Bounds by the run's whole curve, which `fedprivjax privacy` prints, may be far smaller."
    )


def large_delta(delta: float, sizes: Any, name: Callable[[int], str] = "machine {}".format) -> str:
    """A warning, as text, if δ exceeds 1/n for a machine of n records; empty if it does not.

    At δ = 1/n a mechanism that publishes one of a machine's n records, chosen at random, is (0, δ)-DP.

    Args:
        sizes: numbers of records, int, shape [machines].
        name: name of a machine, by its index.

    >>> large_delta(0.01, [184, 50])
    'delta exceeds 1/n on 1 of 2 machines, got 0.01 where machine 0 has n = 184 records. Set delta below 0.0054'
    >>> large_delta(1e-5, [184, 50])
    ''
    """
    sizes = np.asarray(sizes)
    over = np.flatnonzero(delta * sizes > 1)
    if not over.size:
        return ""
    worst = int(np.argmax(sizes))
    where = f"{name(worst)} has n = {sizes[worst]} records"
    got = f"got {delta:g} where {where}. Set delta below {_rounded_down(1 / sizes[worst])}"
    return f"delta exceeds 1/n on {over.size} of {sizes.size} machines, {got}"


def large_delta_of_machines(delta: float, machines: int) -> str:
    """Return a warning as text if δ exceeds 1/M for a guarantee of one of M machines, else an empty text.

    >>> large_delta_of_machines(0.01, 500)
    'delta exceeds 1/M, got 0.01 where M = 500 machines are protected one by one. Set delta below 0.002'
    >>> large_delta_of_machines(1e-5, 500)
    ''
    """
    if not delta * machines > 1:
        return ""
    where = f"M = {machines} machines are protected one by one"
    return f"delta exceeds 1/M, got {delta:g} where {where}. Set delta below {_rounded_down(1 / machines)}"


def _rounded_down(number: float) -> str:
    """Return the number rounded down to two significant digits, as text."""
    scale = 10.0 ** (np.floor(np.log10(number)) - 1)
    return f"{np.floor(number / scale * (1 + 1e-12)) * scale:.2g}"
