"""Samplers without a secret: one pass over a machine's records, or all of them in every message."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers.interface import Batch, Sampler


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
        keys = np.broadcast_to(np.linspace(0, 1, rows.shape[1]), rows.shape) if stored else rng.random(rows.shape)
        order = np.argsort(np.where(rows >= 0, keys, 2.0), axis=1)
        place = np.arange(self.width(sizes, batches, schedule.participants.size))
        batch = batches[schedule.participants][:, :, None]
        used = place < batch
        at = (schedule.counts[:, :, None] - 1) * batch + place
        return order[schedule.participants[:, :, None], np.where(used, at, 0).clip(0, rows.shape[1] - 1)], used


@dataclass(frozen=True)
class Full(Sampler):
    """All of a machine's records."""

    batch = None
    name: ClassVar[str] = "full"
    words: ClassVar[str] = "all of a machine's records"
    settled: ClassVar[bool] = True

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The sampler, whatever the batch."""
        return cls()

    def with_batch(self, batch: Batch) -> Self:
        return self

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        return sizes

    def batch_of(self, records: int) -> int:
        return records

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
            f"batch · messages must be at most machine {i}'s {sizes[i]} records in one pass, "
            f"got {batches[i]} · {messages[i]} = {needed[i]}"
        )
