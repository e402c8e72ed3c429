"""Base of methods whose releases are Gaussian mechanisms: settings, sensitivity, and event."""

from typing import Any, ClassVar

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Undefined
from fedprivjax.checks.values import require_choice
from fedprivjax.method.relative_privacy import RelativeMethod, privacy_shares
from fedprivjax.method.settings import check_numbers
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.events import Claim, GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class GaussianMethod(RelativeMethod):
    """A method with a target μ or ε whose releases are Gaussian mechanisms.

    A subclass defines `batch`, `sensitivity`, `exposure`, `released_noise` and `terms`. `DPMu2` and `TreeMomentum`
    document the fields.

    Attributes:
        clipped: name of the assumption that replaces those on the loss if `clip` is set.
    """

    mu: Any = None

    clipped: ClassVar[str] = "clipped gradients"
    plain: ClassVar[dict[str, Any]] = {**RelativeMethod.plain, "batch": 1}

    def __post_init__(self):
        check_numbers(self, "mu", "epsilon")
        require_choice("trust", self.trust, ("server", "none"))
        super().__post_init__()

    def unclipped_bound(self, problem: Problem) -> float:
        """Bound on the norm of the vector before clipping."""
        return problem.lipschitz

    def bound(self, problem: Problem) -> float:
        """Bound on the norm of the vector, after clipping if `clip` is set."""
        return float(self.unclipped_bound(problem) if self.clip is None else self.clip)

    def bound_assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Assumptions behind `bound`."""
        if self.clip is not None:
            return (Assumption(self.clipped, {"bound": float(self.clip)}),)
        return (Assumption("lipschitz", lipschitz_values(problem)),)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        """L2 sensitivity of one release to replacing one sample or record."""
        raise Undefined(f"{self.name} must define sensitivity(problem, plan)")

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        """μ of each machine, in units of sensitivity/noise_std."""
        raise Undefined(f"{self.name} must define exposure(problem, plan)")

    def released_noise(self, problem: Problem, plan: Plan, machine: int) -> np.ndarray:
        """Relative noise of each release that depends on the machine's most exposed sample or record; shape [releases].

        Each is divided by the contribution to that release as a fraction of `sensitivity`.
        """
        raise Undefined(f"{self.name} must define released_noise(problem, plan, machine)")

    def terms(self, problem: Problem, plan: Plan) -> Terms:
        """Statement of the guarantee."""
        raise Undefined(f"{self.name} must define terms(problem, plan)")

    def claim(self, problem: Problem, plan: Plan) -> Claim | None:
        """Published claim about the noise of the noise rule "paper", or None."""
        return None

    def event(self, problem: Problem, plan: Plan) -> GaussianEvent:
        claim = self.claim(problem, plan) if self.noise_rule == "paper" and self.noise_std else None
        return GaussianEvent(
            float(self.noise_std),
            self.sensitivity(problem, plan),
            self.exposure(problem, plan),
            self.terms(problem, plan),
            lambda machine: self.released_noise(problem, plan, machine),
            claim,
            None if self.relative_privacy is None else privacy_shares(self.relative_privacy, plan.size.machines),
        )
