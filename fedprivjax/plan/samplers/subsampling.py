"""Samplers with independent secret samples for each message, which amplify privacy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from fedprivjax.plan.samplers.interface import PLACES, Batch, Occurrences, Sampler

NEVER = 1e-12  # probability, over a run, that a Poisson sample exceeds the padding and loses a record
NEGLIGIBLE = 1e-15  # probability of the larger numbers of occurrences, which are ignored


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
        most = int(scipy.stats.binom.isf(NEGLIGIBLE, batch, 1 / records)) + 1
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
    """Each record independently with probability batch/records. The message is the sum divided by `batch`."""

    batch: Batch
    name: ClassVar[str] = "poisson"
    description: ClassVar[str] = "each record independently with probability batch/records; the sum is divided by batch"
    secret: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        most = scipy.stats.binom.isf(NEVER / messages, sizes, batches / sizes)
        return int(np.minimum(most, sizes).max())

    def rounds_together(self, places: int) -> int:
        return max(1, PLACES // places)

    def message(self, sizes, batches, most, width, rng):
        """Sample each record with probability q, by Poisson processes of rate −log(1 − q) on the records.

        A record is used if its process has at least one event, so records are independent. The cost is proportional to
        the number of sampled records.
        """
        whole = batches == sizes
        hits = rng.poisson(np.where(whole, 0.0, -sizes * np.log1p(-np.where(whole, 0.0, batches / sizes))))
        slot = np.repeat(np.arange(sizes.size), hits)
        slot, place = np.divmod(np.unique(slot * most + rng.integers(0, sizes[slot])), most)
        counts = np.bincount(slot, minlength=sizes.size)
        at = np.arange(slot.size) - (np.cumsum(counts) - counts)[slot]
        places = np.zeros((sizes.size, width), np.int32)
        places[whole] = np.arange(width)
        places[slot[at < width], at[at < width]] = place[at < width]
        return places, np.where(whole, sizes, counts)

    def occurrences(self, records: int, batch: int) -> Occurrences:
        return Occurrences(np.ones(1), np.array([batch / records]))

    def empty(self, records: int, batch: int) -> float:
        return (1 - batch / records) ** (records - 1)

    def variance(self, records, batch, spread, squared_norm):
        return (1 - batch / records) * (spread + squared_norm) / batch
