"""Ways to use a method that are compared before a run, and the drafts that they consist of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fedprivjax.method.planning.setting import Setting
from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


@dataclass(frozen=True)
class Draft:
    """A protocol before calibration, and the plan that it would run on.

    Attributes:
        settings: arguments of the protocol, except its privacy target.
        note: a remark on the plan for the user.
    """

    method: type
    settings: dict[str, Any]
    problem: Problem
    plan: Plan
    note: str = ""

    @property
    def protocol(self) -> Any:
        return self.method(**self.settings)


@dataclass(frozen=True)
class Use:
    """One way to use a protocol.

    Attributes:
        name: of the way; "" if the method has only one.
        drafts: candidates in a setting; of several, the one with the smallest bound is taken.
        passes: over machines' records in a pilot, for methods whose theory chooses a number for the worst case that is
            of little use; None is the plan's.
        iterate: name of the iterate whose accuracy a pilot shows; None is the output.
    """

    name: str
    drafts: Callable[[Setting], Iterator[Draft]]
    passes: int | None = None
    iterate: str | None = None
