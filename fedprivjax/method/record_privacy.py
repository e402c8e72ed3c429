"""Privacy of means over machines' own records: a sampler picks the records of each message again in each round.

Every machine of a cohort releases the mean of its records' messages with its own noise, see
`fedprivjax.method.record_mechanism`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Mean, NormBound, Reads
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.own_records import OwnRecords
from fedprivjax.method.release import Limits, MessagePrivacy, Released, RunFacts
from fedprivjax.method.round import Machine, RoundInputs, add_noise, cohort_sum
from fedprivjax.noise import Mechanism
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem


class RecordPrivacy(OwnRecords, MessagePrivacy):
    """Base of the privacy objects of means over machines' own records."""

    weighs_machines = True

    # ---- traced

    def memory(self, start: Any, reads: Reads) -> tuple:
        """Return the memory before the first round: none."""
        self._require_mean(reads)
        return ()

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return the mean of the cohort's messages, with the noise of the mean, [d], or None."""
        bound = self.enforced(limits, private=noise is not None)
        total, info = self.total(problem, of_record(message), inputs, bound)
        divisor = self.divisor(inputs)
        mean = jax.tree.map(lambda g: g / divisor, total)
        return Released(add_noise(problem, mean, noise), memory, {} if self.clip is None else info)

    def total(self, problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any) -> tuple[Any, dict]:
        """Return the sum of the cohort's bounded messages, and scalars of the round, see `cohort_sum`."""
        return cohort_sum(problem, machine, inputs, bound)

    def divisor(self, inputs: RoundInputs) -> Any:
        """Return the divisor of that sum: the number of participants."""
        return jnp.sum(inputs.filled)

    # ---- on the host

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on a message's norm: the clip, or else the stated bound of the machine with the largest."""
        if self.clip is None:
            return stated
        return NormBound(float(self.clip), self.records(None).clipped)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        self._require_mean(facts.reads)
        return self.records(facts.epsilon).gaussian(facts.problem, facts.plan, method)

    def needed_noise(self, facts: RunFacts, target: Target) -> float:
        """Return σ of the noisiest machine."""
        if target.given_noise is None:
            self.require_proved(facts)
        return self.records(facts.epsilon).noise_std(facts.problem, facts.plan.size, target)

    def event(self, facts: RunFacts, noise_std: float) -> RecordEvent:
        """Return the event of a plan's messages."""
        self._require_mean(facts.reads)
        if noise_std:
            self.require_proved(facts)
        return self.records(facts.epsilon).event(facts.problem, facts.plan, noise_std, **self.terms(facts))

    def terms(self, facts: RunFacts) -> dict[str, Any]:
        """Return arguments of `RecordMechanism.event` by name. Default: those of messages with their senders."""
        return {}

    def require_proved(self, facts: RunFacts) -> None:
        """Raise Refusal unless a theorem covers what the server reads, and a bound the messages."""
        self._require_mean(facts.reads)
        if self.clip is None and not facts.plain:
            raise Refusal(
                f"clip must be set, because a message is a combination of gradients, whose norm the Lipschitz "
                f"constants do not bound, got None. Set clip in {type(self).__name__}"
            )

    def _require_mean(self, reads: Reads) -> None:
        """Raise Refusal unless the server reads means."""
        if type(reads) is not Mean:
            raise Refusal(
                f"reads must be Mean() with {type(self).__name__}, because no theorem covers its noise of running sums "
                f"over reused records, got {reads}. Use NoisyMessages"
            )
