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
from fedprivjax.plan.samplers import LocalWork, Replacement, Sampler
from fedprivjax.privacy.record_event import RecordEvent
from fedprivjax.privacy.target import Target

EVERY_STEP = "every local step released (post-processing)"


@final
@struct.dataclass(kw_only=True)
class NoisyRecordSteps(OwnRecords, WorkPrivacy):
    """Gaussian noise in local steps, each on one record; it protects one record without a trusted server.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, the noise and
            the guarantee of machine i rely on L_i, the problem's Lipschitz constant for this machine. Messages are then
            clipped only to the largest of all L_i, which does not enforce a smaller L_i. With a `clip`, the guarantee
            needs no assumption on the loss.
        batch: K, number of local steps in a round. Each step uses one record.
        sampler: "replacement" samples the K records of a round with replacement. "disjoint" uses no record twice in the
            whole run.
        noise_rule: rule that computes the noise from ε, "accountant", "advanced" or "paper_moments", as in
            `NoisyRecords`. Every local step counts as one release.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        relative_privacy: one number for each machine, proportional to the machine's target ε. The machine with the
            largest number has the target ε. The rule computes each machine's noise from its own target. None gives all
            machines the target ε.
        rate: always None.
        relation: always "replace-one".
        trust: always "none": machines add the noise.

    **Privacy**: (ε_i, δ_i)-DP of machine i for replacing one of its records, even against an adversary who sees every
    local step.

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
        if self.work.secret and type(self.work) is not Replacement:
            raise Refusal(
                f"sampler must be 'replacement' or public for local SGD, because the secret records of a round's steps "
                f"must be independent, got {self.work}"
            )

    # ---- at a machine, traced

    @property
    def step_divisor(self) -> int:
        """Divisor of the sum over a local step's records: 1, because a step uses one record."""
        return 1

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array:
        of_round, slot = noise
        return step_noise(of_round, step, dimension)[slot]

    # ---- on the host

    @property
    def work(self) -> Sampler:
        """Sampler of the records of a round's local steps, one record for each step."""
        return self.minibatches

    def records(self, epsilon: tuple[float, ...] | None) -> RecordMechanism:
        return replace(super().records(epsilon), by_step=True)

    def needed_noise(self, facts: WorkFacts, target: Target) -> float:
        """Return the smallest `noise_std` that meets a target.

        `noise_std` is the standard deviation of the noise of the machine with the largest noise.
        """
        return self.records(facts.epsilon).noise_std(facts.problem, facts.plan.size, target)

    def mechanism(self, facts: WorkFacts, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "materialised"))
        relative = self.records(facts.epsilon).message_noise(facts.problem, facts.plan)
        return PerStep(np.asarray(relative, np.float32))

    def event(self, facts: WorkFacts, noise_std: float) -> RecordEvent:
        return self.records(facts.epsilon).event(facts.problem, facts.plan, noise_std, theorem=EVERY_STEP)
