r"""Skellam or discrete Gaussian noise in integer sums under secure aggregation.

Agarwal, Kairouz & Liu (NeurIPS 2021), and Kairouz, Liu & Steinke (ICML 2021).

In round t, machine i of a cohort of n clips its update to norm C, pads it to D = 2^⌈log₂ d⌉ numbers, and sends

    z_i = R(s·H·x_i) + Z_i   modulo 2^b,   Z_i ~ Skellam(s²σ²) or N_Z(0, s²σ²)

with a rotation H by public signs, a public scale s (the papers' 1/γ), and stochastic rounding R that is repeated until
the norm is at most Δ₂. The server sees the sum of the z_i modulo 2^b, and reads Hᵀ·Σz_i/(s·n).

Everything public is a function of public numbers: by default the scale leaves room for k standard deviations of a
coordinate of the sum, with all updates of norm C in one direction,

    2^b = 2k·√((s·C·n)²/D + n/4 + n·s²σ²)

Deviation: the tries of a rounding are bounded, see `method/integers.py`.
"""

from math import ceil, erfc, log2, sqrt
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.checks.values import called, require_at_least, require_choice, require_number, require_positive
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.clipping import clip
from fedprivjax.method.integers import centred, padded_size, rotated, rounded, unrotated
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.method.work_privacy import Facts, WorkFacts, WorkPrivacy
from fedprivjax.noise import Mechanism
from fedprivjax.noise.integer_noise import EveryInteger, IntegerNoise, SummedIntegers, require_drawable, summed_noise
from fedprivjax.noise.interface import MessageInputs
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalWork
from fedprivjax.plan.seeds import binomial_stream
from fedprivjax.privacy.accountants.integer_sums import BETA, DISTRIBUTIONS, norms_of, rounded_norm
from fedprivjax.privacy.adversaries import SecureSum
from fedprivjax.privacy.integer_event import IntegerEvent
from fedprivjax.privacy.relations import RELATIONS, REPLACE_ONE, vectors_changed
from fedprivjax.privacy.terms import MACHINE, PUBLIC_PARTICIPATION, Assumption, Terms
from fedprivjax.privacy.views import SentNoise
from fedprivjax.problem.models import Dense

MOST_BITS = 24  # integers of so many bits are exact in float32
WRAPS = 1e-3  # largest probability of a wrapped coordinate without a warning
KEY_BITS, SHARE_BITS = 256, 256  # of a public key, and of an encrypted share of a secret


class PublicState(NamedTuple):
    """Public state of `IntegerSums` between rounds.

    Attributes:
        round: number of the next round, from 1, which determines the random rotation of its updates.
        wrapped: fraction of coordinates that wrapped around in the sum of the previous round.
    """

    round: Any
    wrapped: Any


