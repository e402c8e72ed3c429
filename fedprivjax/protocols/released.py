"""Methods as in released code of other groups, where it differs from the published methods. No other method needs them.

The released code of Lowy & Razaviyayn sums messages instead of averaging them, clips messages instead of records, and
sets its noise by a rule whose claimed ε does not hold for its sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_flag
from fedprivjax.method.algorithm import At
from fedprivjax.method.clipping import clip
from fedprivjax.method.linear import Linear, of_record
from fedprivjax.method.machine_kinds import MachineTable
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_privacy import RecordPrivacy
from fedprivjax.method.record_settings import RecordSettings
from fedprivjax.method.release import Limits, RunFacts
from fedprivjax.method.round import Machine, RoundInputs, cohort_messages
from fedprivjax.method.theory import Theory
from fedprivjax.noise import Mechanism
from fedprivjax.plan.samplers import Sampler, as_sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.noise_rules import NOISE_RULES, PaperMoments
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.local_sgd import LocalSGD
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSettings, MinibatchSGD, MinibatchState

CLIPPED = {
    "record": "every record's gradient",
    "message": "a machine's mean over its batch, whose sensitivity to a record is then 2C instead of 2C/K",
    "other": "a batch's mean, with the factor of another batch's norm: unbounded sensitivity",
}
AGGREGATES = {"mean": "mean of the messages", "sum": "sum of the messages, an effective step of M times the step"}


@dataclass(frozen=True)
class UnboundedRecords(RecordMechanism):
    """Messages scaled by another batch's norm: their sensitivity to one record is unbounded."""

    def shift(self, m: MachineTable) -> np.ndarray:
        return np.full(m.batch.size, inf)

    def bounds(self, problem: Problem) -> tuple[Assumption, ...]:
        return (Assumption("rescaled messages"),)


@final
@struct.dataclass(kw_only=True)
class ReleasedRecords(RecordPrivacy):
    """Noise on messages of released code. `ReleasedMinibatchSGD` alone is composed with it, and documents the settings.

    **Privacy**: (ε_i, δ_i)-DP of machine i's transcript for replacing one of its records; none with clip_at "other".

    Raises:
        Refusal: if a setting is invalid.
    """

    clip_at: str = struct.field(pytree_node=False, default="record")
    aggregate: str = struct.field(pytree_node=False, default="mean")

    def __post_init__(self):
        require_choice("trust", self.trust, ("none",))
        require_choice("clip_at", self.clip_at, CLIPPED)
        require_choice("aggregate", self.aggregate, AGGREGATES)
        super().__post_init__()
        sampler = self._sampler
        if self.clip_at == "other" and not (sampler.repeats and isinstance(sampler.batch, int | None)):
            raise Refusal("clip_at 'other' must go with the sampler 'replacement' and one batch for all machines")

    # ---- traced

    def total(self, problem: Problem, machine: Machine, inputs: RoundInputs, bound: Any) -> tuple[Any, dict]:
        """Return the sum of the cohort's messages, and scalars of the round if records are clipped."""
        if not self._whole:
            return super().total(problem, machine, inputs, bound)
        rows = released_messages(problem, machine, inputs, self.clip_at, bound)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), rows), {}

    def divisor(self, inputs: RoundInputs) -> Any:
        """Return the divisor of that sum: 1 if the server reads the sum."""
        return super().divisor(inputs) if self.aggregate == "mean" else 1.0

    def messages(
        self, problem: Problem, message: Linear, inputs: RoundInputs, noise: Any, limits: Limits, key: Any
    ) -> Any:
        if not self._whole:
            return super().messages(problem, message, inputs, noise, limits, key)
        return released_messages(problem, of_record(message), inputs, self.clip_at, self.clip)

    # ---- on the host

    def messages_a_step(self, messages: float) -> float:
        return messages if self.aggregate == "sum" else 1.0

    @property
    def minibatches(self) -> Sampler:
        """Sampler of the records of a message, and with "other" of as many records whose mean's norm gives a factor."""
        sampler = self._sampler
        return sampler.with_batch(2 * sampler.batch) if self.clip_at == "other" else sampler  # type: ignore[operator]

    @property
    def _sampler(self) -> Sampler:
        return as_sampler(self.sampler, self.batch, self.rate)

    @property
    def _whole(self) -> bool:
        """True if a machine's mean is clipped or scaled, instead of its records' messages."""
        return self.clip_at != "record" and self.clip is not None

    def records(self, epsilon: tuple[float, ...] | None) -> RecordMechanism:
        whole = self.clip_at == "message" and self.clip is not None
        used = replace(super().records(epsilon), sampler=self._sampler, whole_message=whole)
        return UnboundedRecords(**vars(used)) if self.clip_at == "other" else used

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        summed = self.aggregate == "sum"
        return self.records(facts.epsilon).gaussian(facts.problem, facts.plan, method, summed=summed)

    def check(self, facts: RunFacts, name: str) -> None:
        if facts.problem.machine_weights is not None and self.clip_at != "record":
            raise Refusal(f"machine_weights must go with clip_at 'record', got {self.clip_at!r}")


