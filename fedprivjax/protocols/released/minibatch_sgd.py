"""Noisy minibatch SGD of Lowy & Razaviyayn's released code."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import At
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSettings, MinibatchSGD, MinibatchState
from fedprivjax.protocols.released.records import ReleasedRecords
from fedprivjax.protocols.released.rules import ReleasedRules, released


@struct.dataclass(kw_only=True)
class SummedSGD(MinibatchSGD):
    """Minibatch SGD whose server reads the sum of a round's messages, so that its steps are M times as long."""

    def serve(self, server: MinibatchState, read: Any, at: At) -> MinibatchState:
        longer = replace(self, strong_convexity=self.strong_convexity * at.cohort)
        return super(SummedSGD, longer).serve(server, read, at)


@struct.dataclass(kw_only=True)
class ReleasedMinibatchSGD(ReleasedRules, MinibatchSettings, RecordSettings, Protocol):  # type: ignore[misc]
    """Minibatch SGD of Lowy & Razaviyayn's released code.

    Attributes:
        noise_rule: also "paper_moments", whose claimed ε does not hold; results report a valid ε.
        acknowledged: True to accept the noise rule "paper_moments"; required by it.
        claimed_records: n in the noise rule "paper_moments"; None is the machine's number of records.
        aggregate: aggregate of the messages, a key of `fedprivjax.protocols.released.records.AGGREGATES`.
        clip_at: clipped quantity, a key of `fedprivjax.protocols.released.records.CLIPPED`.
        epsilon, noise_std, step_size, step_scale, clip, strong_convexity, batch, sampler, rate, relation, delta: as in
            `NoisyMinibatchSGD`.
        relative_privacy, trust, window, server: as in `NoisyMinibatchSGD`.
    """

    batch: int | Sequence[int] | None = host_only(None, traced=1)
    sampler: str | Sampler = host_only("subset", traced="replacement")
    aggregate: str = struct.field(pytree_node=False, default="mean")
    clip_at: str = struct.field(pytree_node=False, default="record")

    theory = released(MinibatchSettings.theory)

    def __post_init__(self):
        super().__post_init__()
        if self.clip_at != "record" and self.clip is None and self.epsilon is not None and self.epsilon != inf:
            raise Refusal(f"clip must be given for clip_at {self.clip_at!r}")

    @property
    def algorithm(self) -> MinibatchSGD:
        """Projected SGD along the mean or the sum of the messages."""
        kind = SummedSGD if self.aggregate == "sum" else MinibatchSGD
        return kind(strong_convexity=self.strong_convexity, window=self.window, server=self.server)

    @property
    def privacy(self) -> ReleasedRecords:  # type: ignore[override]
        """Noise on the messages of the released code."""
        return ReleasedRecords(**self._shared, clip_at=self.clip_at, aggregate=self.aggregate)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        messages = size.per_round if self.clip_at != "record" else 0
        return max(messages, self.rounds.vectors_in_memory(problem, size, rows))
