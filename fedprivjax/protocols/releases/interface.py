"""What a release is: a cohort's noisy mean gradient, as the machines, the server or a shuffler make it private.

A message is one record's gradient, of norm at most `bound`. Whoever adds the noise, σ (`noise_std`) is what one message
carries of it: the sum of n messages has noise of standard deviation σ·√n in each coordinate. So equal σ is equal
utility, and trust models differ in the privacy that it buys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise import Mechanism
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.records import RecordAccountant
from fedprivjax.privacy.events import RecordEvent, Releases
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RECORD, USED_ONCE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.minibatch_round import record_messages
from fedprivjax.protocols.round import RoundInputs
from fedprivjax.protocols.views import VIEWS, Observed, Seen


@dataclass(frozen=True)
class Release:
    """The interface. Attributes: trust, a key of `privacy.terms.TRUST`; clip, of every record's gradient, or None."""

    trust: str
    clip: Any = None

    # ---- traced

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        """The server's estimate of the cohort's mean gradient at w, and scalars of the round."""
        raise NotImplementedError

    def messages(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> Any:
        """What each participant computes, leaves [per_round, ...], without noise that it adds at the end."""
        return record_messages(problem, w, inputs, self.clip)

    def noise(self, noise_std, drawn, tape) -> Any:
        """What σ makes of one round's draw."""
        return noise_std * drawn

    # ---- on the host

    def chosen(self, problem: Problem, plan: Plan, noise_std: float) -> Any:
        """The sums of bits that go with σ, or None."""
        return None

    def tape(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Noise made on the host, leaves [rounds, ...], or None."""
        return None

    def view(self, observed: Observed) -> Seen:
        """What the adversary sees."""
        return VIEWS[self.trust](observed)

    def needed(self, problem: Problem, plan: Plan, target: Target) -> float:
        """The least σ that meets a target on a plan. Default: Gaussian noise."""
        multiplier = sqrt(record_uses(plan).max()) / gdp.mu(target.worst_epsilon, target.stated_delta)
        return float(multiplier * self.shift(problem) / self.relative(plan))

    def rounding_constant(self, problem: Problem, plan: Plan) -> float:
        """What fixed-point rounding adds to the noise constant."""
        return 0.0

    def noise_constant(self, problem: Problem, plan: Plan, noise_std: float) -> float:
        """C: the variance of a sum's noise and rounding, all coordinates together, over the bound²."""
        noise = problem.dimension * plan.size.per_round * (noise_std / self.bound(problem)) ** 2
        return noise + (self.rounding_constant(problem, plan) if noise_std else 0.0)

    def costs(self, problem: Problem, plain: dict[str, float]) -> dict[str, float]:
        """What one machine sends in a round; `plain` is one message of numbers."""
        return plain

    def noise_constants(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        """C as a function of the cohort's size, for one release a record, before a plan is drawn: to choose sizes by.

        With an accountant's noise it is the Gaussian limit.
        """
        raise NotImplementedError

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """What a seed draws."""
        raise NotImplementedError

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """From the noise over the shift of one release to ε."""
        raise NotImplementedError

    def relative(self, plan: Plan) -> float:
        """The noise that hides one record in one release, as a multiple of σ."""
        raise NotImplementedError

    def theorem(self, plan: Plan) -> str:
        """Where the guarantee is proved."""
        raise NotImplementedError

    def assumptions(self, plan: Plan) -> tuple[Assumption, ...]:
        """What it rests on beyond the gradient's bound."""
        return ()

    def bound(self, problem: Problem) -> float:
        """The largest norm of a record's gradient."""
        return float(problem.lipschitz if self.clip is None else self.clip)

    def shift(self, problem: Problem) -> float:
        """How far one replaced record moves a sum."""
        bound = self.bound(problem)
        if not np.isfinite(bound):
            raise Refusal("clip must be set, for the loss has no finite gradient bound here")
        return 2 * bound

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> RecordEvent:
        """What noise of σ does to privacy on a plan: a record is in as many releases as rounds use it."""
        shift = self.shift(problem) / self.relative(plan) if noise_std else 1.0
        releases = Releases.of(shift, 1, 1, record_uses(plan))
        bounded = Assumption("lipschitz", lipschitz_values(problem))
        if self.clip is not None:
            bounded = Assumption("clipped records", {"bound": float(self.clip)})
        once = USED_ONCE[1:] if plan.repeats else USED_ONCE
        assumptions = (*once, bounded, *self.assumptions(plan), Assumption("not covered"))
        terms = Terms(self.trust, self.theorem(plan), assumptions, unit=RECORD)
        return RecordEvent(float(noise_std), self.accountant(problem, plan), releases, terms)


def record_uses(plan: Plan) -> np.ndarray:
    """Rounds that use a machine's most used record, int [machines]."""
    total = plan.schedule.total
    if not plan.repeats:
        return np.minimum(total, 1)
    present = plan.schedule.present
    machine, sample = plan.schedule.participants[present], plan.samples[present]
    pairs, counts = np.unique(np.stack([machine, sample]), axis=1, return_counts=True)
    uses = np.zeros(total.size, int)
    np.maximum.at(uses, pairs[0], counts)
    return uses
