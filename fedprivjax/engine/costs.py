"""Costs of a whole run, from its plan and the costs of a message and of a use of a record."""

from collections.abc import Mapping
from math import nan
from typing import Any

import numpy as np

from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


def taken(problem: Problem, plan: Plan) -> tuple[int, float, float]:
    """Return the rounds, messages and record uses of a plan, which are the same for every protocol.

    The messages are the number of rounds in which a machine sends, mean over all machines. The uses are the number of
    uses of a record by messages, mean over all records that machines hold, or NaN if records are computed, and so
    unlimited in number. A machine that drops out sends no message and uses no record. If participation is secret, they
    are expected values, which do not reveal who took part.
    """
    if plan.schedule.secret is not None:
        return _expected(problem, plan)
    messages = int(plan.schedule.present.sum()) / plan.size.machines
    return plan.size.rounds, messages, plan.times_used / problem.held if problem.stored else nan


def _expected(problem: Problem, plan: Plan) -> tuple[int, float, float]:
    """Return the expected totals of a plan in which every machine takes part equally often on average."""
    messages = plan.size.rounds * plan.schedule.divisor / plan.size.machines
    if not problem.stored:
        return plan.size.rounds, messages, nan
    sizes = None if problem.partition_table is None else problem.partition_table.sizes
    if plan.sampler is None:
        used = plan.size.machines
    elif sizes is None:
        used = plan.size.machines * int(plan.sampler.batch)  # type: ignore[arg-type]
    else:
        used = int(np.where(sizes > 0, plan.sampler.batches(sizes), 0).sum())
    return plan.size.rounds, messages, messages * used / problem.held


def totals(costs: Mapping[str, Any], messages: Any, uses: Any) -> dict[str, Any]:
    """Return `gradients_per_record` and `sent_bytes` of a whole run.

    Args:
        costs: values of `Protocol.costs`, numbers or arrays.
        messages, uses: as in `taken`, numbers or arrays that broadcast with the costs.

    >>> totals({"sent_bits": 320.0, "gradients_per_use": 2.0}, messages=5.0, uses=0.5)
    {'gradients_per_record': 1.0, 'sent_bytes': 200.0}
    """
    return {
        "gradients_per_record": uses * costs["gradients_per_use"],
        "sent_bytes": messages * costs["sent_bits"] / 8,
    }
