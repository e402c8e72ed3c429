"""Gaussian noise on means over a machine's own records: the host's side of every method that protects records.

Lowy & Razaviyayn, ICLR 2023 (ISRL-DP). In each round, every machine i of a cohort releases

    (1/K_i)·Σ_j g_ij + N(0, σ_i²·I),        ‖g_ij‖ ≤ L_i

on K_i of its own n_i records, which a sampler picks anew each round; nobody knows which, and that amplifies privacy.
A machine's whole transcript is (ε_i, δ_i)-DP for replacing one of its records, whatever the others do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.method.relative_privacy import fixed_relative_privacy, privacy_shares
from fedprivjax.method.settings import check_steps, require_noise_std
from fedprivjax.noise import Fresh, Mechanism, PerMachine
from fedprivjax.noise.fresh import MessageInputs
from fedprivjax.plan.minibatches import Minibatches, machine_values, repeated_uses
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import Full, Sampler, require_records
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled
from fedprivjax.privacy.accountants.sampled import require_known
from fedprivjax.privacy.events import Asked, Claim, Excess, RecordEvent, Releases
from fedprivjax.privacy.min_noise import cached_min_noise
from fedprivjax.privacy.noise_rules import CLAIMS, NOISE_RULES, claimed_epsilon, noise_stds, proportions
from fedprivjax.privacy.per_machine import alike
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import RECORD, Assumption, Terms, lipschitz_values
from fedprivjax.problem.problem import Problem

THEOREM_RULES = ("accountant", "advanced")
PER_MACHINE = "records"  # a δ of 1/n² for a machine of n records
Delta = float | Sequence[float] | str | None
THEOREM = "Lowy & Razaviyayn 2023, Algorithm 1; composed profile of the subsampled Gaussian mechanism"
SAMPLES_KNOWN = "adaptive composition of Gaussian mechanisms; which records are used is known"


class Kinds(NamedTuple):
    """Machines that are alike: the first of each kind, every machine's kind, int [machines], and each kind's records
    and batch, int [kinds]."""

    first: np.ndarray
    kind: np.ndarray
    records: np.ndarray
    batch: np.ndarray


class MachineTable(NamedTuple):
    """Records, batch, bound on a record's gradient, and privacy target, of every machine or of one of each kind."""

    records: np.ndarray
    batch: np.ndarray
    lipschitz: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray


