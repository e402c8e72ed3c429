"""Base of methods whose messages are noisy means, or noisy local steps, over a machine's own records."""

from dataclasses import replace
from typing import Any, ClassVar

from fedprivjax.checks.refusal import Undefined
from fedprivjax.method.interface import Protocol
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.relative_privacy import follows_epsilon
from fedprivjax.method.scaled_down import BATCH
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import RULE, Target
from fedprivjax.problem.problem import Problem


class RecordMethod(Protocol):
    """A method whose noise and guarantee follow from its `records`, with one ε for all machines or one for each.

    Attributes:
        plain: values, in the traced protocol, of the method's static settings that only the host reads.
    """

    relative_privacy: Any = None
    weighs_machines: ClassVar[bool] = True
    plain: ClassVar[dict[str, Any]] = {"sampler": "full"}

    @property
    def records(self) -> RecordMechanism:
        """Mechanism of the records: their use in messages, and the noise of messages."""
        raise Undefined(f"{self.name} must define records")

    @property
    def noise_follows(self) -> tuple[str, ...]:
        return follows_epsilon(self)

    @property
    def traced(self):
        host = {"relative_privacy": None, "epsilon": None, "batch": None, "noise_rule": "accountant", "delta": None}
        return replace(self, **host, **self.plain, calibrate_to=RULE)  # type: ignore[type-var]

    def machine_target(self, target: Target) -> Target:
        return target.shared(self.relative_privacy)

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """σ of the noisiest machine."""
        return self.records.noise_std(problem, plan.size, target)

    def target_delta(self, problem: Problem, target: Target) -> Any:
        return self.records.target_delta(problem, target)

    @classmethod
    def audit_settings(cls) -> dict[str, Any]:
        return {**super().audit_settings(), "batch": BATCH}
