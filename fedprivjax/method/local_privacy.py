"""Guarantees of local work: noise in every local step (one record), or on the machines' updates (one machine).

A machine i that takes part in k_i rounds releases, with the bound C,

    record    k_i·K_i noisy steps, each a mean over a batch of B records of norm at most C: a record moves one by 2C/B
    machine   k_i updates of norm at most C: the machine moves each sum by C (present or zero) or 2C (replaced)

With secret participation every machine may have taken part in every round, and is present in a sum with the scheme's
probability. The guarantee is the same for all machines and does not depend on the sampled schedule.
"""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.addable_records import NEVER_USED, SAMPLES_KNOWN, require_addable, require_countable
from fedprivjax.method.encoders import Encoder
from fedprivjax.method.setting_checks import require_clip
from fedprivjax.noise import Fresh, Mechanism, PerMachine, PerStep
from fedprivjax.noise.factors import Factor
from fedprivjax.noise.interface import MessageInputs
from fedprivjax.noise.pairwise import Pairwise
from fedprivjax.noise.server_factors import INDEPENDENT, column_norm, round_factor
from fedprivjax.plan.participation import CyclicPoisson, Participation, PoissonCohorts, SecretSubsets
from fedprivjax.plan.plan import Minibatches, Plan
from fedprivjax.plan.samplers import Full, LocalWork, Poisson, Subset
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.uses import repeated_uses
from fedprivjax.privacy.accountants.records import Sampled, SampledMachines
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.per_machine import Grouped, grouped_once
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.relations import REPLACE_ONE, vectors_changed
from fedprivjax.privacy.terms import MACHINE, PUBLIC_PARTICIPATION, RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem

EVERY_STEP = "every local step released (post-processing); composed profile of the Gaussian mechanism on its records"
STEPS_KNOWN = f"every local step released (post-processing); {SAMPLES_KNOWN}"
UNITS = ("record", "machine")
COHORTS = "McMahan et al. 2018 (DP-FedAvg): clipped updates of secret cohorts; composed subsampled Gaussian mechanism"
WITH_STATE = "holds with client state, given the other machines' coins, by joint convexity"
UPDATES = "McMahan et al. 2018 (DP-FedAvg): clipped updates; adaptive composition of Gaussian mechanisms"
CLIPS = "adaptive clip of Andrew et al. 2021"
PAIRS = "Andrew et al. 2021 (adaptive clip): clipped updates with bits; adaptive composition of Gaussian mechanisms"
CORRELATED = (
    "Choquette-Choo et al. 2023 (matrix mechanism, several participations): clipped updates; one Gaussian mechanism"
)
TOGETHER = "the answers of a machine in one buffer move its sum by the sum of their weights"
IN_TURN = (
    "Choquette-Choo et al. 2023 (banded matrix mechanism, amplified): clipped updates of secret cohorts of groups in "
    "turn; composed subsampled Gaussian mechanism, once for each round of a group"
)


