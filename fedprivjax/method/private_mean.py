"""Privacy of means over a cohort of users with one record each: its base, and Gaussian noise in three models.

A message is one record's, and a record is in one message of each round that uses it. In every trust model σ
(`noise_std`) is the noise per message: the sum of n messages has noise of standard deviation σ·√n in each coordinate.
Equal σ therefore means equal utility, and trust models differ in the resulting privacy.

The server reads the private mean of the bounded messages of a round. What a message is may depend on everything that
was released before, so the guarantee holds for any algorithm.
"""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any, final

import numpy as np
from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_choice
from fedprivjax.method.relative_privacy import privacy_shares, shared_privacy
from fedprivjax.method.release import MessagePrivacy, RunFacts
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Full
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.composition import HEADROOM
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.privacy.terms import RECORD, USED_ONCE, Assumption, Terms
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu

THEOREMS = {
    "none": "the Gaussian mechanism on every message",
    "server": "the Gaussian mechanism on a round's sum",
    "pan-private": "Cheu et al. 2022, Theorem C.3: the Gaussian mechanism, once before a batch and once after it",
}
SHUFFLER = "shuffler"
TRUSTS = (SHUFFLER, *THEOREMS)


class PrivateMean(MessagePrivacy):
    """Base of the privacy objects of means of users' messages. `UserSGD` documents the settings.

    A subclass defines `mean` and `messages` if they are other than of bounded messages, and on the host `mechanism`,
    `needed_noise`, `accountant`, `hiding`, `theorem` and `private_noise`.
    """

    several_epochs = True

    def stored(self, server: Any) -> Any:
        return server

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        target.require_one()
        return {}

    def planned(self, facts: RunFacts) -> dict[str, Any]:
        self._require_mean(facts.reads)
        return {}

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """Accountant that converts σ divided by the sensitivity to ε."""
        raise Undefined(f"{type(self).__name__} must define accountant(problem, plan)")

    def hiding(self, plan: Plan) -> Any:
        """Standard deviation of the noise that protects one record in one round, divided by σ.

        It is one number, or one for each user, shape [users]. σ is `noise_std`, the noise of one message.
        """
        raise Undefined(f"{type(self).__name__} must define hiding(plan)")

    def theorem(self) -> str:
        """Source of the guarantee."""
        raise Undefined(f"{type(self).__name__} must define theorem()")

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float, bound: float) -> tuple[Assumption, ...]:
        """Assumptions of the guarantee in addition to the bound's."""
        return ()

    def event(self, facts: RunFacts, noise_std: float) -> RecordEvent:
        """Return the event of noise σ on a plan. A record is released in each round that uses it."""
        self._require_mean(facts.reads)
        problem, plan, bound = facts.problem, facts.plan, facts.bound
        shift = sensitivity(bound.norm) / self.hiding(plan) if noise_std else 1.0
        once = USED_ONCE[1:] if plan.repeats else USED_ONCE
        own = self.assumptions(problem, plan, noise_std, bound.norm)
        composition = "adaptive composition" if plan.repeats else "parallel composition"
        assumptions = (*once, *bound.assumptions, *own, Assumption("not covered"))
        terms = Terms(self.trust, f"{self.theorem()}; {composition}", assumptions, unit=RECORD)
        return RecordEvent(noise_std, self.accountant(problem, plan), Releases.of(shift, 1, 1, plan.uses), terms)

    def server_noise(self, plan: Plan) -> float:
        """Return the standard deviation of the noise of the first round's mean, divided by `noise_std`.

        The sum of a round's messages has noise of variance n·σ², with n from `noisy_users` and σ = `noise_std`. The
        mean is this sum divided by the number of participants.

        Args:
            plan: plan of the run, which gives the number of users of each round.
        """
        return sqrt(self.noisy_users(plan)) / int(plan.schedule.present[0].sum())

    # ---- constants of `theory.cheu`, for messages of norm at most `bound`

    def noisy_users(self, plan: Plan) -> float:
        """Variance of a sum's noise in a full cohort, divided by σ²: the number of messages with noise σ each."""
        return plan.size.per_round

    def noise_constant(self, problem: Problem, plan: Plan, noise_std: float, bound: float) -> float:
        """C: variance of a sum's noise and rounding, summed over coordinates, divided by the bound²."""
        noise = problem.dimension * self.noisy_users(plan) * (noise_std / bound) ** 2
        return noise + (self.rounding_constant(problem, plan.size.per_round) if noise_std else 0.0)

    def rounding_constant(self, problem: Problem, users: Any) -> Any:
        """Contribution of fixed-point rounding to C, for sums over this number of users."""
        return 0.0

    def planned_noise(self, problem: Problem, target: Target, bound: float) -> Callable[[Any], Any]:
        """Contribution of the noise to C as a function of the cohort size, for one release per record.

        It is used to choose a cohort size before a plan is sampled. If the noise comes from an accountant, the Gaussian
        limit is used.
        """
        if target.non_private:
            return lambda users: np.zeros(np.shape(users))
        if target.noise_std is not None:
            each = problem.dimension * (target.noise_std / bound) ** 2
            return lambda users: each * np.asarray(users, float)
        if not np.ndim(target.epsilon):
            return self.private_noise(problem, target.worst_epsilon, target.stated_delta)
        each, users = np.unique(np.asarray(target.epsilon), return_counts=True)
        of_each = [self.private_noise(problem, float(epsilon), target.stated_delta) for epsilon in each]
        return lambda cohort: np.average([noise(cohort) for noise in of_each], axis=0, weights=users)

    def planned_constant(self, problem: Problem, target: Target, bound: float) -> Callable[[Any], Any]:
        """C as a function of the cohort size: `planned_noise` plus the contribution of rounding."""
        noise = self.planned_noise(problem, target, bound)
        if target.non_private:
            return noise
        return lambda users: noise(users) + self.rounding_constant(problem, users)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        """`planned_noise` for (ε, δ)."""
        raise Undefined(f"{type(self).__name__} must define private_noise(problem, epsilon, delta)")


