"""What a private run promises: the number, and the words without which it means nothing."""

import json
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between
from fedprivjax.privacy import attack_metrics, conversions, gdp
from fedprivjax.privacy.curve import AccountedCurve, Curve, GaussianCurve, ListedCurve
from fedprivjax.privacy.paragraph import paragraph
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import TRUST, Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LARGE_EPSILON = 10.0


@dataclass(frozen=True, eq=False)
class PrivacyGuarantee:
    """A guarantee for every machine's data: in Gaussian differential privacy where it holds there, else (ε, δ).

    Attributes:
        delta: the δ at which ε is stated, inside (0, 1).
        terms: unit, neighbouring relation, trust model, theorem and assumptions.
        mus: each machine's GDP parameter, inf where nothing is promised; None where no GDP parameter is stated.
        epsilons: each machine's ε at `delta`; None where it follows from `mus`.
        accounting: how ε follows, in words.
        event: what was released, where it is at hand: an accountant is asked at other δ's through it.
        listed: the curve of a guarantee that was converted from another.
        proved: whether what is stated is an upper bound, not a claim; conversions and files keep it.

    Raises:
        Refusal: for an impossible delta or parameter, or with neither `mus` nor `epsilons`.

    >>> terms = Terms("none", "Reshef & Levy 2025, Theorem 4.1", (Assumption("used once"),))
    >>> print(PrivacyGuarantee(1e-5, terms, mus=Grouped.of([1.0, 2.0])))
    2-GDP for one sample of one machine (replace-one)
      covers: every message a machine sends (no trusted server)
      theorem: Reshef & Levy 2025, Theorem 4.1
      (ε, δ) = (9.997, 1e-05) exact; ε = 11.6 by the papers' conversion; 2-zCDP
      per machine (2): μ min 1, median 1.5, max 2
      assumes: each sample is used once
    """

    delta: float
    terms: Terms
    mus: Grouped | None = None
    epsilons: Grouped | None = None
    accounting: str = ""
    event: Any = None
    listed: Curve | None = None
    proved: bool = True

    def __post_init__(self) -> None:
        require_between("delta", self.delta, 0, 1)
        object.__setattr__(self, "delta", float(self.delta))
        if self.stated.values.size == 0 or not (self.stated.values >= 0).all():
            raise Refusal(f"privacy parameters must be at least 0, one for each machine, got {self.stated.values}")

    @property
    def stated(self) -> Grouped:
        """What is stated for every machine: μ where it holds, else ε."""
        if self.mus is not None:
            return self.mus
        if self.epsilons is not None:
            return self.epsilons
        raise Refusal("mus or epsilons must be given")

    @property
    def per_machine(self) -> np.ndarray:
        """What is stated for each machine, μ or ε, float64 [machines], read-only."""
        return self.stated.each

    @property
    def mu(self) -> float | None:
        """The worst machine's GDP parameter, or None where none is stated."""
        return None if self.mus is None else self.mus.max

    @cached_property
    def epsilon(self) -> float:
        """The worst machine's ε at `delta`, exact where it follows from μ."""
        return self.stated.max if self.mus is None else float(gdp.epsilon(self.mus.max, self.delta))

    @property
    def private(self) -> bool:
        """Whether anything at all is promised."""
        return isfinite(self.stated.max)

    @property
    def large(self) -> bool:
        """Whether ε is above 10: results mark such rows."""
        return self.epsilon > LARGE_EPSILON

    @property
    def unit(self) -> str:
        return self.terms.unit

    @property
    def relation(self) -> str:
        return self.terms.relation

    @property
    def trust(self) -> str:
        return self.terms.trust

    @property
    def theorem(self) -> str:
        return self.terms.theorem

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return self.terms.assumptions

    @property
    def paper_epsilon(self) -> float:
        """The papers' looser ε of `mu` at `delta`."""
        return float(gdp.paper_epsilon(self._gdp(), self.delta))

    @property
    def zcdp(self) -> float:
        """The zero-concentrated parameter, `μ²/2`."""
        return float(gdp.zcdp(self._gdp()))

    def rdp(self, order: float) -> float:
        """The Rényi divergence of an order above 1, `order·μ²/2`."""
        return float(gdp.rdp(self._gdp(), order))

    @cached_property
    def curve(self) -> Curve:
        """The worst machine's ε at every δ: exact for a μ, accounted where the event is at hand, else as listed."""
        if self.mus is not None:
            return GaussianCurve(self.mus.max)
        if self.listed is not None:
            return self.listed
        return ListedCurve(self.epsilon, self.delta) if self.event is None else AccountedCurve(self.event.epsilon)

    def epsilon_at(self, delta: float) -> float:
        """The worst machine's ε at another δ.

        Raises:
            Refusal: a δ outside (0, 1); one below `delta`, for a guarantee that was read from a file and has no μ.
        """
        return self.curve.epsilon(delta)

    def delta_at(self, epsilon: float) -> float:
        """The δ at another ε: exact for a μ, else an upper bound."""
        return self.curve.delta(epsilon)

    @cached_property
    def advantage(self) -> float:
        """The most by which an attacker's true-positive rate exceeds the false-positive rate."""
        return attack_metrics.advantage(self.curve)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most that an attacker's true-positive rate may be at a false-positive rate."""
        return attack_metrics.true_positive_rate(self.curve, false_positive_rate)

    def smallest_mu(self, floor: float = attack_metrics.FLOOR) -> attack_metrics.SmallestMu:
        """The least μ that may be stated for δ from `floor` on, and how much it gives away; `mu` where it holds."""
        return attack_metrics.smallest_mu(self.curve, floor)

    def for_group(self, members: int) -> "PrivacyGuarantee":
        """For so many units at once, see `privacy.conversions`.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0]))
        >>> one.for_group(3).mu
        3.0
        """
        return conversions.for_group(self, members)

    def for_relation(self, relation: str) -> "PrivacyGuarantee":
        """For another neighbouring relation, from "add-or-remove-one" to "replace-one" alone."""
        return conversions.for_relation(self, relation)

    def for_user(self, records: int) -> "PrivacyGuarantee":
        """For a user who holds at most so many records, from one record or sample alone."""
        return conversions.for_user(self, records)

    def dp_event(self) -> "DpEvent":
        """dp-accounting's tree of what was released, see `Event.dp_event`; one Gaussian mechanism for a μ alone.

        Raises:
            Refusal: where dp-accounting has no such event, or nothing is known but ε.
        """
        from dp_accounting import GaussianDpEvent

        if self.event is not None:
            return self.event.dp_event()
        if self.mus is None or not 0 < self.mus.max < inf:
            raise Refusal("mu must be positive and finite, or the event at hand, to be a tree of dp-accounting's")
        return GaussianDpEvent(1 / self.mus.max)

    def paragraph(self) -> str:
        """Prose for a paper, see `privacy.paragraph`."""
        return paragraph(self)

    def to_json(self) -> str:
        """The guarantee as text, machines in groups; `from_json` reads it."""
        grouped = {name: each.as_mapping() for name in ("mus", "epsilons") if (each := getattr(self, name)) is not None}
        words: dict[str, Any] = {"accounting": self.accounting} if self.accounting else {}
        words |= {} if self.proved else {"proved": False}
        said = {"delta": self.delta, "terms": self.terms.as_mapping(), **grouped, **words}
        return json.dumps(said, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "PrivacyGuarantee":
        """A guarantee from its text; of more than 4096 machines, which is in which group is not kept.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0, 2.0]))
        >>> str(PrivacyGuarantee.from_json(one.to_json())) == str(one)
        True
        """
        raw = json.loads(text)
        mus, epsilons = (Grouped.from_mapping(raw[name]) if name in raw else None for name in ("mus", "epsilons"))
        words = {name: raw[name] for name in ("accounting", "proved") if name in raw}
        return cls(raw["delta"], Terms.from_mapping(raw["terms"]), mus, epsilons, **words)

    def __str__(self) -> str:
        each, symbol = self.stated, "ε" if self.mus is None else "μ"
        lines = [
            f"{self._headline()} for {self.unit} ({self.relation})",
            f"covers: {TRUST[self.trust]}",
            f"theorem: {self.theorem}",
            *([f"accounting: {self.accounting}"] if self.accounting else []),
            *([] if self.mus is None else [self._conversions()]),
            f"per machine ({each.machines}): {symbol} min {each.min:.4g}, median {each.median:.4g}, max {each.max:.4g}",
            *(f"assumes: {assumption}" for assumption in self.assumptions),
        ]
        return "\n  ".join(lines)

    def _headline(self) -> str:
        if self.mus is not None:
            return f"{self.mu:.4g}-GDP" if self.private else "non-private: μ = inf"
        large = " (large: ε > 10)" if self.large else ""
        return f"({self.epsilon:.4g}, {self.delta:g})-DP{large}" if self.private else "non-private: ε = inf"

    def _conversions(self) -> str:
        large = " (large: ε > 10)" if self.large and self.private else ""
        exact = f"(ε, δ) = ({self.epsilon:.4g}, {self.delta:g}) exact{large}"
        return f"{exact}; ε = {self.paper_epsilon:.4g} by the papers' conversion; {self.zcdp:.4g}-zCDP"

    def _gdp(self) -> float:
        if self.mus is None:
            raise Refusal("mu must be stated for this conversion, and this guarantee states ε alone")
        return inf if not self.private else self.mus.max