def released_messages(problem: Problem, machine: Machine, inputs: RoundInputs, at: str, bound: Any) -> Any:
    """Return the participants' mean messages with the code's clipping, leaves [per_round, ...].

    Args:
        at: "message" or "other", see `CLIPPED`; with "other", the first half of a machine's samples gives the factor of
            the second.
        bound: C.
    """
    if at == "message":
        means = cohort_messages(problem, machine, inputs)
        return jax.vmap(lambda g: clip(Dense(g), bound).value)(means)
    halves = zip(jnp.split(inputs.samples, 2, axis=1), jnp.split(2 * inputs.weights, 2, axis=1), strict=True)
    measured, used = (cohort_messages(problem, machine, inputs._replace(samples=s, weights=p)) for s, p in halves)
    norms = jax.vmap(lambda g: Dense(g).norm())(measured)
    factors = jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-30))
    return jax.tree.map(lambda rows: rows * factors.reshape(-1, *[1] * (rows.ndim - 1)), used)


@struct.dataclass(kw_only=True)
class ReleasedRules:
    """Mixin of methods with `RecordSettings` for the noise rules of released code, whose claimed ε need not hold.

    `ReleasedMinibatchSGD` documents the fields.
    """

    acknowledged: bool = host_only(False)
    claimed_records: int | None = host_only(None, small=lambda _: None)

    rules = NOISE_RULES

    def __post_init__(self: Any):
        super().__post_init__()  # type: ignore[misc]
        require_flag("acknowledged", self.acknowledged)
        for name in ("server", "local"):
            if (optimizer := getattr(self, name, None)) is not None:
                raise Refusal(f"{name} must be left out: the released code has no optimiser, got {optimizer}")
        if self.claimed_records is not None and self.noise_rule != "paper_moments":
            raise Refusal(f"claimed_records must go with noise_rule 'paper_moments', got {self.noise_rule!r}")

    @property
    def target_is_claim(self: Any) -> bool:
        return self.acknowledged and self.noise_rule == "paper_moments"

    @property
    def rule(self: Any) -> Any:
        """Noise rule of the privacy object."""
        if self.noise_rule != "paper_moments":
            return self.noise_rule
        return PaperMoments(self.acknowledged, self.claimed_records)


def released(theory: Theory) -> Theory:
    """Return a theory without error bounds, with the default step size of a given theory.

    Methods that reproduce the code of other groups have such a theory. The command `fedprivjax plan` compares methods
    by error bounds, and leaves these methods out.

    Args:
        theory: theory of the published method.
    """
    why = "released code, whose noise follows published rules with an ε that does not hold"
    return Theory(step=theory.step, not_planned=why)


@struct.dataclass(kw_only=True)
class SummedSGD(MinibatchSGD):
    """Minibatch SGD whose server reads the sum of a round's messages, so that its steps are M times as long."""

    def serve(self, server: MinibatchState, read: Any, at: At) -> MinibatchState:
        longer = replace(self, strong_convexity=self.strong_convexity * at.cohort)
        return super(SummedSGD, longer).serve(server, read, at)


