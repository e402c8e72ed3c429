"""Noise on means over machines' own records, with or without a shuffler of a round's messages."""

from typing import Any, final

import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice
from fedprivjax.method.machine_kinds import MachineTable
from fedprivjax.method.pairwise_noise import TakesPairwise, assuming_pairs, require_pairwise, sent_by
from fedprivjax.method.record_privacy import RecordPrivacy
from fedprivjax.method.release import RunFacts
from fedprivjax.noise import Mechanism
from fedprivjax.noise.factors.interface import INDEPENDENT
from fedprivjax.noise.pairwise import Pairwise, as_pairwise
from fedprivjax.plan.samplers import Poisson, Replacement, Sampler, Subset
from fedprivjax.privacy.accountants.records import Shuffled
from fedprivjax.privacy.accountants.shuffled import shuffled_noise_multiplier
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.views import SentNoise

SHUFFLED = (
    "Feldman, McMillan & Talwar 2021, Theorem 3.2 (clones), with the tails of Gaussian messages; sampling from a "
    "machine's records"
)


@final
@struct.dataclass(kw_only=True)
class NoisyRecords(TakesPairwise, RecordPrivacy):
    """Gaussian noise on each machine's message, a mean over a sample of its records; it protects one record.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, the noise and
            the guarantee of machine i rely on L_i, the problem's Lipschitz constant for this machine. Messages are then
            clipped only to the largest of all L_i, which does not enforce a smaller L_i. With a `clip`, the guarantee
            needs no assumption on the loss.
        batch: K, number of records in a message: one number for all machines, or one for each machine. It is None for a
            sampler without K, such as "full". It is also None for a `Sampler` object.
        sampler: sampler of the records of a message: a name of `fedprivjax list samplers`, or a `Sampler` object.
        rate: public probability with which a message uses each record, for sampler = "poisson" only. The sum of the
            used records' messages is still divided by K. None stands for K divided by the machine's number of records.
        relation: neighbouring relation, "replace-one" (default) or "add-or-remove-one". "add-or-remove-one" needs
            Poisson samples of a public `rate`.
        noise_rule: rule that computes the noise from ε. "accountant" is the smallest noise by exact accounting.
            "advanced" is a theorem of Lowy & Razaviyayn 2023, valid but conservative. A `PaperMoments` object is the
            formula of that paper's experiments, for reproductions only. The ε that the formula claims is invalid, and
            results state a valid ε. If `noise_std` is given, the rule only determines the ratios between machines'
            noises.
        delta: δ of every machine, or one number for each machine, at most the run's δ. "records" stands for 1/n_i² for
            a machine with n_i records. Default: the run's δ.
        relative_privacy: one number for each machine, proportional to the machine's target ε. The machine with the
            largest number has the target ε. None gives all machines the target ε.
        trust: "none" if each machine trusts no one else. "shuffler" if a trusted shuffler hides who sent which message
            of a round. With a shuffler, `batch` must be 1.
        noise: "independent", or a `Pairwise`.

    **Privacy**: (ε_i, δ_i)-DP of all messages of machine i for one of its records, under the neighbouring relation
    `relation`. With a shuffler, the guarantee is for all shuffled messages together, for replacing one record of one
    machine.

    Raises:
        Refusal: if a setting is invalid, or no theorem covers the settings.

    >>> from fedprivjax import Protocol
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> privacy = NoisyRecords(clip=1.0, batch=10, sampler="poisson")
    >>> print(Protocol(SGD(), privacy=privacy, epsilon=2.0, step_size=0.1).privacy)
    NoisyRecords(clip = 1, batch = 10, sampler = poisson)
    """

    noise: Any = host_only(INDEPENDENT)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "noise", as_pairwise(self.noise))
        if isinstance(self.noise, Pairwise):
            rule = None if self.noise_rule == "accountant" else self.noise_rule
            require_pairwise(self.noise, self.trust, relative_privacy=self.relative_privacy, noise_rule=rule)
        elif self.noise != INDEPENDENT:
            raise Refusal(
                f"noise must be {INDEPENDENT!r} or a Pairwise with NoisyRecords, got {called(self.noise)}. Use "
                f'Pairwise("ring"), in a file {{ kind = "pairwise", graph = "ring" }}'
            )
        require_choice("trust", self.trust, ("none", "shuffler"))
        if self.trust == "shuffler":
            require_shuffled(self.minibatches, self.noise_rule)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        if not self.shares_noise:
            return super().mechanism(facts, method)
        self._require_mean(facts.reads)
        schedule = facts.plan.schedule
        relative = self.records(facts.epsilon).message_noise(facts.problem, facts.plan)
        return self.noise.mechanism(schedule, relative, schedule.present.sum(axis=1), method)

    def event(self, facts: RunFacts, noise_std: float) -> Event:
        return assuming_pairs(super().event(facts, noise_std), self.noise)

    def needed_noise(self, facts: RunFacts, target: Target) -> float | None:
        if self.shares_noise:
            return None
        if self.trust == "none":
            return super().needed_noise(facts, target)
        self.require_proved(facts)
        m, size = require_identical(self.records(facts.epsilon).checked(facts.problem, target)), facts.plan.size
        sizes = {"records": int(m.records[0]), "per_round": size.per_round, "rounds": size.rounds}
        z = shuffled_noise_multiplier(float(m.epsilon[0]), delta=float(m.delta[0]), **sizes)
        return float(m.lipschitz[0]) * z

    def sent_noise(self, facts: RunFacts) -> SentNoise | None:
        if self.trust != "none":
            return None
        relative = self.records(facts.epsilon).relative(facts.problem, facts.plan.size.rounds)
        return sent_by(self.noise, relative, facts.plan.schedule, once=True)

    def terms(self, facts: RunFacts) -> dict[str, Any]:
        """Return the trust model, its theorem and its accountant, as keyword arguments of `RecordMechanism.event`.

        It returns no arguments with trust = "none", for which these are the defaults.
        """
        if self.trust == "none":
            return super().terms(facts)
        require_identical(self.records(facts.epsilon).kinds(facts.problem))
        if facts.plan.schedule.varies:
            raise Refusal(
                "participation must have a fixed number of machines per round with a shuffler: fewer messages give a "
                "record less privacy"
            )
        if not facts.plan.secret:
            raise Refusal("samples must be secret with a shuffler")
        return {"trust": self.trust, "theorem": SHUFFLED, "accountant": Shuffled(facts.plan.size.per_round)}


def require_identical(machines: MachineTable) -> MachineTable:
    """Return the constants of the machines. Raise Refusal if machines differ."""
    for name, values in machines._asdict().items():
        distinct = np.unique(values, equal_nan=True)
        if distinct.size > 1:
            raise Refusal(f"{name} must be equal on all machines with a shuffler, got {distinct[:3]}")
    return machines


def require_shuffled(sampler: Sampler, noise_rule: Any) -> None:
    """Raise Refusal unless a shuffler's theorem covers a sampler and a noise rule."""
    if sampler.batch == 1 and sampler.secret and type(sampler) not in (Subset, Replacement, Poisson):
        raise Refusal(
            f"sampler must be 'subset' or 'replacement' with a shuffler, whose theorem is for records that are equally "
            f"likely, got {sampler}"
        )
    if sampler.batch != 1 or not sampler.secret or sampler.independent:
        raise Refusal(f"batch must be 1 with a shuffler, resampled in each round, got {sampler.batch} {sampler.name}")
    if noise_rule != "accountant":
        raise Refusal(f"noise_rule must be 'accountant' with a shuffler, got {noise_rule!r}")
