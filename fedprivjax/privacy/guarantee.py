"""Privacy guarantees: the privacy parameters with their unit, relation, trust model, theorem and assumptions."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.bounded_read import json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice
from fedprivjax.privacy import attack_metrics, gdp
from fedprivjax.privacy.composed_guarantee import SAME, Streams, composed_guarantee
from fedprivjax.privacy.curve import AccountedCurve, Curve, GaussianCurve, ListedCurve
from fedprivjax.privacy.group_privacy import group_guarantee
from fedprivjax.privacy.paragraph import headline, paragraph, statement
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE
from fedprivjax.privacy.terms import RECORD, Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LARGE_EPSILON = 10.0


@dataclass(frozen=True, eq=False)
class PrivacyGuarantee:
    """Privacy guarantee for every machine's data: μ of Gaussian differential privacy (GDP) if proved, or (ε, δ)-DP.

    Attributes:
        delta: δ at which ε is stated, in (0, 1).
        terms: unit, neighbouring relation, trust model, theorem and assumptions.
        mus: GDP parameter of each machine, inf if nothing is guaranteed, or None if no GDP parameter is stated.
        epsilons: ε of each machine at `delta`, or None if it follows from `mus`.
        accounting: derivation of ε, as text.
        event: `Event` of the releases, from which ε at another δ is computed, or None if it is not available.
        listed: points (ε, δ) of a guarantee that was converted from another, or None.
        proved: True if the values are proved upper bounds, False if they are claims. Conversions and files keep it.
        streams: random streams of the run, by which `then` refuses two runs with the same seed. They are neither
            printed nor saved. A guarantee that was read from a file, or planned without a run, has none.

    Raises:
        Refusal: if delta or a parameter is out of range, or if neither `mus` nor `epsilons` is given.

    >>> terms = Terms("none", "Reshef & Levy 2025, Theorem 4.1", (Assumption("used once"),))
    >>> print(PrivacyGuarantee(1e-5, terms, mus=Grouped.of([1.0, 2.0])))
    2-GDP for one record of one machine (replace-one)
      covers: every message a machine sends (no trusted server)
      theorem: Reshef & Levy 2025, Theorem 4.1
      (ε, δ) = (9.997, 1e-05) exact; ε = 11.6 by the papers' conversion; 2-zCDP
      per machine (2): μ min 1, median 1.5, max 2
      assumes: each record is used once
    """

    delta: float
    terms: Terms
    mus: Grouped | None = None
    epsilons: Grouped | None = None
    accounting: str = ""
    event: Any = None
    listed: Curve | None = None
    proved: bool = True
    streams: Streams = field(default=Streams(), repr=False)

    def __post_init__(self) -> None:
        require_between("delta", self.delta, 0, 1)
        object.__setattr__(self, "delta", float(self.delta))
        if self.stated.values.size == 0 or not (self.stated.values >= 0).all():
            raise Refusal(f"privacy parameters must be at least 0, one for each machine, got {self.stated.values}")

    @property
    def stated(self) -> Grouped:
        """μ of every machine if it is stated, otherwise ε, stored as groups of equal machines."""
        if self.mus is not None:
            return self.mus
        if self.epsilons is not None:
            return self.epsilons
        raise Refusal("mus or epsilons must be given")

    @property
    def per_machine(self) -> np.ndarray:
        """Each machine's μ if `mus` is given, otherwise its ε at `delta`; float64 [machines], read-only.

        `symbol` says which of them it is.
        """
        return self.stated.each

    @property
    def symbol(self) -> str:
        """Symbol of the parameter in `stated` and `per_machine`: "ε" if no μ is stated, otherwise "μ"."""
        return "ε" if self.mus is None else "μ"

    @property
    def mu(self) -> float | None:
        """Parameter μ of Gaussian differential privacy of the least private machine, or None if none is stated."""
        return None if self.mus is None else self.mus.max

    @cached_property
    def epsilon(self) -> float:
        """ε of the least private machine at `delta`, exact if μ is stated, otherwise an upper bound."""
        return self.stated.max if self.mus is None else float(gdp.epsilon(self.mus.max, self.delta))

    @property
    def private(self) -> bool:
        """True if every machine's μ, or ε if no μ is stated, is finite."""
        return isfinite(self.stated.max)

    @property
    def large(self) -> bool:
        """True if ε is above 10, so that it says little. Tables and plots mark such results."""
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
        """ε of `mu` at `delta` by a looser formula of many papers, see `gdp.paper_epsilon`."""
        return float(gdp.paper_epsilon(self._gdp(), self.delta))

    @property
    def zcdp(self) -> float:
        """Parameter of zero-concentrated DP of the least private machine, `μ²/2`."""
        return float(gdp.zcdp(self._gdp()))

    def rdp(self, order: float) -> float:
        """Return a bound on the Rényi divergence of an order above 1, for the least private machine: `order·μ²/2`."""
        return float(gdp.rdp(self._gdp(), order))

    @cached_property
    def curve(self) -> Curve:
        """Privacy curve of the least private machine, which gives δ as a function of ε.

        The curve is exact if μ is stated. Otherwise it is an upper bound, from the event or from known points (ε, δ).
        """
        if self.mus is not None:
            return GaussianCurve(self.mus.max)
        if self.listed is not None:
            return self.listed
        return ListedCurve(self.epsilon, self.delta) if self.event is None else AccountedCurve(self.event.epsilon)

    def epsilon_at(self, delta: float) -> float:
        """Return ε of the least private machine at another δ.

        Raises:
            Refusal: if δ is outside (0, 1), or below `delta` for a guarantee without μ that was read from a file.
        """
        return self.curve.epsilon(delta)

    def delta_at(self, epsilon: float) -> float:
        """Return δ of the least private machine at another ε: exact if μ is stated, otherwise an upper bound."""
        return self.curve.delta(epsilon)

    @cached_property
    def advantage(self) -> float:
        """Largest true-positive rate minus false-positive rate of a test between neighbouring datasets."""
        return attack_metrics.advantage(self.curve)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the largest true-positive rate of a test between neighbouring datasets, at a false-positive rate."""
        return attack_metrics.true_positive_rate(self.curve, false_positive_rate)

    def smallest_mu(self, floor: float = attack_metrics.FLOOR) -> attack_metrics.SmallestMu:
        """Return the smallest μ that the guarantee implies for all δ ≥ `floor`, with its regret.

        It is `mu` if μ of Gaussian differential privacy is stated. The regret says how much is lost by stating only
        this μ. It is the largest decrease that the statement allows in the false-negative rate of tests between
        neighbouring datasets, at the same false-positive rate.
        """
        return attack_metrics.smallest_mu(self.curve, floor)

    def for_group(
        self, size: int, unit: str | None = None, relation: str | None = None, *, exact: bool = False
    ) -> "PrivacyGuarantee":
        """Return the guarantee for groups of k = `size` units that change together.

        For Gaussian mechanisms (μ becomes kμ) and Poisson samples, ε is computed from the mechanism, at the same δ.
        Otherwise it follows from group privacy, which is looser: (ε, δ) becomes `(kε, δ·(e^{kε} − 1)/(e^ε − 1))`.

        Args:
            size: number k of units in a group. They may be on different machines.
            unit, relation: those of the result. By default, a group of the guarantee's unit, and its relation.
            exact: True to raise Refusal instead of using general group privacy.

        Raises:
            Refusal: if `exact` and no exact guarantee is known, or the group is so large that δ is not below 1. The
                message states the largest size that has a bound.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0]))
        >>> one.for_group(3).mu
        3.0
        >>> two = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), epsilons=Grouped.of([0.5])).for_group(2)
        >>> two.epsilon, round(two.delta * 1e6, 3), two.unit
        (1.0, 2.649, 'any 2 of: one record of one machine')
        """
        require_at_least("size", size, 1)
        unit = (self.unit if size == 1 else f"any {size} of: {self.unit}") if unit is None else unit
        return group_guarantee(self, size, unit, relation or self.relation, exact=exact)

    def for_relation(self, relation: str) -> "PrivacyGuarantee":
        """Return the guarantee for another neighbouring relation. Only "add-or-remove-one" converts, to "replace-one".

        Replacing a record is removing one and adding one, so that the result is the guarantee for a group of two units.

        Raises:
            Refusal: for any other change. A guarantee for replacing a record does not cover datasets of another size.

        >>> terms = Terms("none", "a theorem", relation=ADD_OR_REMOVE)
        >>> PrivacyGuarantee(1e-6, terms, mus=Grouped.of([1.0])).for_relation(REPLACE_ONE).mu
        2.0
        """
        require_choice("relation", relation, RELATIONS)
        if relation == self.relation:
            return self
        if (self.relation, relation) == (ADD_OR_REMOVE, REPLACE_ONE):
            return self._replaced(relation)
        if any(one.name == "public sizes" for one in self.assumptions):
            wanted = f"relation must stay {self.relation!r} if participation depends on dataset sizes"
            raise Refusal(f"{wanted}, got {relation!r}")
        raise Refusal(f"relation must stay {self.relation!r}, which does not give {relation!r}")

    def _replaced(self, relation: str) -> "PrivacyGuarantee":
        """Return the guarantee of a group of one unit that is removed and one that is added."""
        try:
            return self.for_group(2, self.unit, relation)
        except Refusal as error:
            level = f"ε = {self.epsilon:.4g} and δ = {self.delta:g}"
            raise Refusal(f"relation must stay {self.relation!r}: {level} give no bound for {relation!r}") from error

    def for_user(self, records: int, *, exact: bool = False) -> "PrivacyGuarantee":
        """Return the guarantee for a user who holds at most `records` records of one machine, if all of these change.

        Raises:
            Refusal: if the guarantee's unit is not one record, or for a reason of `for_group`.

        >>> user = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), mus=Grouped.of([1.0])).for_user(3)
        >>> user.mu, user.unit
        (3.0, 'one user, who holds at most 3 records of one machine')
        """
        if self.unit != RECORD:
            raise Refusal(f"unit must be {RECORD!r} to be converted to a user, got {self.unit!r}")
        require_at_least("records", records, 1)
        unit = f"one user, who holds at most {records} records of one machine"
        return group_guarantee(self, records, unit, self.relation, exact=exact, one_machine=True)

    def then(self, other: "PrivacyGuarantee", records: str = SAME, *, delta: float | None = None) -> "PrivacyGuarantee":
        """Return the guarantee of this run and another one together, such as one that starts from this one's output.

        On the same records, two μ give `√(μ₁² + μ₂²)` (Dong, Roth & Su 2022, Corollary 3.3). Otherwise privacy loss
        distributions are composed that bound the losses of both runs from above. If a guarantee without μ was read from
        a file, only one point of it is known. The result is then ε₁ + ε₂ at δ₁ + δ₂. On disjoint records, a record is
        in one run only, and the larger of the two parameters holds for all (McSherry 2009, Theorem 4).

        If both runs have the same number of machines, machine k must be the same in both, and μ are composed machine by
        machine. Else the worst machines are composed. The trust model is the one under which an adversary sees less:
        the result covers only what it sees in both runs.

        The runs must have different seeds, because equal seeds give equal noise, which the difference of two releases
        does not contain. Equal seeds are refused. The seeds of a guarantee that was read from a file, or of a planned
        run, are not known and not compared; those of a sweep's configuration are the `seed` of its dataset. The result
        also assumes that neither the number of runs nor their privacy parameters were chosen by results on the data.

        Args:
            other: guarantee of the other run.
            records: "same", which holds for any two sets of records, or "disjoint", if no record is in both runs and a
                public rule that ignores the records' values fixes which run may use a record.
            delta: δ of the result. By default that of both, or δ₁ + δ₂ if records are the same and an ε has one δ.

        Raises:
            Refusal: if both runs have the same noise, or one has the other's secret samples or participation; if unit
                or relation differ, or δ differ and none is given; if neither run's adversary sees all that the other's
                sees; or if records are disjoint and the unit is not one record.

        >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset, simulate
        >>> data, method = datasets.load("digits"), DPMu2(mu=3.0, clip=1.6)
        >>> one = simulate(method, from_dataset(data, constraint=Ball(8.0)), Full(20), seed=1)
        >>> further = from_dataset(data, constraint=Ball(8.0), start=one.params)
        >>> two = simulate(method.replace(mu=4.0), further, Full(20), seed=2)
        >>> round(one.guarantee.then(two.guarantee).mu, 3)
        5.0
        """
        return composed_guarantee(self, other, records, delta)

    def dp_event(self) -> "DpEvent":
        """Return the releases as an event of the library dp-accounting, see `Event.dp_event`.

        For a guarantee without an `event`, the result is one Gaussian mechanism with the stated μ.

        Raises:
            Refusal: if dp-accounting has no such event, or if only ε is known.
        """
        from dp_accounting import GaussianDpEvent

        if self.event is not None:
            return self.event.dp_event()
        if self.mus is None or not 0 < self.mus.max < inf:
            raise Refusal("mu must be positive and finite, or the event available, to be a dp-accounting event")
        return GaussianDpEvent(1 / self.mus.max)

    def paragraph(self) -> str:
        """Return a paragraph of text for a paper, see `privacy.paragraph`."""
        return paragraph(self)

    def to_json(self) -> str:
        """Return the guarantee as JSON text, which `from_json` reads. Equal machines are stored as groups."""
        grouped = {name: each.as_mapping() for name in ("mus", "epsilons") if (each := getattr(self, name)) is not None}
        stated: dict[str, Any] = {"accounting": self.accounting} if self.accounting else {}
        stated |= {} if self.proved else {"proved": False}
        saved = {"delta": self.delta, "terms": self.terms.as_mapping(), **grouped, **stated}
        return json.dumps(saved, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "PrivacyGuarantee":
        """Return the guarantee from the text of `to_json`.

        For more than 4096 machines, the text does not say which machine has which parameter.

        Raises:
            Refusal: if the text is not one of `to_json`.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0, 2.0]))
        >>> str(PrivacyGuarantee.from_json(one.to_json())) == str(one)
        True
        """
        try:
            raw = json_value(text)
            mus, epsilons = (Grouped.from_mapping(raw[name]) if name in raw else None for name in ("mus", "epsilons"))
            stated = {name: raw[name] for name in ("accounting", "proved") if name in raw}
            return cls(float(raw["delta"]), Terms.from_mapping(raw["terms"]), mus, epsilons, **stated)
        except Refusal:
            raise
        except Exception as error:  # a text from elsewhere may hold anything
            raise Refusal(f"guarantee must be a text of `to_json`, got {text!r}") from error

    @property
    def headline(self) -> str:
        """Parameters μ, or ε and δ, of the least private machine, as text."""
        return headline(self)

    def __str__(self) -> str:
        return statement(self)

    __repr__ = __str__

    def _gdp(self) -> float:
        if self.mus is None:
            raise Refusal("mu must be stated for this conversion, and this guarantee states ε alone")
        return inf if not self.private else self.mus.max
