"""Privacy of means over machines' own records: a sampler picks the records of each message again in each round.

Every machine of a cohort releases the mean of its records' bounded messages with its own noise, see
`fedprivjax.method.record_mechanism`. With a shuffler, a round's messages are seen without their senders.
"""

from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_choice, require_positive
from fedprivjax.method.algorithm import Mean, NormBound, Reads
from fedprivjax.method.interface import scaled_rate, scaled_ratios
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.record_mechanism import (
    PER_MACHINE,
    SHUFFLED,
    THEOREM_RULES,
    Delta,
    MachineTable,
    RecordMechanism,
)
from fedprivjax.method.relative_privacy import privacy_shares, shared_privacy
from fedprivjax.method.release import Limits, MessagePrivacy, Released, RunFacts, refuse_subclass
from fedprivjax.method.round import RoundInputs, add_noise, cohort_sum
from fedprivjax.method.settings import check_noise, check_steps, require_clip
from fedprivjax.noise import Mechanism
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.privacy.accountants.records import Shuffled
from fedprivjax.privacy.accountants.shuffled import shuffled_noise_multiplier
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.privacy.terms import RELATIONS, REPLACE_ONE
from fedprivjax.problem.problem import Problem


@final
@struct.dataclass(kw_only=True)
class NoisyRecords(MessagePrivacy):
    """Noise on means over machines' own records, which protects one record of one machine.

    Attributes:
        clip: C, bound that is enforced on the norm of every record's message. None enforces the largest Lipschitz
            constant that the loss states, and relies on each machine's; a combination of gradients needs a clip.
        batch, sampler, rate: as in `NoisyMinibatchSGD`.
        relation: neighbouring relation, a key of `fedprivjax.privacy.terms.RELATIONS`. "add-or-remove-one" needs
            Poisson samples of a public `rate`.
        noise_rule: rule that computes the noise from ε, see `fedprivjax.privacy.noise_rules`.
        delta: δ of every machine, or one for each, at most the run's; "records" is 1/n_i²; None is the run's.
        relative_privacy: relative ε of the machines, one number each: the largest corresponds to the target. Each
            machine gets exactly the noise that it needs. Default: equal.
        trust: "none", or "shuffler" for messages of one record each that are seen without their senders.

    **Privacy**: (ε_i, δ_i)-DP of machine i's transcript for replacing one of its records, or for adding or removing
    one; with a shuffler, of all shuffled messages for replacing one record of one machine.

    Raises:
        Refusal: a setting is invalid, or no theorem covers the settings.

    >>> from fedprivjax import Protocol
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> privacy = NoisyRecords(clip=1.0, batch=10, sampler="poisson")
    >>> print(Protocol(SGD(), privacy=privacy, epsilon=2.0, step_size=0.1).privacy)
    NoisyRecords(clip = 1, batch = 10, sampler = poisson)
    """

    clip: Any = None
    batch: int | Sequence[int] | None = struct.field(pytree_node=False, default=None)
    sampler: str | Sampler = struct.field(pytree_node=False, default="subset")
    rate: float | None = struct.field(pytree_node=False, default=None)
    relation: str = struct.field(pytree_node=False, default=REPLACE_ONE)
    noise_rule: str = struct.field(pytree_node=False, default="accountant")
    delta: Delta = struct.field(pytree_node=False, default=None)
    relative_privacy: Sequence[float] | None = struct.field(pytree_node=False, default=None)
    trust: str = struct.field(pytree_node=False, default="none")

    weighs_machines = True

    def __init_subclass__(cls, **_):
        refuse_subclass("NoisyRecords", cls)

    def __post_init__(self):
        require_clip("clip", self.clip)
        check_record_settings(self, THEOREM_RULES)
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))
        require_choice("trust", self.trust, ("none", "shuffler"))
        if self.relation != REPLACE_ONE:
            _ = self.records(None)  # raises Refusal if records cannot be added or removed
        if self.trust == "shuffler":
            require_shuffled(self.minibatches, self.noise_rule)

    # ---- traced

    def memory(self, start: Any, reads: Reads) -> tuple:
        """Return the memory before the first round: none."""
        _require_mean(reads)
        return ()

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits
    ) -> Released:
        """Return the mean of the cohort's messages, with the noise of the mean, [d], or None."""
        bound = self.enforced(limits, private=noise is not None)
        total, info = cohort_sum(problem, of_record(message), inputs, bound)
        count = jnp.sum(inputs.filled)
        mean = jax.tree.map(lambda g: g / count, total)
        return Released(add_noise(problem, mean, noise), memory, {} if self.clip is None else info)

    # ---- on the host

    @property
    def minibatches(self) -> Sampler:
        """Sampler of the records of a message."""
        return as_sampler(self.sampler, self.batch, self.rate)

    @property
    def traced(self) -> "NoisyRecords":
        """Copy without the settings that only the host reads."""
        return NoisyRecords(clip=self.clip, sampler="full")

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

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on a message's norm: the clip, or else the stated bound of the machine with the largest."""
        if self.clip is None:
            return stated
        return NormBound(float(self.clip), self.records(None).clipped)

    def records(self, epsilon: tuple[float, ...] | None) -> RecordMechanism:
        """Return the mechanism of the records.

        Args:
            epsilon: target of each machine if they differ, else None.
        """
        settings = self.minibatches, self.clip, self.noise_rule, epsilon, self.delta
        return RecordMechanism(*settings, relation=self.relation)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        _require_mean(facts.reads)
        return self.records(facts.epsilon).gaussian(facts.problem, facts.plan, method)

    def needed_noise(self, facts: RunFacts, target: Target) -> float:
        """Return σ of the noisiest machine."""
        if target.given_noise is None:
            self._require_proved(facts)
        records, problem, plan = self.records(facts.epsilon), facts.problem, facts.plan
        if self.trust == "none":
            return records.noise_std(problem, plan.size, target)
        m = require_identical(records.checked(problem, target))
        sizes = {"records": int(m.records[0]), "per_round": plan.size.per_round, "rounds": plan.size.rounds}
        z = shuffled_noise_multiplier(float(m.epsilon[0]), delta=float(m.delta[0]), **sizes)
        return float(m.lipschitz[0]) * z

    def event(self, facts: RunFacts, noise_std: float) -> RecordEvent:
        """Return the event of a plan's messages."""
        _require_mean(facts.reads)
        if noise_std:
            self._require_proved(facts)
        records, problem, plan = self.records(facts.epsilon), facts.problem, facts.plan
        if self.trust == "none":
            return records.event(problem, plan, noise_std)
        require_identical(records.kinds(problem))
        if plan.schedule.varies:
            raise Refusal(
                "participation must have a fixed number of machines per round with a shuffler: fewer messages give a "
                "record less privacy"
            )
        if not plan.secret:
            raise Refusal("samples must be secret with a shuffler")
        terms = {"trust": self.trust, "theorem": SHUFFLED, "accountant": Shuffled(plan.size.per_round)}
        return records.event(problem, plan, noise_std, **terms)

    def _require_proved(self, facts: RunFacts) -> None:
        """Raise Refusal unless a theorem covers what the server reads, and a bound the messages."""
        _require_mean(facts.reads)
        if self.clip is None and not facts.plain:
            raise Refusal(
                "clip must be set, because a message is a combination of gradients, whose norm the Lipschitz constants "
                "do not bound, got None. Set clip in NoisyRecords"
            )

    def scaled_down(self, machines: int, batch: int) -> dict[str, Any]:
        """Return the settings that change for an audit with this number of machines and records in a message."""
        return {
            "relative_privacy": scaled_ratios(self.relative_privacy, machines),
            "delta": min(self.delta) if isinstance(self.delta, tuple) else self.delta,
            "batch": None if self.batch is None else min(int(np.max(self.batch)), batch),
            "rate": scaled_rate(self.rate),
        }