@final
@struct.dataclass(kw_only=True)
class IntegerSums(WorkPrivacy):
    """Integer noise that machines add to messages under secure aggregation; it protects all records of a machine.

    In a round, every machine clips its update. A public random rotation spreads the update over all coordinates. The
    machine multiplies the rotated update by a public number (`scale`), and rounds each coordinate at random to one of
    the two nearest integers. Then the machine adds integer noise, and sends the coordinates modulo 2^b, with b =
    `bits`. The server sees only the sum of a round's messages modulo 2^b.

    Attributes:
        work: sampler of the records of the local steps: `LocalEpochs` or `LocalSteps`.
        update_clip: C, bound on the L2 norm of a machine's whole update.
        distribution: distribution of the noise, "skellam" or "discrete-gaussian".
        bits: b, number of bits of a coordinate, from 2 to 24.
        scale: s, factor from units of the update to integers. If it is None, s is the result of `scale_for`.
        deviations: k, number of standard deviations in the rule for the default `scale`.
        beta: β in [0, 1). A rounding is repeated if the rounded norm exceeds a bound that depends on β. One rounding
            exceeds the bound with probability at most β. The noise is calibrated to the bound. A larger β gives a
            smaller bound and less noise, but more bias from repetitions.
        relation: neighbouring relation of machines, "replace-one" or "add-or-remove-one". With "add-or-remove-one", a
            removed machine still sends zeros with noise.
        planned_scale: the value of s in the run; set by calibration.

    **Privacy**: (ε, δ)-DP for one machine, by default against a `SecureSum`, an adversary that sees only the sums.
    `noise_std` is the standard deviation of one machine's noise, in units of the update. Runs with `noise_std=0` send
    integers without noise.

    Raises:
        Refusal: if a setting is invalid.

    >>> from fedprivjax import LocalEpochs, LocalGradientSteps, Protocol
    >>> private = IntegerSums(work=LocalEpochs(1, batch=10), update_clip=1.0, bits=12)
    >>> print(Protocol(LocalGradientSteps(), privacy=private, epsilon=8.0, step_size=0.1).adversary)
    secure-sum
    """

    work: LocalWork = struct.field(pytree_node=False, default=None)  # type: ignore[assignment]
    update_clip: Any = None
    distribution: str = struct.field(pytree_node=False, default="skellam")
    bits: int = struct.field(pytree_node=False, default=12)
    scale: Any = None
    deviations: Any = 4.0
    beta: float = struct.field(pytree_node=False, default=BETA)
    relation: str = struct.field(pytree_node=False, default=REPLACE_ONE)
    planned_scale: Any = struct.field(default=None, metadata={"derived": True})

    unit = "machine"
    at_machines = False
    default_adversary = SecureSum()
    reads_cohort_size = True

    def __post_init__(self):
        if not isinstance(self.work, LocalWork):
            remedy = "Set it, for example to LocalEpochs(1, batch=10)"
            raise Refusal(f"work must be a LocalEpochs or a LocalSteps, got {called(self.work)}. {remedy}")
        if isinstance(self.update_clip, AdaptiveClip):
            raise Refusal(
                "update_clip must be a number with IntegerSums, because the bit of an adaptive clip would need integer "
                "noise of its own, got an AdaptiveClip. Set a norm"
            )
        require_clip("update_clip", self.update_clip)
        require_choice("distribution", self.distribution, DISTRIBUTIONS)
        require_positive("scale", self.scale, optional=True)
        require_at_least("bits", self.bits, 2)
        if self.bits > MOST_BITS:
            raise Refusal(
                f"bits must be at most {MOST_BITS}, got {self.bits}. Integers are exact in float32 up to there"
            )
        require_positive("deviations", self.deviations)
        require_number("beta", self.beta)
        if not 0 <= self.beta < 1:
            raise Refusal(f"beta must be at least 0 and below 1, got {self.beta}")
        object.__setattr__(self, "beta", float(self.beta))  # a bound in float16 would be rounded down
        require_choice("relation", self.relation, RELATIONS)

    @property
    def _norm(self) -> float:
        """C. Raise Refusal if it is not given."""
        if self.update_clip is None:
            raise Refusal("update_clip must be given with IntegerSums, got none. Set a norm")
        return float(self.update_clip)

    @property
    def step_divisor(self) -> Any:
        """Divisor of the sum over a local step's records. None stands for the number of these records.

        With Poisson sampling, where the number of records is random, it is the expected number, the batch size of
        `work`.
        """
        return self.work.batch if self.work.of_step.independent else None

    def scale_for(self, noise_std: float, machines: float, numbers: int) -> float:
        """Return s, the public factor by which machines multiply their updates before the rounding to integers.

        If `scale` is given, s is `scale`. Otherwise, s is the largest number with k·√((s·C·n)²/D + n/4 + n·s²σ²) ≤
        2^(b−1). Here k = `deviations`, C = `update_clip` and b = `bits`.

        Args:
            noise_std: σ, standard deviation of a machine's noise, in units of the update.
            machines: n, expected number of machines in a sum.
            numbers: D, number of coordinates of a message: the dimension of the update, rounded up to a power of two.

        >>> from fedprivjax import LocalEpochs
        >>> private = IntegerSums(work=LocalEpochs(1), update_clip=1.0, bits=12)
        >>> round(private.scale_for(1.0, 50, 8192), 2)
        72.19
        """
        if self.scale is not None:
            return float(np.float32(self.scale))
        room = 4.0**self.bits / (4 * float(self.deviations) ** 2) - machines / 4
        if room <= 0:
            least = ceil(log2(machines * float(self.deviations) ** 2) / 2) + 1
            raise Refusal(
                f"bits must be at least {least} for sums of {machines:g} machines, got {self.bits}. With fewer, their "
                f"rounding errors alone wrap"
            )
        variance = (self._norm * machines) ** 2 / numbers + machines * noise_std**2
        return float(np.float32(sqrt(room / variance)))  # as a run reads it

    def wrap_probability(self, noise_std: float, machines: float, numbers: int) -> float:
        """Return the estimated probability that a coordinate of a sum leaves the range of `bits` bits.

        Such a coordinate wraps around. The estimate assumes a normally distributed coordinate, and updates that all
        have the norm `update_clip` and the same direction.

        Args:
            noise_std: standard deviation of a machine's noise, in units of the update.
            machines: expected number of machines in a sum.
            numbers: number of coordinates of a message: the dimension of the update, rounded up to a power of two.

        >>> from fedprivjax import LocalEpochs
        >>> private = IntegerSums(work=LocalEpochs(1), update_clip=1.0, bits=8, scale=70.0)
        >>> round(private.wrap_probability(1.0, 50, 8192), 3)
        0.797
        """
        scale = self.scale_for(noise_std, machines, numbers)
        variance = (scale * self._norm * machines) ** 2 / numbers
        variance += machines * (0.25 + (scale * noise_std) ** 2)
        return erfc(2.0 ** (self.bits - 1) / sqrt(2 * variance))

    # ---- at a machine, traced

    def start(self) -> PublicState:
        return PublicState(jnp.int32(1), jnp.float32(0.0))

    def bounded(self, message: Any, public: PublicState) -> tuple[Any, dict]:
        vector = Dense(message)
        norm = vector.norm()
        info = {"clipped_share": (norm > self.update_clip).astype(jnp.float32), "message_norm": norm}
        return clip(vector, self.update_clip).value, info

    def sent(self, message: Any, info: dict, public: PublicState, noise: Any, facts: Facts) -> jax.Array:
        """Return a clipped update, padded with zeros to D coordinates and rotated; float32 [D].

        D is the dimension of the update, rounded up to a power of two. The rotation is public and differs between
        rounds.

        Args:
            message: clipped update, a pytree.
            public: public state, of which `public.round`, the number of the round, determines the rotation.
            info, noise, facts: not used.
        """
        return rotated(ravel_pytree(message)[0], public.round)

    def encoded(self, message: jax.Array, key: jax.Array, facts: Facts) -> jax.Array:
        """Return s·y, rounded at random to integers, for a machine's rotated update y; int32 [D].

        The factor s is the scale of the run. One rounding is unbiased. It is repeated if the norm of the result exceeds
        the bound to which the noise is calibrated. This function neither adds noise nor reduces the integers modulo
        2^`bits`.

        Args:
            message: y, the clipped and rotated update, as `sent` returns it; float32 [D], where D is the dimension of
                the update, rounded up to a power of two.
            key: random key of the machine.
            facts: not used.
        """
        most = rounded_norm(self.planned_scale * self.update_clip, self.beta, message.size)
        return rounded(key, self.planned_scale * message, most)

    # ---- at the server, traced

    def round_noise(self, drawn: Any, host_noise: Any, facts: Facts) -> IntegerNoise:
        if host_noise is not None:
            return IntegerNoise(host_noise, 1 / (self.planned_scale * drawn))
        return drawn.noise(self.distribution, self.planned_scale * facts.noise_std, 1 / self.planned_scale)

    def of_message(self, own_noise: IntegerNoise | None) -> Any:
        return None if own_noise is None else own_noise.levels

    def divisor(self, weight: Any, inputs: RoundInputs) -> Any:
        """Return the number by which the server divides a round's sum: the expected number of participants."""
        return inputs.divisor

    def read(self, total: Any, divisor: Any, noise: IntegerNoise | None, public: PublicState, facts: Facts):
        """Return the mean update, shaped like a machine's message, and the public state for the next round.

        Args:
            total: sum of the participants' integers without noise, int32 [D], where D is the dimension of the update,
                rounded up to a power of two.
            divisor: number by which the sum is divided.
            noise: integer noise of the sum, or None in a run without noise.
            public: public state, of which `public.round`, the number of this round, determines the rotation.
            facts: facts of the run, such as the shape of a message.
        """
        values = total if noise is None else total + noise.levels
        seen = centred(values, self.bits)
        mean = unrotated(seen.astype(jnp.float32), public.round) / (self.planned_scale * divisor)
        wrapped = jnp.mean((seen != values).astype(jnp.float32))
        return _unravelled(mean, facts.form), PublicState(public.round + 1, wrapped)

    def reported(self, before: PublicState, after: PublicState) -> dict[str, Any]:
        """Return `{"wrapped_share": x}`, with the fraction x of coordinates of the sum that wrapped around.

        A coordinate wraps around if it is below −2^(b−1) or above 2^(b−1) − 1, with b = `bits`.

        Args:
            before: not used.
            after: public state after the round, in which `read` stored the fraction.
        """
        return {"wrapped_share": after.wrapped}

    def reduced(self, messages: Any) -> Any:
        """Return messages or their sums modulo 2^b for b = `bits`, as an adversary sees them."""
        integers = messages is not None and np.issubdtype(messages.dtype, np.integer)
        return np.asarray(centred(jnp.asarray(messages), self.bits)) if integers else messages

    def decoded(self, messages: jax.Array) -> jax.Array:
        """Return updates from a run's integer messages, in their original units; float32 [rounds, per_round, D].

        D is the dimension of the update, rounded up to a power of two. The rotation is undone, and the integers are
        divided by the scale. `messages` must not be reduced modulo 2^bits.
        """

        def one(t, rows):
            return jax.vmap(lambda row: unrotated(row.astype(jnp.float32), t) / self.planned_scale)(rows)

        return jax.vmap(one)(jnp.arange(1, messages.shape[0] + 1), messages)

    # ---- on the host

    def check_method(self, method: str, noise_std: float) -> None:
        if method == "materialised":
            require_drawable(self.distribution, float(self.planned_scale) * noise_std)

    def mechanism(self, facts: WorkFacts, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        schedule = facts.plan.schedule
        divisor = np.full(facts.plan.size.rounds, schedule.divisor, np.float32)
        if method == "materialised":
            return EveryInteger(MessageInputs(schedule.present.astype(np.float32), divisor))
        return SummedIntegers(divisor)

    def host_noise(self, plan: Plan, dimension: int, seed: int, noise_std: float) -> np.ndarray:
        deviation, senders = float(self.planned_scale) * noise_std, plan.schedule.present.sum(axis=1)
        return summed_noise(self.distribution, binomial_stream(seed), deviation, senders, dimension)

    def event(self, facts: WorkFacts, noise_std: float) -> IntegerEvent:
        schedule, numbers = facts.plan.schedule, facts.dimension
        scale = self.scale_for(noise_std, schedule.divisor, numbers)
        norm = rounded_norm(scale * self._norm, self.beta, numbers)
        values = {"numbers": numbers, "bits": self.bits, "scale": scale, "norm": norm}
        of = DISTRIBUTIONS[self.distribution]
        assumed = (
            PUBLIC_PARTICIPATION,
            Assumption("clipped updates", {"bound": self._norm}),
            Assumption("integers", values),
            Assumption("sampler", {"of": of.sampled}),
            Assumption("not covered"),
        )
        terms = Terms(self.trust, of.theorem, assumed, unit=MACHINE, relation=self.relation)
        norms = norms_of(norm, numbers, vectors_changed(self.relation))
        return IntegerEvent(self.distribution, scale * noise_std, norms, schedule.total, terms)

    def of_noise(self, facts: WorkFacts, noise_std: float) -> dict[str, Any]:
        """Return `{"planned_scale": s}`: s is the factor from units of the update to integers in the run.

        If `scale` is given, s is `scale`. Otherwise, `scale_for` computes s from the noise. A warning is shown if a
        coordinate of a sum leaves the range of `bits` bits with an estimated probability above 1/1000.

        Args:
            facts: facts of the run, such as the number of machines in a sum and the dimension.
            noise_std: calibrated standard deviation of a machine's noise, in units of the update.

        Raises:
            Refusal: if the scale is so large that float32 does not represent the integers exactly.
        """
        machines, numbers = facts.plan.schedule.divisor, facts.dimension
        scale = self.scale_for(noise_std, machines, numbers)
        norm = scale * self._norm
        if norm > 2**MOST_BITS:
            most = 2**MOST_BITS / self._norm
            raise Refusal(f"scale must be at most {most:.4g}, or float32 rounds the integers, got {scale:.4g}")
        chance = self.wrap_probability(noise_std, machines, numbers)
        if chance > WRAPS:
            warn(
                f"the modulus 2^{self.bits} may wrap {chance:.2g} of the coordinates of a sum of {machines:g}. "
                f"Use more bits or a smaller scale. wrapped_share is the share in a run"
            )
        return {"planned_scale": scale}

    def sent_noise(self, facts: WorkFacts) -> SentNoise:
        return SentNoise(np.ones(facts.plan.schedule.participants.shape), once=True)

    def message_dimension(self, dimension: int) -> int:
        return padded_size(dimension)

    def message_bits(self, dimension: int) -> float:
        return float(self.bits * dimension)

    def protocol_bits(self, machines: float) -> float:
        """Return the number of bits that secure aggregation adds per machine and round to the masked message.

        In a sum of n machines, a machine sends two public keys, an encrypted share of two secrets to every other
        machine, and at the end one share for every machine. These are 2·a_K + (3n − 2)·a_S bits (Bonawitz et al., CCS
        2017, Section 7.1), with a_K = 256 bits for a key and a_S = 256 bits for a share. Masks add no bits to a
        message.
        """
        return 2 * KEY_BITS + (3 * machines - 2) * SHARE_BITS


def _unravelled(vector: jax.Array, form: Any) -> Any:
    """Return a vector [D] as a message of a form, without its padding."""
    zeros, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), form))
    return unravel(vector[: zeros.size])
