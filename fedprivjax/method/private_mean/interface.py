"""What a private mean is: a cohort's mean gradient, as the machines, the server or a shuffler make it private.

A message is one record's gradient, of norm at most `bound`. Whoever adds the noise, σ (`noise_std`) is what one message
carries of it: the sum of n messages has noise of standard deviation σ·√n in each coordinate. So equal σ is equal
utility, and trust models differ in the privacy that it buys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.method.minibatch_round import record_messages
from fedprivjax.method.round import RoundInputs
from fedprivjax.method.views import VIEWS, Observed, Seen
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
    """The interface.

    Attributes:
        trust: a key of `privacy.terms.TRUST`.
        clip: bound on every record's gradient that is enforced, or None.
    """

    trust: str
    clip: Any = None

    # ---- traced

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        """The server's estimate of the cohort's mean gradient at w, and scalars of the round.

        Args:
            noise: what `noise` makes of the round's draw, or None in a run without noise.
            key: of the round, for randomness that is not the mechanism's.
        """
        raise Undefined("a private mean must define mean(problem, w, inputs, noise, key)")

    def messages(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> Any:
        """What each participant computes, leaves [per_round, ...], without noise that it adds at the end."""
        return record_messages(problem, w, inputs, self.clip)

    def noise(self, noise_std, drawn, tape) -> Any:
        """What σ makes of one round's draw."""
        return noise_std * drawn

    # ---- what is drawn, seen and sent, on the host

    def vector_sum(self, problem: Problem, plan: Plan, noise_std: float) -> Any:
        """The sums of bits that go with σ, or None."""
        return None

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """What a seed draws."""
        raise Undefined("a private mean must define mechanism(plan, method)")

    def check_method(self, method: str) -> None:
        """Refuse a way to draw noise that these numbers rule out."""

    def tape(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Noise made on the host, leaves [rounds, ...], or None."""
        return None

    def view(self, observed: Observed) -> Seen:
        """What the adversary sees."""
        return VIEWS[self.trust](observed)

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """What one machine sends in a round; `plain` is one message of numbers."""
        return plain

    # ---- privacy, on the host

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """From σ over the shift that one record makes to ε."""
        raise Undefined("a private mean must define accountant(problem, plan)")

    def hiding(self, plan: Plan) -> Any:
        """The noise that hides one record in one round, as a multiple of σ: one for all users or one for each."""
        raise Undefined("a private mean must define hiding(plan)")

    def theorem(self, plan: Plan) -> str:
        """Where the guarantee is proved."""
        raise Undefined("a private mean must define theorem(plan)")

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float) -> tuple[Assumption, ...]:
        """What it rests on beyond the gradient's bound."""
        return ()

    def bound(self, problem: Problem) -> float:
        """The largest norm of a record's gradient."""
        return float(problem.lipschitz if self.clip is None else self.clip)

    def shift(self, problem: Problem) -> float:
        """How far one replaced record moves a sum."""
        bound = self.bound(problem)
        if not np.isfinite(bound):
            raise Refusal("clip must be set, because the loss has no finite gradient bound here")
        return 2 * bound

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> RecordEvent:
        """What noise of σ does to privacy on a plan: a record is released in as many rounds as use it."""
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

    def least_noise(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The least σ that meets a private target on a plan, of the user who needs most. Default: Gaussian noise."""
        multiplier = sqrt(plan.uses.max()) / target.largest_mu
        return HEADROOM * float(multiplier * self.shift(problem) / self.hiding(plan))

    # ---- the constants of `theory.cheu`

    def noisy_users(self, plan: Plan) -> float:
        """Of how many messages with σ each a sum has the noise, in a round where everyone takes part."""
        return plan.size.per_round

    def noise_constant(self, problem: Problem, plan: Plan, noise_std: float) -> float:
        """C: the variance of a sum's noise and rounding, all coordinates together, over the bound²."""
        noise = problem.dimension * self.noisy_users(plan) * (noise_std / self.bound(problem)) ** 2
        return noise + (self.rounding_constant(problem, plan.size.per_round) if noise_std else 0.0)

    def rounding_constant(self, problem: Problem, users: Any) -> Any:
        """The part of C that fixed-point rounding adds, for sums over so many users."""
        return 0.0

    def planned_noise(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        """The noise's part of C as a function of the cohort's size, before a plan is drawn, for one release a record.

        Where an accountant decides it is the Gaussian limit; to choose a cohort's size by.
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
        """C as a function of the cohort's size: `planned_noise`, and rounding."""
        noise = self.planned_noise(problem, target)
        if target.non_private:
            return noise
        return lambda users: noise(users) + self.rounding_constant(problem, users)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        """`planned_noise` for (ε, δ)."""
        raise Undefined("a private mean must define private_noise(problem, epsilon, delta)")
