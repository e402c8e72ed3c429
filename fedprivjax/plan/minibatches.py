"""Minibatches: which of its own records a machine uses in a round, and with what weight."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.participation import Schedule

SAMPLERS = {
    "replacement": "batch records drawn independently, so that one may come twice",
    "subset": "a uniformly random subset of batch records",
    "poisson": "each record with probability batch/records, divided by batch whatever their number",
    "disjoint": "one pass: a machine's k-th message uses the k-th slice of a permutation of its records",
    "full": "all of a machine's records",
}
SECRET = ("replacement", "subset", "poisson")  # drawn anew each time: not to know which ones amplifies privacy
NEVER = 1e-12  # chance, over a run, that Poisson's padding is too short and a record is left out


class Sampling(NamedTuple):
    """A sampler and its batch: an integer, one for each machine, or None for all records.

    `factors`, one for each machine, multiply the messages.
    """

    kind: str
    batch: int | tuple[int, ...] | None = None
    factors: tuple[float, ...] | None = None

    def batches(self, sizes: np.ndarray) -> np.ndarray:
        """The batch of each machine that owns `sizes` records, int [machines].

        Raises:
            ValueError: a batch that the records do not allow.
        """
        require_choice("sampler", self.kind, SAMPLERS)
        if self.kind == "full":
            return sizes
        if self.batch is None:
            raise Refusal(f"batch must be given for the sampler {self.kind!r}")
        batch = np.asarray(self.batch)
        for one in batch.ravel().tolist():
            require_at_least("batch", one, 1)
        if batch.ndim and batch.shape != sizes.shape:
            raise Refusal(f"batch must be one number or one for each of {sizes.size} machines, got {batch.size}")
        batch = np.broadcast_to(batch, sizes.shape)
        over = np.flatnonzero((batch > sizes) & (self.kind != "replacement"))
        if over.size:
            i = over[0]
            raise Refusal(f"batch must be at most machine {i}'s {sizes[i]} records ({self.kind}), got {batch[i]}")
        return batch


class Minibatches(NamedTuple):
    """Records [rounds, per_round, width], and their weights in the machine's mean (0 where padded)."""

    samples: np.ndarray
    weights: np.ndarray


def draw_minibatches(
    sampling: Sampling, rows: np.ndarray, schedule: Schedule, rng: np.random.Generator, stored: bool = False
) -> Minibatches:
    """The records of every message of a run.

    Args:
        rows: which records each machine owns, [machines, most], padded with −1 at the end.
        stored: one pass goes through a machine's records as they are listed.

    Returns:
        Weights add up to 1 (times the machine's factor) for every message, but for Poisson, where they do so on
        average; all are 0 in slots of the schedule that nobody fills.

    Raises:
        ValueError: a batch larger than a machine's records, or more one-pass messages than they allow.

    >>> rows = np.arange(6).reshape(2, 3)
    >>> from fedprivjax.plan.participation import Full
    >>> everyone = Full(2).draw(1, np.random.default_rng(0))
    >>> draw_minibatches(Sampling("subset", 2), rows, everyone, np.random.default_rng(0)).weights.tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    sizes = np.sum(rows >= 0, axis=1)
    batches = sampling.batches(sizes)
    width = _width(sampling.kind, sizes, batches, schedule.participants.size)
    if sampling.kind == "disjoint":
        picks, used = _slices(rows, sizes, batches, schedule, None if stored else rng, width)
    else:
        picks, used = _picks(sampling.kind, sizes, batches, schedule, rng, width)
    machines = schedule.participants[:, :, None]
    used &= schedule.present[:, :, None]
    samples = np.where(used, rows[machines, picks], 0).astype(np.int32)
    factors = machine_values("machine_weights", 1.0 if sampling.factors is None else sampling.factors, sizes.size)
    return Minibatches(samples, np.where(used, (factors / batches)[machines], 0.0).astype(np.float32))


def repeated_uses(batches: Minibatches, rows: np.ndarray, power: int = 2) -> np.ndarray:
    """√Σ_messages j^power of the record that a machine uses most, which occurs j times in a message, [machines].

    Args:
        rows: which records each machine owns, [machines, most], padded with −1.
        power: 2 where the message is a mean; 1, a message for each occurrence; 0, it moves as far however large j is.

    >>> drawn = Minibatches(np.array([[[0, 0, 1]], [[0, 2, 1]]]), np.ones((2, 1, 3)))
    >>> repeated_uses(drawn, np.array([[0, 1, 2]])) ** 2
    array([5.])
    """
    records = rows.max() + 1
    rounds, slots, places = np.nonzero(batches.weights)
    message = rounds * batches.samples.shape[1] + slots
    entries, times = np.unique(message * records + batches.samples[rounds, slots, places], return_counts=True)
    squares = np.bincount(entries % records, times ** float(power), minlength=records)
    return np.sqrt(np.where(rows >= 0, squares[rows], 0).max(axis=1))


def _width(kind: str, sizes: np.ndarray, batches: np.ndarray, messages: int) -> int:
    if kind != "poisson":
        return int(batches.max())
    most = binom.isf(NEVER / messages, sizes, batches / sizes)
    return int(np.minimum(most, sizes).max())


def _picks(kind, sizes, batches, schedule: Schedule, rng, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Places in each participant's own list, [rounds, per_round, width], and which of them count; a round at a time."""
    picks = np.zeros((*schedule.participants.shape, width), np.int32)
    counts = np.zeros(schedule.participants.shape, int)
    for t, machines in enumerate(schedule.participants):
        n, batch = sizes[machines], batches[machines]
        if kind == "replacement":
            picks[t] = rng.integers(0, n[:, None], (machines.size, width))
            counts[t] = batch
            continue
        if kind == "full":
            picks[t], counts[t] = np.arange(width), n
            continue
        keys = np.where(np.arange(sizes.max()) < n[:, None], rng.random((machines.size, sizes.max())), 2.0)
        picks[t] = np.argsort(keys, axis=1)[:, :width]
        counts[t] = np.sum(keys < (batch / n)[:, None], axis=1) if kind == "poisson" else batch
    return picks, np.arange(width) < counts[:, :, None]


def _slices(rows, sizes, batches, schedule: Schedule, rng, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The one-pass places: slice k of a permutation of the machine's own, or of these as they are listed."""
    needed = schedule.total * batches
    short = np.flatnonzero(needed > sizes)
    if short.size:
        i = short[0]
        raise Refusal(
            f"batch · messages must be at most machine {i}'s {sizes[i]} records in one pass, "
            f"got {batches[i]} · {schedule.total[i]} = {needed[i]}"
        )
    keys = np.broadcast_to(np.linspace(0, 1, rows.shape[1]), rows.shape) if rng is None else rng.random(rows.shape)
    order = np.argsort(np.where(rows >= 0, keys, 2.0), axis=1)
    place = np.arange(width)
    batch = batches[schedule.participants][:, :, None]
    used = place < batch
    at = (schedule.counts[:, :, None] - 1) * batch + place
    return order[schedule.participants[:, :, None], np.where(used, at, 0).clip(0, rows.shape[1] - 1)], used


def machine_values(name: str, value: float | Sequence[float], machines: int) -> np.ndarray:
    """A setting of one number or one for each machine, float64 [machines].

    >>> machine_values("epsilon", 2.0, 3).tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(value, float)
    if values.ndim and values.shape != (machines,):
        raise Refusal(f"{name} must be one number or one for each of {machines} machines, got {values.size}")
    return np.broadcast_to(values, machines)
