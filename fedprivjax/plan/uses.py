"""Which rounds use which records, on a plan of minibatches whose samples are public."""

from typing import NamedTuple

import numpy as np

from fedprivjax.plan.plan import Plan


class Uses(NamedTuple):
    """Every use of every record, sorted by record and then by round.

    Attributes:
        round: from 1, int [uses].
        record: its place in the pool, int [uses].
        weight: of the record in its machine's message, float64 [uses].
        records: how many the pool has.
    """

    round: np.ndarray
    record: np.ndarray
    weight: np.ndarray
    records: int


def repeats_after(plan: Plan, rounds: int) -> bool:
    """Whether in rounds so far apart the same machines use the same records with the same weights."""
    assert plan.weights is not None
    order = np.argsort(plan.schedule.participants, axis=1)
    machines = np.take_along_axis(plan.schedule.participants, order, axis=1)
    arrays = machines, *(np.take_along_axis(a, order[..., None], axis=1) for a in (plan.samples, plan.weights))
    return all((array[rounds:] == array[:-rounds]).all() for array in arrays if len(array) > rounds)


def uses_of(plan: Plan, records: int) -> Uses:
    """The uses of a plan's records, out of a pool of so many; slots of weight 0 are none."""
    assert plan.weights is not None
    weights = plan.weights
    round, slot, place = np.nonzero(weights)
    record = plan.samples[round, slot, place]
    order = np.lexsort((round, record))
    weight = weights[round, slot, place].astype(float)
    return Uses(round[order] + 1, record[order], weight[order], records)
