"""Interface of private means: a cohort's mean gradient, made private by the machines, the server or a shuffler.

A message is one record's gradient, of norm at most `bound`. In every trust model σ (`noise_std`) is the noise per
message: the sum of n messages has noise of standard deviation σ·√n in each coordinate. Equal σ therefore means equal
utility, and trust models differ in the resulting privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.method.minibatch_round import record_messages
from fedprivjax.method.round import RoundInputs
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.accountants.composition import HEADROOM
from fedprivjax.privacy.accountants.records import RecordAccountant
from fedprivjax.privacy.events import RecordEvent, Releases
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RECORD, USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem


@dataclass(frozen=True)
class PrivateMean:
    """Base class of private means.

    Attributes:
        trust: trust model, a key of `privacy.terms.TRUST`.
        clip: bound that is enforced on every record's gradient, or None.
    """

    trust: str
    clip: Any = None

    # ---- traced

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        """Return the server's estimate of the cohort's mean gradient at w, and scalars of the round.

        Args:
            noise: the round's noise, as returned by `noise`, or None in a run without noise.
            key: key of the round, for randomness in addition to the mechanism's.
        """
        raise Undefined("a private mean must define mean(problem, w, inputs, noise, key)")

    def messages(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> Any:
        """Messages of the participants without their final noise, leaves [per_round, ...]."""
        return record_messages(problem, w, inputs, self.clip)

    def noise(self, noise_std, drawn, host_noise) -> Any:
        """Noise of one round, from σ and the mechanism's sample."""
        return noise_std * drawn

    # ---- noise, views and costs, on the host

    def vector_sum(self, problem: Problem, plan: Plan, noise_std: float) -> Any:
        """Shuffled sums for σ, or None without a shuffler."""
        return None

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism that samples the noise once per seed."""
        raise Undefined("a private mean must define mechanism(plan, method)")

    def check_method(self, method: str) -> None:
        """Raise Refusal if the noise method is not possible with these settings."""

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Noise pre-sampled on the host, leaves [rounds, ...], or None."""
        return None

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """Communication costs of one machine in a round. `plain` holds those of one message of numbers."""
        return plain

    # ---- privacy, on the host

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """Accountant that converts σ divided by `shift` to ε."""
        raise Undefined("a private mean must define accountant(problem, plan)")

    def hiding(self, plan: Plan) -> Any:
        """Noise that protects one record in one round, divided by σ: one number, or one for each user."""
        raise Undefined("a private mean must define hiding(plan)")

    def theorem(self, plan: Plan) -> str:
        """Source of the guarantee."""
        raise Undefined("a private mean must define theorem(plan)")

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float) -> tuple[Assumption, ...]:
        """Assumptions of the guarantee in addition to the gradient bound."""
        return ()

    def bound(self, problem: Problem) -> float:
        """Bound on the norm of a record's gradient."""
        return float(problem.lipschitz if self.clip is None else self.clip)

    def shift(self, problem: Problem) -> float:
        """L2 sensitivity of a sum to replacing one record."""
        bound = self.bound(problem)
        if not np.isfinite(bound):
            raise Refusal("clip must be set, because the loss has no finite gradient bound here")
        return 2 * bound

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> RecordEvent:
        """Event of noise σ on a plan. A record is released in each round that uses it."""
        shift = self.shift(problem) / self.hiding(plan) if noise_std else 1.0
        releases = Releases.of(shift, 1, 1, plan.uses)
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped records", {"bound": float(self.clip)})
        once = USED_ONCE[1:] if plan.repeats else USED_ONCE
        assumptions = (*once, bounded, *self.assumptions(problem, plan, noise_std), Assumption("not covered"))
        composition = "adaptive composition" if plan.repeats else "parallel composition"
        terms = Terms(self.trust, f"{self.theorem(plan)}; {composition}", assumptions, unit=RECORD)
        return RecordEvent(float(noise_std), self.accountant(problem, plan), releases, terms)

    def min_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """Smallest σ that meets a private target on a plan for every user. Default: that of Gaussian noise."""
        multiplier = sqrt(plan.uses.max()) / target.largest_mu
        return HEADROOM * float(multiplier * self.shift(problem) / self.hiding(plan))

    # ---- constants of `theory.cheu`

    def noisy_users(self, plan: Plan) -> float:
        """Variance of a sum's noise in a full cohort, divided by σ²: the number of messages with noise σ each."""
        return plan.size.per_round

    def noise_constant(self, problem: Problem, plan: Plan, noise_std: float) -> float:
        """C: variance of a sum's noise and rounding, summed over coordinates, divided by the bound²."""
        noise = problem.dimension * self.noisy_users(plan) * (noise_std / self.bound(problem)) ** 2
        return noise + (self.rounding_constant(problem, plan.size.per_round) if noise_std else 0.0)

    def rounding_constant(self, problem: Problem, users: Any) -> Any:
        """Contribution of fixed-point rounding to C, for sums over this number of users."""
        return 0.0

    def planned_noise(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        """Contribution of the noise to C as a function of the cohort size, for one release per record.

        It is used to choose a cohort size before a plan is sampled. If the noise comes from an accountant, the Gaussian
        limit is used.
        """
        if target.non_private:
            return lambda users: np.zeros(np.shape(users))
        if target.noise_std is not None:
            each = problem.dimension * (target.noise_std / self.bound(problem)) ** 2
            return lambda users: each * np.asarray(users, float)
        if not np.ndim(target.epsilon):
            return self.private_noise(problem, target.worst_epsilon, target.stated_delta)
        each, users = np.unique(np.asarray(target.epsilon), return_counts=True)
        of_each = [self.private_noise(problem, float(epsilon), target.stated_delta) for epsilon in each]
        return lambda cohort: np.average([noise(cohort) for noise in of_each], axis=0, weights=users)

    def planned_constant(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        """C as a function of the cohort size: `planned_noise` plus the contribution of rounding."""
        noise = self.planned_noise(problem, target)
        if target.non_private:
            return noise
        return lambda users: noise(users) + self.rounding_constant(problem, users)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        """`planned_noise` for (ε, δ)."""
        raise Undefined("a private mean must define private_noise(problem, epsilon, delta)")
