"""Gaussian means in the local, the central and the pan-private model."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.values import require_choice
from fedprivjax.method.minibatch_round import noisy_mean
from fedprivjax.method.private_mean.interface import PrivateMean
from fedprivjax.method.round import RoundInputs
from fedprivjax.noise import Fresh, Mechanism, choose
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Full
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import cheu

THEOREMS = {
    "none": "the Gaussian mechanism on every message",
    "server": "the Gaussian mechanism on a round's sum",
    "pan-private": "Cheu et al. 2022, Theorem C.3: the Gaussian mechanism, once before a batch and once after it",
}


@dataclass(frozen=True)
class GaussianMean(PrivateMean):
    """Noise N(0, σ²·I) on each message ("none"), or N(0, b·σ²·I) on their sum ("server") for full cohorts of size b.

    With "pan-private" (Cheu et al. 2022, Algorithm 6), the sum starts from one such vector of half the variance, and
    another is added at the end. For an intruder who reads the memory once, and for observers of the outputs, each
    record is protected by exactly one of the two.

    Attributes:
        noises: each user's noise divided by the largest, which is σ, if users' ε differ (trust "none"); else None.
    """

    noises: tuple[float, ...] | None = None

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        """Mean of the participants' gradients, with noise [d]."""
        return noisy_mean(problem, w, inputs, noise, self.clip)

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism that samples the mean's noise, one vector per round, or every machine's noise."""
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
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

    def theorem(self, plan: Plan) -> str:
        return THEOREMS[self.trust]

    def assumptions(self, problem: Problem, plan: Plan, noise_std: float) -> tuple[Assumption, ...]:
        return (Assumption("one intrusion"),) if self.trust == "pan-private" else ()

    def private_noise(self, problem: Problem, epsilon: float, delta: float) -> Callable[[Any], Any]:
        central = cheu.gaussian_noise_constant(epsilon, delta, problem.dimension)
        if self.trust == "none":
            return lambda users: central * np.asarray(users, float)
        halves = 2 if self.trust == "pan-private" else 1
        return lambda users: np.full(np.shape(users), halves * central)