def sensitivity(bound: float) -> float:
    """Return the L2 sensitivity of a sum of messages to replacing one record, twice the `bound`.

    Args:
        bound: bound on the L2 norm of a message.

    Raises:
        Refusal: if the bound is infinite.
    """
    if not np.isfinite(bound):
        raise Refusal("clip must be set, because the loss has no finite gradient bound here")
    return 2 * bound


# ---- of a protocol whose messages are gradients


def gradient_bound(protocol: Any, problem: Problem) -> float:
    """Return the bound on the norm of a record's gradient."""
    clip = protocol.privacy.clip
    return float(problem.lipschitz if clip is None else clip)


def noise_constant(protocol: Any, problem: Problem, plan: Plan) -> float:
    """Return C of the bounds in `theory.cheu`, see `PrivateMean.noise_constant`."""
    return protocol.privacy.noise_constant(problem, plan, float(protocol.noise_std), gradient_bound(protocol, problem))


def round_noise(protocol: Any, problem: Problem, plan: Plan) -> float:
    """Return the norm of the noise and rounding in the mean of a round's gradients."""
    return gradient_bound(protocol, problem) * noise_constant(protocol, problem, plan) ** 0.5 / plan.size.per_round


@final
@struct.dataclass(kw_only=True)
class GaussianMean(PrivateMean):
    """Gaussian noise on messages of users (machines with one record each); it protects the record.

    Let σ be `noise_std`, and b the largest number of users in a round.

    * With trust "none", every message has noise N(0, σ²·I).
    * With trust "server", the sum of a round's messages has noise N(0, b·σ²·I).
    * With trust "pan-private" (Cheu et al. 2022, Algorithm 6), the server's memory is also protected against an
      intruder who reads it once. The sum starts from noise of variance b·σ²/2, and noise of the same variance is added
      at the end.

    Attributes:
        clip: C, bound on the L2 norm of every record's message, enforced by clipping. If `clip` is None, messages
            are clipped only in runs with noise, to the bound that the loss or the algorithm states.
        trust: "none" for noise on every message, "server" for noise on the sum, or "pan-private".
        relative_privacy: one number for each user, proportional to the user's target ε. The user with the largest
            number has the target ε. None gives all users the target ε. Unless trust = "none", `relative_privacy` must
            be None.
        noises: standard deviation of each user's noise divided by σ, the largest one. None if all users have the same
            ε. Set by calibration.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of the trust model `trust`. The guarantee
    holds for any algorithm whose `reads` is `Mean()`.

    Raises:
        Refusal: if a setting is invalid.

    >>> from fedprivjax import Protocol
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> privacy = GaussianMean(clip=1.0, trust="pan-private")
    >>> print(Protocol(SGD(), privacy=privacy, epsilon=2.0, step_size=0.1).privacy)
    GaussianMean(clip = 1, trust = pan-private)
    """

    clip: Any = None
    trust: str = host_only("none", traced="server")
    relative_privacy: Any = host_only(None)
    noises: tuple[float, ...] | None = host_only(None, derived=True)

    def __post_init__(self):
        require_clip("clip", self.clip)
        require_choice("trust", self.trust, THEOREMS)
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))

    @property
    def noise_follows(self) -> tuple[str, ...]:
        return () if self.relative_privacy is None else LEVELS

    def machine_target(self, target: Target) -> Target:
        return target.shared(self.relative_privacy)

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        """Return `{"noises": r}`: each user's noise divided by the largest one, or None if all ε are equal.

        If users have different ε, r_i is the smallest μ of a user divided by μ_i. Here μ_i is the μ of Gaussian DP that
        corresponds to (ε_i, δ) of user i. From these ratios, calibration computes noises with which every user's target
        is met, even if all users take part as often as the user who takes part most often.

        Args:
            target: privacy target, with one ε for each user if they differ. If the noise is given instead, r is None.
            epsilon: not used.
            machines: number of users.
        """
        if self.relative_privacy is None:
            target.require_one()
        privacy_shares(self.relative_privacy, machines)  # raises Refusal if the number of ratios is wrong
        if self.relative_privacy is None or target.given_noise is not None:
            return {"noises": None}
        mus = np.asarray(gdp.mu(target.epsilon, target.stated_delta))
        return {"noises": tuple((mus.min() / mus).tolist())}

    def check(self, facts: RunFacts, name: str) -> None:
        if facts.plan.schedule.announced and self.trust == "none":
            raise Refusal("cohorts must be of one size with trust = 'none', whose noise grows with the cohort")

    def mechanism(self, facts: RunFacts, method: str) -> Mechanism:
        """Return the mechanism that samples the noise of a round's mean, or the noise of every message.

        Args:
            facts: facts of the run, such as the participation schedule.
            method: way of sampling: "auto", "aggregate" (the noise of the mean) or "materialised" (the noise of every
                message).
        """
        self._require_mean(facts.reads)
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        plan = facts.plan
        messages = plan.schedule.present.sum(axis=1)
        if self.trust != "none":
            return Fresh(np.asarray(sqrt(plan.size.per_round) / messages, np.float32))
        relative = self._relative(plan)[plan.schedule.participants]
        return choose(plan.schedule, relative, 1, method, cancel=False, divisor=messages)

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """Accountant that composes Gaussian mechanisms exactly."""
        return Sampled(Full())

    def hiding(self, plan: Plan) -> Any:
        """Standard deviation of the noise that protects one record in one round, divided by σ = `noise_std`.

        Let b be the largest number of users in a round. The value depends on the attribute `trust`:

        * "server": √b.
        * "pan-private": √(b/2).
        * "none": 1. If users have different ε, σ is the largest of their noises. The value is then an array: each
          user's noise divided by σ, shape [users].

        Args:
            plan: plan of the run.
        """
        if self.noises is not None:
            return self._relative(plan)
        hidden_by = {"none": 1, "server": plan.size.per_round, "pan-private": plan.size.per_round / 2}
        return sqrt(hidden_by[self.trust])

    def noisy_users(self, plan: Plan) -> float:
        return plan.size.per_round * float(np.mean(self._relative(plan) ** 2))

    def _relative(self, plan: Plan) -> np.ndarray:
        """Each user's noise divided by the largest, [machines]."""
        return np.ones(plan.size.machines) if self.noises is None else np.asarray(self.noises)

    def theorem(self) -> str:
        return THEOREMS[self.trust]

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float, bound: float) -> tuple[Assumption, ...]:
        return (Assumption("one intrusion"),) if self.trust == "pan-private" else ()

    def needed_noise(self, facts: RunFacts, target: Target) -> float:
        """Return the smallest σ with which all users meet a target."""
        multiplier = sqrt(facts.plan.uses.max()) / target.largest_mu
        hiding = replace(self, noises=None).hiding(facts.plan)
        return HEADROOM * float(multiplier * sensitivity(facts.bound.norm) / hiding)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        central = cheu.gaussian_noise_constant(epsilon, delta, problem.dimension)
        if self.trust == "none":
            return lambda users: central * np.asarray(users, float)
        halves = 2 if self.trust == "pan-private" else 1
        return lambda users: np.full(np.shape(users), halves * central)
