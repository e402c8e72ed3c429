"""What a whole run takes, from its plan and what a message and a use of a record cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from time import perf_counter
from typing import Any, NamedTuple

from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


class Taken(NamedTuple):
    """What a plan takes of a machine and of a record, whatever the protocol.

    Attributes:
        rounds: of the run.
        messages: rounds in which a machine sends, the mean over all machines.
        uses: how often a message uses a record, the mean over all records that machines hold; NaN where records are
            computed, and have no end.
    """

    rounds: int
    messages: float
    uses: float


def taken(problem: Problem, plan: Plan) -> Taken:
    """What a plan takes, with those who really send: a machine that drops out sends nothing, and uses no record."""
    messages = int(plan.schedule.present.sum()) / plan.size.machines
    return Taken(plan.size.rounds, messages, plan.times_used / problem.held if problem.stored else nan)


def totals(costs: Mapping[str, Any], messages: Any, uses: Any) -> dict[str, Any]:
    """`gradients_per_record` and `sent_bytes` of a whole run.

    Args:
        costs: from `Protocol.costs`, numbers or arrays.
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
    """The wall time of runs that are computed here, not read from where they were kept."""

    seconds: float = 0.0
    runs: int = 0

    def __call__(self, runs: int, compute: Callable[[], Any]) -> Any:
        """Compute so many runs, and count the time that it takes."""
        begun = perf_counter()
        made = compute()
        self.seconds += perf_counter() - begun
        self.runs += runs
        return made

    @property
    def each(self) -> float:
        """Of a run, in seconds; NaN where none was computed."""
        return self.seconds / self.runs if self.runs else nan
