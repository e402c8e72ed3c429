"""Interface of privacy objects of local work: what is bounded and noised at a machine, and read by the server."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.local_data import LocalData, Minibatch
from fedprivjax.method.release import Privacy
from fedprivjax.method.round import RoundInputs
from fedprivjax.noise.server_factors import INDEPENDENT, round_factor
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.problem.problem import Problem


class Facts(NamedTuple):
    """Facts of a run that a privacy object of local steps reads in the compiled program.

    Attributes:
        noise_std: calibrated noise.
        limit: stated bound on a record's message, to which messages are clipped if there is no `clip`, or None.
        expected: expected number of participants of a round, or None if the privacy object does not use it.
        weighted: True if machines' messages have different weights.
        encoded: bound on the norm to which encoded messages are clipped before a trusted server adds noise, or None.
        form: pytree with the shapes of a machine's message, for the server's functions; None in others.
    """

    noise_std: Any
    limit: Any
    expected: Any
    weighted: bool
    encoded: Any
    form: Any = None


class WorkFacts(NamedTuple):
    """Facts of a run that a privacy object of local steps reads on the host.

    Attributes:
        problem: the optimisation problem.
        plan: plan of the run: who takes part in each round, and which records each message uses.
        stateful: True if machines keep a state between rounds.
        dimension: number of coordinates of a machine's message.
        epsilon: target ε of each machine if they differ, else None. They determine how the machines' noises differ.
    """

    problem: Problem
    plan: Plan
    stateful: bool
    dimension: int
    epsilon: tuple[float, ...] | None


class WorkPrivacy(Privacy):
    """Base class of privacy objects of methods with local steps.

    A custom privacy object is a `flax.struct.dataclass` that defines `event` and `mechanism`. For noise in local steps,
    it also defines `step_noise`. For noise in messages or in their mean, it overrides some of these functions:

    * At a machine, `bounded` clips the whole message, `sent` adds noise to the message, and `encoded` compresses it. By
      default, these functions leave the message unchanged.
    * At the server, `divisor` returns the number by which the sum of the messages is divided, by default the sum of
      their weights. `read` returns the mean that the server reads, by default without noise.

    The object may keep a state between rounds. The state is public, so every adversary may see it.

    Attributes:
        work: sampler of the records of the local steps: `LocalEpochs` or `LocalSteps`.
        unit: protected unit, "record" or "machine", or None for no privacy.
        relation: neighbouring relation, "replace-one" (default) or "add-or-remove-one".
        clip: bound on the L2 norm of every record's message in a local step, enforced by clipping, or None.
        update_clip: bound on the L2 norm of a machine's whole message, enforced by clipping, or None.
        noise: correlation of a trusted server's noise over rounds: "independent" (the default) or another value of the
            setting `noise_schedule` of `FedAvg`, such as "tree".
        encoder: encoder that compresses the machines' messages, or None.
        adaptive: True if the bound on the messages changes from round to round.
        at_machines: True (the default) if every machine adds noise of its own. False if noise is sampled once per
            round, and `read` adds it to the mean of the messages.
        noise_together: False (the default) if `step_noise` receives a random key of the machine. True if it receives
            the noise of all machines of a round together.
        noisy_steps: True if every local step has noise that protects a record. The guarantee then also holds if an
            adversary sees the points of a machine between its steps.
        reads_cohort_size: True if messages or their costs depend on the expected number of participants of a round, a
            public number.
    """

    instead = "Define a LocalAlgorithm, or a subclass of WorkPrivacy with an event of its own"
    unit: Any = "record"
    relation: Any = REPLACE_ONE
    update_clip: Any = None
    noise: Any = INDEPENDENT
    encoder: Any = None
    adaptive: Any = False
    at_machines: Any = True
    noise_together: ClassVar[bool] = False
    noisy_steps: Any = False
    reads_cohort_size: Any = False
    work: Any
    step_divisor: Any = None  # divisor of a step's sum, None for the number of records

    @property
    def minibatches(self) -> Any:
        """Sampler of the records of the local steps, the attribute `work`."""
        if not hasattr(self, "work"):
            raise Undefined(f"{type(self).__name__} must define work, the sampler of the records of its local steps")
        return self.work

    # ---- at a machine, traced

    def start(self) -> Any:
        """Return the object's public state before the first round, such as an adaptive clip. Default: ()."""
        return ()

    def of_batch(self, problem: Problem, message: Linear, minibatch: Minibatch, noise: Any, facts: Facts) -> Any:
        """Return the mean message of a local step's minibatch, with noise if records are protected.

        Args:
            problem: the optimisation problem.
            message: message of one record, such as `gradient(x)`.
            minibatch: records of the step.
            noise: the machine's noise, in the form that `step_noise` takes, or None in a run without noise.
            facts: facts of the run, such as the calibrated noise.
        """
        private = noise is not None and self.unit == "record"
        bound = facts.limit if self.clip is None and private else self.clip
        mean = minibatch.mean(of_record(message), divisor=self.step_divisor, clip=bound)
        if not private:
            return mean
        z = self.step_noise(noise, minibatch.step, problem.dimension)
        return jax.tree.map(jnp.add, mean, problem.unravel(z))

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array:
        """Return the noise of one local step of a machine, [d].

        Args:
            noise: a pair. If the attribute `noise_together` is False (the default), it is (key, std): a random key of
                the machine, and the standard deviation of the noise. If `noise_together` is True, it is (noise, slot):
                the noise of all participants, as `round_noise` returns it, and the machine's index among them.
            step: number of the step in the round, from 0.
            dimension: d, number of parameters.
        """
        raise Undefined(f"{type(self).__name__} must define step_noise(noise, step, dimension)")

    def bounded(self, message: Any, public: Any) -> tuple[Any, dict]:
        """Return a machine's message after clipping it as a whole, and clipping metrics by name.

        By default, the message is not clipped, and there are no metrics.

        Args:
            message: the machine's message, a pytree.
            public: the object's public state in this round, as `start` or `read` returned it, such as the current value
                of an adaptive clip. By default, it is ().
        """
        return message, {}

    def sent(self, message: Any, info: dict, public: Any, noise: Any, facts: Facts) -> Any:
        """Return a clipped message as the machine sends it, before encoding. Default: unchanged.

        Subclasses add the machine's own noise here.

        Args:
            message: the clipped message.
            info: clipping metrics of the message, from `bounded`.
            public: the object's public state in this round, such as the current value of an adaptive clip.
            noise: the machine's noise, or None in a run without noise.
            facts: facts of the run, such as the calibrated noise.
        """
        return message

    def encoded(self, message: Any, key: jax.Array, facts: Facts) -> Any:
        """Return the message that the server obtains if a machine encodes `message`. Default: unchanged.

        The result includes encoding and decoding. For example, it is the message after quantisation.

        Args:
            message: message that the machine sends, with its noise.
            key: random key of the machine.
            facts: facts of the run.
        """
        return message

    def weight(self, data: LocalData, facts: Facts) -> Any:
        """Return the weight of a machine's message in the server's mean, a scalar. Default: 1.

        Args:
            data: records that the machine uses in the round.
            facts: facts of the run.
        """
        return 1.0

    # ---- at the server, traced

    def round_noise(self, drawn: Any, host_noise: Any, facts: Facts) -> Any:
        """Return the round's noise, in the form in which other functions of this object receive it.

        If the attribute `at_machines` is False, the default result is the mechanism's sample times `noise_std`.
        Otherwise, it is a pair: a random key, and the standard deviations of the participants' noise, [per_round].

        Args:
            drawn: the mechanism's sample for the round. If `at_machines` is True, it is a pair: a random key, and each
                participant's standard deviation divided by `noise_std`, [per_round].
            host_noise: the round's part of noise that was sampled on the host before the run, or None.
            facts: facts of the run, such as the calibrated noise.
        """
        if not self.at_machines:
            return jax.tree.map(lambda z: facts.noise_std * z, drawn)
        key, relative = drawn
        return key, facts.noise_std * relative

    def of_message(self, own_noise: Any) -> Any:
        """Return the noise that is part of each participant's message, for transcripts; [per_round, d].

        By default, it is `own_noise`. A subclass overrides this function if its mechanism returns the noise in another
        form, such as an object that holds integers.

        Args:
            own_noise: noise that the mechanism sampled separately for each participant, leaves [per_round, …], or None
                in a run without noise.
        """
        return own_noise

    def divisor(self, weight: Any, inputs: RoundInputs) -> Any:
        """Return the divisor of the sum of a round's messages. Default: the sum of their weights.

        Args:
            weight: sum of the participants' weights.
            inputs: the round's participants and their records.
        """
        return jnp.where(weight > 0, weight, 1.0)

    def read(self, total: Any, divisor: Any, noise: Any, public: Any, facts: Facts) -> tuple[Any, Any]:
        """Return the mean message that the server reads, and the object's public state for the next round.

        By default, the sum is divided, no noise is added, and the state is unchanged.

        Args:
            total: weighted sum of the participants' messages.
            divisor: number by which the sum is divided, from `divisor`.
            noise: the round's noise, or None in a run without noise.
            public: the object's public state in this round, such as the current value of an adaptive clip.
            facts: facts of the run.
        """
        return jax.tree.map(lambda leaf: leaf / divisor, total), public

    def reported(self, before: Any, after: Any) -> dict[str, Any]:
        """Return metrics of a round by name, such as the current value of an adaptive clip. Default: none.

        Args:
            before: the object's public state during the round, as `start` or the previous `read` returned it.
            after: the object's public state after the round, as this round's `read` returned it.
        """
        return {}

    def reduced(self, messages: Any) -> Any:
        """Return messages, or sums of them, as an adversary sees them. Default: unchanged.

        For example, secure aggregation shows only sums modulo a power of 2.
        """
        return messages

    def decoded(self, messages: Any) -> Any:
        """Return the messages of a run in units of the parameters, [rounds, per_round, coordinates].

        Default: unchanged. A subclass overrides this function if messages have other units, such as integers.
        """
        return messages

    # ---- on the host

    @property
    def protects_machines(self) -> bool:
        """True if the guarantee is for all records of a machine together, False if it is for one record."""
        return self.unit == "machine"

    @property
    def shows_clipping(self) -> bool:
        """True if a message shows whether it was clipped. An example is the bit of an adaptive clip."""
        return self.adaptive

    def server_noise(self, plan: Plan) -> float:
        """Return the standard deviation of a trusted server's noise in the first round, divided by `noise_std`.

        With independent noise, it is 1. With an `AdaptiveClip`, the noise is part of the sum of the messages.
        Otherwise, the noise is part of the mean of the messages.

        Args:
            plan: plan of the run: who takes part in each round, and which records each message uses.
        """
        factor = round_factor(self.noise)
        return 1.0 if factor is None else factor.first_std(plan.schedule)

    def check(self, problem: Problem) -> None:
        """Raise Refusal if the guarantee does not cover the problem. Default: never."""

    def check_late(self, protocol: str) -> None:
        """Raise Refusal, because the guarantee is not proved for machines that answer some rounds late.

        It is called only if machines answer late. A subclass whose guarantee covers late answers overrides this
        function, and does not raise.

        Args:
            protocol: name of the protocol, for the error message.
        """
        raise Refusal(f"participation must be synchronous for {protocol}, got late answers. Use FedAvg")

    def check_method(self, method: str, noise_std: float) -> None:
        """Raise Refusal if the noise cannot be sampled in the given way. Default: never.

        Args:
            method: way of sampling, such as "auto", a key of `fedprivjax.noise.chooser.METHODS`.
            noise_std: calibrated noise.
        """

    def host_noise(self, plan: Plan, dimension: int, seed: int, noise_std: float) -> Any:
        """Return noise that is sampled on the host before a run, a pytree with leaves [rounds, ...].

        By default, the result is None, and all noise is sampled on the device.

        Args:
            plan: plan of the run: who takes part in each round, and which records each message uses.
            dimension: number of coordinates of a machine's message.
            seed: seed of the run.
            noise_std: calibrated noise.
        """
        return None

    def of_noise(self, facts: WorkFacts, noise_std: float) -> dict[str, Any]:
        """Return new values for attributes of this object that depend on the calibrated noise.

        Calibration first finds `noise_std`, and then calls this function. The run uses a copy of this object in which
        the returned values replace the attributes. Default: {}, no change.

        Args:
            facts: facts of the run, such as the problem and the participation schedule.
            noise_std: calibrated noise of the run, usually a standard deviation.

        Raises:
            Refusal: if the noise is not possible with this object's settings.
        """
        return {}

    def encoded_norm(self, dimension: int) -> float | None:
        """Return the bound to which the server clips encoded messages before it adds noise. Default: None.

        With None, encoded messages are not clipped. A trusted server needs a finite bound, because the server's noise
        is calibrated to this bound.

        Args:
            dimension: number of coordinates of a machine's message.
        """
        return None

    def message_dimension(self, dimension: int) -> int:
        """Return the number of coordinates that a machine sends.

        Default: as many as the algorithm's message has.

        Args:
            dimension: number of coordinates of the algorithm's message.
        """
        return dimension

    def protocol_bits(self, machines: float) -> float:
        """Return the number of bits that a machine sends in a round besides its message. Default: 0.

        Keys of secure aggregation are an example.

        Args:
            machines: expected number of participants of a round.
        """
        return 0.0

    def message_bits(self, dimension: int) -> float:
        """Return the number of bits of one message: the encoder's `bits`, or 32 per coordinate without an encoder.

        Args:
            dimension: number of coordinates of the message.
        """
        return 32.0 * dimension if self.encoder is None else self.encoder.bits(dimension)
