"""What protocols share that compose an algorithm with a privacy object."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.algorithm import Part
from fedprivjax.method.formatting import changed_settings
from fedprivjax.method.release import Privacy
from fedprivjax.method.theory import Theory, theory_of
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.privacy.terms import RECORD
from fedprivjax.problem.problem import Problem


class OfParts:
    """Mixin of protocols that compose `algorithm` with `privacy`.

    Attributes:
        known: facts that were read once of the algorithm, or None before calibration.
    """

    if TYPE_CHECKING:  # fields, or properties
        known: Any
        epsilon: Any
        step_size: Any
        step_scale: Any

        @property
        def algorithm(self) -> Any:
            """The algorithm of machines and server."""

        @property
        def privacy(self) -> Any:
            """The object that bounds, releases and accounts for everything that leaves a machine."""

    @property
    def _algorithm(self) -> Any:
        """The planned algorithm, if it plans anything."""
        return self.algorithm if self.known is None or self.known.algorithm is None else self.known.algorithm

    @property
    def _step(self) -> Any:
        return self.step_scale * self.step_size

    @property
    def machine_epsilon(self) -> tuple[float, ...] | None:
        """Target of each machine if they differ, else None."""
        return tuple(np.ravel(self.epsilon).tolist()) if np.ndim(self.epsilon) else None

    def target_delta(self, problem: Problem, target: Target) -> Any:
        """Return δ of the target ε, as in `OfPrivacy`."""
        return self.privacy.target_delta(problem, target, self.machine_epsilon)

    def with_settings(self, settings: dict[str, Any]) -> Self:
        """Return a copy with other settings of the protocol or of its privacy object, by name."""
        return replace(self, **settings)  # type: ignore[type-var]


@struct.dataclass
class PairOf:
    """Mixin of the protocols that `Protocol(algorithm, privacy=…)` makes, with the name of their algorithm.

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
    epsilon: Any = struct.field(default=None, kw_only=True)
    noise_std: Any = struct.field(default=None, kw_only=True)
    step_size: Any = struct.field(default=None, kw_only=True)
    step_scale: Any = struct.field(default=1.0, kw_only=True)

    instead = "Define an Algorithm or a LocalAlgorithm"

    def __post_init__(self):
        if type(self.privacy) is type:
            raise Refusal(f"privacy must be an object, such as NoisyMessages(clip=1.0), got {called(self.privacy)}")
        if isinstance(self.privacy, Privacy):  # a pytree's placeholders pass
            if getattr(self.privacy, "unit", RECORD) is None and self.mu is self.epsilon is self.noise_std is None:
                object.__setattr__(self, "noise_std", 0.0)
            self.privacy.check_target(self)

    @property
    def name(self) -> str:
        return type(self.algorithm).__name__

    def __str__(self) -> str:
        own = changed_settings(self, "algorithm", "privacy")
        return ", ".join([f"{self.algorithm} with {self.privacy}", *own])

    def with_settings(self, settings: dict[str, Any]) -> Self:
        """Return a copy with other settings of the pair or of its privacy object, by name."""
        own = {name: value for name, value in settings.items() if name in LEVELS}
        others = {name: value for name, value in settings.items() if name not in own}
        return replace(self, privacy=replace(self.privacy, **others), **own)  # type: ignore[type-var]

    @property
    def theory(self) -> Theory:
        """Theory of the algorithm with this kind of privacy."""
        return theory_of(self.algorithm, self.privacy)

    @property
    def traced(self):
        each = {"epsilon": None} if np.ndim(self.epsilon) else {}
        return replace(super().traced, privacy=self.privacy.traced, **each)  # type: ignore[misc]
