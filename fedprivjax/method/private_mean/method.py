"""Base of methods on batches of users: settings, and the private mean that they select."""

from dataclasses import replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_number
from fedprivjax.method.private_mean.gaussian import GaussianMean
from fedprivjax.method.private_mean.interface import PrivateMean
from fedprivjax.method.private_mean.shuffled_bits import BitMean
from fedprivjax.method.relative_privacy import SharedTarget, privacy_shares
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.settings import check_numbers
from fedprivjax.method.shuffled_sums import CHUNK_NUMBERS
from fedprivjax.method.views import shuffled_bits
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial.accountant import ACCOUNTINGS
from fedprivjax.privacy.accountants.binomial.vector import ROUNDINGS
from fedprivjax.privacy.events import RecordEvent
from fedprivjax.privacy.target import Target
from fedprivjax.problem.problem import Problem

SHUFFLER = "shuffler"
TRUSTS = (SHUFFLER, "none", "server", "pan-private")
OF_BITS = {"levels": None, "rounding": "averaged", "accounting": "exact", "honest": 1.0}


@struct.dataclass(kw_only=True)
class UserMethod(SharedTarget):
    """A method that steps along the private mean of a batch of users' gradients, one record per message.

    A subclass defines `init`, `round`, `output`, `query` and `default_step`. The rest follows from `private_mean`.
    `UserSGD` documents the fields.
    """

    vector_sum: Any = struct.field(default=None, metadata={"derived": True})
    trust: str = struct.field(pytree_node=False, default=SHUFFLER)
    levels: int | None = struct.field(pytree_node=False, default=None)
    rounding: str = struct.field(pytree_node=False, default="averaged")
    accounting: str = struct.field(pytree_node=False, default="exact")
    honest: float = struct.field(pytree_node=False, default=1.0)
    noises: tuple[float, ...] | None = struct.field(pytree_node=False, default=None, metadata={"derived": True})

    several_epochs = True
    plain: ClassVar[dict[str, Any]] = {**SharedTarget.plain, "epsilon": None, "noises": None, **OF_BITS}
    of_phases = False  # True if a run may have cohorts of several announced sizes, one for each phase

    def __post_init__(self):
        check_numbers(self, "epsilon")
        require_choice("trust", self.trust, TRUSTS)
        require_choice("rounding", self.rounding, ROUNDINGS)
        require_choice("accounting", self.accounting, ACCOUNTINGS)
        if self.levels is not None:
            require_at_least("levels", self.levels, 1)
        require_number("honest", self.honest)
        if not 0 < self.honest <= 1:
            raise Refusal(f"honest must be above 0 and at most 1, got {self.honest}")
        for name, default in OF_BITS.items():
            if self.trust != SHUFFLER and getattr(self, name) != default:
                raise Refusal(f"{name} must go with trust = 'shuffler', got trust = {self.trust!r}")
        super().__post_init__()

    @property
    def private_mean(self) -> PrivateMean:
        """Private mean of gradients in the protocol's trust model."""
        if self.trust != SHUFFLER:
            return GaussianMean(self.trust, self.clip, self.noises)
        return BitMean(self.trust, self.clip, self.vector_sum, self.levels, self.rounding, self.accounting, self.honest)

    @property
    def traced(self):
        """Copy as in `Protocol.traced`. All trust models with Gaussian noise share one program."""
        trust = SHUFFLER if self.trust == SHUFFLER else "server"
        return replace(super().traced, trust=trust)

    def noise(self, state: Any, drawn: Any, host_noise: Any) -> tuple[Any, Any]:
        return state, self.private_mean.noise(self.noise_std, drawn, host_noise)

    def messages(self, problem: Problem, state, inputs: RoundInputs, noise, key):
        return self.private_mean.messages(problem, self.query(state), inputs, noise, key)

    def internal(self, state):
        """State that the server stores between rounds."""
        return state

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise Refusal for cohorts of several sizes, unless the method runs in phases."""
        if plan.schedule.announced and not self.of_phases:
            raise Refusal(f"cohorts must be of one size for a {self.name} without phases")
        if plan.schedule.announced and self.trust == "none":
            raise Refusal("cohorts must be of one size with trust = 'none', whose noise grows with the cohort")

    def mechanism(self, problem: Problem, plan: Plan, method: str = "auto") -> Mechanism:
        return self.private_mean.mechanism(plan, method)

    def server_noise(self, plan: Plan) -> float:
        """Standard deviation as in `Protocol.server_noise`, for a sum with the noise of a full cohort's messages."""
        return sqrt(self.private_mean.noisy_users(plan)) / int(plan.schedule.present[0].sum())

    def check_method(self, method: str) -> None:
        self.private_mean.check_method(method)

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        return self.private_mean.host_noise(plan, dimension, seed)

    def view(self, full):
        return shuffled_bits(full) if self.trust == SHUFFLER else super().view(full)

    def costs(self, problem: Problem) -> dict[str, float]:
        return self.private_mean.costs(problem, super().costs(problem))

    def event(self, problem: Problem, plan: Plan) -> RecordEvent:
        return self.private_mean.event(problem, plan, self.noise_std)

    def calibrate(self, problem: Problem, plan: Plan, target: Target):
        """Calibrate as in `Protocol.calibrate`. Set the bits of shuffled sums, or the noise of each user."""
        noisy = replace(self, noises=self._noises(plan, target))
        noise_std = noisy.noise_for(problem, plan, target)
        if target.given_noise and self.accounting == "paper" and target.delta is not None:  # raise before the run
            replace(self, noises=None).private_mean.event(problem, plan, noise_std).epsilon(target.delta)
        ready = noisy.with_noise(problem, plan, noise_std, target)
        return replace(ready, vector_sum=self.private_mean.vector_sum(problem, plan, noise_std))

    def needed_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """σ of the noisiest user."""
        return replace(self, noises=None).private_mean.min_noise(problem, plan, target)

    def _noises(self, plan: Plan, target: Target) -> tuple[float, ...] | None:
        """Each user's noise divided by the largest noise if their ε differ, else None.

        The noise is sufficient for a user that takes part in as many rounds as any user does.
        """
        if self.relative_privacy is None:
            target.require_one()
        privacy_shares(self.relative_privacy, plan.size.machines)  # raises Refusal if the number of ratios is wrong
        if self.relative_privacy is None or target.given_noise is not None:
            return None
        mus = np.asarray(gdp.mu(target.epsilon, target.stated_delta))
        return tuple((mus.min() / mus).tolist())

    def noise_constant(self, problem: Problem, plan: Plan) -> float:
        """C of the bounds in `theory.cheu`, see `PrivateMean.noise_constant`."""
        return self.private_mean.noise_constant(problem, plan, float(self.noise_std))

    def round_noise(self, problem: Problem, plan: Plan) -> float:
        """Norm of the noise and rounding in the mean of a round's gradients."""
        bound = self.private_mean.bound(problem)
        return bound * self.noise_constant(problem, plan) ** 0.5 / plan.size.per_round

    def vectors_in_memory(self, problem: Problem, size: Size, rows: int) -> int:
        messages = min(size.per_round, max(1, CHUNK_NUMBERS // problem.dimension)) if self.trust == SHUFFLER else 0
        return max(messages, super().vectors_in_memory(problem, size, rows))
