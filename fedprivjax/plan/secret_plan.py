"""Plans whose secret samples are drawn on first use, because guarantees do not need them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from fedprivjax.plan.minibatches import Minibatches
from fedprivjax.plan.plan import DRAWN, Plan
from fedprivjax.problem.problem import Problem


class SecretPlan(Plan):
    """A plan whose secret samples are drawn on first use. A guarantee does not need them."""

    @classmethod
    def of(cls, draw: Callable[[], Minibatches], width: int, problem: Problem, **facts: Any) -> "SecretPlan":
        """Return a plan whose samples are drawn by `draw`.

        Args:
            draw: function that returns samples and weights, the same at every call.
            width: largest number of examples of a message.
            problem: problem that the records belong to.
            facts: other fields of the plan.
        """
        plan = cls(samples=None, weights=None, secret=True, **facts)  # type: ignore[arg-type]
        for name in DRAWN:
            del plan.__dict__[name]
        plan.__dict__.update(_draw=draw, _width=width, _of=(problem.partition_table, problem.weights))
        return plan

    def will_be_of(self, problem: Problem) -> bool:
        return not self.drawn and self.__dict__["_of"] == (problem.partition_table, problem.weights)

    @cached_property
    def samples(self) -> np.ndarray:  # type: ignore[override]
        return self._both.samples

    @cached_property
    def weights(self) -> np.ndarray:  # type: ignore[override]
        return self._both.weights

    @property
    def _both(self) -> Minibatches:
        both = self.__dict__["_draw"]()
        self.__dict__.update(zip(DRAWN, both, strict=True))
        return both

    @property
    def width(self) -> int:
        return self.samples.shape[2] if self.drawn else self.__dict__["_width"]
