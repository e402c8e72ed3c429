"""Error bounds: their kinds and terms, and the calibrated run that a method's bound is evaluated for."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.method.planning.setting import Setting
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import Event
from fedprivjax.problem.problem import Problem

EXPLICIT, ORDER, GRADIENT, MISSING = "explicit", "order only", "gradient norm", "missing"
KINDS = {
    EXPLICIT: "excess loss, every constant proved: comparable with one another",
    ORDER: "excess loss without its constants: a rate",
    GRADIENT: "norm of the gradient, not of the excess loss: for losses that need not be convex",
    MISSING: "no theorem covers this use of the method",
}
TERMS = {
    "optimisation": "steps that are too few or too short",
    "sampling": "records and machines that a round draws",
    "noise": "what privacy costs",
    "stability": "fitting records that are used again",
    "bias": "gradients at old points",
}
POPULATION, TRAINING, STATIONARITY = "population", "training", "gradient"


@dataclass(frozen=True)
class Bound:
    """A bound's terms.

    Attributes:
        kind: a key of `KINDS`.
        of: the loss that it is of: "population", "training" (the training records), or "gradient" of the latter.
        theorem: where it is proved; for a missing one, why it is.
        terms: by names in `TERMS`; empty if there is no bound.
    """

    kind: str
    of: str
    theorem: str
    terms: dict[str, float]

    @property
    def total(self) -> float:
        """Sum of the terms, or NaN if there are none."""
        return float(sum(self.terms.values())) if self.terms else np.nan


class PlannedRun(NamedTuple):
    """A calibrated protocol on its sampled plan, in the setting that it is planned for."""

    setting: Setting
    protocol: Any
    problem: Problem
    plan: Plan
    event: Event

    @property
    def step(self) -> float:
        """Step size η of the run."""
        return float(self.protocol.step_size) * float(self.protocol.step_scale)

    @property
    def batch(self) -> int:
        """K, records of a message."""
        sampler = self.protocol.minibatches
        return 1 if sampler is None else sampler.batch_of(self.setting.samples)


def explicit(of: str, theorem: str, **terms: float) -> Bound:
    """A bound on the excess loss with every constant proved.

    >>> explicit(POPULATION, "a theorem", optimisation=0.25, noise=0.5).total
    0.75
    """
    return Bound(EXPLICIT, of, theorem, terms)


def missing(why: str) -> Bound:
    """The absence of a bound, with its reason.

    >>> missing("nobody proved one").total
    nan
    """
    return Bound(MISSING, "", why, {})
