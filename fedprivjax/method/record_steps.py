"""Noise in local steps on single records, which protects one record of one machine.

Every local step of a machine uses one of its own records and has noise of its own. The guarantee is that of the release
of all steps, see `fedprivjax.method.record_mechanism`; whatever else leaves the machine is post-processing.
"""

from dataclasses import replace
from typing import Any, final

import jax
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_privacy import OwnRecords
from fedprivjax.method.work_privacy import WorkFacts, WorkPrivacy
from fedprivjax.noise import Mechanism, PerStep
from fedprivjax.noise.interface import step_noise
from fedprivjax.plan.samplers import LocalWork, Sampler
from fedprivjax.privacy.record_event import RecordEvent
from fedprivjax.privacy.target import Target

EVERY_STEP = "every local step released (post-processing); composed profile of the subsampled Gaussian mechanism"


@final
@struct.dataclass(kw_only=True)
class NoisyRecordSteps(OwnRecords, WorkPrivacy):
    """Gaussian noise in local steps on single records; protects one record of one machine without a trusted server.

    Attributes:
        clip: C, bound that is enforced on the norm of every record's message, as in `NoisyRecords`.
        batch: K, number of local steps in a round, with one record each.
        sampler: sampler of the K records: "replacement", "disjoint", or a `Sampler` of either kind.
        noise_rule, delta, relative_privacy: as in `NoisyRecords`. The rule counts every local step as a release of one
            record, so R·K releases in R rounds.
        rate: always None, because a release uses exactly one record of its machine.
        relation: always "replace-one", for the same reason.
        trust: always "none".

    **Privacy**: (ε_i, δ_i)-DP of machine i for replacing one of its records, even if every local step were released.
    Messages are post-processing of the steps.

    Raises:
        Refusal: if a setting is invalid.
    """

    sampler: str | Sampler = host_only("replacement")

    noise_together = noisy_steps = True

    def __post_init__(self):
        super().__post_init__()
        require_choice("trust", self.trust, ("none",))
        if np.ndim(self.batch):  # type: ignore[arg-type]
            raise Refusal("batch must be one number for local SGD: all machines take the same number of steps")
        if isinstance(self.work, LocalWork) or not (self.work.repeats or self.work.one_pass):
            raise Refusal(f"sampler must be 'replacement' or 'disjoint' for local SGD, got {self.work.name!r}")

    # ---- at a machine, traced

    @property
    def step_divisor(self) -> int:
        """Divisor of a step's sum: 1, the number of its records."""
        return 1

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array:
        of_round, slot = noise
        return step_noise(of_round, step, dimension)[slot]

    # ---- on the host

    @property
    def work(self) -> Sampler:
        """Sampler of the records of the local steps."""
        return self.minibatches

    def records(self, epsilon: tuple[float, ...] | None) -> RecordMechanism:
        return replace(super().records(epsilon), by_step=True)

    def needed_noise(self, facts: WorkFacts, target: Target) -> float:
        """Return σ of the noisiest machine."""
        return self.records(facts.epsilon).noise_std(facts.problem, facts.plan.size, target)

    def mechanism(self, facts: WorkFacts, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "materialised"))
        relative = self.records(facts.epsilon).message_noise(facts.problem, facts.plan)
        return PerStep(np.asarray(relative, np.float32))

    def event(self, facts: WorkFacts, noise_std: float) -> RecordEvent:
        return self.records(facts.epsilon).event(facts.problem, facts.plan, noise_std, theorem=EVERY_STEP)
