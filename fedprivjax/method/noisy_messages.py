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
    """Gaussian noise on messages whose records are used only once; it protects one record of one machine.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, messages
            are clipped only in runs with noise, to the bound that the loss or the algorithm states.
        trust: "none" if every machine adds noise to its messages, "server" if a trusted server adds noise to their
            mean.
        noise: "independent" for fresh noise in every message. Other values are possible, depending on the attribute
            `reads` of the algorithm, the value that the server reads:

            * `Sum()`, a running sum: each message also subtracts the noise of the machine's previous message. `noise`
              sets the noise variance of a machine's messages. "uniform": all messages have the same variance.
              "proportional": the k-th message has a variance proportional to k. "gap": the variance is inversely
              proportional to the number of rounds until the machine's next message. A list holds the standard
              deviations of the first, second, … message. Only the ratios of these deviations matter. `noise` may also
              be a `SumFactor` such as `Toeplitz()`, a matrix that correlates the noise of a machine's messages.
            * `Mean()`: any value for `Sum()`. The server then reads the differences of successive noisy sums. A
              `Pairwise` is also possible.
            * `Growing()`, sums that machines keep over rounds and send: "uniform" or a list of standard deviations. The
              noises of a machine's messages are independent.
        relative_privacy: one number for each machine, proportional to the machine's μ. The machine with the largest
            number has the target μ. None gives all machines the target μ. With a trusted server, `relative_privacy`
            must be None.
        batch: K, number of records that a machine uses in a round. The run uses every record at most once. The machine
            sends the mean of the K messages.

    **Privacy**: μ-GDP per machine for replacing one of its records, against the adversary of the trust model `trust`.
    Replacing a record changes one message, by at most 2C/K in L2 norm. With a trusted server, the mean of m messages
    changes by at most 2C/(K·m). With `Growing()`, a record also changes all later messages of its machine. The
    guarantee takes these changes into account.

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
        """Return this object's state before the first round, which no algorithm and no adversary sees.

        It holds the running sum without noise (`q`), or the noise of the previous round if that is to be cancelled
        (`noise`). Both start at 0.
        """
        zero = jax.tree.map(jnp.zeros_like, start)
        if type(reads) is Sum:
            return Memory(q=zero)
        return Memory() if self._fresh else Memory(noise=zero)

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return a round's release: the noisy mean of the participants' messages, or the noisy running sum.

        Args:
            problem: the optimisation problem.
            message: message of one record.
            inputs: the round's participants and their records.
            noise: noise of the mean or of the running sum, [d], or None in a run without noise.
            memory: this object's state before the round.
            limits: `limits.reads` is the value that the server reads, such as `Mean()` for the mean of messages.
                `limits.bound` is the bound on a message's norm that the loss or the algorithm states, or None.
            key: random key of the round, which is not used here.
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
        """Return u, the mean increment of one machine in a round, if the algorithm's `reads` is `Growing()`.

        Every record that the machine uses in the round has an increment, which `message` states. The increments are
        clipped, and u is their mean, a pytree like the parameters.

        Args:
            problem: the optimisation problem.
            message: increment of one record, as `Algorithm.increment` returned it.
            inputs: inputs of the round for this machine alone.
            limits: `limits.bound` is the bound on an increment's norm that the loss or the algorithm states, or None.
            private: True in a run with noise. It matters if the object's `clip` is None: increments are then clipped to
                `limits.bound` in a run with noise, otherwise not at all.
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
        """Sampler of the records of a message, or None if each message uses one fresh record (batch = 1)."""
        return OnePassPool(self.batch) if self.batch > 1 else None

    @property
    def traced(self) -> "NoisyMessages":
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy, so changing such a setting does not recompile them.
        """
        kept = INDEPENDENT if self._fresh else "uniform"
        return NoisyMessages(clip=self.clip, noise=kept)

    @property
    def _fresh(self) -> bool:
        """True if the noise is independent between rounds."""
        return self.noise == INDEPENDENT or self.shares_noise

    def noise_of(self, reads: Reads) -> MessageNoise:
        """Return the description of the noise: its size and correlation in the messages, and its sampler.

        Args:
            reads: value that the server reads, the attribute `reads` of the algorithm.

        Raises:
            Refusal: if no theorem covers this noise together with `reads`.
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
        """Return the mechanism that samples the noise.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
            method: way of sampling, such as "auto", a key of `fedprivjax.noise.chooser.OF_MACHINES`. All of these have
                the same distribution.
        """
        return self.noise_of(facts.reads).mechanism(facts.plan, facts.problem.dimension, method)

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on a record's message in L2 norm: `clip`, or the stated bound if `clip` is None.

        Args:
            stated: bound that the loss or the algorithm states.
            plain: True if the message is the gradient at one point, False for other messages. It only affects the text
                of the stated assumption.
        """
        if self.clip is None:
            return stated
        name = "clipped gradients" if plain else "clipped increments"
        return NormBound(float(self.clip), (Assumption(name, {"bound": float(self.clip)}),))

    def sensitivity(self, bound: float, schedule: Schedule) -> float:
        """Return the largest L2 change, by replacing one record, of the release to which noise is added.

        The release is a machine's message, or the mean of a round's messages with a trusted server.

        Args:
            bound: bound on the L2 norm of a record's message.
            schedule: participation schedule, which gives the number of participants.
        """
        return 2 * bound / self.batch / (schedule.divisor if self.trust == "server" else 1)

    def needed_noise(self, facts: RunFacts, target: Target) -> float | None:
        """Return the smallest `noise_std` that meets a target, by the formula of the Gaussian mechanism.

        If machines also share noise (`Pairwise`), it returns None, and calibration searches for the noise.
        """
        if self.shares_noise:
            return None
        return gaussian_rule(target, self.sensitivity(facts.bound.norm, facts.plan.schedule))

    def event(self, facts: RunFacts, noise_std: float) -> Event:
        """Return the privacy event of a run: a description of all messages and their noise.

        Accountants compute ε and μ from it.
        """
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
