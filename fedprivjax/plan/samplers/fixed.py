"""Samplers without secrets: one pass over a machine's records, or all of them in every message."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers.epochs import epoch_places
from fedprivjax.plan.samplers.interface import PLACES, Batch, Sampler

FEWER = "Use fewer rounds, a smaller batch, or participation by_size (BySize)"


@dataclass(frozen=True)
class Disjoint(Sampler):
    """One pass: a machine's k-th message uses the k-th slice of a permutation of its records."""

    batch: Batch
    name: ClassVar[str] = "disjoint"
    words: ClassVar[str] = "one pass: a machine's k-th message uses the k-th slice of a permutation of its records"
    one_pass: ClassVar[bool] = True
    settled: ClassVar[bool] = True

    def draw(self, rows, schedule, rng, stored=False):
        sizes = np.sum(rows >= 0, axis=1)
        batches = self.batches(sizes)
        _check_enough(batches, schedule.total, sizes)
        return epoch_places(rows, schedule, batches, None if stored else rng, reshuffle=False)  # the first epoch only


@dataclass(frozen=True)
class OnePassPool(Disjoint):
    """One pass over machines' own records, or over a pool in order of use, as with one record per message.

    A machine of n records has ⌊n/K⌋ messages. A pool of n records gives ⌊n/(K·m)⌋ rounds of m messages.

    >>> OnePassPool(20).batches(np.array([600, 10]))
    Traceback (most recent call last):
    fedprivjax.Refusal: batch must be at most the 10 records of machine 1 (dealt), got 20
    """

    name: ClassVar[str] = "dealt"
    words: ClassVar[str] = "one pass: fresh records in every message, from the machine's own records or a pool"
    pooled: ClassVar[bool] = True


@dataclass(frozen=True)
class Full(Sampler):
    """All of a machine's records."""

    batch = None
    name: ClassVar[str] = "full"
    words: ClassVar[str] = "all of a machine's records"
    settled: ClassVar[bool] = True

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the sampler. The batch is ignored."""
        return cls()

    def with_batch(self, batch: Batch) -> Self:
        return self

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        return sizes

    def batch_of(self, records: int) -> int:
        return records

    def rounds_together(self, places: int) -> int:
        return max(1, PLACES // places)

    def message(self, sizes, batches, most, width, rng):
        return np.broadcast_to(np.arange(width), (sizes.size, width)), sizes

    def variance(self, records, batch, spread, squared_norm):
        return 0 * spread


def _check_enough(batches: np.ndarray, messages: np.ndarray, sizes: np.ndarray) -> None:
    needed = messages * batches
    short = np.flatnonzero(needed > sizes)
    if short.size:
        i = short[0]
        raise Refusal(
            f"batch · messages must be at most the {sizes[i]} records of machine {i} in one pass, "
            f"got {batches[i]} · {messages[i]} = {needed[i]}. {FEWER}",
            machine=int(i),
        )
