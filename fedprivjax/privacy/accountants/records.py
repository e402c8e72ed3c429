"""From what a machine releases about its records to its ε: with its messages in sight, or behind a shuffler."""

from dataclasses import dataclass
from typing import Any

from fedprivjax.plan.samplers import Sampler, Subset
from fedprivjax.privacy.accountants.attainable import attainable_epsilon
from fedprivjax.privacy.accountants.sampled import sampled_epsilon
from fedprivjax.privacy.accountants.shuffled import shuffled_epsilon


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

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """An upper bound on the machine's ε at δ.

        Args:
            ratio: noise over the shift that one replaced record makes in one release; inf is perfect privacy.
            records, batch: the machine's own, and of a release.
            releases: noisy ones, over the whole run.
        """
        raise TypeError("an accountant must define epsilon")

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """What a table says of the machine, by column."""
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}


@dataclass(frozen=True)
class Sampled(RecordAccountant):
    """Means over records that a sampler picks, every message in sight; see `accountants.sampled`."""

    sampler: Sampler
    whole_message: bool = False

    columns = ("ε (at least)", "ε (at most)")

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return sampled_epsilon(2 * ratio, **self._settings(records, batch, releases, delta))

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """The proved bound beside what an adversary attains on a linear loss."""
        least = attainable_epsilon(2 * ratio, **self._settings(records, batch, releases, delta))
        return {"ε (at least)": least, "ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta)}

    def _settings(self, records: int, batch: int, releases: int, delta: float) -> dict[str, Any]:
        # the accountant's noise multiplier is σ over half the shift: over L/K, or C
        sizes = {"records": records, "rounds": releases, "delta": delta}
        return {"sampler": self.sampler.with_batch(batch), "whole_message": self.whole_message, **sizes}


@dataclass(frozen=True)
class Shuffled(RecordAccountant):
    """One record a message, whose senders a trusted shuffler hides among `per_round`; see `accountants.shuffled`."""

    per_round: int

    columns = ("ε (at most)", "ε unshuffled")

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        return shuffled_epsilon(2 * ratio, records=records, per_round=self.per_round, rounds=releases, delta=delta)

    def figures(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """The bound, beside what it is without the shuffler."""
        in_sight = Sampled(Subset(1)).epsilon(ratio, records, batch, releases, delta=delta)
        return {"ε (at most)": self.epsilon(ratio, records, batch, releases, delta=delta), "ε unshuffled": in_sight}
