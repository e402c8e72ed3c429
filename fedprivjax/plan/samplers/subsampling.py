"""Samplers with independent secret samples for each message, which amplify privacy."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from fedprivjax.checks.values import require_probability
from fedprivjax.plan.participation.interface import binomial_quantile
from fedprivjax.plan.samplers.interface import PLACES, Batch, Occurrences, Sampler

NO_LIMIT = 2**62  # number of records that allows every batch
NEVER = 1e-12  # probability, over a run, that a Poisson sample exceeds the padding and loses a record
RAREST = 1e-25  # probability of the larger numbers of occurrences, which are ignored


@dataclass(frozen=True)
class Replacement(Sampler):
    """`batch` records sampled with replacement, so that a record may occur twice.

    >>> Replacement(2).occurrences(4, 2).chances[:2].round(4).tolist()
    [0.375, 0.0625]
    """

    batch: Batch
    name: ClassVar[str] = "replacement"
    description: ClassVar[str] = "batch records sampled with replacement, so that a record may occur twice"
    secret: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        return rng.integers(0, sizes[:, None], (sizes.size, width)), batches

    def occurrences(self, records: int, batch: int) -> Occurrences:
        # the number above which occurrences are rarest; `binom.isf` returns the batch for such small probabilities
        beyond, chance = scipy.special.bdtrc, 1 / records  # probability of more occurrences
        rarest = bisect_left(range(batch), True, key=lambda times: beyond(times, batch, chance) <= RAREST)
        most = min(rarest + 1, batch)
        times = np.arange(1, most + 1)
        return Occurrences(times.astype(float), scipy.stats.binom.pmf(times, batch, 1 / records))

    def variance(self, records, batch, spread, squared_norm):
        return spread / batch


@dataclass(frozen=True)
class Subset(Sampler):
    """A uniformly random subset of `batch` records."""

    batch: Batch
    name: ClassVar[str] = "subset"
    description: ClassVar[str] = "a uniformly random subset of batch records"
    secret: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        padded = np.arange(most) >= sizes[:, None]
        keys = np.where(padded, 2.0, rng.random((sizes.size, most)))
        return np.argsort(keys, axis=1)[:, :width], batches

    def occurrences(self, records: int, batch: int) -> Occurrences:
        return Occurrences(np.ones(1), np.array([batch / records]))


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record independently with one probability. The message is the sum divided by `batch`.

    The probability is batch/records, or the public constant `rate`. With `rate`, no setting depends on a machine's
    number of records, as the relation "add-or-remove-one" needs. The message then is a mean on average on machines of
    batch/rate records only.

    Attributes:
        batch: divisor of the sum, one number or one for each machine.
        rate: probability of each record, above 0 and at most 1, or None for batch/records.

    >>> Poisson(256, rate=0.004).chance(60_000, 256), Poisson(256).chance(64_000, 256)
    (0.004, 0.004)
    """

    batch: Batch
    rate: float | None = None
    name: ClassVar[str] = "poisson"
    description: ClassVar[str] = "each record independently with probability batch/records; the sum is divided by batch"
    secret: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.rate is not None:
            object.__setattr__(self, "rate", require_probability("rate", self.rate))

    def __repr__(self) -> str:
        return f"Poisson(batch={self.batch!r})" if self.rate is None else f"Poisson({self.batch!r}, rate={self.rate!r})"

    @property
    def rule(self) -> str:
        return self.description if self.rate is None else self.description.replace("batch/records", f"{self.rate:.6g}")

    def chance(self, records, batch):
        """Return the probability of each record, for one machine or for arrays of machines."""
        return batch / records if self.rate is None else self.rate + 0.0 * records

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        return super().batches(sizes if self.rate is None else np.full(sizes.shape, NO_LIMIT))

    def batch_of(self, records: int) -> int:
        return super().batch_of(records if self.rate is None else NO_LIMIT)

    def amplifies(self, records: int, batch: int) -> bool:
        return self.secret and bool(self.chance(records, batch) < 1)

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        return max(1, int(binomial_quantile(NEVER / messages, sizes, self.chance(sizes, batches)).max()))

    def rounds_together(self, places: int) -> int:
        return max(1, PLACES // places)

    def message(self, sizes, batches, most, width, rng):
        """Sample each record with probability q, by Poisson processes of rate −log(1 − q) on the records.

        A record is used if its process has at least one event, so records are independent. The cost is proportional to
        the number of sampled records.
        """
        rate = self.chance(sizes, batches)
        whole = rate == 1
        hits = rng.poisson(np.where(whole, 0.0, -sizes * np.log1p(-np.where(whole, 0.0, rate))))
        slot = np.repeat(np.arange(sizes.size), hits)
        slot, place = np.divmod(np.unique(slot * most + rng.integers(0, sizes[slot])), most)
        counts = np.bincount(slot, minlength=sizes.size)
        at = np.arange(slot.size) - (np.cumsum(counts) - counts)[slot]
        places = np.zeros((sizes.size, width), np.int32)
        places[whole] = np.arange(width)
        places[slot[at < width], at[at < width]] = place[at < width]
        return places, np.where(whole, sizes, counts)

    def occurrences(self, records: int, batch: int) -> Occurrences:
        return Occurrences(np.ones(1), np.array([self.chance(records, batch)]))

    def empty(self, records: int, batch: int) -> float:
        return (1 - self.chance(records, batch)) ** (records - 1)

    def variance(self, records, batch, spread, squared_norm):
        rate = self.chance(records, batch)
        return records * rate * (1 - rate) * (spread + squared_norm) / batch**2
