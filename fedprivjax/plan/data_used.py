"""Data that a run uses: counted if its plan is public, and expected values if samples or participation are secret.

A count of a secret sample is a function of the coins that hide a record. Expected values depend on numbers of records
and public settings only.
"""

from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
import scipy

from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Epochs, Full, LocalWork, Poisson, Sampler
from fedprivjax.problem.problem import Problem


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
        count = f"{self.records:.1f}" if self.expected else f"{self.records:.0f}"
        return f"{count} of {self.stored} examples ({self.part:.3g}%){', expected' * self.expected}"


def data_used(problem: Problem, plan: Plan) -> DataUsed:
    """Return the data that a run of this plan uses. A machine that drops out sends no message and uses no record.

    Of secret samples, a record that is in one of k messages with probability p is used with probability 1 − (1 − p)^k.
    Under secret participation, every machine sends in every round with the same probability: dropout rates that differ
    between machines count by their mean.

    >>> from fedprivjax import Full, Logistic, draw_plan, linear_problem
    >>> problem = linear_problem(np.ones((1, 20, 2)), np.zeros((1, 20)), Logistic())
    >>> print(data_used(problem, draw_plan(problem, Full(1), rounds=1, sampler=Poisson(2))))
    2.0 of 20 examples (10%), expected
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
    step = sampler.of_step if isinstance(sampler, LocalWork) else sampler
    batches = np.ones_like(table.sizes) if step is None else step.batches(table.sizes)
    kinds, counts = np.unique(np.stack([table.sizes, batches, sent]), axis=1, return_counts=True)
    uses = records = 0.0
    for (size, batch, most), count in zip(kinds.T.tolist(), counts.tolist(), strict=True):
        if size and most:
            sizes = size, batch, most, chance
            own = _slices(*sizes) if _is_slices(sampler) else _draws(sampler, *sizes)
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


def _draws(sampler: Any, size: int, batch: int, most: int, chance: float) -> tuple[float, float]:
    """Return a machine's expected uses and used records if its messages are sampled independently."""
    local = isinstance(sampler, LocalWork)
    step, steps = (sampler.of_step, sampler.uses) if local else (sampler, 1)
    times, chances = step.occurrences(size, batch)
    in_message = 1 - (1 - chances.sum()) ** steps
    return chance * most * steps * size * float(times @ chances), size * float(1 - (1 - chance * in_message) ** most)


def _constant_uses(sampler: Sampler | None) -> float:
    """Return the expected uses of a record in a message that do not depend on the number of records, or NaN."""
    local = isinstance(sampler, LocalWork)
    step, steps = (sampler.of_step, sampler.uses) if local else (sampler, 1)
    if type(step) is Full:
        return float(steps)
    return steps * step.rate if type(step) is Poisson and step.rate is not None else nan
