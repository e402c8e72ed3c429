"""Uses of records: their rounds and repetitions, the data that a run uses, and a warning of unused data.

Data are counted if the plan is public, and are expected values if samples or participation are secret. A count of a
secret sample is a function of the coins that hide a record. Expected values depend on numbers of records and public
settings only.
"""

from bisect import bisect_left
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedprivjax.checks.refusal import warn
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.participation.weighted import rounds_filled
from fedprivjax.plan.plan import Minibatches, Plan
from fedprivjax.plan.samplers import Epochs, Full, LocalWork, Poisson, Sampler
from fedprivjax.plan.schedule import Schedule
from fedprivjax.problem.problem import Problem

HALF = 50  # percent of the data; a run limited by the smallest dataset that uses less causes a warning


class Uses(NamedTuple):
    """Table of all uses of records in a run's messages, sorted by record and then by round.

    A use is one record of one message.

    Attributes:
        round: number of the round, from 1; int [uses].
        record: index of the record in the dataset, int [uses].
        weight: weight of the record in its machine's message, float64 [uses].
        records: number of records in the dataset.
    """

    round: np.ndarray
    record: np.ndarray
    weight: np.ndarray
    records: int


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


def epoch_uses(problem: Problem, schedule: Schedule) -> np.ndarray:
    """Return the number of rounds that use each machine's most used record in epochs without dropouts, [machines]."""
    assert problem.partition_table is not None
    return -(-schedule.total // problem.partition_table.sizes)


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


class DataUsed(NamedTuple):
    """Messages and uses of records in a run.

    Attributes:
        messages: rounds in which a machine sends, mean over all machines.
        uses: uses of a record by messages, mean over all records that machines hold; NaN if records are computed.
        records: number of records that at least one message uses; NaN if records are computed.
        stored: number of records in the pool, or inf if they are computed.
        expected: True if uses and records are expected values.
        constant_uses: `uses` if it follows from public settings alone, whatever the numbers of records, else NaN.
    """

    messages: float
    uses: float
    records: float
    stored: float
    expected: bool
    constant_uses: float

    @property
    def part(self) -> float:
        """Percentage of the stored records that at least one message uses; NaN if records are computed."""
        return 100 * self.records / self.stored

    def __str__(self) -> str:
        if isnan(self.records):
            return ""
        count = f"{self.records:.1f}".removesuffix(".0")
        return f"{count} of {self.stored} examples ({self.part:.3g}%){', expected' * self.expected}"


def data_used(problem: Problem, plan: Plan) -> DataUsed:
    """Return the data that a run of this plan uses. A machine that drops out sends no message and uses no record.

    Of secret samples, a record that is in one of k messages with probability p is used with probability 1 − (1 − p)^k.
    Under secret participation, every machine sends in every round with the same probability: dropout rates that differ
    between machines count by their mean.

    >>> from fedprivjax import Full, Logistic, draw_plan, linear_problem
    >>> problem = linear_problem(np.ones((1, 20, 2)), np.zeros((1, 20)), Logistic())
    >>> print(data_used(problem, draw_plan(problem, Full(1), rounds=1, sampler=Poisson(2))))
    2 of 20 examples (10%), expected
    """
    schedule = plan.schedule
    if schedule.secret is None:
        chance, sent = 1.0, np.bincount(schedule.participants[schedule.present], minlength=schedule.machines)
    else:
        chance, sent = schedule.divisor / schedule.machines, np.full(schedule.machines, schedule.size.rounds)
    messages, secret = chance * float(sent.sum()) / schedule.machines, plan.secret or schedule.secret is not None
    constant = messages * _constant_uses(plan.sampler) if problem.stored else nan
    if not problem.stored:
        return DataUsed(messages, nan, nan, problem.examples, secret, constant)
    uses, records = _expected(problem, plan, sent, chance) if secret else (plan.times_used, plan.used)
    return DataUsed(messages, uses / problem.held, records, problem.examples, secret, constant)


def _expected(problem: Problem, plan: Plan, sent: np.ndarray, chance: float) -> tuple[float, float]:
    """Return the expected numbers of uses, and of used records.

    Args:
        sent: largest number of each machine's messages, int [machines].
        chance: probability of each of these messages.
    """
    sampler, table = plan.sampler, problem.partition_table
    if table is None:  # messages take fresh records of a pool
        total = chance * float(sent.sum()) * (1 if sampler is None else int(sampler.batch))  # type: ignore[arg-type]
        return total, total
    step, steps = (sampler.of_step, sampler.uses) if isinstance(sampler, LocalWork) else (sampler, 1)
    batches = np.ones_like(table.sizes) if step is None else step.batches(table.sizes)
    of_machines = np.stack([table.sizes, batches, sent, np.broadcast_to(steps, table.sizes.shape)])
    kinds, counts = np.unique(of_machines, axis=1, return_counts=True)
    uses = records = 0.0
    for (size, batch, most, steps), count in zip(kinds.T.tolist(), counts.tolist(), strict=True):
        if size and most:
            sizes = size, batch, most, chance
            own = _slices(*sizes) if _is_slices(sampler) else _draws(step, steps, *sizes)
            uses, records = uses + count * own[0], records + count * own[1]
    return uses, records


def _is_slices(sampler: Sampler | None) -> bool:
    """Return True if a machine's messages take one slice of its records after another."""
    return sampler is None or isinstance(sampler, Epochs) or sampler.one_pass


def _slices(size: int, batch: int, most: int, chance: float) -> tuple[float, float]:
    """Return a machine's expected uses and used records if its messages take one slice after another."""
    sent = np.arange(most + 1)
    used = float(scipy.stats.binom.pmf(sent, most, chance) @ np.minimum(sent * batch, size))
    return chance * most * batch, used


def _draws(step: Any, steps: int, size: int, batch: int, most: int, chance: float) -> tuple[float, float]:
    """Return a machine's expected uses and used records if its messages are sampled independently.

    Args:
        step: sampler of each of a message's `steps` batches.
    """
    times, chances = step.occurrences(size, batch)
    in_message = 1 - (1 - chances.sum()) ** steps
    return chance * most * steps * size * float(times @ chances), size * float(1 - (1 - chance * in_message) ** most)


def _constant_uses(sampler: Sampler | None) -> float:
    """Return the expected uses of a record in a message that do not depend on the number of records, or NaN."""
    local = isinstance(sampler, LocalWork)
    step, steps = (sampler.of_step, sampler.uses) if local else (sampler, 1)
    if np.ndim(steps):
        return nan
    if type(step) is Full:
        return float(steps)
    return steps * step.rate if type(step) is Poisson and step.rate is not None else nan


def warn_of_unused_data(problem: Problem, plan: Plan, participation: Participation, shares: np.ndarray) -> None:
    """Warn if most of the data stay unused because the smallest dataset limits the rounds."""
    of_smallest = plan.size.rounds == participation.rounds_of_shares(shares) and 2 * shares.min() < shares.mean()
    used = data_used(problem, plan)
    if participation.depends_on_sizes or not of_smallest or used.part >= HALF:
        return
    warn(f"a run uses {used}: rounds end with the smallest share; {_remedy(participation, shares, plan)}")


def _remedy(participation: Participation, shares: np.ndarray, plan: Plan) -> str:
    """Return a suggestion, as text, for using more than half of the data.

    It is `BySize` with the same number of machines per round or, if needed, with fewer, down to half as many. If these
    do not suffice, it is to reuse records.
    """
    asked = participation.per_round
    most = asked // 2
    less = bisect_left(range(asked), HALF, hi=most + 1, key=lambda less: _part_by_size(shares, asked - less))
    if less <= most:
        scheme = f"BySize({participation.machines}, {asked - less})"
        key = f", per_round = {asked - less}" if less else ""
        return f'{scheme}, in a file kind = "by_size"{key}, uses {_part_by_size(shares, asked - less):.3g}%'
    if plan.sampler is None or plan.sampler.pooled:
        return "methods of minibatches from a machine's own records, such as noisy_minibatch_sgd, do not end there"
    return 'samplers that use records again, such as sampler = "poisson", do not end there'


def _part_by_size(shares: np.ndarray, per_round: int) -> float:
    """Return the percentage of all possible messages that `BySize` cohorts of this size send."""
    return 100 * rounds_filled(shares, per_round) * per_round / shares.sum()
