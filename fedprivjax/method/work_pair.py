"""Protocols of any algorithm of local work with its privacy."""

from dataclasses import replace
from typing import Any, final

from flax import struct

from fedprivjax.method.composed_work import ComposedWork
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.parts import NamedByAlgorithm
from fedprivjax.method.work_privacy import WorkPrivacy


@final
@struct.dataclass
class WorkPair(NamedByAlgorithm, ComposedWork):
    """Any algorithm of local work with its privacy, as `Protocol(algorithm, privacy=…)` makes it.

    Attributes:
        algorithm: what machines and the server compute, a `LocalAlgorithm`.
        privacy: what bounds, releases and accounts for it, a `LocalPrivacy` or a `NoisyRecordSteps`.
        mu, epsilon, noise_std: privacy target, or the noise instead; none of them without a protected unit.
        step_size: η of the local steps. None is the default of the pair's `theory`, if it has one.
        step_scale: factor on `step_size`.
    """

    algorithm: Any = struct.field(metadata={"part": LocalAlgorithm})
    privacy: Any = struct.field(kw_only=True, metadata={"part": WorkPrivacy})
    mu: Any = struct.field(default=None, kw_only=True)
    epsilon: Any = struct.field(default=None, kw_only=True)
    noise_std: Any = struct.field(default=None, kw_only=True)
    step_size: Any = struct.field(default=None, kw_only=True)
    step_scale: Any = struct.field(default=1.0, kw_only=True)

    instead = "Define a LocalAlgorithm"

    def __post_init__(self):
        if isinstance(self.privacy, WorkPrivacy) and self.privacy.unit is None and not self._targets:
            object.__setattr__(self, "noise_std", 0.0)
        if isinstance(self.privacy, WorkPrivacy):  # a pytree's placeholders pass
            self.privacy.check_target(self)

    @property
    def _targets(self) -> list[Any]:
        return [one for one in (self.mu, self.epsilon, self.noise_std) if one is not None]

    @property
    def traced(self):
        """Copy as in `Protocol.traced`, with the planned algorithm."""
        own = {"privacy": self.privacy.traced} | ({} if self.machine_epsilon is None else {"epsilon": None})
        if self.known is not None and self.known.algorithm is not None:
            own |= {"algorithm": self.known.algorithm, "known": replace(self.known, algorithm=None)}
        return replace(super().traced, **own)
