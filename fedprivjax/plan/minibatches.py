"""Minibatches: the records of a machine's message in a round, and their weights."""

from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Schedule


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
