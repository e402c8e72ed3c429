"""Interface of protocols: the complete contract of a method, with defaults that suit most methods."""

from dataclasses import fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated, settings_of
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated
from fedprivjax.checks.values import require_choice
from fedprivjax.method.formatting import formatted
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.seen import Costs, Seen
from fedprivjax.method.theory import Theory
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.calibration import noise_for, solved_noise
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.of_protocol import OfPrivacy, names_of, with_noise_std
from fedprivjax.privacy.target import CALIBRATIONS, LEVELS, RULE, TARGETS, Target
from fedprivjax.problem.problem import Problem

FREE = (  # names of a private method that may be overridden without its event
    *("needed_noise", "theory"),
    *("costs", "run_costs", "message_bits", "gradients_spared"),
    *("vectors_in_memory", "examples"),
)


@struct.dataclass
class Calibrated:
    """Setting that every method has in addition to its own.

    Attributes:
        calibrate_to: rule that computes the noise from a target, a key of `CALIBRATIONS`. "rule" is the method's own
            rule. "plan" is the smallest noise with which the sampled public schedule meets the target, so that the ε
            of the worst machine equals the target. It has no effect with a `noise_std`.
    """

    calibrate_to: str = struct.field(pytree_node=False, default=RULE, kw_only=True, metadata={"traced": RULE})


