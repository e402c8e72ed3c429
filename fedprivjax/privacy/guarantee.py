"""Privacy guarantees: the privacy parameters with their unit, relation, trust model, theorem and assumptions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.bounded_read import json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import as_float, require_between, require_choice
from fedprivjax.privacy import attack_metrics, gdp
from fedprivjax.privacy.composed_guarantee import SAME, Streams, composed_guarantee
from fedprivjax.privacy.curve import AccountedCurve, Curve, GaussianCurve, ListedCurve
from fedprivjax.privacy.group_privacy import INVERSE, group_guarantee, group_size, guarantee_of_machines
from fedprivjax.privacy.paragraph import headline, paragraph, statement
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ONE
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import RECORD, Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LARGE_EPSILON = 10.0


@dataclass(frozen=True, eq=False)
class PrivacyGuarantee:
    """Privacy guarantee of a run: a privacy parameter for every machine, with its unit, trust model and assumptions.

    The parameter is μ of Gaussian differential privacy (GDP) if it is known, and ε at δ otherwise. If μ is known, the
    printed guarantee has two values of ε at δ. The first one is exact. The second one is the larger value `μ²/2 +
    μ·√(2·ln(1/δ))`. It is printed as "by the papers' conversion".

    Attributes:
        delta: δ at which ε is stated, in (0, 1).
        terms: protected unit, neighbouring relation, trust model, theorem and assumptions.
        mus: GDP parameter of each machine; inf for a machine without any guarantee. None if only ε is known.
        epsilons: ε of each machine at `delta`. None if `mus` is given.
        accounting: text that says how ε was derived.
        event: `Event` that describes the releases, from which ε at another δ is computed. None if it is not known.
        listed: privacy curve (δ as a function of ε) that is known without `event`. None if there is no such curve. The
            curve is not used if `mus` is given.
        proved: True if the privacy parameters are proved upper bounds, False if a source only claims them.
        streams: random streams of the run, which identify its seed. A guarantee from a file or of a planned run has no
            streams.

    Raises:
        Refusal: if delta or a parameter is out of range, or if neither `mus` nor `epsilons` is given.

    >>> terms = Terms("none", "Reshef & Levy 2025, Theorem 4.1", (Assumption("used once"),))
    >>> print(PrivacyGuarantee(1e-5, terms, mus=Grouped.of([1.0, 2.0])))
    2-GDP for one record of one machine (replace-one)
      covers: every message a machine sends (no trusted server)
      theorem: Reshef & Levy 2025, Theorem 4.1
      (ε, δ) = (9.998, 1e-05) exact; ε = 11.6 by the papers' conversion; 2-zCDP
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
        """Privacy parameter of every machine: μ if it is known, otherwise ε, with equal machines grouped."""
        if self.mus is not None:
            return self.mus
        if self.epsilons is not None:
            return self.epsilons
        raise Refusal("mus or epsilons must be given")

    @property
    def per_machine(self) -> np.ndarray:
        """Privacy parameter of each machine: μ if it is known, otherwise ε; float64 [machines], read-only.

        `symbol` says which of the two it is.
        """
        return self.stated.each

    @property
    def symbol(self) -> str:
        """Symbol of the parameter in `stated` and `per_machine`: "μ" if μ is known, otherwise "ε"."""
        return "ε" if self.mus is None else "μ"

    @property
    def mu(self) -> float | None:
        """Parameter μ of Gaussian differential privacy of the least private machine, or None if only ε is known."""
        return None if self.mus is None else self.mus.max

    @cached_property
    def epsilon(self) -> float:
        """ε of the least private machine at `delta`, exact if μ is stated, otherwise an upper bound."""
        return self.stated.max if self.mus is None else float(gdp.epsilon(self.mus.max, self.delta))

    @property
    def private(self) -> bool:
        """True if the privacy parameter (μ if it is known, otherwise ε) of every machine is finite."""
        return isfinite(self.stated.max)

    @property
    def large(self) -> bool:
        """True if ε is above 10, where a guarantee says little. Tables and plots mark such results."""
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
        """ε at `delta` of the least private machine by a loose formula of papers: `μ²/2 + μ·√(2·ln(1/δ))`."""
        return float(gdp.paper_epsilon(self._gdp(), self.delta))

    @property
    def zcdp(self) -> float:
        """Parameter of zero-concentrated DP (zCDP) of the least private machine: `μ²/2`."""
        return float(gdp.zcdp(self._gdp()))

    def rdp(self, order: float) -> float:
        """Return a bound on the Rényi divergence of the given order for the least private machine: `order·μ²/2`.

        Args:
            order: order of the divergence, above 1.
        """
        return float(gdp.rdp(self._gdp(), as_float("order", order)))

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
        """Return ε of the least private machine at the given δ, which may differ from `delta`.

        Raises:
            Refusal: if δ is outside (0, 1). Also if δ is below `delta`, and only ε at `delta` is known, as for some
                guarantees from files.
        """
        return self.curve.epsilon(delta)

    def delta_at(self, epsilon: float) -> float:
        """Return δ of the least private machine at the given ε: exact if μ is known, otherwise an upper bound."""
        return self.curve.delta(epsilon)

    @cached_property
    def advantage(self) -> float:
        """Largest true-positive rate minus false-positive rate of a test between neighbouring datasets."""
        return attack_metrics.advantage(self.curve)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the largest true-positive rate of an attack that tells neighbouring datasets apart.

        Args:
            false_positive_rate: false-positive rate of the attack.
        """
        return attack_metrics.true_positive_rate(self.curve, false_positive_rate)

    def smallest_mu(self, floor: float = attack_metrics.FLOOR) -> attack_metrics.SmallestMu:
        """Return the smallest μ of Gaussian differential privacy that the guarantee implies.

        If the guarantee states μ, the result is this μ. Otherwise, the result is a μ for which the ε of μ-GDP is at
        least the guarantee's ε at each δ ≥ `floor`. The field `regret` of the result says how much is lost by stating
        only μ.
        """
        return attack_metrics.smallest_mu(self.curve, floor)

    def for_group(self, size: int, unit: str | None = None, *, exact: bool = False) -> "PrivacyGuarantee":
        """Return the guarantee that protects groups of k = `size` units, instead of single units.

        For Gaussian mechanisms, μ becomes kμ, and δ stays the same. For Poisson samples with a known exact rule, ε is
        computed from the mechanism at the same δ. Otherwise, the result is the looser general bound of group privacy:
        (ε, δ) becomes `(kε, δ·(e^{kε} − 1)/(e^ε − 1))`.

        Args:
            size: number k of units in a group. The units may be on different machines.
            unit: text that names the group in the result. By default, it is "any k of: " and the guarantee's unit.
            exact: True to raise Refusal instead of using the general bound.

        Raises:
            Refusal: if `exact` and no exact guarantee is known, or if the group is so large that δ would reach 1.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0]))
        >>> one.for_group(3).mu
        3.0
        >>> two = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), epsilons=Grouped.of([0.5])).for_group(2)
        >>> two.epsilon, round(two.delta * 1e6, 3), two.unit
        (1.0, 2.649, 'any 2 of: one record of one machine')
        """
        size = group_size("size", size)
        unit = (self.unit if size == 1 else f"any {size} of: {self.unit}") if unit is None else unit
        return group_guarantee(self, size, unit, self.relation, exact=exact)

    def for_relation(self, relation: str) -> "PrivacyGuarantee":
        """Return the guarantee for another neighbouring relation: "replace-one" from "add-or-remove-one".

        To replace a unit is to remove one unit and to add another one. The result is therefore the guarantee for a
        group of two units.

        Raises:
            Refusal: for any other conversion. A guarantee for replacing a record does not cover datasets of another
                size.

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
            return group_guarantee(self, 2, self.unit, relation)
        except Refusal as error:
            level = f"ε = {up(self.epsilon, 4)} and δ = {self.delta:g}"
            raise Refusal(f"relation must stay {self.relation!r}: {level} give no bound for {relation!r}") from error

    def for_user(self, records: int | Sequence[int] | np.ndarray, *, exact: bool = False) -> "PrivacyGuarantee":
        """Return the guarantee for one user, whose records may all change together.

        A user has at most `records` records, all of them on one machine. The result's parameter (μ or ε) of machine i
        holds for the users of this machine. With the general bound of group privacy, δ grows with the number of
        records, and the largest δ is stated for all machines.

        Args:
            records: largest number of records of a user, or one such number for each machine, [machines].
            exact: True to raise Refusal instead of using the general bound of group privacy.

        Raises:
            Refusal: if the guarantee's unit is not one record, or if `exact` and no exact guarantee is known. Also if
                there are so many records that δ would reach 1, or if `records` has neither one number nor one for each
                machine.

        >>> user = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), mus=Grouped.of([1.0])).for_user(3)
        >>> user.mu, user.unit
        (3.0, 'one user, who holds at most 3 records of one machine')
        >>> two = PrivacyGuarantee(1e-6, Terms("none", "a theorem"), mus=Grouped.of([1.0, 0.5]))
        >>> two.for_user([2, 3]).per_machine.tolist()
        [2.0, 1.5]
        """
        if self.unit != RECORD:
            raise Refusal(f"unit must be {RECORD!r} to be converted to a user, got {self.unit!r}")
        if isinstance(records, Sequence | np.ndarray):
            return guarantee_of_machines(self, records, lambda size: self.for_user(size, exact=exact))
        records = group_size("records", records)
        unit = f"one user, who holds at most {records} record{'s' * (records > 1)} of one machine"
        return group_guarantee(self, records, unit, self.relation, exact=exact, one_machine=True)

    def then(self, other: "PrivacyGuarantee", records: str = SAME, *, delta: float | None = None) -> "PrivacyGuarantee":
        """Return the guarantee of this run and another one together.

        The other run may start from the parameters of this run. The rule of composition depends on the records:

        * Same records: two μ give `√(μ₁² + μ₂²)` (Dong, Roth & Su 2022, Corollary 3.3). If a μ is not known, privacy
          loss distributions that bound the losses of both runs are composed. If only one (ε, δ) of a guarantee is
          known, the result is ε₁ + ε₂ at δ₁ + δ₂.
        * Disjoint records: the result is the larger one of the two privacy parameters (McSherry 2009, Theorem 4).

        If both runs have the same number of machines, machine k must be the same machine in both, and μ are composed
        machine by machine. Otherwise the largest parameters of both runs are composed. If the trust models differ, the
        result is for the trust model in which the adversary sees less.

        The runs must have different seeds. A guarantee from a file or of a planned run does not have its seed: compare
        such seeds yourself.

        The composed guarantee assumes that neither the number of runs nor their privacy parameters were chosen by
        results on the data.

        Args:
            other: guarantee of the other run.
            records: "same" or "disjoint". "same" is valid for any two sets of records. "disjoint" requires that no
                record is in both runs, and that a public rule assigns records to runs without using their values.
            delta: δ of the result. None takes the common δ of both guarantees. If the records are the same, and only
                one (ε, δ) of a guarantee is known, None takes δ₁ + δ₂.

        Raises:
            Refusal: if both runs have the same random noise, secret samples or secret participation. Also if units or
                relations differ, or if the two δ differ and `delta` is not given. Also if trust models differ, and
                neither adversary sees everything that the other one sees. Also if the adversaries differ, and one of
                them is not the default of its trust model. Also if `records` is "disjoint" and the unit is not one
                record.

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
        """Return the releases of the least private machine as an event of the library dp-accounting.

        If the guarantee has no `event` but a known μ, the result is one Gaussian mechanism with this μ. To compute ε,
        dp-accounting needs the right neighbouring relation: see `Event.dp_event`.

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
        """Return a paragraph of text that states the guarantee with its assumptions, to be used in a paper."""
        return paragraph(self)

    def to_json(self) -> str:
        """Return the guarantee as JSON text, from which `from_json` restores it.

        Machines with equal parameters are stored as one group.
        """
        grouped = {name: each.as_mapping() for name in ("mus", "epsilons") if (each := getattr(self, name)) is not None}
        stated: dict[str, Any] = {"accounting": self.accounting} if self.accounting else {}
        stated |= {} if self.proved else {"proved": False}
        stated |= {} if self.mus is not None or self.curve.mu is None else {"curve": {"mu": self.curve.mu}}
        saved = {"delta": self.delta, "terms": self.terms.as_mapping(), **grouped, **stated}
        return json.dumps(saved, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "PrivacyGuarantee":
        """Return the guarantee that `to_json` saved as text.

        The text groups machines with equal privacy parameters (μ or ε). Above 4096 machines, it does not say which
        machine is in which group.

        Raises:
            Refusal: if the text was not written by `to_json`.

        >>> one = PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0, 2.0]))
        >>> str(PrivacyGuarantee.from_json(one.to_json())) == str(one)
        True
        """
        try:
            raw = json_value(text)
            mus, epsilons = (Grouped.from_mapping(raw[name]) if name in raw else None for name in ("mus", "epsilons"))
            stated = {name: raw[name] for name in ("accounting", "proved") if name in raw}
            one = cls(float(raw["delta"]), Terms.from_mapping(raw["terms"]), mus, epsilons, **stated)
            return one if "curve" not in raw else one._with_curve(float(raw["curve"]["mu"]))
        except Refusal:
            raise
        except Exception as error:  # a text from elsewhere may hold anything
            raise Refusal(f"guarantee must be a text of `to_json`, got {text!r}") from error

    def _with_curve(self, mu: float) -> "PrivacyGuarantee":
        """Return the guarantee with the curve of a μ, which must not be below the stated ε."""
        if self.mus is not None:
            raise Refusal(f"curve of a guarantee must be left out next to its mus, got μ = {mu}")
        curve = GaussianCurve(mu)
        if not curve.epsilon(self.delta) >= self.epsilon * (1 - INVERSE):
            raise Refusal(f"curve of a guarantee must be at least its ε, got μ = {mu}")
        return replace(self, listed=curve)

    @property
    def headline(self) -> str:
        """Parameters of the least private machine as a short text: μ, or ε and δ."""
        return headline(self)

    def __str__(self) -> str:
        return statement(self)

    __repr__ = __str__

    def _gdp(self) -> float:
        if self.mus is None:
            raise Refusal("mu must be stated for this conversion, and this guarantee states ε alone")
        return inf if not self.private else self.mus.max
