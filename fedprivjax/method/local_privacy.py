"""Guarantees of local work: noise in every local step (one record), or on the machines' updates (one machine).

A machine i that takes part in k_i rounds releases, with the bound C,

    record    k_i·K_i noisy steps, each a mean over a batch of B records of norm at most C: a record moves one by 2C/B
    machine   k_i updates of norm at most C: the machine moves each sum by C (present or zero) or 2C (replaced)
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedprivjax.checks.values import require_choice
from fedprivjax.noise import Fresh, Mechanism, PerMachine, PerStep
from fedprivjax.noise.fresh import MessageInputs
from fedprivjax.noise.rounds import INDEPENDENT, RoundFactor, round_factor
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import LocalWork
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.events import Event, GaussianEvent, RecordEvent, Releases
from fedprivjax.privacy.per_machine import Grouped, grouped_once
from fedprivjax.privacy.terms import MACHINE, RECORD, REPLACE_ONE, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem

EVERY_STEP = "every local step released (post-processing); composed profile of the Gaussian mechanism on its records"
UNITS = ("record", "machine")
UPDATES = "McMahan et al. 2018 (DP-FedAvg): clipped updates; adaptive composition of Gaussian mechanisms"
CORRELATED = (
    "Choquette-Choo et al. 2023 (matrix mechanism, several participations): clipped updates; one Gaussian mechanism"
)


@dataclass(frozen=True)
class NoisySteps:
    """Noise in every local step, which protects one record of one machine without a trusted server.

    Attributes:
        work: sampler of the records of the local steps.
        clip: bound on the norm of every record's gradient, or None for the problem's Lipschitz constant.
    """

    work: LocalWork
    clip: Any = None

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism of the noise inside the machines' local steps."""
        require_choice("noise method", method, ("auto", "materialised"))
        return PerStep(np.asarray(plan.schedule.present, np.float32))

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> Event:
        """Event of all local steps of a plan."""
        assert problem.partition_table is not None
        sizes = problem.partition_table.sizes
        bound, batch = problem.lipschitz if self.clip is None else float(self.clip), self.work.divisors(sizes)
        messages = plan.schedule.total * self.work.uses
        releases = Releases.of(2 * bound / batch, np.maximum(sizes, 1), batch, messages)
        facts = Assumption("public participation"), self._bound(problem), Assumption("not covered")
        order = Assumption("secret samples" if plan.secret else "public order")
        terms = Terms("none", EVERY_STEP, (*facts, order), unit=RECORD)
        return RecordEvent(float(noise_std), Sampled(self.work.of_step), releases, terms)

    def _bound(self, problem: Problem) -> Assumption:
        if self.clip is None:
            return Assumption("lipschitz", lipschitz_values(problem))
        return Assumption("clipped records", {"bound": float(self.clip)})


@dataclass(frozen=True)
class NoisyUpdates:
    """Noise on clipped updates, which protects all records of one machine at once.

    Attributes:
        trust: "server" if the server adds noise to the mean, "none" if every machine adds noise to its own update.
        clip: C, bound on the norm of an update.
        relation: neighbouring relation, a key of `RELATIONS`.
        noise_schedule: "independent", or a factor over rounds of a trusted server's noise, see `noise.rounds`.
    """

    trust: str
    clip: Any
    relation: str = REPLACE_ONE
    noise_schedule: Any = INDEPENDENT

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism of the noise in the mean of the updates."""
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        schedule, factor = plan.schedule, round_factor(self.noise_schedule)
        if factor is not None:
            return factor.mechanism(schedule)
        if self.trust == "server":
            return Fresh(np.ones(plan.size.rounds, np.float32))
        present = schedule.present.astype(np.float32)
        if method == "materialised":
            return PerMachine(MessageInputs(present, np.full(plan.size.rounds, schedule.divisor, np.float32)))
        return Fresh((np.sqrt(np.sum(present, axis=1)) / schedule.divisor).astype(np.float32))

    def sensitivity(self, plan: Plan) -> float:
        """L2 change of one release by one machine."""
        moved = (2 if self.relation == REPLACE_ONE else 1) * float(self.clip)
        return moved / plan.schedule.divisor if self.trust == "server" else moved

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> Event:
        """Event of all updates of a plan."""
        facts = (
            Assumption("public participation"),
            Assumption("clipped updates", {"bound": float(self.clip)}),
            Assumption("not covered"),
        )
        factor = round_factor(self.noise_schedule)
        if factor is not None:
            return self._correlated(factor, plan, noise_std, (*facts, Assumption("noise of the schedule")))
        terms = Terms(self.trust, UPDATES, facts, unit=MACHINE, relation=self.relation)
        rounds = grouped_once(plan.schedule, plan.schedule.total, lambda total, _: np.sqrt(total))
        return GaussianEvent(
            float(noise_std),
            self.sensitivity(plan),
            rounds,
            terms,
            lambda machine: np.ones(plan.schedule.total[machine]),
        )

    def _correlated(self, factor: RoundFactor, plan: Plan, noise_std: float, facts: tuple[Assumption, ...]) -> Event:
        """Event of F·x with independent noise, of which everything released is a function."""
        terms = Terms(self.trust, CORRELATED, facts, unit=MACHINE, relation=self.relation)
        schedule = plan.schedule
        exposure = schedule.once(("exposure", factor), lambda: Grouped.of(factor.exposures(schedule)))
        releases = partial(factor.releases, schedule)
        return GaussianEvent(float(noise_std), self.sensitivity(plan), exposure, terms, releases)
