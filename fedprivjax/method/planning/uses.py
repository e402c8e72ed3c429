"""Uses of a method that are compared before a run: their drafts, and their error bounds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.method.planning.setting import Setting
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.privacy.events import Event
from fedprivjax.problem.problem import Problem

EXPLICIT, ORDER, GRADIENT, MISSING = "explicit", "order only", "gradient norm", "missing"
KINDS = {
    EXPLICIT: "excess loss with all constants proved: comparable between methods",
    ORDER: "excess loss without its constants: a rate",
    GRADIENT: "norm of the gradient instead of the excess loss: for non-convex losses",
    MISSING: "no theorem covers this use of the method",
}
TERMS = {
    "optimisation": "too few or too short steps",
    "sampling": "sampling of records and machines in a round",
    "noise": "cost of privacy",
    "stability": "overfitting to reused records",
    "bias": "gradients at old points",
}
POPULATION, TRAINING, STATIONARITY = "population", "training", "gradient"


@dataclass(frozen=True)
class Draft:
    """Candidate of a method comparison: a protocol before calibration, with the plan of its run.

    Attributes:
        method: class of the protocol.
        settings: arguments of the protocol, except its privacy target.
        problem: problem of the run.
        plan: plan of the run: who takes part in each round, with which records.
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
    """One way to use a method in a comparison, such as in one pass over the data or in several epochs.

    Attributes:
        name: name of the use, or "" if the method has only one.
        drafts: function from a `Setting` to candidates, of which the one with the smallest error bound is used.
        passes: number of passes over machines' records in a pilot run, or None for the plan's. It is set for methods
            whose theory chooses an impractical number for the worst case.
        iterate: name of the iterate whose accuracy a pilot run reports, or None for the output.
    """

    name: str
    drafts: Callable[[Setting], Iterator[Draft]]
    passes: int | None = None
    iterate: str | None = None


@dataclass(frozen=True)
class Bound:
    """Error bound of a method, as named terms.

    Attributes:
        kind: a key of `KINDS`.
        of: bounded quantity: "population" or "training" loss, or "gradient" of the training loss.
        theorem: theorem that proves the bound, or the reason for a missing bound.
        terms: values by names in `TERMS`; empty if there is no bound.
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
    """Calibrated protocol on its sampled plan, in the setting of the comparison."""

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
        """K, number of records in a message."""
        sampler = self.protocol.minibatches
        if isinstance(sampler, LocalEpochs):
            return sampler.epochs * self.setting.samples
        return 1 if sampler is None else sampler.batch_of(self.setting.samples)


def explicit(of: str, theorem: str, **terms: float) -> Bound:
    """Return a bound on the excess loss with all constants proved.

    >>> explicit(POPULATION, "a theorem", optimisation=0.25, noise=0.5).total
    0.75
    """
    return Bound(EXPLICIT, of, theorem, terms)


def missing(why: str) -> Bound:
    """Return a missing bound with its reason.

    >>> missing("nobody proved one").total
    nan
    """
    return Bound(MISSING, "", why, {})
