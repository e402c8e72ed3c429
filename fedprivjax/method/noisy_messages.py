"""Privacy of messages of fresh samples: each record is used in one message, which is bounded and noised.

Everything that reaches the algorithm passes `release`. The un-noised sums of rounds stay in this object's memory.
"""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.method.algorithm import Growing, Mean, NormBound, Reads, Sum
from fedprivjax.method.clipping import clip
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.message_noise import CancelledNoise, CorrelatedNoise, GrowingNoise, MessageNoise, SharedNoise
from fedprivjax.method.pairwise_noise import TakesPairwise, assuming_pairs, require_pairwise, sent_by
from fedprivjax.method.relative_privacy import privacy_shares, relative_noise, shared_privacy
from fedprivjax.method.release import Limits, MessagePrivacy, Released, RunFacts
from fedprivjax.method.round import RoundInputs, add_noise, cohort_sum, message_of, oracle
from fedprivjax.method.setting_checks import fixed_schedule, require_clip
from fedprivjax.noise import NOISE_SCHEDULES, Mechanism
from fedprivjax.noise.message_factors import SUM_FACTORS, SumFactor
from fedprivjax.noise.pairwise import Pairwise, as_pairwise
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import OnePassPool
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.calibration import gaussian_rule
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import USED_ONCE, Assumption, Terms
from fedprivjax.privacy.views import SentNoise
from fedprivjax.problem.problem import Problem

INDEPENDENT = "independent"
ONE_MESSAGE = "the Gaussian mechanism, parallel composition over records"
COMPOSED = "adaptive composition of Gaussian mechanisms"
GROWN = "stale momentum with growing weights; adaptive composition of Gaussian mechanisms (derived here)"
FACTORED = "one Gaussian mechanism on a factor of the running sums"


class Memory(NamedTuple):
    """State of the privacy object, which no algorithm sees.

    Attributes:
        q: un-noised running sum q_t, or () if the server reads means.
        noise: last noise of a sum, or () if the noise is independent.
    """

    q: Any = ()
    noise: Any = ()


