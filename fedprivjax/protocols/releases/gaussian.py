"""Gaussian releases: by every machine (local), by a trusted server (central), or twice by a server that forgets."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.values import require_choice
from fedprivjax.noise import Fresh, Mechanism, PerMachine
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Full
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.minibatch_round import noisy_mean
from fedprivjax.protocols.releases.interface import Release
from fedprivjax.protocols.round import RoundInputs
from fedprivjax.theory import cheu

THEOREMS = {
    "none": "the Gaussian mechanism on every message",
    "server": "the Gaussian mechanism on a round's sum",
    "pan-private": "Cheu et al. 2022, Theorem C.3: the Gaussian mechanism, once before a batch and once after it",
}


@dataclass(frozen=True)
class GaussianRelease(Release):
    """N(0, σ²·I) of each message ("none"), or N(0, n·σ²·I) on the sum of n, n the cohort's largest size ("server").

    "pan-private" (Cheu et al. 2022, Algorithm 6): the sum starts from one such vector of half the variance, and ends
    with another. An intruder who looks into the memory once, and all others at the outputs, see a record through
    exactly one of the two.
    """

    def mean(self, problem: Problem, w, inputs: RoundInputs, noise, key) -> tuple[Any, dict]:
        return noisy_mean(problem, w, inputs, noise, self.clip)

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        present = plan.schedule.present
        messages = present.sum(axis=1)
        if self.trust != "none":
            return Fresh(np.asarray(sqrt(plan.size.per_round) / messages, np.float32))
        if method == "materialised":
            # PerMachine takes the mean over all slots
            weights = present * (plan.size.per_round / messages)[:, None]
            return PerMachine(np.asarray(weights, np.float32))
        return Fresh(np.asarray(1 / np.sqrt(messages), np.float32))

    def noise_constants(self, problem: Problem, target: Target) -> Callable[[Any], Any]:
        central = cheu.gaussian_noise_constant(target.worst_epsilon, target.stated_delta, problem.dimension)
        if self.trust == "none":
            return lambda users: central * np.asarray(users, float)
        return lambda users: np.full(np.shape(users), central * (2 if self.trust == "pan-private" else 1))

    def accountant(self, problem: Problem, plan: Plan) -> RecordAccountant:
        return Sampled(Full())

    def relative(self, plan: Plan) -> float:
        hidden_by = {"none": 1, "server": plan.size.per_round, "pan-private": plan.size.per_round / 2}
        return sqrt(hidden_by[self.trust])

    def theorem(self, plan: Plan) -> str:
        return f"{THEOREMS[self.trust]}; {'adaptive' if plan.repeats else 'parallel'} composition"

    def assumptions(self, plan: Plan) -> tuple[Assumption, ...]:
        return (Assumption("one intrusion"),) if self.trust == "pan-private" else ()
