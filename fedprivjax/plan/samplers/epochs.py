"""Samplers that go through a machine's records epoch by epoch, in public orders."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers.interface import Batch, Sampler
from fedprivjax.plan.schedule import Schedule


class Epochs(Sampler):
    """A machine's k-th message uses the next slice of a permutation of its records, which the batch must divide."""

    reshuffles: ClassVar[bool]

    def epoch(self, sizes: np.ndarray) -> np.ndarray:
        """Messages of an epoch, of machines that own so many records, int [machines].

        Raises:
            ValueError: a batch that does not divide a machine's records.
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
        self.epoch(sizes)  # refuses what cannot be cut
        batches = self.batches(sizes)
        return epoch_places(rows, schedule, batches, None if stored else rng, reshuffle=self.reshuffles)

    def releases(self, rounds: int, records: int, batch: int) -> int:
        return -(-rounds * batch // records)


@dataclass(frozen=True)
class Cyclic(Epochs):
    """Every epoch in one random order."""

    batch: Batch
    name: ClassVar[str] = "cyclic"
    words: ClassVar[str] = "epochs over a machine's records, in one public random order again and again"
    reshuffles: ClassVar[bool] = False


@dataclass(frozen=True)
class Reshuffled(Epochs):
    """Every epoch in a random order of its own."""

    batch: Batch
    name: ClassVar[str] = "reshuffled"
    words: ClassVar[str] = "epochs over a machine's records, in a fresh public random order each time"
    reshuffles: ClassVar[bool] = True


def epoch_places(
    rows: np.ndarray, schedule: Schedule, batches: np.ndarray, rng: np.random.Generator | None, *, reshuffle: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Which of its own records each participant uses, by their places in its list, and which of these places count.

    Args:
        rows: which records each machine owns, [machines, most], padded with −1 at the end.
        batches: of each machine, [machines]; what a machine's records have over at an epoch's end is not used.
        rng: None is the order in which records are listed.
        reshuffle: a fresh order for every epoch, not one for all.

    Returns:
        int and bool, [rounds, per_round, largest batch] each.
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
    """Every machine's places, [machines, most], in a random order of its own, or as they are listed; padding last."""
    keys = np.broadcast_to(np.linspace(0, 1, rows.shape[1]), rows.shape) if rng is None else rng.random(rows.shape)
    return np.argsort(np.where(rows >= 0, keys, 2.0), axis=1)
