"""Costs of a whole run, from its plan and the costs of a message and of a use of a record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from time import perf_counter
from typing import Any, NamedTuple

from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


class Taken(NamedTuple):
    """Rounds, messages and record uses of a plan. They are the same for every protocol.

    Attributes:
        rounds: number of rounds.
        messages: number of rounds in which a machine sends, mean over all machines.
        uses: number of uses of a record by messages, mean over all records that machines hold. NaN if records are
            computed, and so unlimited in number.
    """

    rounds: int
    messages: float
    uses: float


def taken(problem: Problem, plan: Plan) -> Taken:
    """Return the totals of a plan. A machine that drops out sends no message and uses no record."""
    messages = int(plan.schedule.present.sum()) / plan.size.machines
    return Taken(plan.size.rounds, messages, plan.times_used / problem.held if problem.stored else nan)


def totals(costs: Mapping[str, Any], messages: Any, uses: Any) -> dict[str, Any]:
    """Return `gradients_per_record` and `sent_bytes` of a whole run.

    Args:
        costs: values of `Protocol.costs`, numbers or arrays.
        messages, uses: as in `Taken`, numbers or arrays that broadcast with the costs.

    >>> totals({"sent_bits": 320.0, "gradients_per_use": 2.0}, messages=5.0, uses=0.5)
    {'gradients_per_record': 1.0, 'sent_bytes': 200.0}
    """
    return {
        "gradients_per_record": uses * costs["gradients_per_use"],
        "sent_bytes": messages * costs["sent_bits"] / 8,
    }


@dataclass
class Stopwatch:
    """Wall time of computed runs. Cached runs do not count."""

    seconds: float = 0.0
    runs: int = 0

    def __call__(self, runs: int, compute: Callable[[], Any]) -> Any:
        """Call `compute`, which computes `runs` runs, add its wall time, and return its value."""
        begun = perf_counter()
        made = compute()
        self.seconds += perf_counter() - begun
        self.runs += runs
        return made

    @property
    def each(self) -> float:
        """Mean wall time per computed run in seconds, or NaN if no run was computed."""
        return self.seconds / self.runs if self.runs else nan