@dataclass(frozen=True)
class RecordMechanism:
    """How records enter a machine's releases, and the noise that these need.

    Attributes:
        sampler: how a machine picks the records of a message.
        clip: bound that a machine enforces on every record's gradient; None takes the problem's Lipschitz constants.
        noise_rule: from ε to σ, see `fedprivjax.privacy.noise_rules`.
        epsilon: every machine's own target where they differ, which gives the proportions of their noises.
        delta: δ of every machine, or one for each; "records" is 1/n_i²; None is the run's.
        by_step: every record is a release of its own, as in local steps.
        whole_message: the mean is clipped, not each record's gradient.
        acknowledged: that the rule "paper_moments" claims an ε which it does not give.
        claimed_records: n in that rule, where it is not the machine's own.
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

    # ---- machines

    def machines(self, problem: Problem, target: Target | None = None) -> MachineTable:
        """Every machine's constants, [machines] each; see `kinds`."""
        kind = self._alike(problem).kind
        return MachineTable(*(values[kind] for values in self.kinds(problem, target)))

    def kinds(self, problem: Problem, target: Target | None = None) -> MachineTable:
        """The constants of a machine of each kind, [kinds] each; ε and δ are the target's where the mechanism has none
        of its own, or NaN."""
        first, kind, records, batch = self._alike(problem)
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
        """Whether every message is of all records of its machine."""
        machines = self._alike(problem)
        return not self.sampler.secret and bool((machines.batch >= machines.records).all())

    def relative(self, problem: Problem, rounds: int) -> np.ndarray:
        """Each machine's σ as a part of the largest, [machines]: as each one's own target needs it where these differ,
        else in the proportions of the noise rule's formula."""
        return self._relative(self.kinds(problem), rounds)[self._alike(problem).kind]

    def _alike(self, problem: Problem) -> Kinds:
        """Which machines are alike, found once for all protocols that tell them apart by the same settings."""
        if problem.partition_table is None:
            raise Refusal("partition_table must be given: machines draw minibatches from records of their own")
        settings: tuple[Any, ...] = (self._bound(problem), self.epsilon, self.delta, problem.weights)
        each = tuple(value if np.ndim(value) else None for value in settings)
        sizes = problem.partition_table.sizes
        return problem.partition_table.once(
            ("kinds", self.sampler, each), lambda: _told_apart(sizes, self.sampler, each)
        )

    def _bound(self, problem: Problem) -> Any:
        """What bounds a record's gradient: one number, or one for each machine."""
        if self.clip is not None:
            return self.clip
        return problem.lipschitz if problem.own_lipschitz is None else problem.own_lipschitz

    def _relative(self, m: MachineTable, rounds: int) -> np.ndarray:
        if not np.isfinite(m.lipschitz).all() or np.isinf(m.epsilon).any():
            return np.ones(m.records.size)
        if self.epsilon is not None:
            noise = self._needed(m, rounds)
        else:
            delta = np.where(np.isnan(m.delta), 1e-5, m.delta)  # one for all, which changes no proportion
            noise = proportions(
                self.noise_rule, rounds=self._releases(m, rounds), **self._rule(m._replace(delta=delta))
            )
        return noise / noise.max()

    # ---- noise

    def noise_std(self, problem: Problem, size: Size, target: Target) -> float:
        """The noisiest machine's σ: enough for a machine that takes part in every round."""
        if target.given_noise is not None:
            return target.given_noise
        m, relative = self.checked(problem, target), self._relative(self.kinds(problem), size.rounds)
        if self.noise_rule != "accountant" or self.epsilon is not None:
            return float(np.max(self._needed(m, size.rounds) / relative))
        return self._accounted(m, relative, size.rounds)

    def checked(self, problem: Problem, target: Target) -> MachineTable:
        """One machine of each kind with its target, after what a finite target needs is looked at."""
        if target.mu is not None and self.delta not in (None, target.delta):
            raise Refusal(f"delta must be None with a target mu, which is converted at the run's, got {self.delta}")
        m = self.kinds(problem, target)
        if not np.isfinite(m.lipschitz).all():
            raise Refusal("clip must be set, because the loss has no finite gradient bound here")
        if np.isnan(m.delta).any():
            raise Refusal("delta must be given with epsilon")
        if target.delta is not None and m.delta.max() > target.delta * (1 + 1e-9):
            raise Refusal(f"delta must be at most {target.delta:g}, at which ε is stated, got {m.delta.max():g}")
        return m

    def asked_delta(self, problem: Problem, target: Target) -> Any:
        """At which δ an ε is asked for: one number, or where machines differ one for each, [machines]."""
        delta = self.checked(problem, target).delta
        return float(delta[0]) if (delta == delta[0]).all() else delta[self._alike(problem).kind]

    def message_noise(self, problem: Problem, plan: Plan) -> np.ndarray:
        """Relative noise of every message, [rounds, per_round]; 0 in slots that nobody fills."""
        return self.relative(problem, plan.size.rounds)[plan.schedule.participants] * plan.schedule.present

    def gaussian(self, problem: Problem, plan: Plan, method: str, *, summed: bool = False) -> Mechanism:
        """Fresh noise on every message, as it stands in the messages' mean, or their sum."""
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
        """What the noise does to privacy on a plan; the accountant is the sampler's, if none is given."""
        releases = self._plan_releases(problem, plan)
        accountant = Sampled(self.sampler, self.whole_message) if accountant is None else accountant
        assumptions = (Assumption("public participation"), *self.bounds(problem), Assumption("not covered"))
        if self._counted(plan):
            if plan.schedule.dropped is not None:
                raise Refusal(
                    "dropouts must be left out where it is known which records are used: after one, they are used in "
                    "other messages than was planned"
                )
            accountant, theorem = Sampled(Full()), SAMPLES_KNOWN
        if plan.secret:
            assumptions = (*assumptions, Assumption("secret samples"))
        terms = Terms(trust, theorem, assumptions, unit=RECORD)
        claim = self._claim(problem, plan, float(noise_std)) if trust == "none" and noise_std else None
        return RecordEvent(float(noise_std), accountant, releases, terms, claim)

    def bounds(self, problem: Problem) -> tuple[Assumption, ...]:
        """What is said of the size of a record's gradient, or of a message."""
        if self.clip is not None:
            what = "clipped messages" if self.whole_message else "clipped records"
            return (Assumption(what, {"bound": float(self.clip)}),)
        each: Any = problem.own_lipschitz
        if np.ndim(each):
            return (Assumption("machine lipschitz", {"least": float(np.min(each)), "most": float(np.max(each))}),)
        return (Assumption("lipschitz", lipschitz_values(problem)),)

    def shift(self, m: MachineTable) -> np.ndarray:
        """How far one record that occurs once moves its machine's release, [machines]."""
        return 2 * m.lipschitz / (1 if self.whole_message or self.by_step else m.batch)

    def _plan_releases(self, problem: Problem, plan: Plan) -> Releases:
        """What machines release; members of a sweep that differ in their clip share all but its scale."""
        unit, scale = (self, 1.0) if self.clip is None else (replace(self, clip=1.0), float(self.clip))
        if self._counted(plan):
            releases = unit._grouped(problem, plan)
        else:
            declared = tuple(np.ravel(problem.lipschitz if problem.own_lipschitz is None else problem.own_lipschitz))
            known = (unit, problem.partition_table, declared, problem.weights)
            releases = plan.schedule.once(known, lambda: unit._grouped(problem, plan))
        return replace(releases, shift=scale * releases.shift)

    def _grouped(self, problem: Problem, plan: Plan) -> Releases:
        m, kind = self.kinds(problem), self._alike(problem).kind
        shift = self.shift(m) / self._relative(m, plan.size.rounds)
        messages = plan.schedule.total
        if self._counted(plan):
            shift = shift[kind] * self._known_uses(problem, plan)
            return Releases.of(shift, m.records[kind], 1 if self.by_step else m.batch[kind], (messages > 0).astype(int))
        first, group = alike([kind, messages])
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
        """Whether a record's uses are known, and counted in the plan."""
        return not (plan.secret or self.sampler.settled)

    def _known_uses(self, problem: Problem, plan: Plan) -> np.ndarray:
        """By how much more all messages tell of a machine's record than one does, where the samples are known."""
        assert problem.partition_table is not None
        assert plan.weights is not None
        power = 0 if self.whole_message else 1 if self.by_step else 2
        uses = repeated_uses(Minibatches(plan.samples, plan.weights), problem.partition_table.rows, power)
        return np.maximum(uses, 1e-300)  # of machines that never take part

    # ---- rules

    def _accounted(self, m: MachineTable, relative: np.ndarray, rounds: int) -> float:
        """The largest σ, of which a machine has its relative part, at which all in the table meet their targets."""
        shift = RecordMechanism.shift(self, m) / relative
        kinds, accountant = np.arange(relative.size), Sampled(self.sampler, self.whole_message)
        batch = np.broadcast_to(1, kinds.shape) if self.by_step else m.batch
        messages = np.broadcast_to(self._releases(m, rounds), kinds.shape)
        releases = Releases(shift, m.records, batch, messages, np.ones_like(kinds), kinds)
        terms = Terms("none", THEOREM)
        asked = [Asked(*one) for one in zip(kinds.tolist(), m.epsilon.tolist(), m.delta.tolist(), strict=True)]

        def excess(noise_std: float, who: Any = None) -> Excess:
            event = RecordEvent(noise_std, accountant, releases, terms)
            return event.largest(asked if who is None else [who])

        cache_key = *RecordEvent(1.0, accountant, releases, terms).cache_key, m.epsilon, m.delta
        return require_known(cached_min_noise(cache_key, excess, float(shift.max())), float(m.epsilon.min()))

    def _needed(self, m: MachineTable, rounds: int) -> np.ndarray:
        """The σ by the noise rule of every machine in the table."""
        flags = {"acknowledged": self.acknowledged, "whole_message": self.whole_message}
        return noise_stds(
            self.noise_rule, epsilon=m.epsilon, rounds=self._releases(m, rounds), **flags, **self._rule(m)
        )

    def _claim(self, problem: Problem, plan: Plan, noise_std: float) -> Claim | None:
        """What a published rule says of the noise, for the machine of which it says most."""
        if self.noise_rule not in CLAIMS:
            return None
        m = self.kinds(problem)
        noise = noise_std * self._relative(m, plan.size.rounds)
        releases = np.broadcast_to(self._releases(m, plan.size.rounds), noise.shape)
        rule, whole = self._rule(m), {"whole_message": self.whole_message}
        batches = rule["sampler"].batches(m.records)

        def epsilon(delta: float) -> float:
            return max(
                claimed_epsilon(
                    self.noise_rule,
                    float(noise[i]),
                    sampler=rule["sampler"].with_batch(int(batches[i])),
                    lipschitz=float(m.lipschitz[i]),
                    records=int(rule["records"][i]),
                    rounds=int(releases[i]),
                    delta=delta,
                    **whole,
                )
                for i in range(noise.size)
            )

        return Claim(CLAIMS[self.noise_rule], epsilon)

    def _rule(self, m: MachineTable) -> dict[str, Any]:
        records = m.records if self.claimed_records is None else np.full(m.records.size, self.claimed_records)
        sampler = self.sampler.with_batch(1 if self.by_step else tuple(m.batch.tolist()))  # in the table's order
        return {"sampler": sampler, "lipschitz": m.lipschitz, "records": records, "delta": m.delta}

    def _releases(self, m: MachineTable, messages):
        """Noisy releases that so many messages come to."""
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


