"""Samplers without secrets: epochs or one pass over a machine's records in public orders, or all in every message."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.plan.samplers.interface import CLAIMS, COUNTED, PLACES, Batch, Sampler
from fedprivjax.plan.schedule import Schedule

FEWER = "Use fewer rounds, a smaller batch, or participation by_size (BySize)"


class Epochs(Sampler):
    """A machine's k-th message uses the next slice of a permutation of its records, which the batch must divide."""

    stated: ClassVar[Stated] = Stated(by=CLAIMS, free=("variance",), void=COUNTED)
    reshuffles: ClassVar[bool]

    def epoch(self, sizes: np.ndarray) -> np.ndarray:
        """Return the number of messages per epoch of machines with `sizes` records, int [machines].

        Raises:
            ValueError: if a batch does not divide a machine's number of records.
        """
        batches = self.batches(sizes)
        uneven = np.flatnonzero(sizes % batches)
        if uneven.size:
            i = uneven[0]
            whole = f"the {sizes[i]} records of machine {i}"
            raise Refusal(f"batch must divide {whole} ({self.name}), got {batches[i]}", machine=int(i))
        return sizes // batches

    def draw(self, rows, schedule, rng, stored=False):
        sizes = np.sum(rows >= 0, axis=1)
        self.epoch(sizes)  # raises if a batch does not divide the records
        batches = self.batches(sizes)
        return epoch_places(rows, schedule, batches, None if stored else rng, reshuffle=self.reshuffles)

    def releases(self, rounds: int, records: int, batch: int) -> int:
        return -(-rounds * batch // records)


@dataclass(frozen=True)
class Cyclic(Epochs):
    """Epochs over a machine's records, all in the same random order."""

    batch: Batch
    name: ClassVar[str] = "cyclic"
    description: ClassVar[str] = "epochs over a machine's records, all in the same public random order"
    reshuffles: ClassVar[bool] = False


@dataclass(frozen=True)
class Reshuffled(Epochs):
    """Epochs over a machine's records, each in a new random order."""

    batch: Batch
    name: ClassVar[str] = "reshuffled"
    description: ClassVar[str] = "epochs over a machine's records, each in a new public random order"
    reshuffles: ClassVar[bool] = True


@dataclass(frozen=True)
class Disjoint(Sampler):
    """One pass: a machine's k-th message uses the k-th slice of a permutation of its records."""

    batch: Batch
    name: ClassVar[str] = "disjoint"
    description: ClassVar[str] = (
        "one pass: a machine's k-th message uses the k-th slice of a permutation of its records"
    )
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
    description: ClassVar[str] = "one pass: fresh records in every message, from the machine's own records or a pool"
    pooled: ClassVar[bool] = True


@dataclass(frozen=True)
class Full(Sampler):
    """All of a machine's records."""

    batch = None
    name: ClassVar[str] = "full"
    description: ClassVar[str] = "all of a machine's records"
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


def epoch_places(
    rows: np.ndarray, schedule: Schedule, batches: np.ndarray, rng: np.random.Generator | None, *, reshuffle: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return each participant's places in its list of records, and a mask of the used places.

    Args:
        rows: record indices of each machine, [machines, max_records], padded with −1 at the end.
        batches: batch size of each machine, [machines]. Records left over at the end of an epoch are not used.
        rng: generator of the orders, or None for the listed order.
        reshuffle: True for a new order in every epoch, False for one order.

    Returns:
        Arrays of int and bool, each of shape [rounds, per_round, largest batch].
    """
    sizes = np.sum(rows >= 0, axis=1)
    machines, place = schedule.participants, np.arange(batches.max())
    epoch, slot = np.divmod(schedule.counts - 1, (sizes // batches)[machines])
    batch = batches[machines][:, :, None]
    used = place < batch
    at = np.where(used, slot[:, :, None] * batch + place, 0)
    if not reshuffle:
        return places_in_order(rows, rng)[machines[:, :, None], at], used
    by_epoch = np.argsort(epoch, axis=None, kind="stable")
    ends = np.searchsorted(epoch.ravel()[by_epoch], np.arange(1, epoch.max() + 2))
    places, owner, at = np.empty_like(at), machines.ravel(), at.reshape(epoch.size, -1)
    for entries in np.split(by_epoch, ends[:-1]):
        order = places_in_order(rows, rng)
        places.reshape(at.shape)[entries] = order[owner[entries, None], at[entries]]
    return places, used


def places_in_order(rows: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Return every machine's places in a random order, padding last, shape [machines, max_records].

    Without `rng` the order is the listed one.
    """
    keys = np.broadcast_to(np.linspace(0, 1, rows.shape[1]), rows.shape) if rng is None else rng.random(rows.shape)
    return np.argsort(np.where(rows >= 0, keys, 2.0), axis=1)


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
