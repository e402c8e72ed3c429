"""From what a machine releases about its records to its ε: with its messages in sight, or behind a shuffler."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.plan.samplers import Occurrences, Poisson, Replacement, Sampler, Subset
from fedprivjax.privacy.accountant_result import EXACT, LOWER, UPPER, Opinion
from fedprivjax.privacy.accountants.composition import MOST
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_opinions
from fedprivjax.privacy.accountants.lower_bound import attainable_epsilon
from fedprivjax.privacy.accountants.quick_bound import rough_epsilon
from fedprivjax.privacy.accountants.sampled import law, sampled_epsilon
from fedprivjax.privacy.accountants.shuffled import shuffled_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.privacy_accountant import PrivacyAccountant


def accounted(ratio: float) -> float:
    """A ratio of noise to shift as it is accounted for: rounded down to nine digits, so that equal settings are
    accounted for once.

    >>> accounted(1 / 3)
    0.33333333
    """
    return float(f"{ratio * (1 - 1e-8):.9g}")


class RecordAccountant:
    """The interface: ε of one machine from its noise over shift, records, batch and number of releases."""

    columns: tuple[str, ...] = ("ε (at most)",)  # of `figures`

    @property
    def proved(self) -> bool:
        """Whether `epsilon` is an upper bound, not a claim."""
        return True

    @property
    def words(self) -> str:
        """How ε follows from the noise."""
        return ""

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """An upper bound on the machine's ε at δ.

        Args:
            ratio: noise over the shift that one replaced record makes in one release; inf is perfect privacy.
            records, batch: the machine's own, and of a release.
            releases: noisy ones, over the whole run.
        """
        raise Undefined("an accountant must define epsilon")

    def rough_epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """What `epsilon` is at most, at a fraction of its cost; inf where nothing is known so soon."""
        return inf

    def occurrences(self, records: int, batch: int) -> Occurrences | None:
        """How often a record occurs in one release that is in sight, where that is secret; else None."""
        return None

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """What a table says of the machine, by column."""
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}

    def opinions(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> tuple[Opinion, ...]:
        """What others say of the machine's ε, who do not use what `epsilon` does."""
        return ()

    def dp_event(self, ratio: float, records: int, batch: int, releases: int) -> "DpEvent":
        """dp-accounting's tree of the machine's releases, see `Event.dp_event`.

        Raises:
            Refusal: where it has none.
        """
        raise Refusal(f"event must be Gaussian and sampled to be a tree of dp-accounting's, got {self}")


