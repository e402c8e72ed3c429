"""Accountants of a machine's releases about its records, with visible messages or in the shuffle model."""

import logging
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.plan.samplers import Occurrences, Poisson, Replacement, Sampler, Subset
from fedprivjax.privacy.accountants.bounds import attainable_epsilon, quick_epsilon
from fedprivjax.privacy.accountants.composition import MOST
from fedprivjax.privacy.accountants.dp_accounting_backend import (
    EXACT,
    LOWER,
    UPPER,
    AccountantResult,
    dp_accounting_relation,
    gaussian_results,
)
from fedprivjax.privacy.accountants.sampled import SampledReleases, resolved, sampled_epsilon, shift_distribution
from fedprivjax.privacy.accountants.shuffled import shuffled_epsilon
from fedprivjax.privacy.group_privacy import group_size
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE, vectors_changed

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.privacy_accountant import PrivacyAccountant

SPACING = 5e-4  # of the losses of dp-accounting's accountant


def accounted(ratio: float) -> float:
    """Return a ratio of noise to shift, rounded down to nine digits so that equal settings are accounted for once.

    >>> accounted(1 / 3)
    0.33333333
    """
    return float(f"{ratio * (1 - 1e-8):.9g}")


class RecordAccountant:
    """Base class: ε of one machine from its ratio of noise to shift, records, batch and number of releases."""

    columns: tuple[str, ...] = ("ε (at most)",)  # keys of `summary`

    @property
    def proved(self) -> bool:
        """True if `epsilon` is a proved upper bound, False if it is a claim."""
        return True

    @property
    def derivation(self) -> str:
        """Derivation of ε from the noise, as text."""
        return ""

    def accounted(self, ratio: float) -> float:
        """Return the ratio that is passed to `epsilon`. Default: `ratio`, rounded down (`accounted`)."""
        return accounted(ratio)

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """Return an upper bound on the machine's ε at δ.

        Args:
            ratio: noise divided by the shift of one release from replacing one record. inf is perfect privacy.
            records: number of the machine's records.
            batch: batch size of a release.
            releases: number of noisy releases in the run.
            delta: δ in (0, 1).
        """
        raise Undefined("an accountant must define epsilon")

    def quick_epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """Return an upper bound on `epsilon` at a fraction of its cost, or inf if there is none."""
        return inf

    def mu(self, ratio: float, records: int, batch: int, releases: int) -> float | None:
        """Return μ of the machine's releases if they are Gaussian, otherwise None. It gives ε at every δ."""
        return None

    def occurrences(self, records: int, batch: int) -> Occurrences | None:
        """Return the distribution of a record's occurrences in one visible release, or None if they are not secret."""
        return None

    def summary(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """Return the machine's values in a table, by column."""
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}

    def accountant_results(
        self, ratio: float, records: int, batch: int, releases: int, *, delta: float
    ) -> tuple[AccountantResult, ...]:
        """Return other accountants' ε of the machine, computed independently of `epsilon`."""
        return ()

    def dp_event(self, ratio: float, records: int, batch: int, releases: int) -> "DpEvent":
        """Return dp-accounting's event tree of the machine's releases, see `Event.dp_event`.

        Raises:
            Refusal: if dp-accounting has no such event.
        """
        raise Refusal(f"event must be Gaussian and sampled to be a dp-accounting event, got {self}")


