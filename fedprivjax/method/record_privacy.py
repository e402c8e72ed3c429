"""Base of privacy objects of machines' own records, and their settings: samples, bound, noise rule and targets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice, require_positive
from fedprivjax.method.addable_records import PER_MACHINE
from fedprivjax.method.algorithm import NormBound, Part
from fedprivjax.method.record_mechanism import Delta, RecordMechanism
from fedprivjax.method.relative_privacy import privacy_shares, shared_privacy
from fedprivjax.method.release import MessagePrivacy, RunFacts
from fedprivjax.method.setting_checks import check_noise, check_steps, require_clip
from fedprivjax.noise import Mechanism
from fedprivjax.plan.samplers import Sampler, as_sampler, require_sampler
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.noise_rules import THEOREM_RULES, PaperMoments
from fedprivjax.privacy.relations import RELATIONS, REPLACE_ONE
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class RecordFields:
    """Settings of privacy objects and of methods on machines' own records. `NoisyMinibatchSGD` documents them."""

    clip: Any = None
    relative_privacy: Sequence[float] | None = host_only(None)
    batch: int | Sequence[int] | None = host_only(None)
    sampler: str | Sampler = host_only("subset", traced="full")
    rate: float | None = host_only(None)
    relation: str = host_only(REPLACE_ONE)
    noise_rule: str = host_only("accountant")
    delta: Delta = host_only(None)


@struct.dataclass(kw_only=True)
class OwnRecords(RecordFields, Part):
    """Settings of privacy objects of machines' own records, and the targets of their machines.

    `NoisyRecords` documents the settings.
    """

    noise_rule: str | PaperMoments = host_only("accountant")  # type: ignore[assignment]
    trust: str = host_only("none")

    def __post_init__(self):
        require_clip("clip", self.clip)
        check_record_settings(self, (self.noise_rule,) if type(self.noise_rule) is PaperMoments else THEOREM_RULES)
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))
        if self.relation != REPLACE_ONE:
            _ = self.records(None)  # raises Refusal if records cannot be added or removed

    @property
    def minibatches(self) -> Sampler:
        """Sampler of the records of a message."""
        return as_sampler(self.sampler, self.batch, self.rate)

    @property
    def noise_follows(self) -> tuple[str, ...]:
        """Targets on which the mechanism depends: each machine's ε, which `relative_privacy` shares out."""
        return () if self.relative_privacy is None else LEVELS

    def check_target(self, protocol: Any) -> None:
        check_machine_targets(protocol, self.relative_privacy)

    def machine_target(self, target: Target) -> Target:
        return target.shared(self.relative_privacy)

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        privacy_shares(self.relative_privacy, machines)  # raises Refusal if the number of ratios is wrong
        return targeted_settings(target, epsilon, self.delta)

    def target_delta(self, problem: Problem, target: Target, epsilon: Any) -> Any:
        return self.records(epsilon).target_delta(problem, target)

    def records(self, epsilon: tuple[float, ...] | None) -> RecordMechanism:
        """Return the mechanism of the records.

        Args:
            epsilon: target of each machine if they differ, else None.
        """
        rule = self.noise_rule
        name, claims = (rule, {}) if isinstance(rule, str) else ("paper_moments", vars(rule))
        settings = self.minibatches, self.clip, name, epsilon, self.delta
        return RecordMechanism(*settings, relation=self.relation, **claims)


def check_record_settings(settings: Any, rules: Any) -> None:
    """Raise Refusal if the settings of a privacy object, or of a method with the same ones, are invalid.

    Lists become tuples.
    """
    require_sampler(settings.sampler, settings.batch)
    require_choice("noise_rule", settings.noise_rule, rules)
    if isinstance(settings.delta, str):
        require_choice("delta", settings.delta, (PER_MACHINE,))
    elif settings.delta is not None:
        for one in np.ravel(settings.delta):
            require_between("delta", one, 0, 1)
    for name in ("batch", "delta"):
        if isinstance(getattr(settings, name), list):
            object.__setattr__(settings, name, tuple(getattr(settings, name)))
    require_choice("relation", settings.relation, RELATIONS)


def check_machine_targets(protocol: Any, ratios: Any) -> None:
    """Raise Refusal if a target, which may be an ε for each machine, a noise or a step is invalid.

    A list of ε becomes a tuple.

    Args:
        ratios: relative privacy of the machines, or None.
    """
    check_steps(protocol)
    require_positive("mu", protocol.mu, optional=True, infinite=True)
    of_machines = isinstance(protocol.epsilon, list | tuple)
    for level in protocol.epsilon if of_machines else [protocol.epsilon]:
        require_positive("epsilon", level, optional=not of_machines, infinite=True)
        if of_machines and (np.ndim(level) or np.asarray(level).dtype == object):
            raise Refusal(f"epsilon must be a list of numbers, one for each machine, got {level!r} in it")
    if of_machines and 0 < np.sum(np.isinf(protocol.epsilon)) < len(protocol.epsilon):
        raise Refusal(f"epsilon must be finite on all machines or on none, got {list(protocol.epsilon)}")
    check_noise(protocol, *LEVELS)
    if isinstance(protocol.epsilon, list):
        object.__setattr__(protocol, "epsilon", tuple(protocol.epsilon))
    if ratios is not None and np.ndim(protocol.epsilon):
        raise Refusal(
            f"relative_privacy or an epsilon for each machine must be given, not both, got epsilon = {protocol.epsilon}"
        )


def targeted_settings(target: Target, epsilon: Any, delta: Delta) -> dict[str, Any]:
    """Return the settings that a target fixes: each machine's ε instead of `relative_privacy`, and δ.

    Args:
        epsilon, delta: settings of the method. With a given noise, ε is only for proportions.
    """
    epsilon = target.epsilon if target.noise_std is None else epsilon
    each = tuple(np.ravel(epsilon).tolist()) if np.ndim(epsilon) else None
    return {"epsilon": each, "delta": target.delta if delta is None else delta, "relative_privacy": None}


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
