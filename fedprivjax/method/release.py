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
    """Result of a round's release.

    Attributes:
        read: noisy value that the server reads.
        memory: state of the privacy object after the round.
        info: scalar metrics of the round by name.
    """

    read: Any
    memory: Any
    info: dict


class Limits(NamedTuple):
    """Value that the server reads, and the bound on the norm of a record's message.

    Attributes:
        reads: value that the server reads: `Mean()` for the mean of a round's messages, `Sum()` for the running sum of
            these means over rounds, or `Momentum(alpha)` or `Growing()`.
        bound: bound to which messages are clipped in private runs without a `clip`, or None.
    """

    reads: Reads
    bound: Any


class RunFacts(NamedTuple):
    """Facts of a run that a privacy object of messages reads on the host.

    Attributes:
        problem: the optimisation problem.
        plan: plan of the run: who takes part in each round, and which records each message uses.
        reads: value that the server reads: `Mean()` for the mean of a round's messages, `Sum()` for the running sum of
            these means over rounds, or `Momentum(alpha)` or `Growing()`.
        bound: enforced bound on the norm of a record's message, with its assumptions.
        plain: True if a message is the gradient at one point.
        epsilon: target ε of each machine if they differ, else None. They determine how the machines' noises differ.
    """

    problem: Problem
    plan: Plan
    reads: Reads
    bound: NormBound
    plain: bool
    epsilon: tuple[float, ...] | None


FREE = "needed_noise", "costs", "message_bits", "vectors_in_memory", "for_machines"  # overridden without the event


class Privacy(Part):
    """Base class of all privacy objects: the part of a protocol that adds noise and states the guarantee.

    A privacy object defines `event`, which describes all releases and their noise, and `mechanism`, which samples the
    noise.

    If a subclass overrides a function that can change what is released, the parent's event may no longer be true. In
    this case, the subclass must define `event` again. Functions that cannot change what is released are listed in
    `fedprivjax.method.release.FREE`.

    Attributes:
        noise_rule: rule that computes the noise from a target.
        noise_follows: names of the privacy targets on which the result of `mechanism` depends. With (), the default, a
            sweep over privacy targets samples the noise once. With ("mu", "epsilon"), a sweep samples the noise for
            each target.
        weighs_machines: True if the messages and `event` take different weights of machines into account.
        shares_noise: True if machines also share noise with each other. `event` does not count this shared noise, but
            `sent_noise` does.
        trust: trust model, a key of `fedprivjax.privacy.terms.TRUST`.
        for_machines: the only number of machines for which the object is defined, such as the size of a graph. None
            allows any number.
        default_adversary: adversary of a protocol without the setting `adversary`. None stands for the adversary of the
            trust model.
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
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy, so changing such a setting does not recompile them. Fields that are
        declared by `host_only` are such settings.
        """
        return without_host_settings(self)

    def event(self, facts: Any, noise_std: float) -> Event:
        """Return the privacy event of a run: a description of all releases and their noise.

        Args:
            facts: facts of the run, such as the problem and the participation schedule: `RunFacts`, or `WorkFacts` for
                local steps.
            noise_std: calibrated noise of the run, usually a standard deviation.
        """
        raise Undefined(f"{type(self).__name__} must define event(facts, noise_std)")

    def mechanism(self, facts: Any, method: str) -> Mechanism:
        """Return the mechanism that samples the run's noise, before it is scaled by `noise_std`.

        Args:
            facts: facts of the run, such as the problem and the participation schedule: `RunFacts`, or `WorkFacts` for
                local steps.
            method: way of sampling, such as "auto", a key of `fedprivjax.noise.chooser.METHODS`.
        """
        raise Undefined(f"{type(self).__name__} must define mechanism(facts, method)")

    def sent_noise(self, facts: Any) -> SentNoise | None:
        """Return the Gaussian noise in each message that machines send, or None (the default) if it is unknown.

        Some adversaries see only functions of the messages, such as their sum. If this noise is known, the noise of
        other machines counts against such an adversary. It may only be stated if a protected record or machine changes
        at most one message per round, by at most the event's sensitivity.
        """
        return None

    def needed_noise(self, facts: Any, target: Target) -> float | None:
        """Return the `noise_std` that a closed rule gives for a target.

        This method returns None. Calibration then searches for the smallest noise with which `event` meets the target.
        A subclass may override it.

        Args:
            facts: facts of the run, as `event` receives them.
            target: privacy target, such as ε and δ.
        """
        return None

    def check_target(self, protocol: Any) -> None:
        """Raise Refusal if a protocol with this privacy object has an invalid target, noise or step size."""
        check_numbers(protocol, *LEVELS)

    def machine_target(self, target: Target) -> Target:
        """Return the privacy target of the machines. By default, it is the given target.

        If the machines' ε differ, for example by `relative_privacy`, the target has one ε for each machine.
        """
        return target

    def target_delta(self, problem: Problem, target: Target, epsilon: Any) -> Any:
        """Return the δ at which the target ε is stated.

        It is one number, one number for each machine, or None (the default) for the δ of the target.

        Args:
            problem: the optimisation problem.
            target: privacy target.
            epsilon: the protocol's `epsilon` for each machine, or None.
        """
        return None

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        """Return new values for attributes of this object or its protocol that depend on the privacy target.

        Calibration continues with copies in which the returned values replace the attributes. For example, if users
        have different ε, the result can hold the ratios between their noises. Default: {}, no change.

        Args:
            target: privacy target: an ε at some δ, a μ, or a noise (`noise_std`) in place of both.
            epsilon: the protocol's setting `epsilon`: one number, one for each machine, or None. If the target is a
                noise, `epsilon` can hold a number for each machine, from which the ratios between machines' noises
                follow.
            machines: number of machines.
        """
        return {}