def _told_apart(sizes: np.ndarray, sampler: Sampler, each: Sequence[Any]) -> Kinds:
    """Which machines are alike in their records, batch, and settings of each machine (None where they share it)."""
    require_records(sizes)
    names = ("lipschitz", "epsilon", "delta", "machine_weights")
    given = [
        machine_values(name, value, sizes.size) for name, value in zip(names, each, strict=True) if value is not None
    ]
    batch = sampler.batches(sizes)
    first, kind = alike([sizes, batch, *given])
    return Kinds(first, kind, sizes[first], batch[first])


def check_record_settings(protocol: Any) -> None:
    """Refuse settings that no method which samples records allows, and make tuples of its lists."""
    check_steps(protocol)
    epsilon = protocol.epsilon
    if isinstance(epsilon, list | tuple):
        if 0 < np.sum(np.isinf(epsilon)) < len(epsilon):
            raise Refusal(f"epsilon must be finite on all machines or on none, got {list(epsilon)}")
    else:
        require_positive("epsilon", epsilon, optional=True, infinite=True)
    require_noise_std(protocol.noise_std)
    if all(isinstance(value, int | float | np.number) for value in (epsilon, protocol.noise_std)):
        raise Refusal(f"give epsilon or noise_std, not both, got {epsilon} and {protocol.noise_std}")
    require_choice("noise_rule", protocol.noise_rule, NOISE_RULES)
    if isinstance(protocol.delta, str):
        require_choice("delta", protocol.delta, (PER_MACHINE,))
    for name in ("epsilon", "batch", "delta"):
        if isinstance(getattr(protocol, name), list):
            object.__setattr__(protocol, name, tuple(getattr(protocol, name)))
    object.__setattr__(protocol, "relative_privacy", fixed_relative_privacy(protocol))


def for_target(protocol: Any, target: Target, machines: int) -> Any:
    """The protocol with its target's ε of each machine, in place of `relative_privacy`, and δ."""
    privacy_shares(protocol.relative_privacy, machines)  # refuses ratios of other machines
    epsilon = target.epsilon if target.noise_std is None else protocol.epsilon  # with a noise, only its proportions
    epsilon = tuple(np.ravel(epsilon).tolist()) if np.ndim(epsilon) else None
    delta = target.delta if protocol.delta is None else protocol.delta
    return replace(protocol, epsilon=epsilon, delta=delta, relative_privacy=None)