@final
@struct.dataclass(kw_only=True)
class NoisyMessages(TakesPairwise, MessagePrivacy):
    """Gaussian noise on messages whose records are used only once; protects one record of one machine.

    Attributes:
        clip: C, bound that is enforced on the norm of every record's message. None enforces the bound that the loss, or
            the algorithm, states.
        trust: "none" if every machine adds noise to its messages, "server" if the server adds noise to the mean.
        noise: "independent" for fresh noise on every message. Other values depend on what the server reads. If it reads
            a running sum (`Sum()`), a machine may cancel the noise of its last message. Values are then "uniform",
            "gap" or a list of standard deviations over its messages, see `fedprivjax.noise.chooser`, or a factor, see
            `fedprivjax.noise.message_factors`. If it reads means, a `Pairwise` adds noise that machines share to
            independent noise. If it reads `Growing()`, the noise is independent, and `noise` is "uniform" or a list of
            standard deviations over a machine's messages.
        relative_privacy: relative μ of the machines, one number each. The largest corresponds to the target. Default:
            equal. Only for an untrusted server.
        batch: K, number of fresh records in a message, the mean of what each record would send. Each is bounded
            separately.

    **Privacy**: μ-GDP per machine for replacing one of its records, against the adversary of `trust`. Replacing a
    record moves its one message by at most 2C/K. With a trusted server, it moves the mean of m messages by at most
    2C/(K·m). In a growing sum, a record is also in all later messages of its machine, with the factors that `Growing`
    states.

    Raises:
        Refusal: if a setting is invalid.

    >>> from fedprivjax import Ball, Full, Protocol, datasets, from_dataset, ready
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> start = ready(Protocol(SGD(), privacy=NoisyMessages(clip=1.6), mu=2.0), problem, Full(20))
    >>> round(float(start.protocol.noise_std), 3)  # 2·C/μ
    1.6
    """

    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    noise: Any = struct.field(pytree_node=False, default=INDEPENDENT)
    relative_privacy: Any = struct.field(pytree_node=False, default=None)
    batch: int = struct.field(pytree_node=False, default=1)

    def __post_init__(self):
        require_clip("clip", self.clip)
        require_choice("trust", self.trust, ("server", "none"))
        require_at_least("batch", self.batch, 1)
        noise = as_pairwise(self.noise)
        if isinstance(noise, Pairwise):
            require_pairwise(noise, self.trust, relative_privacy=self.relative_privacy)
        else:
            noise = fixed_schedule(noise, (INDEPENDENT, *NOISE_SCHEDULES), SUM_FACTORS)
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))

    # ---- traced

    def memory(self, start: Any, reads: Reads) -> Memory:
        """Return the memory before the first round."""
        zero = jax.tree.map(jnp.zeros_like, start)
        if type(reads) is Sum:
            return Memory(q=zero)
        return Memory() if self._fresh else Memory(noise=zero)

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return what the server reads of the cohort's messages, with noise.

        Args:
            noise: noise of the mean, or of the running sum, [d], or None in a run without noise.
        """
        bound = self.enforced(limits, private=noise is not None)
        total, info = cohort_sum(problem, of_record(message), inputs, bound)
        info = {} if self.clip is None else info
        if type(limits.reads) is Sum:
            q = jax.tree.map(lambda q, s: q + s / inputs.divisor, memory.q, total)
            return Released(add_noise(problem, q, noise), Memory(q=q), info)
        mean = jax.tree.map(lambda g: g / inputs.divisor, total)
        if self._fresh or noise is None:
            return Released(add_noise(problem, mean, noise), memory, info)
        now = problem.unravel(noise)
        read = jax.tree.map(lambda s, z, before: s + (z - before), mean, now, memory.noise)
        return Released(read, Memory(noise=now), info)

    def increment(
        self, problem: Problem, message: Linear, inputs: RoundInputs, limits: Limits, *, private: bool
    ) -> Any:
        """Return one machine's increment of its growing sum: the mean of its records' bounded messages.

        Args:
            inputs: the machine's part of the round's inputs.
            private: True in a run with noise.
        """
        bound, machine = self.enforced(limits, private=private), of_record(message)
        examples = problem.take(inputs.samples, inputs.machine)
        if inputs.weights is not None:
            return message_of(problem, machine, examples, inputs.weights, bound)
        one = machine(oracle(problem.model.gradients, examples))
        return (one if bound is None else clip(one, bound)).written_out()

    # ---- on the host

    @property
    def minibatches(self) -> OnePassPool | None:
        """Sampler of the records of a message, or None for one fresh record."""
        return OnePassPool(self.batch) if self.batch > 1 else None

    @property
    def traced(self) -> "NoisyMessages":
        """Copy without the settings that only the host reads."""
        kept = INDEPENDENT if self._fresh else "uniform"
        return NoisyMessages(clip=self.clip, noise=kept)

    @property
    def _fresh(self) -> bool:
        """True if the noise is independent between rounds."""
        return self.noise == INDEPENDENT or self.shares_noise

    def noise_of(self, reads: Reads) -> MessageNoise:
        """Return the distribution of the noise, for what the server reads.

        Raises:
            Refusal: if no theorem covers the pair.
        """
        if type(reads) is Growing:
            return self._growing()
        if type(reads) not in (Mean, Sum):
            raise Refusal(f"reads must be Mean(), Sum() or Growing() with NoisyMessages, got {reads}")
        if isinstance(self.noise, Pairwise):
            if type(reads) is not Mean:
                raise Refusal(f"reads must be Mean() with {self.noise}, got {reads}")
            return SharedNoise(noise=self.noise)
        if isinstance(self.noise, SumFactor):
            return CorrelatedNoise(self.trust, self.relative_privacy, factor=self.noise)
        if self.noise != INDEPENDENT:
            return CancelledNoise(self.trust, self.relative_privacy, noise_schedule=self.noise)
        if type(reads) is Sum and self.trust == "server":
            raise Refusal(
                "noise must be 'uniform', standard deviations or a factor for a running sum with trust = 'server', got "
                "'independent'"
            )
        return MessageNoise(self.trust, self.relative_privacy, summed=type(reads) is Sum)

    def _growing(self) -> GrowingNoise:
        """Return the distribution of the noise on growing sums."""
        if self.trust != "none":
            raise Refusal(f"trust must be 'none' for growing sums, which machines send with noise, got {self.trust!r}")
        if self.noise != "uniform" and not isinstance(self.noise, tuple):
            raise Refusal(f"noise must be 'uniform' or standard deviations for growing sums, got {self.noise!r:.60}")
        return GrowingNoise(self.trust, self.relative_privacy, noise_schedule=self.noise)

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        return self.noise_of(facts.reads).mechanism(facts.plan, facts.problem.dimension, method)

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on a message's norm: the clip, or else the stated bound.

        Args:
            plain: True if a message is one gradient.
        """
        if self.clip is None:
            return stated
        name = "clipped gradients" if plain else "clipped increments"
        return NormBound(float(self.clip), (Assumption(name, {"bound": float(self.clip)}),))

    def sensitivity(self, bound: float, schedule: Schedule) -> float:
        """Return the L2 change of a message, or of a trusted server's mean, by replacing one record."""
        return 2 * bound / self.batch / (schedule.divisor if self.trust == "server" else 1)

    def needed_noise(self, facts: RunFacts, target: Target) -> float | None:
        """Return the smallest noise that meets a target, or None if it follows from the shared noise."""
        if self.shares_noise:
            return None
        return gaussian_rule(target, self.sensitivity(facts.bound.norm, facts.plan.schedule))

    def event(self, facts: RunFacts, noise_std: float) -> Event:
        """Return the event of a plan's messages."""
        plan, bound, reads = facts.plan, facts.bound, facts.reads
        noise, ratios = self.noise_of(reads), self.relative_privacy
        batches = (Assumption("fresh batches", {"batch": int(self.batch)}),) if self.batch > 1 else ()
        terms = Terms(self.trust, self._theorem(plan, reads), (*USED_ONCE, *bound.assumptions, *batches))
        event = GaussianEvent(
            noise_std,
            self.sensitivity(bound.norm, plan.schedule),
            noise.exposure(plan),
            terms,
            lambda machine: noise.releases(plan, machine),
            None,
            None if ratios is None else privacy_shares(ratios, plan.size.machines),
            in_order=not isinstance(noise, CorrelatedNoise | GrowingNoise),
        )
        return assuming_pairs(event, self.noise)

    def sent_noise(self, facts: RunFacts) -> SentNoise | None:
        if self.trust != "none" or not self._fresh or type(facts.reads) is Growing:
            return None
        schedule = facts.plan.schedule
        return sent_by(self.noise, relative_noise(self.relative_privacy, schedule.machines), schedule, once=True)

    def _theorem(self, plan: Plan, reads: Reads) -> str:
        """Return the source of the guarantee."""
        if type(reads) is Growing:
            return GROWN
        if self._fresh and type(reads) is Mean:
            return ONE_MESSAGE
        size = plan.size
        paper = "Reshef & Levy 2024" if size.per_round == size.machines else "Reshef & Levy 2025"
        kind = "trusted server" if self.trust == "server" else "untrusted server"
        change = "" if self.clip is None else ", with S replaced by the clip C"
        return f"{paper}, {kind}{change}; {FACTORED if isinstance(self.noise, SumFactor) else COMPOSED}"
