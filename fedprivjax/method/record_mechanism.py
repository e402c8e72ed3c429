"""Gaussian noise on means over a machine's own records: the host side of every method that protects records.

Lowy & Razaviyayn, ICLR 2023 (ISRL-DP). In each round, every machine i of a cohort releases

    (1/K_i)·Σ_j g_ij + N(0, σ_i²·I),        ‖g_ij‖ ≤ L_i

on K_i of its own n_i records, which a sampler picks again in each round. The picked records are secret, which amplifies
privacy. A machine's whole transcript is (ε_i, δ_i)-DP for replacing one of its records, for any behaviour of the other
machines. For Poisson samples of a public rate, it may also be for adding or removing one of its records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.method.addable_records import (
    NEVER_USED,
    PER_MACHINE,
    SAMPLES_KNOWN,
    require_addable,
    require_addable_settings,
    require_countable,
)
from fedprivjax.method.machine_kinds import Kinds, MachineTable, kinds_of
from fedprivjax.noise import Fresh, Mechanism, PerMachine
from fedprivjax.noise.interface import MessageInputs
from fedprivjax.plan.plan import Minibatches, Plan, machine_values
from fedprivjax.plan.samplers import Full, Sampler
from fedprivjax.plan.schedule import Size
from fedprivjax.plan.uses import repeated_uses
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases
from fedprivjax.privacy.events import Claim
from fedprivjax.privacy.noise_rules import CLAIMS, claimed_epsilon, noise_stds, proportions
from fedprivjax.privacy.per_machine import group_identical
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.relations import REPLACE_ONE, vectors_changed
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import PUBLIC_PARTICIPATION, RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem

Delta = float | Sequence[float] | str | None
THEOREM = "Lowy & Razaviyayn 2023, Algorithm 1"
SUBSAMPLED = "composed profile of the subsampled Gaussian mechanism"
NOT_SAMPLED = "adaptive composition of Gaussian mechanisms"


@dataclass(frozen=True)
class RecordMechanism:
    """Use of records in a machine's releases, and the noise of these releases.

    Attributes:
        sampler: sampler of a message's records.
        clip: bound that a machine enforces on every record's gradient, or None for the problem's Lipschitz constants.
        noise_rule: rule that computes σ from ε, a key of `fedprivjax.privacy.noise_rules.NOISE_RULES`.
        epsilon: target of each machine if they differ, which gives the proportions of their noises; else None.
        delta: δ of every machine, or one for each. "records" is 1/n_i², None is the run's δ.
        by_step: True if every record is a separate release, as in local steps.
        whole_message: True if the mean is clipped instead of each record's gradient.
        acknowledged: True to accept that the rule "paper_moments" claims an ε that does not hold.
        claimed_records: n in that rule, or None for the machine's number of records.
        relation: neighbouring relation, a key of `RELATIONS`.

    With Poisson samples of a public rate, noise, steps and guarantee do not depend on the machines' numbers of records:
    batch/rate stands for each of them.

    Raises:
        Refusal: if records cannot be added or removed under the other settings.
    """

    sampler: Sampler
    clip: Any = None
    noise_rule: str = "accountant"
    epsilon: tuple[float, ...] | None = None
    delta: Delta = None
    by_step: bool = False
    whole_message: bool = False
    acknowledged: bool = False
    claimed_records: int | None = None
    relation: str = REPLACE_ONE

    def __post_init__(self):
        if self.relation != REPLACE_ONE:
            require_addable_settings(self)

    # ---- machines

    def machines(self, problem: Problem, target: Target | None = None) -> MachineTable:
        """Constants of every machine, arrays of shape [machines]; see `kinds`."""
        kind = self._kinds(problem).kind
        return MachineTable(*(values[kind] for values in self.kinds(problem, target)))

    def kinds(self, problem: Problem, target: Target | None = None) -> MachineTable:
        """Constants of one machine of each kind, arrays of shape [kinds].

        ε and δ are the mechanism's if set, else the target's, else NaN.
        """
        first, kind, records, batch = self._kinds(problem)
        values = {
            "lipschitz": self._bound(problem),
            "epsilon": self._epsilon(target),
            "delta": np.nan if self.delta == PER_MACHINE else self._delta(target),
            "machine_weights": problem.message_factors,
        }
        each = {name: machine_values(name, value, kind.size)[first] for name, value in values.items()}
        delta = 1 / records**2.0 if self.delta == PER_MACHINE else each["delta"]
        return MachineTable(records, batch, each["lipschitz"] * each["machine_weights"], each["epsilon"], delta)

    def whole(self, problem: Problem) -> bool:
        """True if every message uses all records of its machine."""
        machines = self._kinds(problem)
        return not self.sampler.secret and bool((machines.batch >= machines.records).all())

    def relative(self, problem: Problem, rounds: int) -> np.ndarray:
        """Each machine's σ divided by the largest, shape [machines].

        If the machines' targets differ, each σ is the one that its target needs. Otherwise the noise rule's formula
        gives the proportions.
        """
        return self._relative(self.kinds(problem), rounds)[self._kinds(problem).kind]

    def _kinds(self, problem: Problem) -> Kinds:
        return kinds_of(problem, self.sampler, (self._bound(problem), self.epsilon, self.delta, problem.weights))

    def _bound(self, problem: Problem) -> Any:
        """Bound on a record's gradient: one number, or one for each machine."""
        if self.clip is not None:
            return self.clip
        return problem.lipschitz if problem.own_lipschitz is None else problem.own_lipschitz

    def _relative(self, m: MachineTable, rounds: int) -> np.ndarray:
        if not np.isfinite(m.lipschitz).all() or np.isinf(m.epsilon).any():
            return np.ones(m.records.size)
        if self.epsilon is not None:
            noise = self._needed(m, rounds)
        else:
            delta = np.where(np.isnan(m.delta), 1e-5, m.delta)  # the same for all machines: no effect on proportions
            rule = self._rule(m._replace(delta=delta))
            noise = proportions(self.noise_rule, rounds=self._releases(m, rounds), **rule)
        return noise / noise.max()

    # ---- noise

    def noise_std(self, problem: Problem, size: Size, target: Target) -> float:
        """σ of the noisiest machine, sufficient for machines that take part in every round."""
        if target.given_noise is not None:
            return target.given_noise
        m, relative = self.checked(problem, target), self._relative(self.kinds(problem), size.rounds)
        if self.noise_rule != "accountant" or self.epsilon is not None:
            return float(np.max(self._needed(m, size.rounds) / relative))
        return self._accounted(m, relative, size.rounds)

    def checked(self, problem: Problem, target: Target) -> MachineTable:
        """One machine of each kind with its target. Raise Refusal if a value that a finite target needs is missing."""
        if target.mu is not None and self.delta not in (None, target.delta):
            raise Refusal(f"delta must be None with a target mu, which is converted at the run's δ, got {self.delta}")
        m = self.kinds(problem, target)
        if not np.isfinite(m.lipschitz).all():
            raise Refusal("clip must be set, because the loss has no finite gradient bound here")
        if np.isnan(m.delta).any():
            raise Refusal("delta must be given with epsilon")
        if target.delta is not None and m.delta.max() > target.delta * (1 + 1e-9):
            raise Refusal(f"delta must be at most {target.delta:g}, at which ε is stated, got {m.delta.max():g}")
        return m

    def target_delta(self, problem: Problem, target: Target) -> Any:
        """δ of the target ε: one number, or shape [machines] if the machines' δ differ."""
        delta = self.checked(problem, target).delta
        return float(delta[0]) if (delta == delta[0]).all() else delta[self._kinds(problem).kind]

    def message_noise(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Relative noise of every message, shape [rounds, per_round]; 0 in empty slots."""
        return self.relative(problem, plan.size.rounds)[plan.schedule.participants] * plan.schedule.present

    def gaussian(self, problem: Problem, plan: Plan, method: str, *, summed: bool = False) -> Mechanism:
        """Mechanism of independent noise on every message, as it appears in the messages' mean or (`summed`) sum."""
        require_choice("noise method", method, ("auto", "aggregate", "materialised"))
        relative = self.message_noise(problem, plan)
        divisor = np.asarray(1.0 if summed else plan.schedule.present.sum(axis=1))
        if method == "materialised":
            over = divisor.astype(np.float32) if plan.schedule.varies and not summed else None
            return PerMachine(MessageInputs(np.asarray(relative, np.float32), over), summed=summed)
        return Fresh(np.asarray(np.sqrt(np.sum(relative**2, axis=1)) / divisor, np.float32))

    # ---- privacy

    def event(
        self,
        problem: Problem,
        plan: Plan,
        noise_std: float,
        *,
        trust: str = "none",
        theorem: str = THEOREM,
        accountant: RecordAccountant | None = None,
    ) -> RecordEvent:
        """Event of the noise on a plan. The default accountant is the sampler's.

        Args:
            theorem: theorem on one release. If `accountant` is None, the theorem on their composition is added.
        """
        releases = self._plan_releases(problem, plan)
        if accountant is None:
            accountant = self._accountant
            theorem = f"{theorem}; {SUBSAMPLED if self.sampler.secret else NOT_SAMPLED}"
        known = require_addable(self.relation, self.sampler)
        assumptions = (PUBLIC_PARTICIPATION, *self.bounds(problem), Assumption("not covered"), *known)
        if self._counted(plan):
            require_countable(self.relation, plan)
            accountant, theorem = Sampled(Full()), SAMPLES_KNOWN
        if plan.secret:
            assumptions = (*assumptions, Assumption("secret samples"))
        terms = Terms(trust, theorem, assumptions, unit=RECORD, relation=self.relation)
        claim = self._claim(problem, plan, float(noise_std)) if trust == "none" and noise_std else None
        return RecordEvent(float(noise_std), accountant, releases, terms, claim)

    def bounds(self, problem: Problem) -> tuple[Assumption, ...]:
        """Assumptions on the norm of a record's gradient, or of a message."""
        if self.clip is not None:
            return self.clipped
        each: Any = problem.own_lipschitz
        if np.ndim(each):
            return (Assumption("machine lipschitz", {"least": float(np.min(each)), "most": float(np.max(each))}),)
        return (Assumption("lipschitz", lipschitz_values(problem)),)

    @property
    def clipped(self) -> tuple[Assumption, ...]:
        """Assumption of the clip."""
        name = "clipped messages" if self.whole_message else "clipped records"
        return (Assumption(name, {"bound": float(self.clip)}),)

    def shift(self, m: MachineTable) -> np.ndarray:
        """L2 sensitivity of each machine's release to one record that occurs once; shape [machines].

        It is twice as large if the record is replaced as if it is added or removed.
        """
        return vectors_changed(self.relation) * m.lipschitz / (1 if self.whole_message or self.by_step else m.batch)

    def _plan_releases(self, problem: Problem, plan: Plan) -> Releases:
        """Releases of the machines. Configurations that differ only in `clip` share everything except the scale."""
        unit, scale = (self, 1.0) if self.clip is None else (replace(self, clip=1.0), float(self.clip))
        if self._counted(plan):
            releases = unit._grouped(problem, plan)
        else:
            declared = tuple(np.ravel(problem.lipschitz if problem.own_lipschitz is None else problem.own_lipschitz))
            known = (unit, problem.partition_table, declared, problem.weights)
            releases = plan.schedule.once(known, lambda: unit._grouped(problem, plan))
        return replace(releases, shift=scale * releases.shift)

    def _grouped(self, problem: Problem, plan: Plan) -> Releases:
        m, kind = self.kinds(problem), self._kinds(problem).kind
        shift = self.shift(m) / self._relative(m, plan.size.rounds)
        messages = plan.schedule.total
        if self._counted(plan):
            shift = shift[kind] * self._known_uses(problem, plan)
            return Releases.of(shift, m.records[kind], 1 if self.by_step else m.batch[kind], (messages > 0).astype(int))
        first, group = group_identical([kind, messages])
        one = kind[first]
        return Releases(
            shift[one],
            m.records[one],
            np.broadcast_to(1, one.shape) if self.by_step else m.batch[one],
            self._releases(m._replace(batch=m.batch[one]), messages[first]),
            np.bincount(group, minlength=first.size),
            group,
        )

    def _counted(self, plan: Plan) -> bool:
        """True if the uses of records are public, and are therefore counted in the plan."""
        return not (plan.secret or self.sampler.settled)

    def _known_uses(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Sensitivity of all messages to a machine's record, divided by that of one message, if samples are public."""
        assert problem.partition_table is not None
        assert plan.weights is not None
        power = 0 if self.whole_message else 1 if self.by_step else 2
        uses = repeated_uses(Minibatches(plan.samples, plan.weights), problem.partition_table.rows, power)
        return np.maximum(uses, NEVER_USED)

    # ---- rules

    @property
    def _accountant(self) -> Sampled:
        """Accountant of the sampler's releases."""
        return Sampled(self.sampler, self.whole_message, self.relation)

    def _accounted(self, m: MachineTable, relative: np.ndarray, rounds: int) -> float:
        """Smallest σ of the noisiest machine at which all machines in the table meet their targets.

        Every machine's noise is σ times its entry in `relative`.
        """
        shift = RecordMechanism.shift(self, m) / relative
        kinds, accountant = np.arange(relative.size), self._accountant
        batch = np.broadcast_to(1, kinds.shape) if self.by_step else m.batch
        messages = np.broadcast_to(self._releases(m, rounds), kinds.shape)
        releases = Releases(shift, m.records, batch, messages, np.ones_like(kinds), kinds)
        return RecordEvent(1.0, accountant, releases, Terms("none", THEOREM)).min_noise(m.epsilon, m.delta)

    def _needed(self, m: MachineTable, rounds: int) -> np.ndarray:
        """σ of every machine in the table by the noise rule. Raise Refusal if a machine has no δ."""
        if np.isnan(m.delta).any():
            raise Refusal("delta must be given with an epsilon for each machine. Set the method's delta")
        flags = {"acknowledged": self.acknowledged, "whole_message": self.whole_message, "relation": self.relation}
        releases = self._releases(m, rounds)
        return noise_stds(self.noise_rule, epsilon=m.epsilon, rounds=releases, **flags, **self._rule(m))

    def _claim(self, problem: Problem, plan: Plan, noise_std: float) -> Claim | None:
        """Claim of a published rule about the noise, for the machine with the largest claimed ε, or None."""
        if self.noise_rule not in CLAIMS:
            return None
        m = self.kinds(problem)
        noise = noise_std * self._relative(m, plan.size.rounds)
        releases = np.broadcast_to(self._releases(m, plan.size.rounds), noise.shape)
        rule = self._rule(m)
        batches = rule["sampler"].batches(m.records)

        def claimed(i: int, delta: float) -> float:
            sampler, records = rule["sampler"].with_batch(int(batches[i])), int(rule["records"][i])
            sampled = SampledReleases(sampler, records, int(releases[i]), delta, whole_message=self.whole_message)
            return claimed_epsilon(self.noise_rule, float(noise[i]), sampled, float(m.lipschitz[i]))

        def epsilon(delta: float) -> float:
            return max(claimed(i, delta) for i in range(noise.size))

        return Claim(CLAIMS[self.noise_rule], epsilon)

    def _rule(self, m: MachineTable) -> dict[str, Any]:
        records = m.records if self.claimed_records is None else np.full(m.records.size, self.claimed_records)
        sampler = self.sampler.with_batch(1 if self.by_step else tuple(m.batch.tolist()))  # in the table's order
        return {"sampler": sampler, "lipschitz": m.lipschitz, "records": records, "delta": m.delta}

    def _releases(self, m: MachineTable, messages):
        """Number of noisy releases in this number of messages."""
        return messages * m.batch if self.by_step else messages

    def _epsilon(self, target: Target | None) -> Any:
        if self.epsilon is not None:
            return self.epsilon
        if target is None or target.noise_std is not None:
            return np.nan
        if target.mu is None:
            return target.epsilon
        return float(gdp.epsilon(target.mu, target.delta)) if target.delta is not None else np.nan

    def _delta(self, target: Target | None) -> Any:
        if self.delta is not None:
            return self.delta
        return np.nan if target is None or target.delta is None else target.delta