@struct.dataclass(kw_only=True)
class ReleasedMinibatchSGD(ReleasedRules, MinibatchSettings, RecordSettings, Protocol):  # type: ignore[misc]
    """Minibatch SGD of Lowy & Razaviyayn's released code.

    Attributes:
        noise_rule: rule that computes σ from ε: "accountant" (default), "advanced", or "paper_moments", whose claimed ε
            does not hold (results report a valid ε).
        acknowledged: True to accept the noise rule "paper_moments"; required by it.
        claimed_records: n in the noise rule "paper_moments"; None is the machine's number of records.
        aggregate: aggregate of the messages, "mean" or "sum". "sum" makes a given `step_size` M times as long, for M
            machines in the round.
        clip_at: clipped quantity: "record" is each record's gradient, and "message" a machine's mean over its batch.
            "other" multiplies this mean by the clipping factor of another batch, so the run has no guarantee.
        epsilon: target ε: one number for all machines, or one for each.
        noise_std: σ, standard deviation per coordinate of the noise in a message, given instead of `epsilon`.
        step_size: η, step size of the server.
        step_scale: factor by which the given or default step size is multiplied.
        clip: C, L2 norm to which the quantity of `clip_at` is clipped.
        strong_convexity: modulus of strong convexity of the loss, 0 if unknown.
        batch: K, number of records in a message: one number for all machines, or one for each.
        sampler: sampler of the records of a message: a name of `fedprivjax list samplers`, or a `Sampler` object.
        rate: public probability with which a message uses each record, for sampler = "poisson" only.
            Default: K divided by the machine's number of records.
        relation: neighbouring relation: "replace-one" (default) or "add-or-remove-one".
        delta: δ of every machine, or one number for each machine, at most the run's δ. Default: the run's δ.
        relative_privacy: one number for each machine, proportional to the machine's own target ε.
        trust: always "none".
        window: number of last iterates whose mean is reported, including w_R after R rounds.
        server: optimiser of the server's steps, such as `optax.adam` or "adam".

    `NoisyMinibatchSGD` has the conditions on these settings, and the meaning of None.
    """

    batch: int | Sequence[int] | None = host_only(None, traced=1)
    sampler: str | Sampler = host_only("subset", traced="replacement")
    aggregate: str = struct.field(pytree_node=False, default="mean")
    clip_at: str = struct.field(pytree_node=False, default="record")

    theory = released(MinibatchSettings.theory)

    def __post_init__(self):
        super().__post_init__()
        if self.clip_at != "record" and self.clip is None and self.epsilon is not None and self.epsilon != inf:
            raise Refusal(f"clip must be given for clip_at {self.clip_at!r}")

    @property
    def algorithm(self) -> MinibatchSGD:
        """Projected SGD along the mean or the sum of the messages."""
        kind = SummedSGD if self.aggregate == "sum" else MinibatchSGD
        return kind(strong_convexity=self.strong_convexity, window=self.window, server=self.server)

    @property
    def privacy(self) -> ReleasedRecords:  # type: ignore[override]
        """Noise on the messages of the released code."""
        return ReleasedRecords(**self._shared, clip_at=self.clip_at, aggregate=self.aggregate)

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        messages = size.per_round if self.clip_at != "record" else 0
        return max(messages, self.rounds.vectors_in_memory(problem, size, rows))


@struct.dataclass(kw_only=True)
class ReleasedLocalSGD(ReleasedRules, LocalSGD):  # type: ignore[misc]
    """Local SGD with the noise of Lowy & Razaviyayn's released code.

    Attributes:
        noise_rule: rule that computes σ from ε: "accountant" (default), "advanced", or "paper_moments", whose claimed ε
            does not hold (results report a valid ε).
        acknowledged: True to accept the noise rule "paper_moments"; required by it.
        claimed_records: n in the noise rule "paper_moments"; None is the machine's number of records.

    The other attributes are those of `LocalSGD`.
    """

    theory = released(LocalSGD.theory)
