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
    """Candidate of a method comparison: a protocol that is not calibrated yet, with the plan of its run.

    Attributes:
        method: class of the protocol.
        settings: arguments of the protocol, except its privacy target.
        problem: problem of the run.
        plan: plan of the run: who takes part in each round, and which records each message uses.
        note: remark on the plan for the user, or "".
        tuned: settings that a pilot run tries in place of `settings`, by a text that describes them. The pilot run
            keeps the best of them. If `tuned` is empty, the pilot run uses `settings` with its own clip and a default
            step.
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
    """One way to use a method in a comparison, for example one pass over the data, or several epochs.

    Attributes:
        name: name of this use, or "" if the method has only one use.
        drafts: function from a `Setting` to candidates. The candidate with the smallest error bound represents the
            method.
        passes: number of passes over machines' records in a pilot run, a run on synthetic data that tests the method
            (`fedprivjax plan --pilot`). If it is None, the pilot run has the number of rounds that the theory chooses.
            If the setting has `rounds`, they are used instead.
        iterate: name of the iterate (`Algorithm.iterates`) whose accuracy a pilot run reports, or None for the output.
    """

    name: str
    drafts: Callable[[Setting], Iterator[Draft]]
    passes: int | None = None
    iterate: str | None = None


@dataclass(frozen=True)
class Bound:
    """Error bound of a method, divided into named terms such as the cost of privacy.

    Attributes:
        kind: kind of bound, a key of `fedprivjax.method.planning.uses.KINDS`, such as "explicit".
        of: bounded quantity: "population" for the excess population loss, "training" for the excess training loss, or
            "gradient" for the norm of the gradient of the training loss.
        theorem: theorem that proves the bound. If there is no bound, `theorem` states the reason.
        terms: value of each term, by its name in `fedprivjax.method.planning.uses.TERMS`. Empty if there is no bound.
    """

    kind: str
    of: str
    theorem: str
    terms: dict[str, float]

    @property
    def total(self) -> float:
        """Error bound, the sum of its terms. NaN if there is no bound."""
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
