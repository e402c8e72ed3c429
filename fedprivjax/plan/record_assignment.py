"""Assignment of examples to the slots of a schedule: one per message, int32 [rounds, per_round], or a batch."""

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers.epochs import epoch_places, places_in_order
from fedprivjax.plan.samplers.interface import require_records
from fedprivjax.plan.schedule import Schedule
from fedprivjax.problem.problem import Problem

FEWER = "Use fewer rounds, participation by_size (BySize), or a method that samples batches from each machine's records"


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
