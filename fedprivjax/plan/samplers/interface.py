"""What a sampler is asked: all that depends on how a machine picks records, in one interface with defaults."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.schedule import Schedule

Batch = int | Sequence[int] | None
PLACES = 2**18  # of records, that one call draws


def require_records(sizes: np.ndarray) -> None:
    """Raise Refusal if a machine that owns `sizes` records, int [machines], has none."""
    if not sizes.all():
        none = f"machines must have at least one record each, got none for machine {sizes.argmin()}"
        raise Refusal(f"{none}. Leave such machines out of the data", machine=int(sizes.argmin()))


class Occurrences(NamedTuple):
    """How often a record may occur in a message, from once, and how likely each is; both [possibilities]."""

    times: np.ndarray
    chances: np.ndarray


class Sampler(Decorated):
    """What every sampler answers. A sampler of one's own is a frozen dataclass that defines `message`, or `draw`.

    Attributes:
        name: in experiment files and messages.
        words: what it does, in words.
        secret: drawn anew each time: not to know which records are used amplifies privacy.
        independent: records come independently of each other, so that a replaced record leaves the others' as they are.
        repeats: a record may come twice, and a batch be larger than the machine's records.
        one_pass: a record is in one message of a run at most.
        pooled: machines need no records of their own: fresh ones come from a pool in order of use, or are computed.
        settled: a record is in one message, or in every one, and once in each: where nothing is secret, all other
            samplers' privacy is counted from the records that a plan has.
        batch: K, one number or one for each machine; None is not given.
    """

    kind, decorator = "sampler", FROZEN
    name: ClassVar[str]
    words: ClassVar[str]
    secret: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    one_pass: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    settled: ClassVar[bool] = False
    batch: Batch

    def __post_init__(self):
        if np.ndim(self.batch):  # type: ignore[arg-type]
            object.__setattr__(self, "batch", tuple(np.asarray(self.batch).tolist()))

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The sampler that the name stands for, with this batch."""
        return cls(batch)  # type: ignore[call-arg]

    def with_batch(self, batch: Batch) -> Self:
        """The same sampler with another batch, its other fields as they are."""
        return replace(self, batch=batch)  # type: ignore[type-var]

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        """The batch of each machine that owns `sizes` records, int [machines].

        Raises:
            ValueError: a batch that the records do not allow.
        """
        if self.batch is None:
            raise Refusal(f"batch must be given for the sampler {self.name!r}")
        if self.repeats:
            require_records(sizes)
        batch = np.asarray(self.batch)
        for size in np.unique(batch).tolist():
            require_at_least("batch", size, 1)
        if batch.ndim and batch.shape != sizes.shape:
            raise Refusal(f"batch must be one number or one for each of {sizes.size} machines, got {batch.size}")
        batch = np.broadcast_to(batch, sizes.shape)
        over = np.flatnonzero((batch > sizes) & (not self.repeats))
        if over.size:
            i = over[0]
            most = f"the {sizes[i]} records of machine {i}"
            raise Refusal(f"batch must be at most {most} ({self.name}), got {batch[i]}", machine=int(i))
        return batch

    def batch_of(self, records: int) -> int:
        """The batch of one machine, as accounting sees it.

        Raises:
            ValueError: a batch that so many records do not allow.
        """
        if self.batch is None:
            raise Refusal(f"batch must be given for the sampler {self.name!r}")
        require_at_least("batch", self.batch, 1)  # type: ignore[arg-type]
        if self.batch > records and not self.repeats:  # type: ignore[operator]
            raise Refusal(f"batch must be at most records ({records}) for the sampler {self.name!r}, got {self.batch}")
        return int(self.batch)  # type: ignore[arg-type]

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        """Room that any of so many messages needs, in records."""
        return int(batches.max())

    def draw(
        self, rows: np.ndarray, schedule: Schedule, rng: np.random.Generator, stored: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The records of every message of a run.

        Args:
            rows: which records each machine owns, [machines, most], padded with −1 at the end.
            stored: one pass goes through a machine's records as they are listed.

        Returns:
            Places in each participant's own list, and which of them count; both [rounds, per_round, width].
        """
        sizes = np.sum(rows >= 0, axis=1)
        batches = self.batches(sizes)
        width = self.width(sizes, batches, schedule.participants.size)
        picks = np.zeros((*schedule.participants.shape, width), np.int32)
        counts = np.zeros(schedule.participants.shape, int)
        step = self.rounds_together(schedule.participants.shape[1] * width)
        for start in range(0, len(picks), step):
            rounds = slice(start, start + step)
            machines = schedule.participants[rounds]
            flat = machines.ravel()
            places, count = self.message(sizes[flat], batches[flat], sizes.max(), width, rng)
            picks[rounds] = np.reshape(places, (*machines.shape, -1))
            counts[rounds] = np.reshape(count, machines.shape)
        return picks, np.arange(width) < counts[:, :, None]

    def rounds_together(self, places: int) -> int:
        """Number of rounds, of so many places each, that one call of `message` draws. Default: 1."""
        return 1

    def message(
        self, sizes: np.ndarray, batches: np.ndarray, most: int, width: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """One round's places, [participants, width], of which the first few count, [participants]."""
        raise Undefined("a sampler must define message")

    def occurrences(self, records: int, batch: int) -> Occurrences:
        """The law of how often a record occurs in a message; once for sure where nothing is secret."""
        return Occurrences(np.ones(1), np.ones(1))

    def empty(self, records: int, batch: int) -> float:
        """The chance that a message which leaves a given record out has none at all."""
        return 0.0

    def releases(self, rounds: int, records: int, batch: int) -> int:
        """Of so many messages of a batch out of a machine's records, those that a record may be in."""
        return 1 if self.one_pass else rounds

    def amplifies(self, records: int, batch: int) -> bool:
        """Whether a record may be left out of a message without anybody's knowing."""
        return self.secret and (batch < records or (self.repeats and batch > 1))

    def variance(self, records, batch, spread, squared_norm):
        """The variance of a minibatch mean around the mean of all.

        Args:
            spread: the mean squared distance of the records' vectors from their mean.
            squared_norm: of that mean.
        """
        return spread / batch * (records - batch) / np.maximum(records - 1, 1)
