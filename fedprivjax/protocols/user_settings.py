"""Settings of methods on batches of users, which compose an algorithm with a private mean."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.private_mean import SHUFFLER, TRUSTS, GaussianMean
from fedprivjax.method.protocol import Levels, Protocol
from fedprivjax.method.relative_privacy import shared_privacy
from fedprivjax.method.setting_checks import check_numbers
from fedprivjax.method.shuffled_bits import OF_BITS, BitMean
from fedprivjax.plan.plan import Plan
from fedprivjax.problem.problem import Problem


@struct.dataclass(kw_only=True)
class UserSettings(Levels, Protocol):
    """Settings of a method that composes its algorithm with a `BitMean` or a `GaussianMean`; see `UserSGD`."""

    epsilon: Any = struct.field(default=None, metadata={"traced": None})
    clip: Any = None
    relative_privacy: Sequence[float] | None = host_only(None)
    vector_sum: Any = struct.field(default=None, metadata={"derived": True})
    trust: str = struct.field(pytree_node=False, default=SHUFFLER)
    levels: int | None = host_only(None)
    rounding: str = host_only("averaged")
    accounting: str = host_only("exact")
    honest: float = host_only(1.0)
    noises: tuple[float, ...] | None = host_only(None, derived=True)

    of_phases = False  # True if a run may have cohorts of several announced sizes, one for each phase

    def __post_init__(self):
        check_numbers(self, "epsilon")
        require_choice("trust", self.trust, TRUSTS)
        for name, default in OF_BITS.items():
            if self.trust != SHUFFLER and getattr(self, name) != default:
                raise Refusal(f"{name} must go with trust = 'shuffler', got trust = {self.trust!r}")
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))
        _ = self.privacy  # raises Refusal if a setting is invalid

    @property
    def privacy(self) -> BitMean | GaussianMean:
        """Private mean of gradients in the method's trust model."""
        if self.trust == SHUFFLER:
            kind, names = BitMean, ("clip", "vector_sum", *OF_BITS)
        else:
            kind, names = GaussianMean, ("clip", "trust", "relative_privacy", "noises")
        return kind(**{name: getattr(self, name) for name in names})

    @property
    def traced(self):
        """Copy as in `Protocol.traced`. All trust models with Gaussian noise share one program."""
        return replace(super().traced, trust=SHUFFLER if self.trust == SHUFFLER else "server")

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal for cohorts of several sizes, unless the method runs in phases."""
        if plan.schedule.announced and not self.of_phases:
            raise Refusal(f"cohorts must be of one size for a {self.name} without phases")
        super().check(problem, plan)
