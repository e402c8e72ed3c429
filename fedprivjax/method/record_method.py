"""Base of methods whose messages are noisy means, or noisy local steps, over a machine's own records."""

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.composed import Composed
from fedprivjax.method.interface import BATCH, scaled_rate
from fedprivjax.method.minibatch_round import record_messages
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.record_mechanism import THEOREM_RULES, Delta, RecordMechanism
from fedprivjax.method.record_privacy import (
    RecordPrivacy,
    check_machine_targets,
    check_record_settings,
    targeted_settings,
)
from fedprivjax.method.relative_privacy import SharedTarget, privacy_shares, shared_privacy
from fedprivjax.method.round import RoundInputs
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import REPLACE_ONE
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class RecordSettings:
    """Settings of methods that protect records of machines, with one ε for all machines or one for each.

    `NoisyMinibatchSGD` documents the fields.

    Attributes:
        rules: noise rules of the method.
    """

    clip: Any = None
    relative_privacy: Sequence[float] | None = struct.field(pytree_node=False, default=None)
    batch: int | Sequence[int] | None = struct.field(pytree_node=False, default=None)
    sampler: str | Sampler = struct.field(pytree_node=False, default="subset")
    rate: float | None = struct.field(pytree_node=False, default=None)
    relation: str = struct.field(pytree_node=False, default=REPLACE_ONE)
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    delta: Delta = struct.field(pytree_node=False, default=None)

    rules: ClassVar[Collection[str]] = THEOREM_RULES
    plain: ClassVar[dict[str, Any]] = {
        "relative_privacy": None,
        "epsilon": None,
        "batch": None,
        "sampler": "full",
        "rate": None,
        "relation": REPLACE_ONE,
        "noise_rule": "accountant",
        "delta": None,
    }

    if TYPE_CHECKING:
        trust: Any = None
        epsilon: Any = None

    def __post_init__(self):
        check_record_settings(self, self.rules)
        ratios = shared_privacy(self.relative_privacy, self.trust)
        object.__setattr__(self, "relative_privacy", ratios)
        check_machine_targets(self, ratios)

    def scaled_down(self, machines: int):
        """Scale down as in `Protocol.scaled_down`, with a public rate at which a few records are used."""
        return replace(super().scaled_down(machines), rate=scaled_rate(self.rate))  # type: ignore[misc]

    @classmethod
    def audit_settings(cls) -> dict[str, Any]:
        return {**super().audit_settings(), "batch": BATCH}  # type: ignore[misc]

    @classmethod
    def example_settings(cls) -> tuple[dict[str, Any], ...]:
        settings = cls.audit_settings()
        return settings, {**settings, "batch": 1}, {**settings, "batch": None, "sampler": "full"}


@struct.dataclass(kw_only=True)
class ComposedRecords(RecordSettings, Composed):  # type: ignore[misc]
    """Settings of a method that composes its algorithm with noise on means over machines' own records."""

    def __post_init__(self):
        super().__post_init__()
        _ = self.privacy  # raises Refusal if no theorem covers the settings

    @property
    def privacy(self) -> RecordPrivacy:
        """Noise on means over machines' own records."""
        return NoisyRecords(**self._shared)

    @property
    def _shared(self) -> dict[str, Any]:
        """Settings of the privacy object by name."""
        return {one.name: getattr(self, one.name) for one in fields(RecordPrivacy)}

    @property
    def records(self) -> RecordMechanism:
        """Mechanism of the records: their use in messages, and the noise of messages."""
        return self.privacy.records(self.machine_epsilon)


@struct.dataclass(kw_only=True)
class RecordMethod(RecordSettings, SharedTarget):
    """A method whose noise and guarantee follow from its `records`, with one ε for all machines or one for each."""

    weighs_machines = True

    def __post_init__(self):
        super().__post_init__()
        if self.relation != REPLACE_ONE:
            _ = self.records  # raises Refusal if records cannot be added or removed

    @property
    def minibatches(self) -> Sampler:
        return as_sampler(self.sampler, self.batch, self.rate)

    @property
    def records(self) -> RecordMechanism:
        """Mechanism of the records: their use in messages, and the noise of messages."""
        epsilons = self.epsilon if np.ndim(self.epsilon) else None
        settings = self.minibatches, self.clip, self.noise_rule, epsilons, self.delta
        return RecordMechanism(*settings, relation=self.relation)

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise, key):
        return record_messages(problem, self.query(state), inputs, self.clip)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.records.gaussian(problem, plan, method)

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.records.event(problem, plan, self.noise_std)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Calibrate as in `Protocol.calibrate`, with δ and, instead of `relative_privacy`, each machine's ε."""
        privacy_shares(self.relative_privacy, plan.size.machines)  # raises Refusal if the number of ratios is wrong
        targeted = replace(self, **targeted_settings(target, self.epsilon, self.delta))
        return targeted.with_noise(problem, plan, targeted.noise_for(problem, plan, target), target)

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """σ of the noisiest machine."""
        return self.records.noise_std(problem, plan.size, target)

    def target_delta(self, problem: Problem, target: Target) -> Any:
        return self.records.target_delta(problem, target)

    def with_relation(self, relation: str):
        """Return the copy of `Protocol.with_relation`. Refused for an ε of each machine, which sets its noise."""
        if np.ndim(self.epsilon) and relation != self.relation:
            raise Refusal(f"relation must stay {self.relation!r} with an ε of each machine, got {relation!r}")
        return super().with_relation(relation)
