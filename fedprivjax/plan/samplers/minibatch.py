"""Samplers of a message's minibatch, without secrets or with independent secret samples.

Those without secrets make epochs or one pass over a machine's records in public orders, or use all in every message.
Independent secret samples for each message amplify privacy.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_probability
from fedprivjax.plan.participation.interface import binomial_quantile
from fedprivjax.plan.samplers.interface import CLAIMS, COUNTED, PLACES, Batch, Occurrences, Sampler
from fedprivjax.plan.schedule import Schedule

FEWER = "Use fewer rounds, a smaller batch, or participation by_size (BySize)"
NO_LIMIT = 2**62  # number of records that allows every batch
NEVER = 1e-12  # probability, over a run, that a Poisson sample exceeds the padding and loses a record
SPARSE = 8  # records per place of a batch above which a subset is sampled by its places, without a sort of all records
RAREST = 1e-25  # probability of the larger numbers of occurrences, which are ignored


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
    """Sampler of minibatches in epochs over each machine's records, with the same random order in all epochs.

    Attributes:
        batch: number of records of a minibatch, one number for all machines or one per machine. It must divide the
            machine's number of records. None if it is set later, by `with_batch`.
    """

    batch: Batch
    name: ClassVar[str] = "cyclic"
    description: ClassVar[str] = "epochs over a machine's records, all in the same public random order"
    reshuffles: ClassVar[bool] = False


@dataclass(frozen=True)
class Reshuffled(Epochs):
    """Sampler of minibatches in epochs over each machine's records, each epoch in a new random order.

    Attributes:
        batch: number of records of a minibatch, one number for all machines or one per machine. It must divide the
            machine's number of records. None if it is set later, by `with_batch`.
    """

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
    """Sampler of full batches: every message uses all records of its machine."""

    batch = None
    name: ClassVar[str] = "full"
    description: ClassVar[str] = "all of a machine's records"
    settled: ClassVar[bool] = True

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the sampler of full batches. The argument `batch`, which other samplers need, is ignored."""
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
    coupled: ClassVar[bool] = True
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


def distinct_places(sizes: np.ndarray, batches: np.ndarray, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return different places of each message, all sequences equally likely; int [messages, width], unused places 0.

    Repeated places are sampled again until none is left. Which ones depends only on which places are equal, so that
    renamed records keep the distribution, which is therefore uniform.
    """
    used = np.arange(width) < batches[:, None]
    places = np.where(used, rng.integers(0, sizes[:, None], used.shape), -np.arange(width))
    while True:
        repeated = np.zeros(used.shape, bool)
        order = np.argsort(places, axis=1, kind="stable")  # of equal places, the first stays
        ranked = np.take_along_axis(places, order, axis=1)
        np.put_along_axis(repeated, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
        if not repeated.any():
            return np.where(used, places, 0)
        places[repeated] = rng.integers(0, sizes[np.nonzero(repeated)[0]])


@dataclass(frozen=True)
class Subset(Sampler):
    """A uniformly random subset of `batch` records."""

    batch: Batch
    name: ClassVar[str] = "subset"
    description: ClassVar[str] = "a uniformly random subset of batch records"
    secret: ClassVar[bool] = True
    coupled: ClassVar[bool] = True

    def message(self, sizes, batches, most, width, rng):
        """Sample places in a uniformly random order: a sort of all records, or `distinct_places` of small batches."""
        few = SPARSE * batches < sizes
        places = np.empty((sizes.size, width), int)
        places[few] = distinct_places(sizes[few], batches[few], width, rng)
        size = sizes[~few, None]
        keys = rng.random((size.size, min(most, SPARSE * width)))
        places[~few] = np.argsort(np.where(np.arange(keys.shape[1]) < size, keys, 2.0), axis=1)[:, :width]
        return places, batches

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