@dataclass(frozen=True)
class NoisySteps:
    """Noise in every local step, which protects one record of one machine without a trusted server.

    Attributes:
        work: sampler of the records of the local steps.
        clip: bound on the norm of every record's gradient, or None for the problem's Lipschitz constant.
        relation: neighbouring relation, a key of `RELATIONS`.
    """

    work: LocalWork
    clip: Any = None
    relation: str = REPLACE_ONE

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism of the noise inside the machines' local steps."""
        require_choice("noise method", method, ("auto", "materialised"))
        return PerStep(np.asarray(plan.schedule.present, np.float32))

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> Event:
        """Event of all local steps of a plan."""
        assert problem.partition_table is not None
        sizes = problem.partition_table.sizes
        bound = problem.lipschitz if self.clip is None else float(self.clip)
        batch = self._divisors(plan, sizes) if noise_std else self.work.divisors(sizes)
        shift, known = vectors_changed(self.relation) * bound / batch, require_addable(self.relation, self.work.of_step)
        records = np.maximum(sizes, 1) if self.relation == REPLACE_ONE else 1
        order = Assumption("secret samples" if plan.secret else "public order")
        facts = PUBLIC_PARTICIPATION, self._bound(problem), Assumption("not covered"), order, *known
        if self.work.secret and not plan.secret:
            theorem, sampler, messages = STEPS_KNOWN, Full(), np.minimum(plan.schedule.total, 1)
            shift = shift * self._known_uses(problem, plan)
        else:
            theorem, sampler, messages = EVERY_STEP, self.work.of_step, plan.schedule.total * self.work.uses
        terms = Terms("none", theorem, facts, unit=RECORD, relation=self.relation)
        releases = Releases.of(shift, records, batch, messages)
        return RecordEvent(float(noise_std), Sampled(sampler, relation=self.relation), releases, terms)

    def _divisors(self, plan: Plan, sizes: np.ndarray) -> np.ndarray:
        """Divisor of a step's sum at each machine, [machines].

        Raises:
            Refusal: if the program divides by a smaller number: by the batch or, without one, by the number of a step's
                records.
        """
        divisors, batch = np.broadcast_to(self.work.divisors(sizes), sizes.shape), self.work.batch
        if batch is None:
            found, over = "no batch and steps of fewer records", divisors > self._fewest_records(plan, sizes)
        else:
            found, over = f"batch = {batch}", divisors > np.asarray(batch)
        if over.any():
            machine = int(np.argmax(over))
            raise Refusal(
                f"divisors of {type(self.work).__name__} must be at most the batch or, without one, the number of "
                f"records of every step, got {divisors[machine]} on machine {machine} with {found}",
                machine=machine,
            )
        return divisors

    def _fewest_records(self, plan: Plan, sizes: np.ndarray) -> np.ndarray:
        """Smallest number of records of a machine's steps, float64 [machines]; 1 if samples are secret."""
        if plan.secret or not plan.width:
            return np.ones(sizes.size)
        assert plan.weights is not None
        steps = self.work.cut(plan.width)
        count = np.count_nonzero(plan.weights.reshape(*plan.weights.shape[:2], steps, -1), axis=3)
        fewest = np.full(sizes.size, inf)
        np.minimum.at(fewest, plan.schedule.participants, np.where(count, count, inf).min(axis=2))
        return fewest

    def _known_uses(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Sensitivity of all steps to a machine's record, divided by that of one step, if samples are public."""
        assert problem.partition_table is not None
        assert plan.weights is not None
        require_countable(self.relation, plan)
        rounds, slots, width = plan.samples.shape
        steps = self.work.cut(width)
        shape = rounds, slots * steps, width // steps
        each = Minibatches(plan.samples.reshape(shape), plan.weights.reshape(shape))
        return np.maximum(repeated_uses(each, problem.partition_table.rows), NEVER_USED)

    def _bound(self, problem: Problem) -> Assumption:
        if self.clip is None:
            return Assumption("lipschitz", lipschitz_values(problem))
        return Assumption("clipped records", {"bound": float(self.clip)})


@dataclass(frozen=True)
class NoisyUpdates:
    """Noise on clipped updates, which protects all records of one machine at once.

    Attributes:
        trust: "server" if the server adds noise to the mean, "none" if every machine adds noise to its own update.
        clip: C, bound on the norm of an update; with an `AdaptiveClip`, noise and sensitivity are multiples of it.
        relation: neighbouring relation, a key of `RELATIONS`.
        noise_schedule: "independent", a factor over rounds of a trusted server's noise, see `noise.server_factors`,
            or a `Pairwise`.
        stateful: True if a machine keeps a state between rounds.
        encoder: encoder of the machines' messages, or None. Machines then add their noise before it.
        dimension: number of coordinates of a message.
    """

    trust: str
    clip: Any
    relation: str = REPLACE_ONE
    noise_schedule: Any = INDEPENDENT
    stateful: bool = False
    encoder: Encoder | None = None
    dimension: int = 0

    def mechanism(self, plan: Plan, method: str) -> Mechanism:
        """Mechanism of the noise in the mean of the updates."""
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        schedule, factor = plan.schedule, round_factor(self.noise_schedule)
        if factor is not None:
            return factor.mechanism(schedule)
        if self.trust == "server":
            return Fresh(np.ones(plan.size.rounds, np.float32))
        if isinstance(self.noise_schedule, Pairwise):
            ones = np.ones(schedule.participants.shape)
            return self.noise_schedule.mechanism(schedule, ones, schedule.divisor, method)
        present = schedule.present.astype(np.float32)
        if self.encoder is not None:
            return PerStep(present)
        if schedule.late is not None:
            if method == "materialised" and (schedule.late.weights != 1).any():
                raise Refusal(
                    f"noise method must be 'auto' or 'aggregate' for machines' own noise in late answers of unequal "
                    f"weights, got {method!r}. Set power = 0 in Buffered"
                )
            present = present * schedule.late.weights
        if method == "materialised":
            return PerMachine(MessageInputs(present, np.full(plan.size.rounds, schedule.divisor, np.float32)))
        return Fresh((np.sqrt(np.sum(present**2, axis=1)) / schedule.divisor).astype(np.float32))

    def sensitivity(self, plan: Plan) -> float:
        """L2 change of one release by one machine.

        With an adaptive clip, it is that of the sum of the pairs of update and bit, in units of the clip.
        """
        if self.adaptive:
            return vectors_changed(self.relation) * self.norm
        change = vectors_changed(self.relation) * self.norm
        return change / plan.schedule.divisor if self.trust == "server" else change

    @property
    def adaptive(self) -> bool:
        """True if the clip is an `AdaptiveClip`."""
        return isinstance(self.clip, AdaptiveClip)

    @property
    def norm(self) -> float:
        """Bound on the norm of a message where the noise is added, in units of an adaptive clip.

        Raises:
            Refusal: if a trusted server adds noise to encoded messages whose norm has no bound.
        """
        norm = self.clip.norm_bound if self.adaptive else float(self.clip)
        if self.encoder is None or self.trust != "server":
            return norm
        bound = float(self.encoder.norm_bound(norm, self.dimension))
        if not bound < inf:
            raise Refusal(
                f"encoder must bound the norm of encoded messages for a trusted server's noise, got {self.encoder} "
                f"with norm_bound = {bound}. Define norm_bound, or use trust = 'none'"
            )
        require_clip("norm_bound", bound)
        return bound

    @property
    def clipped(self) -> tuple[Assumption, ...]:
        """Assumptions of the clip and, before a trusted server's noise, of the encoder."""
        clip = (
            Assumption("adaptive clip") if self.adaptive else Assumption("clipped updates", {"bound": float(self.clip)})
        )
        if self.encoder is None or self.trust != "server":
            return (clip,)
        return clip, Assumption("encoded updates", {"bound": self.norm})

    def event(self, problem: Problem, plan: Plan, noise_std: float) -> Event:
        """Event of all updates of a plan."""
        clipped, factor = self.clipped, round_factor(self.noise_schedule)
        if plan.schedule.secret is not None:
            return self._of_cohorts(plan, plan.schedule.secret, noise_std, clipped)
        facts = PUBLIC_PARTICIPATION, *clipped, Assumption("not covered")
        if factor is not None:
            return self._correlated(factor, plan, noise_std, facts)
        if plan.schedule.late is not None and self.trust == "server":
            return self._late(plan.schedule, noise_std, self.sensitivity(plan), facts)
        terms = Terms(self.trust, PAIRS if self.adaptive else UPDATES, facts, unit=MACHINE, relation=self.relation)
        rounds = grouped_once(plan.schedule, plan.schedule.total, lambda total, _: np.sqrt(total))
        releases = partial(_of_machine, plan.schedule.total)
        return GaussianEvent(float(noise_std), self.sensitivity(plan), rounds, terms, releases, in_order=True)

    def _late(self, schedule: Schedule, noise_std: float, sensitivity: float, facts: tuple[Assumption, ...]) -> Event:
        """Event of late answers: those of one machine in one buffer move its sum together, by their weights' sum."""
        terms = Terms(self.trust, f"{UPDATES}; {TOGETHER}", facts, unit=MACHINE, relation=self.relation)
        machine, weights = schedule.weights_by_machine
        exposure = Grouped.of(np.sqrt(np.bincount(machine, weights**2, minlength=schedule.machines)))
        releases = partial(_of_buffers, machine, weights)
        return GaussianEvent(float(noise_std), sensitivity, exposure, terms, releases)

    def _correlated(self, factor: Factor, plan: Plan, noise_std: float, facts: tuple[Assumption, ...]) -> Event:
        """Event of F·x with independent noise, of which everything released is a function."""
        schedule = plan.schedule
        rule, limits = factor.statement(schedule)
        noise = Assumption("noise of schedules", limits) if limits else Assumption("noise of the schedule")
        theorem = f"{CORRELATED}; {rule}" if rule else CORRELATED
        terms = Terms(self.trust, theorem, (*facts, noise), unit=MACHINE, relation=self.relation)
        exposure = schedule.once(("exposure", factor), lambda: Grouped.of(factor.exposures(schedule)))
        releases = partial(factor.releases, schedule)
        return GaussianEvent(float(noise_std), self.sensitivity(plan), exposure, terms, releases)

    def _of_cohorts(
        self, plan: Plan, scheme: Participation, noise_std: float, clipped: tuple[Assumption, ...]
    ) -> RecordEvent:
        """Event of all updates under secret participation. It depends on the scheme, not on the sampled schedule.

        If groups take part in turn, F has no more bands than groups. A machine's message then moves only the releases
        before its group's next round. Given what other machines do, these releases are one Gaussian mechanism. The
        machine takes part in it with probability `rate`, and moves it by its message times the norm of F's column.
        """
        accountant, batch = self._accountant(scheme)
        machines, rounds, factor = plan.size.machines, plan.size.rounds, round_factor(self.noise_schedule)
        in_turn = type(scheme) is CyclicPoisson
        uses = scheme.turns(rounds) if in_turn else np.full(machines, rounds)  # type: ignore[attr-defined]
        shift = self.sensitivity(plan) * (1.0 if factor is None else column_norm(factor, plan.schedule))
        releases = Releases.of(shift, machines, batch, uses)
        facts = [*clipped, Assumption("not covered")]
        if in_turn:
            facts.append(Assumption("groups in turn", {"groups": scheme.groups}))  # type: ignore[attr-defined]
        if accountant.cut:
            facts.append(Assumption("width of cohorts", {"cut": accountant.cut, "rounds": int(uses.max())}))
        theorem = IN_TURN if in_turn else COHORTS
        theorem = f"{theorem}; {WITH_STATE}" if self.stateful else theorem
        theorem = f"{theorem}; {CLIPS}" if self.adaptive else theorem
        terms = Terms(self.trust, theorem, tuple(facts), unit=MACHINE, relation=self.relation)
        return RecordEvent(noise_std, accountant, releases, terms, participation=scheme)

    def _accountant(self, scheme: Participation) -> tuple[SampledMachines, int]:
        """Accountant of a secret scheme, and the number of machines in a fixed cohort (else 1).

        Raises:
            Refusal: if no bound is known: for fixed sizes with client state or under add-or-remove-one, and for custom
                schemes.
        """
        if type(scheme) is PoissonCohorts or type(scheme) is CyclicPoisson:
            return SampledMachines(Poisson(1, rate=scheme.rate), relation=self.relation, cut=scheme.cut), 1
        if type(scheme) is not SecretSubsets:
            known = "PoissonCohorts, CyclicPoisson, SecretSubsets or public"
            raise Refusal(f"participation must be {known} for a guarantee of one machine, got {scheme}")
        if self.stateful:
            raise Refusal(
                f"participation must be PoissonCohorts or public with client state, because the other machines' rounds "
                f"show when a machine takes part in subsets of a fixed size, got {scheme}"
            )
        if self.relation != REPLACE_ONE:
            raise Refusal(
                f"relation must be {REPLACE_ONE!r} with {scheme}, whose cohorts have a fixed size, got "
                f"{self.relation!r}. Use PoissonCohorts"
            )
        return SampledMachines(Subset(scheme.per_round)), scheme.per_round


def _of_machine(total: np.ndarray, machine: int) -> np.ndarray:
    """Return the relative noise of a machine's updates: 1 for each of them, shape [updates]."""
    return np.ones(total[machine])


def _of_buffers(machines: np.ndarray, weights: np.ndarray, machine: int) -> np.ndarray:
    """Return the relative noise of each buffer that has answers of a machine, shape [releases]."""
    return 1 / weights[machines == machine]
