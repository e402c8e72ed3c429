"""Base of methods whose machines send noisy messages of fresh samples."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Undefined
from fedprivjax.checks.values import require_at_least
from fedprivjax.method.gaussian_method import GaussianMethod
from fedprivjax.method.message_noise import MessageNoise
from fedprivjax.method.round import RoundInputs, cohort_messages
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import OnePassPool
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class MessageMethod(GaussianMethod):
    """A method that uses each sample in one message, whose noise and guarantee follow from its `message_noise`.

    A subclass defines `init`, `round`, `output`, `query`, `machine`, `message_noise` and `theorem`.
    """

    batch: int = struct.field(pytree_node=False, default=1)

    def __post_init__(self):
        super().__post_init__()
        require_at_least("batch", self.batch, 1)

    @property
    def message_noise(self) -> MessageNoise:
        """Noise of the messages."""
        return MessageNoise(self.trust, self.relative_privacy)

    @property
    def minibatches(self) -> OnePassPool | None:
        return OnePassPool(self.batch) if self.batch > 1 else None

    def machine(self, state: Any, t: Any) -> Any:
        """Message of one machine before clipping and noise, as a function of its gradient oracle."""
        raise Undefined(f"{self.name} must define machine(state, t)")

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key):
        machine = self.machine(state, inputs.round.astype(jnp.float32))
        return cohort_messages(problem, machine, inputs, self.clip)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.message_noise.mechanism(plan, problem.dimension, method)

    def sensitivity(self, problem: Problem, plan: Plan) -> float:
        return 2 * self.bound(problem) / self.batch / (plan.schedule.divisor if self.trust == "server" else 1)

    def exposure(self, problem: Problem, plan: Plan) -> Grouped:
        return self.message_noise.exposure(plan)

    def released_noise(self, problem: Problem, plan: Plan, machine: int) -> np.ndarray:
        return self.message_noise.releases(plan, machine)

    def theorem(self, size: Size) -> str:
        """Source of the guarantee."""
        raise Undefined(f"{self.name} must define theorem(size)")

    def terms(self, problem: Problem, plan: Plan) -> Terms:
        batches = (Assumption("fresh batches", {"batch": int(self.batch)}),) if self.batch > 1 else ()
        assumptions = (*USED_ONCE, *self.bound_assumptions(problem), *batches)
        return Terms(self.trust, self.theorem(plan.size), assumptions)

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        return gaussian_rule(target, self.sensitivity(problem, plan))
