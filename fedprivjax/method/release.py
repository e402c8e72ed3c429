"""Interface of privacy objects of messages: inputs and results of a release."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.decorated import PYTREE
from fedprivjax.checks.numbers import without_host_settings
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.method.algorithm import Mean, NormBound, Part, Reads
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.round import Machine, RoundInputs, add_noise, cohort_messages, cohort_sum
from fedprivjax.method.setting_checks import check_numbers
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.adversaries import BY_TRUST, Adversary
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.privacy.views import FullView, SentNoise, View
from fedprivjax.problem.problem import Problem


class Released(NamedTuple):
    """Result of a round's release: what the server reads, the object's memory, and scalars of the round by name."""

    read: Any
    memory: Any
    info: dict


class Limits(NamedTuple):
    """Statistic that the server reads, and bound on a record's message that is enforced, or None."""

    reads: Reads
    bound: Any


class RunFacts(NamedTuple):
    """Facts of a run that a privacy object reads on the host.

    Attributes:
        reads: statistic of the means that the server reads.
        bound: enforced bound on the norm of a record's message, with its assumptions.
        plain: True if a message is one gradient.
        epsilon: target of each machine if they differ, which gives the proportions of their noises; else None.
    """

    problem: Problem
    plan: Plan
    reads: Reads
    bound: NormBound
    plain: bool
    epsilon: tuple[float, ...] | None


FREE = "needed_noise", "costs", "message_bits", "vectors_in_memory", "for_machines"  # overridden without the event


class Privacy(Part):
    """Base of all privacy objects: their guarantees and targets, on the host.

    A custom one defines `event` and `mechanism`, and guarantees name the class that states them. In a private run, a
    subclass of it that overrides any name but those in `FREE` must define `event` as well, or is refused.

    Attributes:
        noise_rule: rule that computes the noise from a target.
        noise_follows: targets on which the mechanism depends, as in `OfPrivacy`.
        weighs_machines: True if the releases and the event include the weights of the machines' messages.
        shares_noise: True if machines share further noise, see `sent_noise`, which the event does not count.
        trust: trust model, a key of `fedprivjax.privacy.terms.TRUST`, as in the event.
        for_machines: the only number of machines for which the object is defined, as on a graph, or None for any.
        default_adversary: adversary of a protocol that names none, or None for that of the trust model.
    """

    kind, decorator = "privacy object", PYTREE
    instead = "Define an Algorithm, or a subclass of MessagePrivacy with an event of its own"
    stated: ClassVar[Stated] = Stated(by=("event",), free=FREE)
    noise_rule: Any = "accountant"
    noise_follows: Any = ()
    weighs_machines: ClassVar[bool] = False
    shares_noise: ClassVar[Any] = False
    clip: Any = None
    trust: Any = "none"
    for_machines: Any = None
    default_adversary: ClassVar[Adversary | None] = None

    @property
    def traced(self) -> Any:
        """Copy without the settings that only the host reads, see `host_only`."""
        return without_host_settings(self)

    def event(self, facts: Any, noise_std: float) -> Event:
        """Return the event of a plan's releases with this noise.

        Args:
            facts: `RunFacts`, or `WorkFacts` with local work.
        """
        raise Undefined(f"{type(self).__name__} must define event(facts, noise_std)")

    def mechanism(self, facts: Any, method: str) -> Mechanism:
        """Return the mechanism that samples the noise by the given noise method."""
        raise Undefined(f"{type(self).__name__} must define mechanism(facts, method)")

    def sent_noise(self, facts: Any) -> SentNoise | None:
        """Return the Gaussian noise of the messages that machines send, or None if it is unknown. Default: None.

        A unit must move at most one message a round, by at most the event's sensitivity. If the noise is known, the
        noise of other machines counts against an adversary that sees functions of the messages.
        """
        return None

    def needed_noise(self, facts: Any, target: Target) -> float | None:
        """Return the noise for a target by a rule. Default: None, for the smallest with which `event` meets it."""
        return None

    def check_target(self, protocol: Any) -> None:
        """Raise Refusal if a protocol's target, noise or step is invalid with this object."""
        check_numbers(protocol, *LEVELS)

    def machine_target(self, target: Target) -> Target:
        """Return the target of the machines, with one ε each if they differ. Default: the target."""
        return target

    def target_delta(self, problem: Problem, target: Target, epsilon: Any) -> Any:
        """Return δ of the target ε: one number, one for each machine, or None (the default) for the target's δ."""
        return None

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        """Return the settings of a protocol that a target fixes, by name. Default: none.

        Args:
            epsilon: the protocol's ε, which gives the proportions of the machines' noises if the noise is given.
        """
        return {}


