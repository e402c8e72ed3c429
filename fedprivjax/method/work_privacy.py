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
    """Facts of a run that a release reads, in addition to the settings of its privacy object.

    Attributes:
        noise_std: calibrated noise.
        limit: stated bound on a record's message, which is enforced without a clip, or None.
        expected: E|S_r|, if the privacy object reads it, or None.
        weighted: True if machines' weights follow from the plan.
        encoded: bound to which encoded messages are clipped before a trusted server's noise, or None.
        form: pytree of the shapes of a message, at the server, or None.
    """

    noise_std: Any
    limit: Any
    expected: Any
    weighted: bool
    encoded: Any
    form: Any = None


class WorkFacts(NamedTuple):
    """Facts of a run that a privacy object of local work reads on the host.

    Attributes:
        stateful: True if machines keep a state between rounds.
        dimension: number of numbers in a message.
        epsilon: target of each machine if they differ, which gives the proportions of their noises; else None.
    """

    problem: Problem
    plan: Plan
    stateful: bool
    dimension: int
    epsilon: tuple[float, ...] | None


class WorkPrivacy(Privacy):
    """Base class of privacy objects of methods with local steps. Its defaults suit noise in local steps only.

    A custom one is a `flax.struct.dataclass` that defines `event` (what is released, for accounting) and `mechanism`
    (the noise), and the functions in which it differs: `bounded`, `sent` and `encoded` at a machine, `divisor` and
    `read` at the server. Between rounds it keeps a public memory, such as an adaptive clip, which everybody may see.
    The package's own privacy objects cannot be subclassed.

    Attributes:
        work: sampler of the records of the local steps.
        unit: protected unit, "record" or "machine", or None for no privacy.
        relation: neighbouring relation, a key of `fedprivjax.privacy.relations.RELATIONS`.
        clip: bound that is enforced on every record's message in a local step, or None.
        update_clip: bound on the norm of a machine's whole message, or None.
        noise: correlation of a trusted server's noise over rounds.
        encoder: encoder of the messages, or None.
        adaptive: True if the bound on the messages changes from round to round.
        at_machines: True if machines sample noise.
        noise_together: True if the noise of a local step is sampled for all machines of a round at once.
        noisy_steps: True if noise in every local step protects a record. The guarantee then also covers the points of a
            machine.
        reads_cohort_size: True if messages or their costs depend on the expected number of participants, which is
            public.
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
        """Sampler of the records of the local steps."""
        if not hasattr(self, "work"):
            raise Undefined(f"{type(self).__name__} must define work, the sampler of the records of its local steps")
        return self.work

    # ---- at a machine, traced

    def start(self) -> Any:
        """Return the public memory before the first round. Default: (), nothing."""
        return ()

    def of_batch(self, problem: Problem, message: Linear, minibatch: Minibatch, noise: Any, facts: Facts) -> Any:
        """Return the mean of a local step's messages, plus the machine's noise unless that is None."""
        private = noise is not None and self.unit == "record"
        bound = facts.limit if self.clip is None and private else self.clip
        mean = minibatch.mean(of_record(message), divisor=self.step_divisor, clip=bound)
        if not private:
            return mean
        z = self.step_noise(noise, minibatch.step, problem.dimension)
        return jax.tree.map(jnp.add, mean, problem.unravel(z))

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array:
        """Return the noise of a machine's local step, [d].

        Args:
            noise: the round's noise and the machine's place among the participants, with `noise_together`. Otherwise
                the machine's random key and its standard deviation.
        """
        raise Undefined(f"{type(self).__name__} must define step_noise(noise, step, dimension)")

    def bounded(self, message: Any, bound: Any) -> tuple[Any, dict]:
        """Return a machine's message after clipping, and metrics by name. Default: the message, unclipped.

        Args:
            bound: the public memory.
        """
        return message, {}

    def sent(self, message: Any, info: dict, bound: Any, noise: Any, facts: Facts) -> Any:
        """Return a bounded message as it is sent, with the machine's own noise. Default: the message."""
        return message

    def encoded(self, message: Any, key: jax.Array, facts: Facts) -> Any:
        """Return a message as the server reads it after encoding and decoding. Default: the message."""
        return message

    def weight(self, data: LocalData, facts: Facts) -> Any:
        """Return the weight of a machine's message in the server's mean. Default: 1."""
        return 1.0

    # ---- at the server, traced

    def round_noise(self, drawn: Any, host_noise: Any, facts: Facts) -> Any:
        """Return the round's noise. If machines sample it, return a random key and their standard deviations."""
        if not self.at_machines:
            return jax.tree.map(lambda z: facts.noise_std * z, drawn)
        key, relative = drawn
        return key, facts.noise_std * relative

    def of_message(self, own_noise: Any) -> Any:
        """Return the noise in each participant's message, [per_round, d]. Default: `own_noise`."""
        return own_noise

    def divisor(self, weight: Any, inputs: RoundInputs) -> Any:
        """Return the number by which the server divides the sum of messages. Default: the sum of their weights."""
        return jnp.where(weight > 0, weight, 1.0)

    def read(self, total: Any, divisor: Any, noise: Any, bound: Any, facts: Facts) -> tuple[Any, Any]:
        """Return the mean message as the server reads it, and the public memory of the next round."""
        return jax.tree.map(lambda leaf: leaf / divisor, total), bound

    def reported(self, before: Any, after: Any) -> dict[str, Any]:
        """Return metrics of a round by name, from the public memory before and after it. Default: none."""
        return {}

    def reduced(self, messages: Any) -> Any:
        """Return messages or their sums as an adversary sees them, such as modulo a power of 2. Default: unchanged."""
        return messages

    def decoded(self, messages: Any) -> Any:
        """Return a run's messages in units of the parameters, [rounds, per_round, numbers]. Default: unchanged."""
        return messages

    # ---- on the host

    @property
    def protects_machines(self) -> bool:
        """True if all records of a machine are protected together, False if one record is."""
        return self.unit == "machine"

    @property
    def shows_clipping(self) -> bool:
        """True if the bit of an adaptive clip shows whether a message was clipped."""
        return self.adaptive

    def server_noise(self, plan: Plan) -> float:
        """Return the standard deviation of a trusted server's noise in the first round, divided by `noise_std`."""
        factor = round_factor(self.noise)
        return 1.0 if factor is None else factor.first_std(plan.schedule)

    def check(self, problem: Problem) -> None:
        """Raise Refusal if the guarantee does not cover the problem. Default: nothing."""

    def check_late(self, protocol: str) -> None:
        """Raise Refusal unless the guarantee covers messages that arrive some rounds late. Default: always raise it."""
        raise Refusal(f"participation must be synchronous for {protocol}, got late answers. Use FedAvg")

    def check_method(self, method: str, noise_std: float) -> None:
        """Raise Refusal if the noise method is not possible with the calibrated noise. Default: nothing."""

    def host_noise(self, plan: Plan, dimension: int, seed: int, noise_std: float) -> Any:
        """Return noise that is sampled on the host before a run, leaves [rounds, ...], or None (the default)."""
        return None

    def of_noise(self, facts: WorkFacts, noise_std: float) -> dict[str, Any]:
        """Return settings of this object that calibration computes from the noise, by name. Default: none.

        Raises:
            Refusal: if the noise does not fit the settings.
        """
        return {}

    def encoded_norm(self, dimension: int) -> float | None:
        """Return the bound to which encoded messages are clipped before a trusted server's noise. Default: None."""
        return None

    def message_dimension(self, dimension: int) -> int:
        """Return the number of coordinates of a sent message. Default: as many as the algorithm's message has."""
        return dimension

    def protocol_bits(self, machines: float) -> float:
        """Return the number of bits that a machine sends in a round besides its message, such as keys. Default: 0."""
        return 0.0

    def message_bits(self, dimension: int) -> float:
        """Return the number of bits of a message. Default: those of the encoder, or 32 per coordinate."""
        return 32.0 * dimension if self.encoder is None else self.encoder.bits(dimension)
