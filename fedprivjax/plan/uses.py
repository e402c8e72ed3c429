"""Where records enter a run, of plans of minibatches whose samples are public."""

from typing import NamedTuple

import numpy as np

from fedprivjax.plan.plan import Plan


class Uses(NamedTuple):
    """Every use of a record, sorted by record and then by round; arrays [uses].

    Attributes:
        round: from 1.
        record: its place in the pool.
        weight: of the record in its machine's message.
        records: how many the pool has.
    """

    round: np.ndarray
    record: np.ndarray
    weight: np.ndarray
    records: int


def uses_of(plan: Plan, records: int) -> Uses:
    """The uses of a plan's records, out of a pool of so many; kept with the plan's schedule."""
    assert plan.weights is not None
    weights = plan.weights
    round, slot, place = np.nonzero(weights)
    record = plan.samples[round, slot, place]
    order = np.lexsort((round, record))
    weight = weights[round, slot, place].astype(float)
    return Uses(round[order] + 1, record[order], weight[order], records)
