"""Rounds in which each record is used, for plans of minibatches with public samples."""

from typing import NamedTuple

import numpy as np

from fedprivjax.plan.plan import Plan


class Uses(NamedTuple):
    """All uses of records, sorted by record and then by round.

    Attributes:
        round: number of the round, from 1; int [uses].
        record: index of the record in the pool, int [uses].
        weight: weight of the record in its machine's message, float64 [uses].
        records: number of records in the pool.
    """

    round: np.ndarray
    record: np.ndarray
    weight: np.ndarray
    records: int


def repeats_after(plan: Plan, rounds: int) -> bool:
    """Return True if the machines, records and weights of the plan repeat after `rounds` rounds."""
    assert plan.weights is not None
    order = np.argsort(plan.schedule.participants, axis=1)
    machines = np.take_along_axis(plan.schedule.participants, order, axis=1)
    arrays = machines, *(np.take_along_axis(a, order[..., None], axis=1) for a in (plan.samples, plan.weights))
    return all((array[rounds:] == array[:-rounds]).all() for array in arrays if len(array) > rounds)


def uses_of(plan: Plan, records: int) -> Uses:
    """Return the uses of a plan's records, out of a pool of `records`. Places of weight 0 are not uses.

    The weights of a record that occurs several times in a round are added up.
    """
    assert plan.weights is not None
    weights = plan.weights
    round, slot, place = np.nonzero(weights)
    record = plan.samples[round, slot, place]
    order = np.lexsort((round, record))
    round, record, weight = round[order], record[order], weights[round, slot, place].astype(float)[order]
    first = np.append(True, (np.diff(record) != 0) | (np.diff(round) != 0))[: record.size]
    if not first.all():
        round, record, weight = round[first], record[first], np.add.reduceat(weight, np.flatnonzero(first))
    return Uses(round + 1, record, weight, records)
