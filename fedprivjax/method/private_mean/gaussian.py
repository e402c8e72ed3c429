"""Gaussian means in the local, the central and the pan-private model."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any, final

import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.private_mean.interface import PrivateMean, sensitivity
from fedprivjax.method.relative_privacy import privacy_shares, shared_privacy
from fedprivjax.method.release import RunFacts
from fedprivjax.method.settings import require_clip
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Full
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.composition import HEADROOM
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu

THEOREMS = {
    "none": "the Gaussian mechanism on every message",
    "server": "the Gaussian mechanism on a round's sum",
    "pan-private": "Cheu et al. 2022, Theorem C.3: the Gaussian mechanism, once before a batch and once after it",
}


@final
@struct.dataclass(kw_only=True)
class GaussianMean(PrivateMean):
    """Means of users' messages with noise N(0, σ²·I) on each, or N(0, b·σ²·I) on the sum for full cohorts of size b.

    With trust "pan-private" (Cheu et al. 2022, Algorithm 6), the sum starts from one such vector of half the variance,
    and another is added at the end. For an intruder who reads the memory once, and for observers of the outputs, each
    record is protected by exactly one of the two.

    Attributes:
        clip: C, bound that is enforced on the norm of every record's message. None enforces the bound that the loss, or
            the algorithm, states.
        trust: "none" for noise on every message, "server" for noise on the sum, or "pan-private".
        relative_privacy: relative ε of the users, as in `UserSGD`; trust "none" only.
        noises: each user's noise divided by the largest, which is σ, if users' ε differ; set by calibration.

    **Privacy**: (ε, δ)-DP for replacing one record, against the adversary of `trust`, for any algorithm that reads
    means.

    Raises:
        Refusal: a setting is invalid.

    >>> from fedprivjax import Protocol
    >>> from fedprivjax.protocols.noisy_sgd import SGD
    >>> privacy = GaussianMean(clip=1.0, trust="pan-private")
    >>> print(Protocol(SGD(), privacy=privacy, epsilon=2.0, step_size=0.1).privacy)
    GaussianMean(clip = 1, trust = pan-private)
    """

    clip: Any = None
    trust: str = struct.field(pytree_node=False, default="none")
    relative_privacy: Any = struct.field(pytree_node=False, default=None)
    noises: tuple[float, ...] | None = struct.field(pytree_node=False, default=None, metadata={"derived": True})

    def __post_init__(self):
        require_clip("clip", self.clip)
        require_choice("trust", self.trust, THEOREMS)
        object.__setattr__(self, "relative_privacy", shared_privacy(self.relative_privacy, self.trust))

    @property
    def traced(self) -> "GaussianMean":
        """Copy without the settings that only the host reads: all trust models share one program."""
        return GaussianMean(clip=self.clip, trust="server")

    @property
    def noise_follows(self) -> tuple[str, ...]:
        return () if self.relative_privacy is None else LEVELS

    def machine_target(self, target: Target) -> Target:
        return target.shared(self.relative_privacy)

    def targeted(self, target: Target, epsilon: Any, machines: int) -> dict[str, Any]:
        """Return each user's noise divided by the largest noise if their ε differ, else None.

        The noise is sufficient for a user that takes part in as many rounds as any user does.
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
        """Return the mechanism that samples the mean's noise, one vector per round, or every machine's noise."""
        self._require_mean(facts.reads)
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        plan = facts.plan
        messages = plan.schedule.present.sum(axis=1)
        if self.trust != "none":
            return Fresh(np.asarray(sqrt(plan.size.per_round) / messages, np.float32))
        relative = self._relative(plan)[plan.schedule.participants]
        return choose(plan.schedule, relative, 1, method, cancel=False, divisor=messages)

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        """Exact composition of Gaussian mechanisms."""
        return Sampled(Full())

    def hiding(self, plan: Plan) -> Any:
        """Noise that protects one record in one round, divided by σ.

        It is √b with a trusted server and √(b/2) in the pan-private model. In the local model it is 1, or each user's
        noise divided by the largest, [machines].
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
        """Return σ of the noisiest user."""
        multiplier = sqrt(facts.plan.uses.max()) / target.largest_mu
        hiding = replace(self, noises=None).hiding(facts.plan)
        return HEADROOM * float(multiplier * sensitivity(facts.bound.norm) / hiding)

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        central = cheu.gaussian_noise_constant(epsilon, delta, problem.dimension)
        if self.trust == "none":
            return lambda users: central * np.asarray(users, float)
        halves = 2 if self.trust == "pan-private" else 1
        return lambda users: np.full(np.shape(users), halves * central)