def check_record_settings(settings: Any, rules: Any) -> None:
    """Raise Refusal if the settings of a `NoisyRecords`, or of a method with the same ones, are invalid.

    Lists become tuples.
    """
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
    if not isinstance(protocol.epsilon, list | tuple):
        require_positive("epsilon", protocol.epsilon, optional=True, infinite=True)
    elif 0 < np.sum(np.isinf(protocol.epsilon)) < len(protocol.epsilon):
        raise Refusal(f"epsilon must be finite on all machines or on none, got {list(protocol.epsilon)}")
    check_noise(protocol, *LEVELS)
    if isinstance(protocol.epsilon, list):
        object.__setattr__(protocol, "epsilon", tuple(protocol.epsilon))
    if ratios is not None and np.ndim(protocol.epsilon):
        raise Refusal(
            f"give relative_privacy or an epsilon for each machine, not both, got epsilon = {protocol.epsilon}"
        )


def targeted_settings(target: Target, epsilon: Any, delta: Delta) -> dict[str, Any]:
    """Return the settings that a target fixes: each machine's ε instead of `relative_privacy`, and δ.

    Args:
        epsilon, delta: settings of the method. With a given noise, ε is only for proportions.
    """
    epsilon = target.epsilon if target.noise_std is None else epsilon
    each = tuple(np.ravel(epsilon).tolist()) if np.ndim(epsilon) else None
    return {"epsilon": each, "delta": target.delta if delta is None else delta, "relative_privacy": None}


def require_identical(machines: MachineTable) -> MachineTable:
    """Return the constants of the machines. Raise Refusal if machines differ."""
    for name, values in machines._asdict().items():
        distinct = np.unique(values, equal_nan=True)
        if distinct.size > 1:
            raise Refusal(f"{name} must be equal on all machines with a shuffler, got {distinct[:3]}")
    return machines


def require_shuffled(sampler: Sampler, noise_rule: str) -> None:
    """Raise Refusal unless a shuffler's theorem covers a sampler and a noise rule."""
    if sampler.batch != 1 or not sampler.secret or sampler.independent:
        raise Refusal(f"batch must be 1 with a shuffler, resampled in each round, got {sampler.batch} {sampler.name}")
    if noise_rule != "accountant":
        raise Refusal(f"noise_rule must be 'accountant' with a shuffler, got {noise_rule!r}")


def _require_mean(reads: Reads) -> None:
    """Raise Refusal unless the server reads means."""
    if type(reads) is not Mean:
        raise Refusal(
            f"reads must be Mean() with NoisyRecords, because no theorem covers its noise of running sums over reused "
            f"records, got {reads}. Use NoisyMessages"
        )