class MessagePrivacy(Privacy):
    """Base class of privacy objects that clip messages of records, add noise, and state the guarantee.

    A custom privacy object is a `flax.struct.dataclass` that defines `event` and `mechanism`. By default, the server
    reads the mean of a round's messages plus `noise_std` times the mechanism's sample. An object that releases another
    value also defines `release` and `messages`.

    Attributes:
        clip: bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, messages
            are clipped only in runs with noise, to the bound that the loss or the algorithm states.
        several_epochs: True if `event` accounts for records that are used again in later rounds.
        gradients_each: number of gradients that a machine computes for each gradient in its message, to count costs.
        why_means: reason in an error message, such as ", because its noise is for means", or "" (the default). The
            error is raised if the object supports only algorithms whose `reads` is `Mean()`, and the algorithm has
            another value.
    """

    several_epochs: ClassVar[bool] = False
    gradients_each: ClassVar[int] = 1
    why_means: ClassVar[str] = ""

    @property
    def minibatches(self) -> Sampler | None:
        """Sampler of the records of a message.

        None, the default, means that each message uses one record. A machine then uses its records in the order that
        the argument `order` of `simulate` states. With the default order, no record is used twice.
        """
        return None

    def memory(self, start: Any, reads: Reads) -> Any:
        """Return the initial state that this object keeps between rounds. Default: (), no state.

        An example of such a state is a running sum without noise. No algorithm sees the state.

        Args:
            start: a pytree shaped like a message, such as the initial parameters.
            reads: value that the server reads. For example, `Mean()` is the mean of a round's messages, and `Sum()` is
                the running sum of these means over rounds.

        Raises:
            Refusal: by default, if the server reads anything but `Mean()`.
        """
        self._require_mean(reads)
        return ()

    def release(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, memory: Any, limits: Limits, key: Any
    ) -> Released:
        """Return a round's release: the noisy value that the server reads, this object's next state, and metrics.

        By default, the value is the noisy mean of the round's messages (`mean`).

        Args:
            problem: the optimisation problem.
            message: message of one record.
            inputs: the round's participants and their records.
            noise: the round's noise, as returned by `round_noise`, or None in a run without noise.
            memory: this object's state before the round.
            limits: `limits.reads` is the value that the server reads, such as `Mean()` for the mean of messages.
                `limits.bound` is the bound on a message's norm that the loss or the algorithm states, or None.
            key: random key of the round, for random choices other than the noise.
        """
        bound = self.enforced(limits, private=noise is not None)
        read, info = self.mean(problem, of_record(message), inputs, noise, key, bound)
        return Released(read, memory, {} if self.clip is None else info)

    def mean(self, problem: Problem, machine: Machine, inputs: RoundInputs, noise, key, bound) -> tuple[Any, dict]:
        """Return the noisy mean of a round's messages as the server reads it, and clipping metrics by name.

        By default, the sum from `total` is divided by the number from `divisor`, and the noise is added.

        Args:
            problem: the optimisation problem.
            machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`. It is
                called with a function `gradient` that returns the gradient of the record's loss at a point.
            inputs: the round's participants and their records.
            noise: the round's noise, as returned by `round_noise`, [d], or None in a run without noise.
            key: random key of the round, for random choices other than the noise.
            bound: bound on the L2 norm to which each record's message is clipped, or None.
        """
        total, info = self.total(problem, machine, inputs, bound)
        divisor = self.divisor(inputs)
        return add_noise(problem, jax.tree.map(lambda g: g / divisor, total), noise), info

    def total(self, problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any) -> tuple[Any, dict]:
        """Return the sum of a round's clipped messages without noise, and clipping metrics by name.

        Args:
            problem: the optimisation problem.
            machine: function that computes one record's message, such as `lambda gradient: 2 * gradient(w)`. It is
                called with a function `gradient` that returns the gradient of the record's loss at a point. For a
                message with two gradients, `gradient(x, y)` returns the pair of gradients at x and y.
            inputs: the round's participants and their records.
            bound: bound on the L2 norm to which each record's message is clipped, or None.
        """
        return cohort_sum(problem, machine, inputs, bound)

    def divisor(self, inputs: RoundInputs) -> Any:
        """Return the divisor of the sum of a round's messages. Default: the number of participants."""
        return jnp.sum(inputs.filled)

    def _require_mean(self, reads: Reads) -> None:
        """Raise Refusal unless the server reads means."""
        if type(reads) is not Mean:
            raise Refusal(
                f"reads must be Mean() with {type(self).__name__}{self.why_means}, got {reads}. Use NoisyMessages"
            )

    def require_own_clip(self) -> None:
        """Raise Refusal if `clip` is None.

        It is called if messages are not plain gradients. The loss's Lipschitz constant does not bound the norm of such
        messages.
        """
        if self.clip is None:
            raise Refusal(
                f"clip must be set, because a message is a combination of gradients or a function of a record, whose "
                f"norm the Lipschitz constant does not bound, got None. Set clip in {type(self).__name__}"
            )

    def messages(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, limits: Limits, key: Any
    ) -> Any:
        """Return the message of each participant after clipping and before noise, leaves [per_round, ...].

        Args:
            problem: the optimisation problem.
            message: message of one record.
            inputs: the round's participants and their records.
            noise: the round's noise, or None in a run without noise. The noise is not added to the messages.
            limits: `limits.reads` is the value that the server reads, such as `Mean()` for the mean of messages.
                `limits.bound` is the bound on a message's norm that the loss or the algorithm states, or None.
            key: random key of the round, for random choices other than the noise.
        """
        bound = self.enforced(limits, private=noise is not None)
        return cohort_messages(problem, of_record(message), inputs, bound)

    def enforced(self, limits: Limits, *, private: bool) -> Any:
        """Return the norm to which each record's message is clipped, or None for no clipping.

        If `clip` is given, the norm is `clip`. Otherwise, it is `limits.bound` in a run with noise, and None in a run
        without noise.

        Args:
            limits: its attribute `bound` is the bound on a message's L2 norm that the loss or the algorithm states.
            private: True in a run with noise.
        """
        return limits.bound if self.clip is None and private else self.clip

    def noise_state(self, dimension: int, rounds: int) -> Any:
        """Return the state of the noise before the first round, a pytree. Default: (), no state.

        Correlated noise needs a state, such as the noise of the previous round. `round_noise` updates it.

        Args:
            dimension: d, number of coordinates of the noise.
            rounds: number of rounds of the run.
        """
        return ()

    def round_noise(self, state: Any, drawn: Any, noise_std: Any, reads: Reads, host_noise: Any) -> tuple[Any, Any]:
        """Return the state of the noise after a round, and the round's noise.

        By default, there is no state, and the noise is `noise_std` times the sample.

        Args:
            state: state of the noise before the round.
            drawn: the mechanism's sample for the round.
            noise_std: calibrated noise of the run.
            reads: value that the server reads. For example, `Mean()` is the mean of a round's messages, and `Sum()` is
                the running sum of these means over rounds.
            host_noise: the round's part of noise that was sampled on the host before the run, or None.
        """
        return state, jax.tree.map(lambda z: noise_std * z, drawn)

    def of_message(self, own_noise: Any, reads: Reads) -> Any:
        """Return the noise that is part of each participant's message, for transcripts; [per_round, d].

        A transcript contains every message of a run. By default, the result is `own_noise`. A subclass overrides this
        function if its mechanism returns the noise in another form.

        Args:
            own_noise: noise that the mechanism sampled separately for each participant, [per_round, d].
            reads: value that the server reads. For example, `Mean()` is the mean of a round's messages, and `Sum()` is
                the running sum of these means over rounds.
        """
        return own_noise

    def server_key(self, key: Any) -> Any:
        """Return a random key for the server's own random choices in a round.

        The result must be independent of the random numbers that `release` derives from `key`. By default, the result
        is `key`, because the default `release` uses no random numbers.

        Args:
            key: random key of the round.
        """
        return key

    def stored(self, server: Any) -> Any:
        """Return the part of the server's state that an intruder could read. Default: (), nothing.

        The result matters only for pan-privacy, where an intruder reads the server's memory once.
        """
        return ()

    def check_method(self, method: str) -> None:
        """Raise Refusal if the noise cannot be sampled in the given way with this object's settings.

        Args:
            method: way of sampling, a key of `fedprivjax.noise.chooser.METHODS`.
        """

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Return noise that is sampled on the host before a run, a pytree with leaves [rounds, ...].

        By default, the result is None, and all noise is sampled on the device.

        Args:
            plan: plan of the run: who takes part in each round, and which records each message uses.
            dimension: d, number of coordinates of the noise.
            seed: seed of the run.
        """
        return None

    def server_noise(self, plan: Plan) -> float:
        """Return the standard deviation of a trusted server's noise in the first round, divided by `noise_std`.

        The noise is part of the value that the server reads. Default: 1.

        Args:
            plan: plan of the run: who takes part in each round, and which records each message uses.
        """
        return 1.0

    def view(self, full: FullView) -> View:
        """Return the view of a run that the adversary of the trust model has.

        Args:
            full: everything that the run releases or stores.
        """
        return BY_TRUST[self.trust].view(full)

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """Return the costs of one machine in one round, by name. Default: `plain`.

        Args:
            problem: the optimisation problem.
            plain: costs if a machine sends one message of float32 numbers: `sent_messages`, `sent_bits`, and
                `gradients_per_use`, the number of gradients computed each time a record is used.
        """
        return plain

    def vectors_in_memory(self, problem: Problem, size: Size) -> int:
        """Return the number of vectors of d numbers (one per parameter) that this object holds in memory at once.

        Clipped gradients are not counted. Computations are divided into chunks according to this number. Default: 0.
        """
        return 0

    def bounded(self, stated: NormBound, *, plain: bool) -> NormBound:
        """Return the bound on the L2 norm of a record's message, and the assumptions from which it follows.

        The bound is `clip`, or `stated` if `clip` is None.

        Args:
            stated: bound that the loss or the algorithm states, with its assumptions.
            plain: True if the message is the gradient at one point, False for other messages. The default does not use
                `plain`. A subclass may use it to name the assumptions.
        """
        if self.clip is None:
            return stated
        return NormBound(float(self.clip), (Assumption("clipped records", {"bound": float(self.clip)}),))

    def check(self, facts: RunFacts, name: str) -> None:
        """Raise Refusal if the guarantee does not cover the problem or the participation. Default: never.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
            name: name of the protocol, for error messages.
        """

    def planned(self, facts: RunFacts) -> dict[str, Any]:
        """Return new values for attributes of this object that must be set before the noise is calibrated.

        Calibration calls this function first, and continues with a copy of this object in which the returned values
        replace the attributes. An example is `{"epoch": 20.0}`, the number of rounds of an epoch. Default: {}, no
        change.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
        """
        return {}

    def of_noise(self, facts: RunFacts, noise_std: float, target: Target) -> dict[str, Any]:
        """Return new values for attributes of this object that depend on the calibrated noise.

        Calibration first finds `noise_std`, and then calls this function. The run uses a copy of this object in which
        the returned values replace the attributes. For example, an object whose noise consists of random bits may
        return the number of bits, `{"trials": 300}`. Default: {}, no change.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
            noise_std: calibrated noise of the run, usually a standard deviation.
            target: the privacy target of the calibration, or a `noise_std` that the user gave instead.
        """
        return {}
