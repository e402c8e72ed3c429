"""Privacy of local work: everything that leaves a machine is bounded, noised and encoded here, and read here.

bound → pair with a bit → own noise → encoder → sum → divisor → server's noise → back
"""

from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice
from fedprivjax.method.adaptive_clip import EVEN, LEAST_SHARE, AdaptiveClip
from fedprivjax.method.addable_records import require_addable
from fedprivjax.method.clipping import clip
from fedprivjax.method.encoders import Encoder
from fedprivjax.method.local_data import LocalData
from fedprivjax.method.local_privacy import UNITS, NoisySteps, NoisyUpdates
from fedprivjax.method.pairwise_noise import TakesPairwise, assuming_pairs, require_pairwise, sent_by
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.method.work_privacy import Facts, WorkFacts, WorkPrivacy
from fedprivjax.noise import Mechanism
from fedprivjax.noise.interface import normals
from fedprivjax.noise.pairwise import Pairwise, as_pairwise
from fedprivjax.noise.server_factors import INDEPENDENT, over_rounds
from fedprivjax.plan.samplers import Full, LocalSteps, LocalWork
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.relations import RELATIONS, REPLACE_ONE
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.views import SentNoise
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import isolated


@final
@struct.dataclass(kw_only=True)
class LocalPrivacy(TakesPairwise, WorkPrivacy):
    """Privacy of methods with local steps: no protection, or protection of one record or all records of a machine.

    Attributes:
        work: sampler of the records of the local steps: `LocalEpochs` or `LocalSteps`.
        unit: protected unit. "record" protects one record by noise in every local step. "machine" protects all records
            of a machine by clipping its message and adding noise. None, the default, adds no noise.
        clip: bound on the L2 norm of every record's message in a local step, enforced by clipping. If `clip` is None,
            only runs with noise and unit = "record" clip records' messages, to the loss's Lipschitz constant.
        update_clip: bound on the L2 norm of a machine's whole message, enforced by clipping. It is a number, or an
            `AdaptiveClip`. It is required with unit = "machine".
        trust: "server" if a trusted server adds the noise, or "none" if the machines add it. Default: "server" with
            unit = "machine", otherwise "none".
        relation: neighbouring relation, "replace-one" (default) or "add-or-remove-one".
        noise: "independent" for fresh noise in every round. Other values, such as "tree" or "toeplitz", correlate a
            trusted server's noise over rounds. The setting `noise_schedule` of `FedAvg` lists all such values. With
            unit = "machine" and trust = "none", a `Pairwise` adds noise that pairs of machines share.
        encoder: `Encoder` that compresses the machines' messages, or None.

    **Privacy**: none, or (ε, δ)-DP for one record or for all records of one machine, under the neighbouring relation
    `relation`. The trust model `trust` determines the adversary.

    Raises:
        Refusal: if no theorem covers the settings.

    >>> from fedprivjax import LocalEpochs
    >>> LocalPrivacy(work=LocalEpochs(1, batch=10), unit="machine", update_clip=1.0).trust
    'server'
    >>> LocalPrivacy(work=LocalEpochs(1, batch=10), unit="machine", trust="shuffler")
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown trust 'shuffler' (known: server, none)
    """

    work: LocalWork = struct.field(pytree_node=False, default=None)  # type: ignore[assignment]
    unit: str | None = struct.field(pytree_node=False, default=None)
    clip: Any = None
    update_clip: Any = struct.field(default=None, metadata={"part": AdaptiveClip, "number": True})
    trust: str | None = struct.field(pytree_node=False, default=None)
    relation: str = host_only(REPLACE_ONE)
    noise: Any = host_only(INDEPENDENT)
    encoder: Encoder | None = struct.field(pytree_node=False, default=None)

    weighs_machines = True

    def __post_init__(self):
        if not isinstance(self.work, LocalWork):
            remedy = "Set it, for example to LocalEpochs(1, batch=10)"
            raise Refusal(f"work must be a LocalEpochs or a LocalSteps, got {called(self.work)}. {remedy}")
        if self.trust is None:
            object.__setattr__(self, "trust", "server" if self.unit == "machine" else "none")
        require_choice("trust", self.trust, ("server", "none"))
        require_clip("clip", self.clip)
        require_clip("update_clip", self.update_clip)
        require_choice("relation", self.relation, RELATIONS)
        noise = as_pairwise(self.noise)
        object.__setattr__(self, "noise", noise if isinstance(noise, Pairwise) else over_rounds(noise))
        self._require_proved()

    def _require_proved(self) -> None:
        """Raise Refusal unless a theorem covers the settings."""
        if self.encoder is not None and not isinstance(self.encoder, Encoder):
            raise Refusal(f"encoder must be an Encoder, such as Quantiser(levels=16), got {called(self.encoder)}")
        if self.unit is not None:
            require_choice("unit", self.unit, UNITS)
        if self.unit == "machine" and self.clip is not None:
            raise Refusal(
                f"clip must be left out with unit = 'machine', got {called(self.clip)}: it bounds one record's "
                f"gradient. Set update_clip, which bounds a machine's update"
            )
        if self.unit != "machine" and self.trust == "server":
            raise Refusal(f"trust must be 'none' with unit = {self.unit!r}, got 'server'. Leave it out")
        if self.unit is None and self.relation != REPLACE_ONE:
            raise Refusal(f"relation must be {REPLACE_ONE!r} with unit = None, got {self.relation!r}. Leave it out")
        if isinstance(self.noise, Pairwise):
            if self.unit != "machine":
                raise Refusal(f"unit must be 'machine' with {self.noise}, got {self.unit!r}")
            clip = self.update_clip if self.adaptive else None
            require_pairwise(self.noise, self.trust, encoder=self.encoder, update_clip=clip)
        elif self.noise != INDEPENDENT and (self.unit != "machine" or self.trust != "server"):
            raise Refusal(
                f"noise_schedule must be {INDEPENDENT!r} without unit = 'machine' and trust = 'server', got "
                f"unit = {self.unit!r} and trust = {self.trust!r}. Leave it out"
            )
        elif self.noise != INDEPENDENT and self.adaptive:
            raise Refusal(
                f"noise_schedule must be {INDEPENDENT!r} with an AdaptiveClip, because noise that follows the clip "
                f"does not cancel over rounds, got {self.noise!r:.60}. Use a fixed clip"
            )
        if self.unit == "record":
            if type(self.work) is not LocalSteps and type(self.work.of_step) is not Full:
                raise Refusal(
                    f"of_step of {type(self.work).__name__} must be Full(), because the steps of a round may share "
                    f"their secret records, got {self.work.of_step}. Use LocalSteps for independent steps"
                )
            require_addable(self.relation, self.work.of_step)

    @property
    def adaptive(self) -> bool:
        """True if `update_clip` is an `AdaptiveClip`, which changes from round to round."""
        return isinstance(self.update_clip, AdaptiveClip)

    @property
    def at_machines(self) -> bool:
        """True if the simulation samples noise separately for every machine.

        It does so for noise in local steps, and for noise in messages that are then encoded. Otherwise, it samples the
        noise of the round's mean, which has the same distribution.
        """
        own = self.trust == "none" and self.encoder is not None
        return self.unit == "record" or (self.unit == "machine" and own)

    @property
    def noisy_steps(self) -> bool:
        """True if every local step has noise, which is the case with unit = "record"."""
        return self.unit == "record"

    @property
    def step_divisor(self) -> Any:
        """Divisor of the sum over a local step's records. None stands for the number of these records.

        It is the batch size of `work` if single records are protected, or if every record is sampled independently
        (Poisson). With a fixed divisor, the sensitivity of the mean does not depend on the sampled number of records.
        """
        return self.work.batch if self.unit == "record" or self.work.of_step.independent else None

    # ---- at a machine, traced

    def start(self) -> Any:
        """Return the public state before the first round: the first clip of an `AdaptiveClip`, otherwise ()."""
        return jnp.asarray(self.update_clip.start, jnp.float32) if self.adaptive else ()

    def step_noise(self, noise: Any, step: Any, dimension: int) -> jax.Array:
        key, deviation = noise
        return deviation * normals(jax.random.fold_in(key, step), (dimension,))

    def bounded(self, message: Any, public: Any) -> tuple[Any, dict]:
        """Return a machine's message clipped to norm `update_clip`, and the clipping metrics by name.

        The metrics are `clipped_share`, 1 if the message was longer than the clip and else 0, and `message_norm`, its
        norm before clipping. Without an `update_clip`, the message is unchanged and there are no metrics.

        Args:
            message: the machine's message, a pytree.
            public: clip of this round with an `AdaptiveClip`, otherwise ().
        """
        if self.update_clip is None:
            return message, {}
        limit = public if self.adaptive else self.update_clip
        vector = Dense(message)
        norm = vector.norm()
        info = {"clipped_share": (norm > limit).astype(jnp.float32), "message_norm": norm}
        return clip(vector, limit).value, info

    def sent(self, message: Any, info: dict, public: Any, noise: Any, facts: Facts) -> Any:
        """Return a clipped message as the machine sends it, before encoding.

        With an `AdaptiveClip`, the message becomes a pair of update and bit (`AdaptiveClip.pair`). If machines add
        noise to their messages, the noise is added.

        Args:
            message: the clipped message.
            info: clipping metrics of the message, from `bounded`.
            public: clip of this round with an `AdaptiveClip`, otherwise ().
            noise: random key and standard deviation of the machine's noise, or None if it adds none to its message.
            facts: facts of the run, such as the calibrated noise.
        """
        if self.adaptive:
            norm = info["message_norm"]
            unclipped = jnp.where(jnp.isfinite(norm), norm, 0.0) <= public  # a non-finite message became zero
            message = self.update_clip.pair(message, unclipped, public, self._bit_factor(facts))
        if self.unit != "machine" or noise is None:
            return message
        (key, deviation), (vector, unravel) = noise, ravel_pytree(message)
        return unravel(vector + deviation * normals(key, vector.shape))

    def encoded(self, message: Any, key: jax.Array, facts: Facts) -> Any:
        """Return a message after compression by `encoder` and decoding at the server, in its original form.

        Without an encoder, the message is unchanged. If a trusted server adds noise to compressed messages, the decoded
        message is clipped to the norm to which this noise is calibrated.

        Args:
            message: message that the machine sends, with its own noise if it adds any.
            key: random key of the machine, for the encoder's random choices.
            facts: facts of the run, such as this norm.
        """
        if self.encoder is None:
            return message
        vector, unravel = ravel_pytree(message)
        encode = partial(self.encoder.encode, vector, key)
        found = encode() if self.unit is None else isolated(encode, name=f"encode of {type(self.encoder).__name__}")
        return unravel(found if facts.encoded is None else clip(Dense(found), facts.encoded).value)

    def weight(self, data: LocalData, facts: Facts) -> Any:
        """Return the weight of a machine's message in the server's mean, a scalar.

        It is 1 if all machines count equally. If the problem has weights of machines, it is M·p_i, for M machines and
        weight p_i of machine i (the p_i sum to 1).
        """
        if not facts.weighted:
            return 1.0
        sampled = isinstance(self.work, LocalSteps) and self.work.batch
        count: Any = data.steps * self.work.batch if sampled else jnp.sum(data.weights != 0)  # type: ignore[operator]
        return jnp.max(data.weights) * count

    # ---- at the server, traced

    def divisor(self, weight: Any, inputs: RoundInputs) -> Any:
        """Return the number by which the server divides the sum of the machines' messages.

        If the guarantee protects all records of a machine (the attribute `unit` is "machine"), it is the expected
        number of participants of a round, which is public. If it protects single records (`unit` is "record"), or
        nothing (`unit` is None), it is the sum of the participants' weights.

        Args:
            weight: sum of the participants' weights.
            inputs: the round's participants and their records.
        """
        return inputs.divisor if self.unit == "machine" else jnp.where(weight > 0, weight, 1.0)

    def read(self, total: Any, divisor: Any, noise: Any, public: Any, facts: Facts) -> tuple[Any, Any]:
        """Return the mean message that the server reads, and the public state for the next round.

        If the attribute `at_machines` is True, the messages in `total` already have noise. Otherwise, noise is added
        here. The public state is the clip of the next round with an `AdaptiveClip`, otherwise ().

        Args:
            total: weighted sum of the participants' messages.
            divisor: number by which the sum is divided, from the method `divisor`.
            noise: the round's noise, or None in a run without noise.
            public: clip of this round with an `AdaptiveClip`, otherwise ().
            facts: facts of the run.
        """
        mean = jax.tree.map(lambda leaf: leaf / divisor, total)
        if not self.at_machines and noise is not None:
            if self.adaptive and self.trust == "server":  # the multiplier is that of the sum
                noise = noise / divisor
            mean = jax.tree.map(jnp.add, mean, ravel_pytree(mean)[1](noise))
        return self.update_clip.released(mean, public, self._bit_factor(facts)) if self.adaptive else (mean, public)

    def _bit_factor(self, facts: Facts) -> Any:
        """Return the norm u of the bit's part of a message with an adaptive clip."""
        if self.unit != "machine":  # the pair has no noise of its own
            return EVEN
        least = facts.expected / LEAST_SHARE if self.trust == "server" else 0.0
        return self.update_clip.bit_factor(facts.noise_std, least)

    def reported(self, before: Any, after: Any) -> dict[str, Any]:
        """Return the metric `clip` of a round with an `AdaptiveClip`, otherwise no metric."""
        return {"clip": before} if self.adaptive else {}

    # ---- on the host

    @property
    def reads_cohort_size(self) -> bool:
        """True if machines' messages depend on the expected number of participants of a round.

        This number is public. Messages depend on it with an `AdaptiveClip`, because the default noise on the machines'
        bits does.
        """
        return self.adaptive

    def of_noise(self, facts: WorkFacts, noise_std: float) -> dict[str, Any]:
        if self.adaptive:
            self.update_clip.check(noise_std if self.unit == "machine" else 0.0)
        return {}

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        if self.unit == "machine" and self.update_clip is None:
            raise Refusal("update_clip must be given with unit = 'machine', got none. Set a norm or an AdaptiveClip")
        return {}

    def encoded_norm(self, dimension: int) -> float | None:
        if self.unit != "machine" or self.trust != "server" or self.encoder is None:
            return None
        unit: Any = self.protecting(stateful=False, dimension=dimension)
        return unit.norm

    def check(self, problem: Problem) -> None:
        """Raise Refusal if the problem weights machines in a way that the guarantee does not cover."""
        sampler = self.work.of_step
        if problem.machine_weights is not None and sampler.independent:
            raise Refusal(
                f"machine_weights must be left out with the sampler {sampler.name!r}: a machine whose secret sample is "
                f"empty would have no weight, which shows it. Use 'subset' or 'replacement'"
            )
        if self.unit == "machine" and problem.machine_weights is not None:
            given = "'sizes'" if problem.weighted_by_size else f"{len(problem.machine_weights)} numbers"
            raise Refusal(
                f"machine_weights must be left out with unit = 'machine', got {given}: their sum over a cohort depends "
                f"on who takes part. Without them, all machines count equally"
            )

    def check_late(self, protocol: str) -> None:
        """Raise Refusal if a setting is not covered by a guarantee when machines answer some rounds late.

        These are an `AdaptiveClip`, an encoder, and any `noise` other than "independent".
        """
        named = {"update_clip": self.adaptive and self.update_clip, "encoder": self.encoder}
        named["noise_schedule"] = None if isinstance(self.noise, str) and self.noise == INDEPENDENT else self.noise
        for name, given in named.items():
            if given:
                usual = "a number" if name == "update_clip" else "left out"
                raise Refusal(f"{name} must be {usual} with late answers, for which no theorem is known, got {given}")

    def protecting(self, *, stateful: bool, dimension: int) -> NoisySteps | NoisyUpdates:
        """Return the object that states noise and guarantee: `NoisySteps` or `NoisyUpdates`.

        `NoisySteps` adds noise in local steps and protects single records. `NoisyUpdates` adds noise to messages and
        protects machines.

        Args:
            stateful: True if machines keep a state between rounds.
            dimension: number of coordinates of a message.
        """
        if self.unit != "machine":
            return NoisySteps(self.work, self.clip, self.relation)
        settings = str(self.trust), self.update_clip, self.relation, self.noise
        return NoisyUpdates(*settings, stateful=stateful, encoder=self.encoder, dimension=dimension)

    def mechanism(self, facts: WorkFacts, method: str) -> Mechanism:
        return self.protecting(stateful=facts.stateful, dimension=facts.dimension).mechanism(facts.plan, method)

    def event(self, facts: WorkFacts, noise_std: float) -> Event:
        unit = self.protecting(stateful=facts.stateful, dimension=facts.dimension)
        return assuming_pairs(unit.event(facts.problem, facts.plan, noise_std), self.noise)

    def sent_noise(self, facts: WorkFacts) -> SentNoise | None:
        if self.unit != "machine" or self.trust != "none" or self.encoder is not None:
            return None
        schedule = facts.plan.schedule
        return sent_by(self.noise, np.ones(schedule.machines), schedule, once=False)

    @property
    def traced(self) -> "LocalPrivacy":
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy, so changing such a setting does not recompile them.
        """
        kept = {"work": self.work, "unit": self.unit, "clip": self.clip, "update_clip": self.update_clip}
        return LocalPrivacy(**kept, trust=self.trust, encoder=self.encoder)
