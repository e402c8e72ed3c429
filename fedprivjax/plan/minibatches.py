"""Records of messages: minibatches with weights, or examples that are assigned to the slots of a schedule."""

from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.samplers.interface import require_records
from fedprivjax.plan.samplers.minibatch import epoch_places, places_in_order
from fedprivjax.plan.schedule import Schedule
from fedprivjax.problem.problem import Problem

FEWER = "Use fewer rounds, participation by_size (BySize), or a method that samples batches from each machine's records"


class Minibatches(NamedTuple):
    """Record indices [rounds, per_round, width], and their weights in the machine's mean (0 for padding)."""

    samples: np.ndarray
    weights: np.ndarray


def draw_minibatches(
    sampler: Sampler,
    rows: np.ndarray,
    schedule: Schedule,
    rng: np.random.Generator,
    stored: bool = False,
    factors: float | np.ndarray = 1.0,
) -> Minibatches:
    """Sample the records of every message of a run.

    Args:
        rows: record indices of each machine, [machines, max_records], padded with −1 at the end.
        stored: True if one pass uses a machine's records in the listed order.
        factors: factor of the messages, one for all machines or one for each.

    Returns:
        The weights of a message sum to 1 times the machine's factor; with Poisson sampling, only on average. All
        weights are 0 in empty slots of the schedule. A place of weight 0 holds a record that the round uses elsewhere
        (record 0 if it uses none), so padding needs no further records.

    Raises:
        ValueError: if a batch is larger than a machine's dataset, or if one pass needs more records than it has.

    >>> rows = np.arange(6).reshape(2, 3)
    >>> from fedprivjax.plan.participation import Full
    >>> from fedprivjax.plan.samplers import Subset
    >>> everyone = Full(2).draw(1, np.random.default_rng(0))
    >>> draw_minibatches(Subset(2), rows, everyone, np.random.default_rng(0)).weights.tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    sizes = np.sum(rows >= 0, axis=1)
    picks, used = sampler.draw(rows, schedule, rng, stored)
    machines = schedule.participants[:, :, None]
    used &= schedule.present[:, :, None]
    samples = _filled(rows[machines, picks], used)
    factors = machine_values("machine_weights", factors, sizes.size)
    weights = (factors / sampler.batches(sizes))[machines]
    return Minibatches(samples, np.where(used, weights, 0.0).astype(np.float32))


def _filled(records: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the records, int32, with unused places filled by the round's first used record."""
    flat, counts = records.reshape(len(records), -1), used.reshape(len(used), -1)
    first = np.where(counts.any(axis=1), flat[np.arange(len(flat)), counts.argmax(axis=1)], 0)
    return np.where(used, records, first[:, None, None]).astype(np.int32)


def repeated_uses(batches: Minibatches, rows: np.ndarray, power: int = 2) -> np.ndarray:
    """Return √Σ_messages j^power of each machine's most used record, j its occurrences in a message, [machines].

    Args:
        rows: record indices of each machine, [machines, max_records], padded with −1.
        power: 2 if a message is a mean, 1 if each occurrence is a message, or 0 if its sensitivity does not depend on
            j.

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


def machine_values(name: str, value: Any, machines: int) -> np.ndarray:
    """Return a setting, given as one number or one per machine, for every machine: float64 [machines].

    >>> machine_values("epsilon", 2.0, 3).tolist()
    [2.0, 2.0, 2.0]
    """
    values = np.asarray(value, float)
    if values.ndim and values.shape != (machines,):
        raise Refusal(f"{name} must be one number or one for each of {machines} machines, got {values.size}")
    return np.broadcast_to(values, machines)


def assign_pool(problem: Problem, schedule: Schedule, rng: np.random.Generator | None, batch: int = 1) -> np.ndarray:
    """Assign each slot the next `batch` examples of a permutation of the pool, int32 [rounds, per_round, batch].

    Empty slots also take examples, unless cohort sizes are announced. Without `rng` the order is the stored one.
    """
    order = np.arange(problem.examples) if rng is None else rng.permutation(problem.examples)
    samples = np.zeros((*schedule.participants.shape, batch), np.int32)
    taken = schedule.present if schedule.announced else np.ones_like(schedule.present)
    samples[taken] = order[: batch * taken.sum()].reshape(-1, batch)
    return samples


def assign_computed(schedule: Schedule, batch: int = 1) -> np.ndarray:
    """Assign a machine's k-th participation its k-th `batch` computed examples, [rounds, per_round, batch]."""
    return batch * np.maximum(schedule.counts - 1, 0)[..., None] + np.arange(batch, dtype=np.int32)


def assign_epochs(problem: Problem, schedule: Schedule, rng: np.random.Generator, order: str) -> np.ndarray:
    """Assign a machine of n records, at its k-th participation, place (k − 1) mod n of the epoch's permutation."""
    assert problem.partition_table is not None
    rows, sizes = problem.partition_table.rows, problem.partition_table.sizes
    require_records(sizes)
    ones = np.ones(sizes.size, int)
    places, _ = epoch_places(rows, schedule, ones, rng, reshuffle=order == "reshuffled")
    return rows[schedule.participants, places[:, :, 0]]


def assign_shares(problem: Problem, schedule: Schedule, rng: np.random.Generator | None) -> np.ndarray:
    """Assign a machine's k-th participation the k-th example of a permutation of its own dataset."""
    assert problem.partition_table is not None
    rows, sizes = problem.partition_table.rows, problem.partition_table.sizes
    short = np.flatnonzero(schedule.total > sizes)
    if short.size:
        needs, has = schedule.total[short[0]], sizes[short[0]]
        raise Refusal(
            f"machine {short[0]} must have at least {needs} examples for this schedule, got {has}. {FEWER}",
            machine=int(short[0]),
        )
    place = np.maximum(schedule.counts - 1, 0)  # places of absent machines are not used
    return np.maximum(np.take_along_axis(rows, places_in_order(rows, rng), axis=1)[schedule.participants, place], 0)


def epoch_uses(problem: Problem, schedule: Schedule) -> np.ndarray:
    """Return the number of rounds that use each machine's most used record in epochs without dropouts, [machines]."""
    assert problem.partition_table is not None
    return -(-schedule.total // problem.partition_table.sizes)
