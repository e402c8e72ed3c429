"""Uses of a method that are compared before a run, and their drafts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fedprivjax.method.planning.setting import Setting
from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


@dataclass(frozen=True)
class Draft:
    """A protocol before calibration, with the plan of its run.

    Attributes:
        method: class of the protocol.
        settings: arguments of the protocol, except its privacy target.
        problem: problem of the run.
        plan: plan of the run.
        note: remark on the plan for the user, or "".
        tuned: settings by description, of which a pilot run chooses the best; empty if there is nothing to choose.
    """

    method: type
    settings: dict[str, Any]
    problem: Problem
    plan: Plan
    note: str = ""
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def protocol(self) -> Any:
        return self.method(**self.settings)


@dataclass(frozen=True)
class Use:
    """One use of a method.

    Attributes:
        name: name of the use, or "" if the method has only one.
        drafts: function that yields candidates in a setting; the one with the smallest bound is used.
        passes: number of passes over machines' records in a pilot run, or None for the plan's. It is set for methods
            whose theory chooses an impractical number for the worst case.
        iterate: name of the iterate whose accuracy a pilot run reports, or None for the output.
    """

    name: str
    drafts: Callable[[Setting], Iterator[Draft]]
    passes: int | None = None
    iterate: str | None = None
