"""Costs of a whole run, from its plan and the costs of a message and of a use of a record."""

from collections.abc import Mapping
from math import nan
from typing import Any

from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


def taken(problem: Problem, plan: Plan) -> tuple[int, float, float]:
    """Return the rounds, messages and record uses of a plan, which are the same for every protocol.

    The messages are the number of rounds in which a machine sends, mean over all machines. The uses are the number of
    uses of a record by messages, mean over all records that machines hold, or NaN if records are computed, and so
    unlimited in number. A machine that drops out sends no message and uses no record.
    """
    messages = int(plan.schedule.present.sum()) / plan.size.machines
    return plan.size.rounds, messages, plan.times_used / problem.held if problem.stored else nan


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
