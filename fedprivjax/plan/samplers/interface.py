"""Base class of samplers: the complete interface, with defaults."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.schedule import Schedule

Batch = int | Sequence[int] | None
CLAIMS = (
    "secret",
    "settled",
    "independent",
    "coupled",
    "repeats",
    "one_pass",
    "pooled",
    "occurrences",
    "releases",
    "amplifies",
    "empty",
    "chance",
)
COUNTED = {"secret": False, "settled": False}  # guarantees then count the records in the plan
PLACES = 2**18  # largest number of record places that one call samples


def require_records(sizes: np.ndarray) -> None:
    """Raise Refusal if a machine has no record. `sizes` are dataset sizes, int [machines]."""
    if not sizes.all():
        none = f"machines must have at least one record each, got none for machine {sizes.argmin()}"
        raise Refusal(f"{none}. Leave such machines out of the data", machine=int(sizes.argmin()))


class Occurrences(NamedTuple):
    """Possible numbers of occurrences of a record in a message, from 1, and their probabilities, [possibilities]."""

    times: np.ndarray
    chances: np.ndarray


class Sampler(Decorated):
    """Base class of samplers. A custom sampler is a frozen dataclass that defines `message` or `draw`.

    Guarantees rely on what a sampler states: the attributes below, `occurrences`, `releases` and `amplifies`. In a
    private run, a subclass of a sampler of the package that samples otherwise must state what it inherits of these
    itself. If it is neither `secret` nor `settled`, guarantees count its records instead.

    Attributes:
        name: name in experiment files and messages.
        description: description in lists, and in guarantees, where `rule` may add constants.
        secret: True if every message is sampled independently and its records are secret, which amplifies privacy.
        independent: True if records are sampled independently, so that replacing one does not affect the others.
        coupled: True if the other records of a message do not tell whether a given record is among them: a message
            without the record can be sampled from one with it, such that other records take its places. It holds for a
            uniformly random subset, but not for a random one of several fixed batches. If it is False, and
            `independent` too, samples amplify δ alone, and not ε, unless messages are clipped as a whole.
        repeats: True if a record may occur twice in a message, and a batch may be larger than the dataset.
        one_pass: True if a record is in at most one message of a run.
        pooled: True if machines need no own records: fresh examples come from a pool in order of use, or are computed.
        settled: True if a record occurs once in one message, or once in every message. If nothing is secret, privacy of
            all other samplers is computed from the records in the plan.
        batch: K, one number or one for each machine, or None if not given.
    """

    kind, decorator = "sampler", FROZEN
    stated: ClassVar[Stated] = Stated(
        by=CLAIMS, free=("variance",), void=COUNTED, instead=", or derive it from Sampler"
    )
    name: ClassVar[str]
    description: ClassVar[str]
    secret: ClassVar[bool] = False
    independent: ClassVar[bool] = False
    coupled: ClassVar[bool] = False
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
        """Return the sampler with this batch."""
        return cls(batch)  # type: ignore[call-arg]

    @property
    def rule(self) -> str:
        """`description` with this sampler's own constants, as guarantees state it."""
        return self.description

    def with_batch(self, batch: Batch) -> Self:
        """Return a copy with another batch."""
        return replace(self, batch=batch)  # type: ignore[type-var]

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        """Return the batch size of each machine, int [machines].

        Args:
            sizes: number of records of each machine, int [machines].

        Raises:
            ValueError: if the records do not allow a batch.
        """
        if self.batch is None:
            raise Refusal(f"batch must be given for the sampler {self.name!r}")
        if self.repeats:
            require_records(sizes)
        batch = np.asarray(self.batch)
        for size in dict.fromkeys(batch.ravel().tolist()):
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
        """Return the batch size of one machine with `records` records, for accounting.

        Raises:
            ValueError: if the records do not allow the batch.
        """
        if self.batch is None:
            raise Refusal(f"batch must be given for the sampler {self.name!r}")
        require_at_least("batch", self.batch, 1)  # type: ignore[arg-type]
        if self.batch > records and not self.repeats:  # type: ignore[operator]
            raise Refusal(f"batch must be at most records ({records}) for the sampler {self.name!r}, got {self.batch}")
        return int(self.batch)  # type: ignore[arg-type]

    def width(self, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
        """Return the largest number of records in any of `messages` messages."""
        return int(batches.max())

    def steps(self, sizes: np.ndarray) -> np.ndarray:
        """Return the number of local steps of machines with `sizes` records, int [machines]. Default: one per record.

        It is used by methods with local steps.
        """
        return self.batches(sizes)

    def cut(self, width: int) -> int:
        """Return the largest number of local steps in messages of `width` places. Default: one per place."""
        return width

    def draw(
        self, rows: np.ndarray, schedule: Schedule, rng: np.random.Generator, stored: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample the records of every message of a run.

        Args:
            rows: record indices of each machine, [machines, max_records], padded with −1 at the end.
            stored: True if one pass uses a machine's records in the listed order.

        Returns:
            Places in each participant's list of records, and a mask of the used places; [rounds, per_round, width].
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
        """Return the number of rounds, of `places` places each, that one call of `message` samples. Default: 1."""
        return 1

    def message(
        self, sizes: np.ndarray, batches: np.ndarray, most: int, width: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample places [participants, width], and the number of leading places that are used, [participants].

        Args:
            sizes: number of records of each participant, int [participants].
            batches: batch size of each participant, int [participants].
            most: largest number of records of any machine.
            width: number of places per participant.
        """
        raise Undefined("a sampler must define message")

    def occurrences(self, records: int, batch: int) -> Occurrences:
        """Return the distribution of a record's occurrences in a message. Default: always once, as without secrecy."""
        return Occurrences(np.ones(1), np.ones(1))

    def empty(self, records: int, batch: int) -> float:
        """Return the probability that a message without a given record is empty."""
        return 0.0

    def releases(self, rounds: int, records: int, batch: int) -> int:
        """Return the largest number of a machine's `rounds` messages that may contain a given record."""
        return 1 if self.one_pass else rounds

    def amplifies(self, records: int, batch: int) -> bool:
        """Return True if a message may omit a record secretly, so that sampling amplifies privacy."""
        return self.secret and (batch < records or (self.repeats and batch > 1))

    def variance(self, records, batch, spread, squared_norm):
        """Return the variance of a minibatch mean around the mean of all records.

        Args:
            spread: mean squared distance of the records' vectors from their mean.
            squared_norm: squared norm of that mean.
        """
        return spread / batch * (records - batch) / np.maximum(records - 1, 1)