@dataclass(frozen=True)
class Sampled(RecordAccountant):
    """Means over records that a sampler picks, every message in sight; see `accountants.sampled`."""

    sampler: Sampler
    whole_message: bool = False

    columns = ("ε (at least)", "ε (at most)")

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return sampled_epsilon(2 * ratio, **self._settings(records, batch, releases, delta))

    def rough_epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return rough_epsilon(2 * ratio, **self._settings(records, batch, releases, delta))

    def occurrences(self, records: int, batch: int) -> Occurrences | None:
        sampler = self.sampler.with_batch(batch)
        return law(sampler, records, self.whole_message) if sampler.amplifies(records, batch) else None

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """The proved bound beside what an adversary attains on a linear loss."""
        least = attainable_epsilon(2 * ratio, **self._settings(records, batch, releases, delta))
        return {"ε (at least)": least, "ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}

    @property
    def words(self) -> str:
        """How ε follows from the noise."""
        kept = "messages clipped as a whole; " if self.whole_message else ""
        if not self.sampler.secret:
            return f"{kept}exact composition of Gaussian mechanisms (GDP)"
        tight = self.sampler.independent and not self.whole_message
        how = "its pair for replaced records" if tight else "a bound on the subsampled profile, in both directions"
        return f"{kept}privacy loss distributions of dp-accounting, from {how}; {self.sampler.words}"

    def opinions(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> tuple[Opinion, ...]:
        """dp-accounting's, where it has the sampler and the relation; and what an adversary attains."""
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.privacy_accountant import NeighboringRelation
        from dp_accounting.rdp import RdpAccountant

        settings = self._settings(records, batch, releases, delta)
        sampler = settings["sampler"]
        if not sampler.amplifies(records, batch):
            return gaussian_opinions(np.full(sampler.releases(releases, records, batch), ratio), delta)
        least = attainable_epsilon(2 * ratio, **settings)
        attained = Opinion("attained on a linear loss (PLD)", least, LOWER)
        try:
            tree = self.dp_event(ratio, records, batch, releases)
        except Refusal:
            return (attained,)
        found: list[tuple[str, PrivacyAccountant, str]] = [
            ("dp-accounting PLD", PLDAccountant(NeighboringRelation.REPLACE_ONE, 5e-4), EXACT),
            ("dp-accounting RDP", RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE), UPPER),
        ]
        theirs = [Opinion(name, _told(one, tree, delta), kind) for name, one, kind in found if one.supports(tree)]
        return (*(one for one in theirs if one.epsilon < MOST), attained)

    def dp_event(self, ratio: float, records: int, batch: int, releases: int) -> "DpEvent":
        """As in the interface."""
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

        sampler = self.sampler.with_batch(batch)
        if not sampler.amplifies(records, batch):
            return SelfComposedDpEvent(GaussianDpEvent(ratio), sampler.releases(releases, records, batch))
        one = GaussianDpEvent(2 * ratio if sampler.independent else ratio)
        sampled = _sampled(sampler, records, batch, one)
        if sampled is None or (sampler.independent and self.whole_message):
            raise Refusal(f"sampler must be one that dp-accounting has to be a tree of its, got {self}")
        return SelfComposedDpEvent(sampled, releases)

    def _settings(self, records: int, batch: int, releases: int, delta: float) -> dict[str, Any]:
        # the accountant's noise multiplier is σ over half the shift: over L/K, or C
        sizes = {"records": records, "rounds": releases, "delta": delta}
        return {"sampler": self.sampler.with_batch(batch), "whole_message": self.whole_message, **sizes}


def _sampled(sampler: Sampler, records: int, batch: int, event: "DpEvent") -> "DpEvent | None":
    """dp-accounting's event on records that a sampler picks; None if it has none, as for a subclass of its samplers."""
    from dp_accounting import PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, SampledWithReplacementDpEvent

    if type(sampler) is Poisson:
        return PoissonSampledDpEvent(batch / records, event)
    if type(sampler) is Subset:
        return SampledWithoutReplacementDpEvent(records, batch, event)
    return SampledWithReplacementDpEvent(records, batch, event) if type(sampler) is Replacement else None


def _told(accountant: "PrivacyAccountant", tree: "DpEvent", delta: float) -> float:
    """An accountant's ε; inf beyond `MOST`, where its search has no numbers."""
    told = accountant.compose(tree)
    return inf if told.get_delta(MOST) > delta else float(told.get_epsilon(delta))


@dataclass(frozen=True)
class Shuffled(RecordAccountant):
    """One record a message, whose senders a trusted shuffler hides among `per_round`; see `accountants.shuffled`."""

    per_round: int

    columns = ("ε (at most)", "ε unshuffled")

    @property
    def words(self) -> str:
        """How ε follows from the noise."""
        return (
            "local (ε₀, δ₀) amplified by shuffling (Feldman, McMillan & Talwar 2021, Theorem 3.8) and by sampling, "
            "optimal composition of (ε, δ) mechanisms by dp-accounting"
        )

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return shuffled_epsilon(2 * ratio, records=records, per_round=self.per_round, rounds=releases, delta=delta)

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """The bound, beside what it is without the shuffler."""
        in_sight = Sampled(Subset(1)).epsilon(ratio, records, batch, releases, delta=delta)
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta), "ε unshuffled": in_sight}

    def opinions(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> tuple[Opinion, ...]:
        """The messages in sight, which a shuffler cannot worsen; and their sum alone, which is less than they tell."""
        in_sight = Sampled(Subset(1)).opinions(ratio, records, batch, releases, delta=delta)
        upper = [one._replace(accountant=f"{one.accountant}, in sight") for one in in_sight if one.kind != LOWER]
        upper = [one._replace(kind=UPPER) for one in upper]
        settings = {"sampler": Subset(1), "records": records, "rounds": releases, "delta": delta}
        least = attainable_epsilon(2 * ratio * sqrt(self.per_round), **settings)
        return *upper, Opinion("attained from the sum (PLD)", least, LOWER)
