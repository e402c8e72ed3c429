"""What a protocol is: the whole contract of a method, with defaults for what most methods share."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from math import inf
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated, without_decorator
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_choice, require_keywords
from fedprivjax.method.formatting import in_words
from fedprivjax.method.planning.bounds import Bound, PlannedRun, missing
from fedprivjax.method.planning.uses import Use
from fedprivjax.method.round import RoundInputs, flat_rows, rows_in_memory
from fedprivjax.method.scaled_down import scaled_down
from fedprivjax.method.theory_choices import TheoryChoices
from fedprivjax.method.views import VIEWS, Observed, Seen
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import solved_noise
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.target import CALIBRATIONS, LEVELS, PLAN, RULE, TARGETS, Target
from fedprivjax.problem.problem import Problem


@struct.dataclass
class Calibrated:
    """What every method has beside its own settings.

    Attributes:
        calibrate_to: what a target's noise is enough for, a key of `CALIBRATIONS`: "rule", the method's own rule; or
            "plan", the least noise with which the public schedule that is drawn meets the target, so that the ε which
            the worst machine gets is the ε that was asked for. With a `noise_std` it changes nothing.
    """

    calibrate_to: str = struct.field(pytree_node=False, default=RULE, kw_only=True)


class Protocol(Calibrated, Decorated):
    """A frozen pytree of hyper-parameters (`flax.struct.dataclass`) with pure functions: subclass it for a method.

    Real-valued hyper-parameters are leaves, which can be swept; what fixes a shape or a branch is static
    (`struct.field(pytree_node=False)`). `init`, `round`, `output`, `query`, `iterates`, `noise` and `messages` are
    traced; the rest runs on the host in float64. A method must define `init`, `round`, `output`, `mechanism` and
    `event`; everything else has the default that stands here.

    A method declares those of the fields `mu`, `epsilon`, `noise_std`, `delta`, `step_size`, `step_scale` and `clip`
    that it has; of the others the values below hold.
    """

    kind, decorator = "protocol", PYTREE
    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    delta: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    clip: Any = None
    trust: Any = "none"
    noise_rule: Any = "accountant"
    target_is_claim: ClassVar[bool] = False  # whether a target is a published rule's claim, which need not be met
    several_epochs: ClassVar[bool] = False  # whether the event counts samples that are used in several rounds, publicly
    weighs_machines: ClassVar[bool] = False  # whether messages are times `Problem.message_factors`, as `event` counts
    gradients_per_use: ClassVar[int] = 1  # that a machine computes for each use of a record in a message
    not_planned: ClassVar[str] = "it states no use to be planned"  # why, if `uses` is empty
    gradients_spared: ClassVar[int] = 0  # of these, what a simulation does without, by another way of the same law

    def __new__(cls, *args, **settings):
        """Refuse a setting that the method has not, by the nearest that it has."""
        known = _settings(cls)
        if known is not None and "__dataclass_fields__" not in vars(cls) and settings.keys() - set(known):
            raise without_decorator(cls)
        if known is not None:
            for level in (name for name in LEVELS if name in settings and name not in known):
                others = " or ".join(name for name in TARGETS if name in known)
                raise Refusal(f"{level} must be given to {cls.__name__} as {others}, got {level} = {settings[level]}")
            require_keywords(cls.__name__, settings, known)
        if "calibrate_to" in settings:
            require_choice("calibrate_to", settings["calibrate_to"], CALIBRATIONS)
        return super().__new__(cls)

    @classmethod
    def leaves(cls) -> dict[str, Any]:
        """The hyper-parameters that are pytree leaves, which can be swept, with their defaults (`MISSING` for none).

        A field with the metadata `derived` is left out: `calibrate` fills it in; and so are `parts`.
        """
        kept = [field for field in fields(cls) if field.metadata.get("pytree_node", True)]  # type: ignore[arg-type]
        other = cls.parts().keys() | {field.name for field in kept if field.metadata.get("derived", False)}
        return {field.name: _default(field) for field in kept if field.name not in other}

    @classmethod
    def parts(cls) -> dict[str, Any]:
        """Fields that hold an object with numbers of its own, such as a `ServerOptimizer`, and that object's class.

        They are declared by their metadata, `struct.field(default=None, metadata={"part": ServerOptimizer})`. The
        number b1 of the part `server` has the name "server.b1" in a sweep.
        """
        return {field.name: field.metadata["part"] for field in fields(cls) if "part" in field.metadata}  # type: ignore[arg-type]

    def numbers(self) -> dict[str, Any]:
        """Every number that can be swept, by name, those of its parts among them."""
        own = {name: getattr(self, name) for name in self.leaves()}
        return own | numbers_of({name: getattr(self, name) for name in self.parts()})

    def with_numbers(self, values: Mapping[str, Any]):
        """The protocol with other numbers, by the names of `numbers`."""
        changes = {name: value for name, value in values.items() if "." not in name}
        for name in self.parts():
            of_part = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
            if of_part:
                changes[name] = getattr(self, name).with_values(of_part)
        return replace(self, **changes)  # type: ignore[type-var]

    @property
    def name(self) -> str:
        """What refusals and results call the protocol."""
        return type(self).__name__

    def __str__(self) -> str:
        return in_words(self)

    # ---- one run, traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        """The state before the first round, a pytree."""
        raise Undefined(f"{self.name} must define init(problem, size, key)")

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[Any, dict]:
        """The state after one round, and scalars of the round that may be recorded, by name.

        Args:
            inputs: the round's number, participants and their examples; divide sums by its `cohort`, or by `divisor`
                where that must be the same in all rounds: some slots may be empty, with weight 0.
            noise: what `noise` makes of the mechanism's draw, or None in a run without noise.
            key: the round's own, for randomness that is the protocol's; `slot_keys` folds it by participant.
        """
        raise Undefined(f"{self.name} must define round(problem, state, inputs, noise, key)")

    def output(self, state: Any) -> Any:
        """The point that one reports."""
        raise Undefined(f"{self.name} must define output(state)")

    def query(self, state: Any) -> Any:
        """The point that machines are asked about in the next round: what others see of a trusted server."""
        return self.output(state)

    def iterates(self, state: Any) -> dict[str, Any]:
        """Other iterates by name, recorded beside the output."""
        return {}

    @property
    def minibatches(self) -> Sampler | None:
        """How machines draw minibatches of their own records; None is one fresh example a message."""
        return None

    # ---- noise

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        """What is drawn once per seed and shared by the members of a sweep: it depends on no leaf of the protocol, and
        on no target but those in `noise_follows`."""
        raise Undefined(f"{self.name} must define mechanism(problem, plan, method)")

    @property
    def noise_follows(self) -> tuple[str, ...]:
        """Targets that the mechanism depends on: members of a sweep that differ in one have each its own, of the same
        keys; default: none."""
        return ()

    def check_method(self, method: str) -> None:
        """Refuse a way to draw noise that a calibrated protocol's own numbers rule out, for each member of a sweep."""

    def noise_state(self, dimension: int, size: Size) -> Any:
        """State of the member's part of the noise before the first round, a pytree."""
        return ()

    def noise(self, state: Any, drawn: Any, tape: Any) -> tuple[Any, Any]:
        """What the member's own leaves make of one round's draw: (state, the round's noise). Default: `noise_std·z`.

        Args:
            drawn: the mechanism's draw of the round.
            tape: the round's part of the host-made `tape`, or None.
        """
        return state, jax.tree.map(lambda z: self.noise_std * z, drawn)

    def server_noise(self, plan: Plan) -> float:
        """Standard deviation of a trusted server's noise in the first aggregate, over `noise_std`; default: 1."""
        return 1.0

    def tape(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Noise drawn on the host for one seed and member, leaves [rounds, ...] (integers stay integers), or None; for
        mechanisms that are `taped`."""
        return None

    # ---- what an adversary sees

    def messages(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> Any:
        """What each participant computes, leaves [per_round, ...], without the noise that it adds at the end."""
        raise Undefined(f"{self.name} must define messages, for a transcript")

    def sent(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, own_noise: Any, key: jax.Array):
        """What each participant sends, [per_round, d]; `own_noise` is what `noise` makes of its own part of the
        mechanism's draw, leaves [per_round, ...], or None."""
        rows = flat_rows(problem, self.messages(problem, state, inputs, noise, key))
        return rows if own_noise is None else rows + own_noise

    def local_steps(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> Any:
        """Every noisy step of each participant's local work, leaves [per_round, steps, ...], if the guarantee counts
        each of them as released. Default: None, only the message is."""
        return None

    def internal(self, state: Any) -> Any:
        """What an intruder would find in the server's memory after a round, a pytree; () shows nothing."""
        return ()

    def view(self, observed: Observed) -> Seen:
        """What the adversary of the trust model sees of a run, on the host."""
        return VIEWS[self.trust](observed)

    def costs(self, problem: Problem) -> dict[str, float]:
        """What one machine of a cohort does in a round: `sent_messages`, `sent_bits` in all, and `gradients_per_use` of
        a record; on the host.

        Default: one message of d float32 numbers, and the method's `gradients_per_use`. A message of a shuffled sum is
        a bit and its coordinate, 1 + ⌈log₂ d⌉ bits.
        """
        sent = {"sent_messages": 1.0, "sent_bits": 32.0 * problem.dimension}
        return sent | {"gradients_per_use": float(self.gradients_per_use)}

    # ---- privacy and settings, on the host

    def check(self, problem: Problem, plan: Plan) -> None:
        """Refuse a problem or a plan that the protocol's guarantee does not cover."""

    def event(self, problem: Problem, plan: Plan) -> Event:
        """What the calibrated protocol does to privacy on a plan, noise included."""
        raise Undefined(f"{self.name} must define event(problem, plan)")

    def machine_target(self, target: Target) -> Target:
        """What a target asks of the method, with an ε for each machine where theirs differ; default: the target."""
        return target

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """The protocol with `noise_std` and `step_size` filled in, and its target spent.

        One that fills in more takes its noise from `noise_for`, which minds `calibrate_to`.
        """
        return self.with_noise(problem, plan, self.noise_for(problem, plan, target), target)

    def noise_for(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The noise that is given, or that the target needs by `calibrate_to`, once all else that the event needs is
        filled in."""
        if target.given_noise is not None:
            return target.given_noise
        if self.calibrate_to != PLAN:
            return self.needed_noise(problem, plan, target)
        if self.noise_rule != "accountant":
            raise Refusal(f"noise_rule must be 'accountant' with calibrate_to = 'plan', got {self.noise_rule!r}")
        return solved_noise(self, problem, plan, target)

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The noise that a target needs by the method's own rule. Default: the least at which `event` meets it on this
        plan."""
        return solved_noise(self, problem, plan, target)

    def target_delta(self, problem: Problem, target: Target) -> Any:
        """At which δ an ε is asked for: one number, or one for each machine; None is the target's."""
        return None

    @property
    def calibrated(self) -> bool:
        """Whether the noise is filled in, and what the event needs beside it."""
        return self.noise_std is not None

    def with_noise(self, problem: Problem, plan: Plan, noise_std: float, target: Target):
        """The protocol with this noise and, where none is given, its default step; the target is spent, but for an ε
        of each machine, which tells the proportions of their noises."""
        noisy = self.with_noise_std(noise_std)
        step = noisy.default_step(problem, plan, target) if self.step_size is None else float(self.step_size)
        if not 0 < step < inf:
            raise Refusal(
                "step_size must be set: its default needs a ball, a declared distance or a network's start other than "
                "0, and a clip, or a finite mu, or a smoothness constant"
            )
        return replace(noisy, step_size=step)

    def with_noise_std(self, noise_std: float):
        """The protocol with this noise and its target spent, nothing else filled in."""
        names = [name for name in LEVELS if name in self.leaves()]
        spent = {name: None for name in names if not np.ndim(getattr(self, name))}
        return replace(self, noise_std=float(noise_std), **spent)  # type: ignore[type-var]

    def default_step(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The step of the theory, on a protocol whose noise is known; inf where there is none."""
        return inf

    def canonical_equivalent(self, machines: int):
        """Return the canonical protocol that is equal in distribution for this number of machines; default: itself."""
        return self

    def theory_choices(self, problem: Problem) -> TheoryChoices | None:
        """Sizes and constants that the method's theory chooses for a problem, or None if it chooses nothing."""
        return None

    @property
    def traced(self):
        """The protocol without the static settings that only the host reads, so that they are no other program."""
        return replace(self, calibrate_to=RULE)  # type: ignore[type-var]

    def messages_in_memory(self, problem: Problem, size: Size) -> int:
        """Machines whose messages, of d numbers, are in memory at once; default: none, for `cohort_sum` adds them."""
        return 0

    def gradients_in_memory(self, problem: Problem, rows: int) -> int:
        """Records whose own gradients, of d numbers, are in memory at once, of so many in a round.

        Default: as `cohort_sum` writes them out, where they are clipped.
        """
        return 0 if self.clip is None else rows_in_memory(problem, rows)

    # ---- comparison of methods before a run, and audits, on the host

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        """Uses of the method that `fedprivjax plan` compares. Default: none, for the reason `not_planned`."""
        return ()

    def error_bound(self, run: PlannedRun) -> Bound:
        """Bound on the error of a planned run of this calibrated protocol, term by term. Default: missing."""
        return missing("no theorem is stated for it")

    def scaled_down(self, machines: int):
        """The protocol for an audit with so few machines and short epochs.

        The privacy target, clip, noise schedule, sampler, trust model and noise rule stay as they are. Default: a small
        batch, and one target for all machines or as many as there are.
        """
        return scaled_down(self, machines)

    @classmethod
    def audit_settings(cls) -> dict[str, Any]:
        """Settings, besides a privacy target, for an audit of the method by name. Default: a clip of 1, if it clips."""
        return {"clip": 1.0} if "clip" in cls.leaves() else {}


def numbers_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a protocol's parts by name, "server.b1"; None for those at their default."""
    held = {name: part for name, part in parts.items() if part is not None}
    return {f"{name}.{key}": value for name, part in held.items() for key, value in part.leaves().items()}


@cache
def _settings(method: type) -> tuple[str, ...] | None:
    """What a method's constructor takes by name; None where it takes anything."""
    known = list(inspect.signature(method.__init__).parameters.values())[1:]
    return None if any(one.kind is one.VAR_KEYWORD for one in known) else tuple(one.name for one in known)


def _default(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def slot_keys(key: jax.Array, per_round: int) -> jax.Array:
    """A key for each participant of a round, [per_round], the same however the slots are cut into chunks."""
    return jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.arange(per_round))


def as_leaves(protocol: Any) -> Any:
    """A pytree's numbers as arrays, so that another number is not another program: float32, but integers of NumPy's and
    jax's as they are."""

    def as_array(leaf):
        integers = isinstance(leaf, np.ndarray | np.generic | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.integer)
        return np.asarray(leaf) if integers else np.asarray(leaf, np.float32)

    return jax.tree.map(as_array, protocol)
