"""Privacy of means over machines' own records: a sampler picks the records of each message again in each round.

Every machine of a cohort releases the mean of its records' messages with its own noise, see
`fedprivjax.method.record_mechanism`.
"""

from typing import Any

from fedprivjax.method.algorithm import NormBound
from fedprivjax.method.own_records import OwnRecords
from fedprivjax.method.release import MessagePrivacy, RunFacts
from fedprivjax.noise import Mechanism
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import Target


class RecordPrivacy(OwnRecords, MessagePrivacy):
    """Base of the privacy objects of means over machines' own records."""

    weighs_machines = True

    why_means = ", because no theorem covers its noise of running sums over reused records"

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on a message's norm: the clip, or else the stated bound of the machine with the largest."""
        if self.clip is None:
            return stated
        return NormBound(float(self.clip), self.records(None).clipped)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        self._require_mean(facts.reads)
        return self.records(facts.epsilon).gaussian(facts.problem, facts.plan, method)

    def needed_noise(self, facts: RunFacts, target: Target) -> float | None:
        """Return σ of the noisiest machine."""
        if target.given_noise is None:
            self.require_proved(facts)
        return self.records(facts.epsilon).noise_std(facts.problem, facts.plan.size, target)

    def event(self, facts: RunFacts, noise_std: float) -> Event:
        """Return the event of a plan's messages."""
        self._require_mean(facts.reads)
        if noise_std:
            self.require_proved(facts)
        return self.records(facts.epsilon).event(facts.problem, facts.plan, noise_std, **self.terms(facts))

    def messages_a_step(self, messages: float) -> float:
        """Return the length of what the server reads of this number of messages, in units of one. Default: 1."""
        return 1.0

    def terms(self, facts: RunFacts) -> dict[str, Any]:
        """Return arguments of `RecordMechanism.event` by name. Default: those of messages with their senders."""
        return {}

    def require_proved(self, facts: RunFacts) -> None:
        """Raise Refusal unless a theorem covers what the server reads, and a bound the messages."""
        self._require_mean(facts.reads)
        if not facts.plain:
            self.require_own_clip()