@dataclass(frozen=True)
class Sampled(RecordAccountant):
    """Accountant of means over sampled records with visible messages, see `accountants.sampled`.

    Attributes:
        sampler: sampler of the records.
        whole_message: True if the mean is clipped instead of each record's vector.
        relation: neighbouring relation, a key of `RELATIONS`. The shift is twice as large if a record is replaced.
        group: number of units that change together.
    """

    sampler: Sampler
    whole_message: bool = False
    relation: str = REPLACE_ONE
    group: int = field(default=1, repr=False)

    columns = ("ε (at least)", "ε (at most)")

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return sampled_epsilon(self._multiplier(ratio), self._sampled(records, batch, releases, delta))

    def quick_epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return quick_epsilon(self._multiplier(ratio), self._sampled(records, batch, releases, delta))

    def mu(self, ratio: float, records: int, batch: int, releases: int) -> float | None:
        sampled = self._sampled(records, batch, releases, 0.5)
        known = type(self) is Sampled and not sampled.amplified  # a subclass may define another ε
        return sampled.mu(self._multiplier(ratio)) if known else None

    def occurrences(self, records: int, batch: int) -> Occurrences | None:
        sampler = self.sampler.with_batch(batch)
        if not sampler.amplifies(records, batch):
            return None
        return shift_distribution(sampler, records, self.whole_message, self.group)

    def for_group(self, size: int, records: np.ndarray, batch: np.ndarray) -> "Sampled":
        """Return the accountant of `size` units that change together, on machines with these records and batches.

        Raises:
            Refusal: if a machine's samples have no exact guarantee of groups.
        """
        together = replace(self, group=group_size("size of a group", int(size) * self.group))
        for machine in set(zip(records.tolist(), batch.tolist(), strict=True)):
            together._sampled(*machine, 1, 0.5)
        return together

    def summary(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """Return the proved upper bound, and the lower bound that an adversary attains on a linear loss."""
        least = attainable_epsilon(self._multiplier(ratio), self._sampled(records, batch, releases, delta))
        return {"ε (at least)": least, "ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}

    @property
    def derivation(self) -> str:
        """Derivation of ε from the noise, as text."""
        clipping = "messages clipped as a whole; " if self.whole_message else ""
        if not self.sampler.secret:
            group = f"; {self.group} records change together" if self.group > 1 else ""
            return f"{clipping}exact composition of Gaussian mechanisms (GDP){group}"
        if self.group > 1:
            return f"{_mixtures(self)}; {self.sampler.rule}"
        tight = self.sampler.independent and not (self.whole_message or self.sampler.repeats)
        pair = "its pair for replaced records" if self.relation == REPLACE_ONE else "its pair for added records"
        how = pair if tight else "a bound on the subsampled profile, in both directions"
        if not (self.whole_message or self.sampler.independent or self.sampler.coupled):
            how = "a bound on the sampled profile, whose samples amplify δ alone"
        return f"{clipping}privacy loss distributions of dp-accounting, from {how}; {self.sampler.rule}"

    def accountant_results(
        self, ratio: float, records: int, batch: int, releases: int, *, delta: float
    ) -> tuple[AccountantResult, ...]:
        """Return dp-accounting's ε if it supports the sampler and the relation, and the ε that an adversary attains."""
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant

        sampled = self._sampled(records, batch, releases, delta)
        if not sampled.amplified:
            return gaussian_results(np.full(sampled.with_record, ratio / (self.group * sampled.repeated)), delta)
        least = attainable_epsilon(self._multiplier(ratio), sampled)
        attained = AccountantResult("attained on a linear loss (PLD)", least, LOWER)
        try:
            tree = self.dp_event(ratio, records, batch, releases)
        except Refusal:
            return (attained,)
        relation = dp_accounting_relation(self.relation)
        exact = resolved(self._multiplier(ratio), sampled, SPACING)
        found: list[tuple[str, PrivacyAccountant, str]] = [
            ("dp-accounting PLD", PLDAccountant(relation, SPACING), EXACT if exact else UPPER),
            ("dp-accounting RDP", RdpAccountant(neighboring_relation=relation), UPPER),
        ]
        supported = [each for each in found if each[1].supports(tree)]
        results = [AccountantResult(name, _epsilon_of(one, tree, delta), kind) for name, one, kind in supported]
        return (*(one for one in results if one.epsilon < MOST), attained)

    def dp_event(self, ratio: float, records: int, batch: int, releases: int) -> "DpEvent":
        """Return dp-accounting's event tree, as in the base class."""
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

        sampler = self.sampler.with_batch(batch)
        if not sampler.amplifies(records, batch):
            sampled = self._sampled(records, batch, releases, 0.5)
            return SelfComposedDpEvent(GaussianDpEvent(ratio / (self.group * sampled.repeated)), sampled.with_record)
        if self.group > 1:
            return SelfComposedDpEvent(self._mixture(ratio, records, batch), releases)
        one = GaussianDpEvent(self._multiplier(ratio) if sampler.independent else ratio)
        sampled = _sampled(sampler, records, batch, one)
        if sampled is None or (sampler.independent and self.whole_message):
            raise Refusal(f"sampler must be supported by dp-accounting to be a dp-accounting event, got {self}")
        return SelfComposedDpEvent(sampled, releases)

    def _mixture(self, ratio: float, records: int, batch: int) -> "DpEvent":
        """Return dp-accounting's event of one release for a group."""
        from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

        if self.relation != ADD_OR_REMOVE:
            raise Refusal(f"relation must be {ADD_OR_REMOVE!r} for dp-accounting's mixtures, got {self.relation!r}")
        occurrences = shift_distribution(self.sampler.with_batch(batch), records, group=self.group)
        times = np.append(0.0, occurrences.times)
        chances = np.append(1 - occurrences.chances.sum(), occurrences.chances)
        return MixtureOfGaussiansDpEvent(self._multiplier(ratio), times.tolist(), chances.tolist())

    def _sampled(self, records: int, batch: int, releases: int, delta: float) -> SampledReleases:
        sampler = self.sampler.with_batch(batch)
        message = {"whole_message": self.whole_message, "relation": self.relation, "group": self.group}
        return SampledReleases(sampler, records, releases, delta, **message)

    def _multiplier(self, ratio: float) -> float:
        """Return the noise multiplier, σ divided by L/K or C: if a record is replaced, the shift is twice that."""
        return vectors_changed(self.relation) * ratio


def _mixtures(accountant: Sampled) -> str:
    """Return the derivation of ε of a group, as text."""
    change = "replaced" if accountant.relation == REPLACE_ONE else "added"
    pair = f"the mixture pair of Binomial({accountant.group}, rate) {change} members of the group"
    return f"privacy loss distributions of {pair}"


def _sampled(sampler: Sampler, records: int, batch: int, event: "DpEvent") -> "DpEvent | None":
    """Return dp-accounting's event on sampled records, or None if it has none, as for subclasses of the samplers."""
    from dp_accounting import PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, SampledWithReplacementDpEvent

    if type(sampler) is Poisson:
        return PoissonSampledDpEvent(sampler.chance(records, batch), event)
    if type(sampler) is Subset:
        return SampledWithoutReplacementDpEvent(records, batch, event)
    return SampledWithReplacementDpEvent(records, batch, event) if type(sampler) is Replacement else None


def _epsilon_of(accountant: "PrivacyAccountant", tree: "DpEvent", delta: float) -> float:
    """Return an accountant's ε, or inf above `MOST`, where its search underflows.

    The RDP accountant's warnings of orders that it leaves out are not logged. Its ε is an upper bound without them.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        composed = accountant.compose(tree)
        return inf if composed.get_delta(MOST) > delta else float(composed.get_epsilon(delta))
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class SampledMachines(Sampled):
    """Accountant of sums over secret random cohorts, of which machines are the records.

    Attributes:
        cut: probability that a release differs from the sampler's, see `PoissonCohorts`. ε is computed at δ − R·cut,
            with R the number of releases.

    >>> one = SampledMachines(Poisson(1, rate=0.1), relation="add-or-remove-one")
    >>> round(one.epsilon(2.249, 1000, 1, 100, delta=1e-5), 2)
    2.0
    """

    cut: float = 0.0

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        left = self._left(releases, delta)
        return super().epsilon(ratio, records, batch, releases, delta=left) if left > 0 else inf

    def quick_epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        left = self._left(releases, delta)
        return super().quick_epsilon(ratio, records, batch, releases, delta=left) if left > 0 else inf

    def _left(self, releases: int, delta: float) -> float:
        """Return the part of δ that the cut of all releases leaves, rounded down."""
        return delta - releases * self.cut * (1 + 1e-9)

    def occurrences(self, records: int, batch: int) -> None:
        return None  # they are defined for records only

    @property
    def derivation(self) -> str:
        """Derivation of ε from the noise, as text."""
        if self.group > 1:
            return f"{_mixtures(self)}; secret cohorts of machines"
        pair = "replaced" if self.relation == REPLACE_ONE else "added"
        how = f"its pair for {pair} machines" if self.sampler.independent else "a bound on the subsampled profile"
        return f"privacy loss distributions of dp-accounting, from {how}; secret cohorts of machines"


@dataclass(frozen=True)
class Shuffled(RecordAccountant):
    """Accountant of one-record messages in the shuffle model, with `per_round` senders; see `accountants.shuffled`."""

    per_round: int

    columns = ("ε (at most)", "ε unshuffled")

    @property
    def derivation(self) -> str:
        """Derivation of ε from the noise, as text."""
        return (
            "numbers of clones behind a shuffler, for several local ε₀, amplified by sampling; composition of privacy "
            "loss distributions by dp-accounting"
        )

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return shuffled_epsilon(2 * ratio, records=records, per_round=self.per_round, rounds=releases, delta=delta)

    def summary(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """Return the bounds with and without the shuffler."""
        in_sight = Sampled(Subset(1)).epsilon(ratio, records, batch, releases, delta=delta)
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta), "ε unshuffled": in_sight}

    def accountant_results(
        self, ratio: float, records: int, batch: int, releases: int, *, delta: float
    ) -> tuple[AccountantResult, ...]:
        """Return upper bounds from visible messages, and a lower bound from their sum.

        The shuffler cannot increase ε, and the sum reveals no more than the shuffled messages.
        """
        in_sight = Sampled(Subset(1)).accountant_results(ratio, records, batch, releases, delta=delta)
        upper = [AccountantResult(f"{one[0]}, in sight", one.epsilon, UPPER) for one in in_sight if one.kind != LOWER]
        total = SampledReleases(Subset(1), records, releases, delta)
        least = attainable_epsilon(2 * ratio * sqrt(self.per_round), total)
        return *upper, AccountantResult("attained from the sum (PLD)", least, LOWER)
