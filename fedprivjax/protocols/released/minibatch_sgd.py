"""Noisy minibatch SGD of Lowy & Razaviyayn's released code."""

from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.algorithm import At, Public
from fedprivjax.method.minibatch_round import gradient_at
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_method import RecordMethod
from fedprivjax.method.round import RoundInputs, add_noise, cohort_sum
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSettings, MinibatchState
from fedprivjax.protocols.released.records import AGGREGATES, CLIPPED, UnboundedRecords, released_messages
from fedprivjax.protocols.released.rules import ReleasedRules


@struct.dataclass(kw_only=True)
class ReleasedMinibatchSGD(ReleasedRules, MinibatchSettings, RecordMethod):  # type: ignore[misc]
    """Minibatch SGD of Lowy & Razaviyayn's released code.

    Attributes:
        noise_rule: also "paper_moments", whose claimed ε does not hold; results report a valid ε.
        acknowledged: True to accept the noise rule "paper_moments"; required by it.
        claimed_records: n in the noise rule "paper_moments"; None is the machine's number of records.
        aggregate: aggregate of the messages, see `AGGREGATES`.
        clip_at: clipped quantity, see `CLIPPED`.
        epsilon, noise_std, step_size, step_scale, clip, strong_convexity, batch, sampler, rate, relation, delta: as in
            `NoisyMinibatchSGD`.
        relative_privacy, trust, window, server: as in `NoisyMinibatchSGD`.
    """

    aggregate: str = struct.field(pytree_node=False, default="mean")
    clip_at: str = struct.field(pytree_node=False, default="record")

    plain: ClassVar = {
        **MinibatchSettings.plain,
        "acknowledged": False,
        "claimed_records": None,
        "batch": 1,
        "sampler": "replacement",
    }

    def __post_init__(self):
        require_choice("trust", self.trust, ("none",))
        super().__post_init__()
        require_choice("aggregate", self.aggregate, AGGREGATES)
        require_choice("clip_at", self.clip_at, CLIPPED)
        if self.clip_at != "record" and self.clip is None and self.epsilon is not None and self.epsilon != inf:
            raise Refusal(f"clip must be given for clip_at {self.clip_at!r}")
        sampler = as_sampler(self.sampler, self.batch, self.rate)
        if self.clip_at == "other" and not (sampler.repeats and isinstance(sampler.batch, int | None)):
            raise Refusal("clip_at 'other' must go with the sampler 'replacement' and one batch for all machines")

    @property
    def minibatches(self) -> Sampler:
        sampler = as_sampler(self.sampler, self.batch, self.rate)
        return sampler.with_batch(2 * sampler.batch) if self.clip_at == "other" else sampler  # type: ignore[operator]

    @property
    def records(self) -> RecordMechanism:
        whole_message = self.clip_at == "message" and self.clip is not None
        sampler = as_sampler(self.sampler, self.batch, self.rate)
        used = replace(super().records, sampler=sampler, whole_message=whole_message)
        return UnboundedRecords(**vars(used)) if self.clip_at == "other" else used

    def init(self, problem: Problem, size: Size, key) -> MinibatchState:
        return self.algorithm.init(Public.of(problem, size.machines), self.step_scale * self.step_size)

    def round(self, problem: Problem, state: MinibatchState, inputs: RoundInputs, noise, key):
        g, info = self.direction(problem, state, inputs, noise)
        messages = self.messages_a_step(jnp.sum(inputs.present))
        algorithm = replace(self.algorithm, strong_convexity=self.strong_convexity * messages)
        step = self.step_scale * self.step_size
        at = At(inputs.round, step, problem.constraint.project, problem.start, key)
        return algorithm.serve(state, g, at), info

    def query(self, state: MinibatchState) -> Any:
        """The point at which machines compute gradients."""
        return state.w

    def output(self, state: MinibatchState) -> Any:
        return self.algorithm.point(state)

    def iterates(self, state: MinibatchState) -> dict[str, Any]:
        return self.algorithm.iterates(state)

    def direction(self, problem: Problem, state: MinibatchState, inputs: RoundInputs, noise) -> tuple[Any, dict]:
        if self.clip_at == "record" or self.clip is None:
            total, info = cohort_sum(problem, gradient_at(state.w), inputs, self.clip)
        else:
            rows = released_messages(problem, state.w, inputs, self.clip_at, self.clip)
            total, info = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), rows), {}
        count = jnp.sum(inputs.present) if self.aggregate == "mean" else 1.0
        return add_noise(problem, jax.tree.map(lambda g: g / count, total), noise), info

    def messages(self, problem: Problem, state: MinibatchState, inputs: RoundInputs, noise, key):
        return released_messages(problem, state.w, inputs, self.clip_at, self.clip)

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.records.gaussian(problem, plan, method, summed=self.aggregate == "sum")

    def check(self, problem: Problem, plan: Plan) -> None:
        if problem.machine_weights is not None and self.clip_at != "record":
            raise Refusal(f"machine_weights must go with clip_at 'record', got {self.clip_at!r}")

    def messages_a_step(self, messages):
        return messages if self.aggregate == "sum" else 1.0

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        messages = size.per_round if self.clip_at != "record" else 0
        return max(messages, super().vectors_in_memory(problem, size, rows))