class Protocol(Calibrated, Decorated):
    """Base class of methods: a frozen pytree of hyper-parameters (`flax.struct.dataclass`) with pure functions.

    Real-valued hyper-parameters are leaves, which can be swept. Settings that determine a shape or a branch are static
    (`struct.field(pytree_node=False)`). `init`, `round`, `output`, `iterates` and `noise` are traced; the others run on
    the host in float64. A method must define `init`, `round`, `output`, `mechanism` and `event`. All others have
    defaults. So have the optional members: `fedprivjax.privacy.of_protocol.OfPrivacy` documents those of its privacy,
    `fedprivjax.method.seen` those of what an adversary sees (`Seen`), such as `messages`, and of its costs (`Costs`).
    A class may give `examples`, settings for audits and comparisons (`fedprivjax.method.small_form.examples_of`).

    A guarantee is inherited with the functions that it is about. In a private run, a subclass that overrides any name
    but those in `FREE` must define `event` as well, or is refused.

    A method declares its own fields among `mu`, `epsilon`, `noise_std`, `step_size` and `step_scale`. The others have
    the values below.
    """

    kind, decorator = "protocol", PYTREE
    stated: ClassVar[Stated] = Stated(
        by=("event",),
        free=FREE,
        optional=names_of(Seen, Costs, OfPrivacy),
        instead=", which may return super().event(problem, plan) if that still holds",
    )
    mu: Any = None
    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0
    theory: ClassVar[Theory] = Theory()

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **settings: Any) -> None: ...

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Raise Refusal for an unknown setting, with the nearest known name.

        `Protocol(algorithm, privacy=…)` itself makes a `Pair`, or a `WorkPair` if the algorithm has local work.
        """
        if cls is Protocol and (args or settings):
            from fedprivjax.method.pairs import pair  # a pair is a protocol

            return cast(Self, pair(*args, **settings))
        known = settings_of(cls)
        if known is not None and "__dataclass_fields__" in vars(cls):
            for level in (name for name in LEVELS if name in settings and name not in known):
                others = " or ".join(name for name in TARGETS if name in known)
                raise Refusal(f"{level} must be given to {cls.__name__} as {others}, got {level} = {settings[level]}")
        if "calibrate_to" in settings:
            require_choice("calibrate_to", settings["calibrate_to"], CALIBRATIONS)
        return super().__new__(cls, *args, **settings)

    @property
    def name(self) -> str:
        """Name of the protocol in messages and results."""
        return type(self).__name__

    def __str__(self) -> str:
        return formatted(self)

    # ---- one run, traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        """Return the state before the first round, a pytree."""
        raise Undefined(f"{self.name} must define init(problem, size, key)")

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[Any, dict]:
        """Return the state after one round, and scalar metrics of the round by name.

        Args:
            inputs: the round's number, participants and their examples. Some slots may be empty, with weight 0: divide
                sums by `cohort`, or by `divisor` if the divisor must be the same in all rounds.
            noise: the round's noise, as returned by `noise`, or None in a run without noise.
            key: key of the round, for the protocol's own randomness; `slot_keys` folds it by participant.
        """
        raise Undefined(f"{self.name} must define round(problem, state, inputs, noise, key)")

    def output(self, state: Any) -> Any:
        """Return the reported point."""
        raise Undefined(f"{self.name} must define output(state)")

    def iterates(self, state: Any) -> dict[str, Any]:
        """Return other iterates by name, points like the output, which are evaluated in addition to it."""
        return {}

    @property
    def minibatches(self) -> Sampler | None:
        """Sampler of minibatches from a machine's own records, or None for one fresh example per message."""
        return None

    # ---- noise

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        """Return the mechanism that samples noise once per seed, shared by all configurations of a sweep.

        It depends on no leaf of the protocol, and on no target except those in `noise_follows`.
        """
        raise Undefined(f"{self.name} must define mechanism(problem, plan, method)")

    def noise_state(self, dimension: int, size: Size) -> Any:
        """Return the state of `noise` before the first round, a pytree."""
        return ()

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        """Return the state of the noise and the round's noise, from the mechanism's sample and the protocol's leaves.

        Default: `noise_std·z`.

        Args:
            drawn: the mechanism's sample for the round.
            host_noise: the round's pre-sampled host noise from `host_noise`, or None.
        """
        return state, jax.tree.map(lambda z: self.noise_std * z, drawn)

    # ---- privacy and settings, on the host

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal if the guarantee does not cover the problem or the plan."""

    def event(self, problem: Problem, plan: Plan) -> Event:
        """Return the event of the calibrated protocol on a plan: its mechanisms with their noise."""
        raise Undefined(f"{self.name} must define event(problem, plan)")

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Return a copy with `noise_std` and `step_size` set and its target cleared.

        Overrides that set more fields take the noise from `noise_for`, which applies `calibrate_to`.
        """
        return self.with_noise(problem, plan, noise_for(self, problem, plan, target), target)

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Return the noise for a target by the method's own rule.

        Default: the smallest noise with which `event` meets the target on this plan.
        """
        return solved_noise(self, problem, plan, target)

    def with_noise(self, problem: Problem, plan: Plan, noise_std: float, target: Target):
        """Return a copy with this `noise_std` and, if unset, the default step.

        It clears the target, except per-machine ε, which fix the proportions of the noises.
        """
        noisy = with_noise_std(self, noise_std)
        self.theory.require_step(self)
        if self.step_size is None:
            step = self.theory.default_step(noisy, problem, plan, target)
        else:
            step = float(self.step_size)
        if not 0 < step < inf:
            raise Refusal(
                "step_size must be set: its default needs a ball, a declared distance or a network's start other than "
                "0, and a clip, or a finite mu, or a smoothness constant"
            )
        return replace(noisy, step_size=step)

    @property
    def traced(self):
        """Copy without the settings that only the host reads, so that changing them does not recompile.

        The metadata `traced` of a field is its value in the copy, see `host_only`.
        """
        values = {one.name: one.metadata["traced"] for one in fields(self) if "traced" in one.metadata}  # type: ignore[arg-type]
        return replace(self, **values)  # type: ignore[type-var]


def slot_keys(key: jax.Array, per_round: int) -> jax.Array:
    """Return a key for each participant of a round, [per_round], which does not depend on the split into chunks."""
    return jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.arange(per_round))


def as_leaves(protocol: Any) -> Any:
    """Return a pytree with its numbers as float32 arrays, so that changing a number does not recompile.

    Integer arrays and scalars of NumPy and jax keep their type.
    """

    def as_array(leaf):
        integers = isinstance(leaf, np.ndarray | np.generic | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.integer)
        return np.asarray(leaf) if integers else np.asarray(leaf, np.float32)

    return jax.tree.map(as_array, protocol)