class MessagePrivacy(Privacy):
    """Base class of privacy objects for messages. They bound messages, add noise, and state what is released.

    A custom one is a `flax.struct.dataclass` that defines `event` (what is released, for accounting) and `mechanism`
    (the noise). By default every record's message is clipped to `clip`, and the server reads the mean with `noise_std`
    times the mechanism's sample. An object that releases something else also defines `release` and `messages`. The
    package's own privacy objects cannot be subclassed.

    Attributes:
        clip: bound that is enforced on the norm of every record's message, or None for the bound that the loss or the
            algorithm states.
        several_epochs: True if `event` accounts for records that are used again in later rounds.
        gradients_each: number of gradients that a machine computes for each gradient in its message, for the costs of a
            run. It is above 1 if the object needs gradients at further points.
        why_means: reason why the server may read means only, for the error message, or "".
    """

    several_epochs: ClassVar[bool] = False
    gradients_each: ClassVar[int] = 1
    why_means: ClassVar[str] = ""

    @property
    def minibatches(self) -> Sampler | None:
        """Sampler of the records of a message, or None for one fresh record, which is the default."""
        return None

    def memory(self, start: Any, reads: Reads) -> Any:
        """Return the object's memory before the first round, such as a sum without noise. Default: (), nothing.

        Raises:
            Refusal: by default, if the server reads another statistic than means.
        """
        self._require_mean(reads)
        return ()

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return what the server reads in a round, the new memory, and metrics. Default: the `mean` of the messages."""
        bound = self.enforced(limits, private=noise is not None)
        read, info = self.mean(problem, of_record(message), inputs, noise, key, bound)
        return Released(read, memory, {} if self.clip is None else info)

    def mean(self, problem: Problem, machine: Machine, inputs: RoundInputs, noise, key, bound) -> tuple[Any, dict]:
        """Return the server's estimate of the mean of a round's messages, and the clipping metrics of the round.

        Default: the `total` divided by the `divisor`, plus the noise of shape [d].

        Args:
            machine: function that returns a record's message, given a function from points to the record's gradients.
            noise: the round's noise, as returned by `round_noise`, or None in a run without noise.
            key: random key of the round, for random choices other than the noise.
            bound: bound on the norm of a message, or None.
        """
        total, info = self.total(problem, machine, inputs, bound)
        divisor = self.divisor(inputs)
        return add_noise(problem, jax.tree.map(lambda g: g / divisor, total), noise), info

    def total(self, problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any) -> tuple[Any, dict]:
        """Return the sum of the round's bounded messages, and metrics of the round, see `cohort_sum`."""
        return cohort_sum(problem, machine, inputs, bound)

    def divisor(self, inputs: RoundInputs) -> Any:
        """Return the divisor of the `total`. Default: the number of participants."""
        return jnp.sum(inputs.filled)

    def _require_mean(self, reads: Reads) -> None:
        """Raise Refusal unless the server reads means."""
        if type(reads) is not Mean:
            raise Refusal(
                f"reads must be Mean() with {type(self).__name__}{self.why_means}, got {reads}. Use NoisyMessages"
            )

    def require_own_clip(self) -> None:
        """Raise Refusal if there is no clip. Call it for messages whose norm no constant of the loss bounds."""
        if self.clip is None:
            raise Refusal(
                f"clip must be set, because a message is a combination of gradients or a function of a record, whose "
                f"norm the Lipschitz constant does not bound, got None. Set clip in {type(self).__name__}"
            )

    def messages(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, limits: Limits, key: Any
    ) -> Any:
        """Return the participants' bounded messages without their noise, leaves [per_round, ...].

        Args:
            key: random key of the round, for random choices other than the noise.
        """
        bound = self.enforced(limits, private=noise is not None)
        return cohort_messages(problem, of_record(message), inputs, bound)

    def enforced(self, limits: Limits, *, private: bool) -> Any:
        """Return the norm to which records' messages are clipped: `clip`, or a private run's stated bound."""
        return limits.bound if self.clip is None and private else self.clip

    def noise_state(self, dimension: int, rounds: int) -> Any:
        """Return the state of `round_noise` before the first round, a pytree. Default: (), nothing."""
        return ()

    def round_noise(self, state: Any, drawn: Any, noise_std: Any, reads: Reads, host_noise: Any) -> tuple[Any, Any]:
        """Return the next state of the noise, and the round's noise. Default: `noise_std` times the sample `drawn`."""
        return state, jax.tree.map(lambda z: noise_std * z, drawn)

    def of_message(self, own_noise: Any, reads: Reads) -> Any:
        """Return the noise in each participant's message, [per_round, d]. Default: `own_noise`."""
        return own_noise

    def server_key(self, key: Any) -> Any:
        """Return a key for the server's random choices, which `release` does not use. Default: the round's key."""
        return key

    def stored(self, server: Any) -> Any:
        """Return the part of the server's state that an intruder could read (pan-privacy). Default: (), nothing."""
        return ()

    def check_method(self, method: str) -> None:
        """Raise Refusal if the noise method is not possible with the planned settings."""

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Return noise that is sampled on the host before a run, leaves [rounds, ...], or None (the default)."""
        return None

    def server_noise(self, plan: Plan) -> float:
        """Return the standard deviation of a trusted server's first noise, divided by `noise_std`. Default: 1."""
        return 1.0

    def view(self, full: FullView) -> View:
        """Return what the adversary of the trust model sees of a run."""
        return BY_TRUST[self.trust].view(full)

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """Return a machine's costs in a round, by name. Default: `plain`, costs of one message of float32 numbers."""
        return plain

    def vectors_in_memory(self, problem: Problem, size: Size) -> int:
        """Return the number of vectors [d] in memory besides clipped gradients, to size chunks. Default: 0."""
        return 0

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on the norm of a record's message: the clip, or else the stated bound.

        Args:
            plain: True if a message is one gradient.
        """
        if self.clip is None:
            return stated
        return NormBound(float(self.clip), (Assumption("clipped records", {"bound": float(self.clip)}),))

    def check(self, facts: RunFacts, name: str) -> None:
        """Raise Refusal if the guarantee does not cover the problem or the plan. Errors name the protocol, `name`."""

    def planned(self, facts: RunFacts) -> dict[str, Any]:
        """Return settings of this object that calibration computes from a plan, by name. Default: none."""
        return {}

    def of_noise(self, facts: RunFacts, noise_std: float, target: Target) -> dict[str, Any]:
        """Return settings of this object that calibration computes from the noise, by name. Default: none."""
        return {}
