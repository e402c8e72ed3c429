"""Protocols: an algorithm composed with a privacy object. Named methods are protocols that build both from settings."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, final

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.decorated import PYTREE, Decorated, derived_of, require_decorated, settings_of, subclassed
from fedprivjax.checks.numbers import without_host_settings
from fedprivjax.checks.refusal import PACKAGE, Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called, require_choice, require_keywords
from fedprivjax.method.algorithm import Part, has_sums
from fedprivjax.method.formatting import changed_settings, formatted
from fedprivjax.method.gossip import Gossip
from fedprivjax.method.gossip_rounds import GossipRounds
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.mean_rounds import MeanRounds
from fedprivjax.method.pairing import base_of, is_custom, other_privacy, privacy_for
from fedprivjax.method.release import Privacy
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.sum_rounds import SumRounds
from fedprivjax.method.theory import Theory, step_of, theory_of
from fedprivjax.method.work_rounds import WorkRounds
from fedprivjax.noise.interface import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.adversaries import BY_TRUST, Adversary, require_adversary
from fedprivjax.privacy.against import event_against
from fedprivjax.privacy.calibration import noise_for
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.optional_members import with_noise_std
from fedprivjax.privacy.target import CALIBRATIONS, LEVELS, RULE, TARGETS, Target
from fedprivjax.privacy.terms import RECORD
from fedprivjax.problem.problem import Problem


@struct.dataclass
class Protocol(Decorated):
    """A method: an `algorithm`, which sees only released numbers, and the `privacy` object that releases them.

    `Protocol(algorithm, privacy=…)` combines any algorithm with any privacy object that covers its messages. A named
    method of the package, such as `FedAvg`, builds an algorithm and a privacy object from its settings.

    A protocol is a frozen pytree (`flax.struct.dataclass`). Real-valued settings are leaves, which can be swept.

    Give exactly one of `mu`, `epsilon` and `noise_std`. If the privacy object protects nothing, such as
    `LocalPrivacy(unit=None)`, give none of them.

    Attributes:
        algorithm: computation of machines and server: an `Algorithm`, or a `LocalAlgorithm` for methods with local
            steps.
        privacy: privacy object, such as `NoisyMessages(clip=1.0)`.
        mu: target μ of Gaussian differential privacy (GDP). With inf, the run is not private.
        epsilon: target ε at the δ of the run. With inf, the run is not private. With `NoisyRecords` or
            `NoisyRecordSteps`, it may be one number for each machine.
        noise_std: the noise itself, in place of a target. With 0, the run is not private. In most privacy objects, it
            is a standard deviation per coordinate.
        step_size: η, step size of the algorithm, or of its local steps if there are any. None stands for the default
            from theory.
        step_scale: factor by which the given or default step size is multiplied.
        calibrate_to: rule that computes the noise from a target, "rule" or "plan". "rule" is the method's own rule.
            "plan" is the smallest noise that meets the target on the participation schedule of the run.
        adversary: adversary against whom the guarantee holds, such as `SecureSum()`. None stands for the adversary of
            the trust model. With a given adversary, the noise is the smallest that meets the target on the
            participation schedule of the run.
        known: facts about the algorithm, such as the bound on its messages. None before calibration.

    Raises:
        Refusal: if a setting is invalid, the algorithm and the privacy object do not go together, or a class outside
            the package subclasses `Protocol`.

    >>> import numpy as np
    >>> from fedprivjax import Ball, Uniform, datasets, from_dataset, ready
    >>> from fedprivjax import LocalEpochs, LocalGradientSteps, LocalPrivacy
    >>> rows = np.arange(1420).reshape(20, 71)  # 20 machines of 71 records
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=rows)
    >>> privacy = LocalPrivacy(work=LocalEpochs(1, batch=10), unit="machine", update_clip=1.0)
    >>> method = Protocol(LocalGradientSteps(), privacy=privacy, epsilon=8.0, step_size=0.1)
    >>> start = ready(method, problem, Uniform(20, 10), rounds=10)
    >>> round(start.guarantee.epsilon, 3), round(float(start.protocol.noise_std), 3)
    (8.0, 0.38)
    """

    calibrate_to: str = struct.field(pytree_node=False, default=RULE, kw_only=True, metadata={"traced": RULE})
    adversary: Any = struct.field(
        pytree_node=False, default=None, kw_only=True, metadata={"traced": None, "part": Adversary}
    )
    known: Any = struct.field(default=None, kw_only=True, metadata={"derived": True})

    kind, decorator = "protocol", PYTREE
    instead = "Define an Algorithm, see the guide 'A custom algorithm'"
    theory: ClassVar[Any] = Theory()

    if TYPE_CHECKING:  # fields, or properties
        mu: ClassVar[Any]
        epsilon: ClassVar[Any]
        noise_std: ClassVar[Any]
        step_size: ClassVar[Any]
        step_scale: ClassVar[Any]

        def __init__(
            self,
            algorithm: Any,
            *,
            privacy: Any,
            mu: Any = None,
            epsilon: Any = None,
            noise_std: Any = None,
            step_size: Any = None,
            step_scale: Any = 1.0,
            calibrate_to: Any = RULE,
            adversary: Any = None,
        ) -> None: ...

        @property
        def algorithm(self) -> Any:
            """Computation of the machines and the server."""

        @property
        def privacy(self) -> Any:
            """Object that bounds, releases and accounts for everything that leaves a machine."""

    else:  # without annotations, which would give them a place among the fields
        mu = epsilon = noise_std = step_size = None
        step_scale = 1.0

    def __init_subclass__(cls, **options: Any):
        """Raise Refusal for a class outside of the package."""
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] != PACKAGE:
            raise subclassed(next(base for base in cls.__bases__ if issubclass(base, Protocol)), cls)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Raise Refusal for an unknown setting, with the nearest known name. `Protocol(…)` itself makes a `Pair`."""
        if cls is Protocol and (args or settings):
            return cast(Self, pair(*args, **settings))
        known = settings_of(cls)
        if known is not None and "__dataclass_fields__" in vars(cls):
            for level in (name for name in LEVELS if name in settings and name not in known):
                others = " or ".join(name for name in TARGETS if name in known)
                raise Refusal(f"{level} must be given to {cls.__name__} as {others}, got {level} = {settings[level]}")
        if "calibrate_to" in settings:
            require_choice("calibrate_to", settings["calibrate_to"], CALIBRATIONS)
        require_adversary(settings.get("adversary"))
        return super().__new__(cls, *args, **settings)

    @classmethod
    def made(cls) -> type:
        return Pair if cls is Protocol else cls

    @property
    def name(self) -> str:
        """Name of the protocol in error messages and results."""
        return type(self).__name__

    def __str__(self) -> str:
        return formatted(self)

    @property
    def rounds(self) -> MeanRounds | WorkRounds:
        """Object that computes a round of this algorithm with this privacy object."""
        algorithm = self.algorithm
        if isinstance(algorithm, LocalAlgorithm):
            return WorkRounds(self)
        if isinstance(algorithm, Gossip):
            return GossipRounds(self)
        return (SumRounds if has_sums(type(algorithm)) else MeanRounds)(self)

    # ---- one run, traced

    def init(self, problem: Problem, size: Size, key: jax.Array) -> Any:
        """Return the run's state before the first round, a pytree.

        Args:
            problem: the optimisation problem.
            size: numbers of rounds, machines and machines per round.
            key: random key for random initial states.
        """
        return self.rounds.init(problem, size, key)

    def round(self, problem: Problem, state: Any, inputs: RoundInputs, noise: Any, key: jax.Array) -> tuple[Any, dict]:
        """Return the run's state after one round, and scalar metrics of the round by name.

        Args:
            problem: the optimisation problem.
            state: state before the round.
            inputs: the round's number, its participants and their records. Arrays have a fixed number of slots for
                participants. Slots without a participant are padding and have weight 0.
            noise: the round's noise, as returned by `noise`, or None in a run without noise.
            key: random key of the round.
        """
        return self.rounds.round(problem, state, inputs, noise, key)

    def output(self, state: Any) -> Any:
        """Return the parameters that the run reports, from its state."""
        return self.rounds.output(state)

    def iterates(self, state: Any) -> dict[str, Any]:
        """Return further parameters by name, such as a mean of iterates.

        Metrics are evaluated at these parameters and at the result of `output`.

        Args:
            state: the run's state.
        """
        return self.rounds.iterates(state)

    @property
    def minibatches(self) -> Sampler | None:
        """Sampler of the records of a message. None if each message uses one record.

        Without a sampler, a machine uses its records in the order that the argument `order` of `simulate` states. With
        the default order, no record is used twice.
        """
        return self.privacy.minibatches

    # ---- noise

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        """Return the mechanism that samples the run's noise, before it is scaled by `noise_std`.

        A sweep samples the noise once per seed, and scales it for each configuration. The mechanism must therefore not
        depend on swept settings. The only exceptions are the targets that `privacy.noise_follows` names: a sweep
        samples the noise for each value of such a target.

        Args:
            problem: the optimisation problem.
            plan: plan of the run: who takes part in each round, and which records each message uses.
            method: way of sampling, such as "auto", a key of `fedprivjax.noise.chooser.METHODS`.
        """
        return self.rounds.mechanism(problem, plan, method)

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        """Return the state of the noise after a round, and the round's noise.

        The round's noise is the mechanism's sample, scaled by this protocol's settings.

        Args:
            state: state of the noise before the round, such as the noise of the previous round.
            drawn: the mechanism's sample for the round.
            host_noise: the round's part of noise that was sampled on the host before the run, or None.
        """
        return self.rounds.noise(state, drawn, host_noise)

    # ---- privacy and settings, on the host

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal if the guarantee does not cover the problem or the run plan.

        Args:
            problem: the optimisation problem.
            plan: plan of the run: who takes part in each round, and which records each message uses.
        """
        self.rounds.check(problem, plan)

    def event(self, problem: Problem, plan: Plan) -> Event:
        """Return the privacy event of a run: a description of all releases and their noise.

        Accountants compute ε and μ from the event. The protocol must be calibrated.

        Args:
            problem: the optimisation problem.
            plan: plan of the run: who takes part in each round, and which records each message uses.
        """
        event = self.rounds.event(problem, plan)
        usual = BY_TRUST.get(self.privacy.trust)
        adversary: Any = usual if self.adversary is None else self.adversary
        if adversary == usual and not self.privacy.shares_noise:
            return event
        sent, alone = self.rounds.sent_noise(problem, plan), of_package(type(self.privacy))
        return event_against(adversary, event, sent, plan.schedule, independent=alone)

    def calibrate(self, problem: Problem, plan: Plan, target: Target) -> Any:
        """Return a copy that can be run: its noise and step size are numbers.

        In the copy, `noise_std` is set, and `mu` and `epsilon` are None, except an `epsilon` of one number for each
        machine. If `step_size` was None, the copy has the default step size.

        Args:
            problem: the optimisation problem.
            plan: plan of the run.
            target: privacy target: an ε at some δ, a μ, or a noise (`noise_std`) in place of both.
        """
        ready = self.rounds.prepared(problem, plan, target)
        noise_std = noise_for(ready, problem, plan, target)
        follows = ready.rounds.of_noise(problem, plan, noise_std, target)
        noisy = with_noise_std(ready.with_settings(follows), noise_std)
        step = step_of(noisy, problem, plan, target)
        return replace(noisy, step_size=step).rounds.of_step(problem, plan)

    def with_settings(self, settings: dict[str, Any]) -> Self:
        """Return a copy with other settings.

        Args:
            settings: values by name, for settings of the protocol or of its privacy object.
        """
        return replace(self, **settings)

    @property
    def traced(self) -> Any:
        """Copy in which settings that only the host reads are set to fixed values.

        Compiled programs receive this copy, so changing such a setting does not recompile them.
        """
        return without_host_settings(self)


@struct.dataclass(kw_only=True)
class Levels:
    """Targets, noise and steps of named methods, which `NoisySGD` documents."""

    epsilon: Any = None
    noise_std: Any = None
    step_size: Any = None
    step_scale: Any = 1.0


@final
@struct.dataclass
class Pair(Levels, Protocol):
    """The protocol of any algorithm with any privacy object that proves it, made by `Protocol(algorithm, privacy=…)`.

    Attributes:
        algorithm: what machines and the server compute, an `Algorithm` or a `LocalAlgorithm`.
        privacy: what bounds, releases and accounts for it.
        mu, epsilon, noise_std: privacy target, or the noise instead; none of them without a protected unit. With a
            `NoisyRecords`, `epsilon` may be one number for each machine.
        step_size: η, of the local steps if there are any. None is the default of the pair's `theory`, if it has one.
        step_scale: factor on `step_size`.
    """

    algorithm: Any = struct.field(metadata={"part": Part})
    privacy: Any = struct.field(kw_only=True, metadata={"part": Privacy})
    mu: Any = struct.field(default=None, kw_only=True)

    def __post_init__(self):
        if type(self.privacy) is type:
            raise Refusal(f"privacy must be an object, such as NoisyMessages(clip=1.0), got {called(self.privacy)}")
        if isinstance(self.privacy, Privacy):  # a pytree's placeholders pass
            if isinstance(self.algorithm, Part) and not issubclass(type(self.privacy), base_of(type(self.algorithm))):
                raise other_privacy(self.algorithm, self.privacy)
            if getattr(self.privacy, "unit", RECORD) is None and self.mu is self.epsilon is self.noise_std is None:
                object.__setattr__(self, "noise_std", 0.0)
            if self.adversary is None:
                object.__setattr__(self, "adversary", self.privacy.default_adversary)
            self.privacy.check_target(self)

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    def __str__(self) -> str:
        own = changed_settings(self, "algorithm", "privacy")
        return ", ".join([f"{self.algorithm} with {self.privacy}", *own])

    def with_settings(self, settings: dict[str, Any]) -> Self:
        own = {name: value for name, value in settings.items() if name in LEVELS}
        others = {name: value for name, value in settings.items() if name not in own}
        return replace(self, privacy=replace(self.privacy, **others), **own)

    @property
    def theory(self) -> Theory:  # type: ignore[override]
        """Theory of the algorithm with this kind of privacy."""
        return theory_of(self.algorithm, self.privacy)

    @property
    def traced(self) -> Any:
        """Copy as in `Protocol.traced`, with the planned algorithm."""
        each = {"epsilon": None} if np.ndim(self.epsilon) else {}
        ready = replace(super().traced, privacy=self.privacy.traced, **each)
        if ready.known is None or ready.known.algorithm is None:
            return ready
        return replace(ready, algorithm=ready.known.algorithm, known=replace(ready.known, algorithm=None))


def pair(algorithm: Any = None, *, privacy: Any = None, **settings: Any) -> Pair:
    """Return the protocol that combines an algorithm with a privacy object, as `Protocol(…)` does.

    Args:
        algorithm: an `Algorithm` or a `LocalAlgorithm`.
        privacy: privacy object that covers the algorithm's messages.
        settings: settings of the protocol by name, such as `epsilon` and `step_size`.

    Raises:
        Refusal: if the algorithm and the privacy object do not go together, or a setting is unknown.
    """
    needed, kind = privacy_for(type(algorithm)), type(privacy)
    if not needed:
        raise Refusal(f"algorithm must be an Algorithm or a LocalAlgorithm, got {called(algorithm)}")
    require_decorated(algorithm)
    if is_custom(kind, type(algorithm)):
        require_decorated(privacy)
    elif kind not in needed:
        raise other_privacy(algorithm, privacy)
    require_keywords("Protocol", settings, [one for one in settings_of(Pair) or () if one not in derived_of(Pair)])
    return Pair(algorithm, privacy=privacy, **settings)


def as_leaves(protocol: Any) -> Any:
    """Return a pytree with its numbers as float32 arrays, so that changing a number does not recompile.

    Integer arrays and scalars of NumPy and jax keep their type.
    """

    def as_array(leaf):
        integers = isinstance(leaf, np.ndarray | np.generic | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.integer)
        return np.asarray(leaf) if integers else np.asarray(leaf, np.float32)

    return jax.tree.map(as_array, protocol)
