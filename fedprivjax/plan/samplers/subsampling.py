"""Samplers that draw anew for each message: nobody knows which records are used, which amplifies privacy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from fedprivjax.plan.samplers.interface import PLACES, Batch, Occurrences, Sampler

NEVER = 1e-12  # chance, over a run, that Poisson's padding is too short and a record is left out
NEGLIGIBLE = 1e-15  # chance of occurring so often that nobody counts it


@dataclass(frozen=True)
class Replacement(Sampler):
    """`batch` records drawn independently, so that one may come twice.

    >>> Replacement(2).occurrences(4, 2).chances[:2].round(4).tolist()
    [0.375, 0.0625]
    """

    batch: Batch
    name: ClassVar[str] = "replacement"
    words: ClassVar[str] = "batch records drawn independently, so that one may come twice"
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
    words: ClassVar[str] = "a uniformly random subset of batch records"
    secret: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        return np.argsort(_keys(sizes, most, rng), axis=1)[:, :width], batches

    def occurrences(self, records: int, batch: int) -> Occurrences:
        return Occurrences(np.ones(1), np.array([batch / records]))


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record with probability batch/records; a message is divided by `batch` whatever their number."""

    batch: Batch
    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "each record with probability batch/records, divided by batch whatever their number"
    secret: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        most = scipy.stats.binom.isf(NEVER / messages, sizes, batches / sizes)
        return int(np.minimum(most, sizes).max())

    def rounds_together(self, places: int) -> int:
        return max(1, PLACES // places)

    def message(self, sizes, batches, most, width, rng):
        """Hits of a Poisson process on a machine's records, of rate −log(1 − q) each: every record is hit at least once
        with probability q, independently of all others. The cost follows from the records that are drawn."""
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


def _keys(sizes: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """A random number for each record, [participants, most]; padding has 2."""
    return np.where(np.arange(most) < sizes[:, None], rng.random((sizes.size, most)), 2.0)
