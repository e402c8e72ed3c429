"""Privacy event of means over machines' records, or over machines in secret cohorts, composed by an accountant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.samplers import Poisson
from fedprivjax.privacy.accountants.dp_accounting_backend import AccountantResult
from fedprivjax.privacy.accountants.records import RecordAccountant, Sampled, SampledMachines
from fedprivjax.privacy.accountants.sampled import require_known
from fedprivjax.privacy.curve import GaussianCurve
from fedprivjax.privacy.events import Claim, Event, Mixture, median_sender
from fedprivjax.privacy.per_machine import Grouped, group_identical
from fedprivjax.privacy.relations import REPLACE_ONE
from fedprivjax.privacy.target import Target, TargetRatio, cached_min_noise
from fedprivjax.privacy.terms import Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent


GROUPS = "mixtures of Gaussians for groups (Choquette-Choo, Ganesh, Steinke & Thakurta 2023, Corollary 4.7{})"
REPLACED = ", extended to replaced records by the convex order of likelihood ratios"
GROUPS_OF_GDP = "group privacy of Gaussian mechanisms (Dong, Roth & Su 2022, Theorem 2.14)"


@dataclass(frozen=True, eq=False)
class Releases:
    """Releases of groups of identical machines. Arrays have shape [groups] unless stated.

    Attributes:
        shift: largest L2 change of one release by one replaced record that occurs once, divided by the release's
            relative noise.
        records, batch: number of records and batch size of a machine.
        messages: number of a machine's noisy releases.
        counts: number of machines in each group.
        group: index of each machine's group, int [machines].
    """

    shift: np.ndarray
    records: np.ndarray
    batch: np.ndarray
    messages: np.ndarray
    counts: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, shift: Any, records: Any, batch: Any, messages: Any) -> "Releases":
        """Return the groups of machines from arrays of shape [machines]."""
        columns = [np.asarray(column) for column in np.broadcast_arrays(shift, records, batch, messages)]
        first, group = group_identical(columns)
        shift, records, batch, messages = (column[first] for column in columns)
        return cls(shift, records, batch, messages, np.bincount(group, minlength=first.size), group)

    @property
    def busiest(self) -> np.ndarray:
        """Indices of the groups that send. Of groups that differ only in messages, the one with the most is kept."""
        order = np.lexsort((-self.messages, self.batch, self.records, self.shift))
        rows = np.stack([self.shift, self.records, self.batch])[:, order]
        first = np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
        groups = order[first]
        return groups[self.messages[groups] > 0]

    def largest(self, sampler: Poisson) -> "Releases":
        """Releases in which every machine has the largest shift, probability of a record, and number of messages."""
        sends = self.messages > 0
        likeliest = np.argmax(np.where(sends, sampler.chance(self.records, self.batch), -1.0))
        values = {name: getattr(self, name)[likeliest] for name in ("records", "batch")}
        values |= {"messages": self.messages.max(), "shift": np.max(self.shift, where=sends, initial=0.0)}
        return replace(self, **{name: np.full(sends.shape, value) for name, value in values.items()})


class GroupTarget(NamedTuple):
    """Target of a group of machines: an ε at δ."""

    group: int
    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False)
class RecordEvent(Event):
    """Gaussian-noised means of each machine's records, or of machines in secret cohorts, composed by an accountant.

    Attributes:
        noise_std: noise standard deviation at relative scale 1. 0 is non-private.
        accountant: accountant that computes ε from a machine's noise ratio, records, batch and releases.
        releases: releases of groups of identical machines, see `Releases`.
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.
        claim: claim of the published rule that set the noise, or None.
        participation: secret participation scheme that the accountant's sampler stands for, or None.
    """

    noise_std: float
    accountant: RecordAccountant
    releases: Releases
    terms: Terms
    claim: Claim | None = None
    participation: Participation | None = None

    def __str__(self) -> str:
        releases = Grouped(self.releases.messages, self.releases.counts)
        noise = f"noise {self.noise_std:.4g}, sensitivity {self.sensitivity:.4g}"
        of = "records" if self.participation is None else "machines"
        return f"Gaussian means of {of}: {noise}, {self.accountant}\n  releases of {releases}"

    __repr__ = __str__

    def epsilons(self, delta: float) -> Grouped:
        releases, values = self.releases, np.zeros(self.releases.messages.size)
        for group in np.flatnonzero(releases.messages):
            values[group] = self._ratio_to(GroupTarget(int(group), 1.0, delta), self.accountant.epsilon)
        return Grouped(values, releases.counts, releases.group)

    def epsilon(self, delta: float) -> float:
        """Return the worst machine's ε at δ.

        Of groups that differ only in the number of messages, only the one with the most is evaluated.
        """
        return self.largest_ratio(self._busiest(1.0, delta)).ratio

    def min_noise(self, epsilon: np.ndarray, delta: np.ndarray) -> float:
        """Return the smallest noise with which every group meets its ε at its δ, both of shape [groups].

        It is cached, and verified before use. This event must have noise 1.
        """
        pairs = zip(epsilon.tolist(), delta.tolist(), strict=True)
        targets = [GroupTarget(group, *pair) for group, pair in enumerate(pairs)]

        def target_ratio(noise_std: float, only: Any = None) -> TargetRatio:
            return replace(self, noise_std=noise_std).largest_ratio(targets if only is None else [only])

        def quick_ratio(noise_std: float, only: Any = None) -> TargetRatio:
            return replace(self, noise_std=noise_std).largest_quick_ratio(targets if only is None else [only])

        cache_key = *self.cache_key, epsilon, delta
        noise_std = cached_min_noise(cache_key, target_ratio, float(self.releases.shift.max()), quick_ratio)
        return require_known(noise_std, float(epsilon.min()))

    def target_ratio(self, target: Target, delta: Any = None, only: Any = None) -> TargetRatio:
        return self.largest_ratio([only] if only is not None else self._targets(target, delta))

    def quick_target_ratio(self, target: Target, delta: Any = None, only: Any = None) -> TargetRatio:
        return self.largest_quick_ratio([only] if only is not None else self._targets(target, delta))

    def _targets(self, target: Target, delta: Any) -> list[GroupTarget]:
        """Return the targets of all groups that may have the largest ratio."""
        delta = target.stated_delta if delta is None else delta
        epsilon = target.worst_epsilon if target.epsilon is None else target.epsilon
        if np.ndim(epsilon) == 0 and np.ndim(delta) == 0:
            return self._busiest(float(epsilon), float(delta))
        columns = [np.asarray(c) for c in np.broadcast_arrays(self.releases.group, epsilon, delta)]
        first, _ = group_identical(columns)
        targets = [GroupTarget(*(column[machine].item() for column in columns)) for machine in first]
        return [one for one in targets if self.releases.messages[one.group]]

    def largest_ratio(self, targets: Sequence[GroupTarget]) -> TargetRatio:
        """Return the largest ratio of ε to its target. A group is skipped if its quick bound is below the largest."""
        most = TargetRatio(0.0)
        quick = np.array([inf]) if len(targets) == 1 else self._quick_ratios(targets)
        for place in np.argsort(-quick, kind="stable"):
            if quick[place] <= most.ratio:
                break
            ratio = self._ratio_to(targets[place], self.accountant.epsilon)
            most = TargetRatio(ratio, targets[place]) if ratio > most.ratio else most
        return most

    def largest_quick_ratio(self, targets: Sequence[GroupTarget]) -> TargetRatio:
        """Return an upper bound on `largest_ratio`, with the group whose bound is the largest."""
        quick = self._quick_ratios(targets)
        place = int(np.argmax(quick)) if quick.size else None
        return TargetRatio(0.0) if place is None else TargetRatio(float(quick[place]), targets[place])

    def _quick_ratios(self, targets: Sequence[GroupTarget]) -> np.ndarray:
        return np.array([self._ratio_to(one, self.accountant.quick_epsilon) for one in targets])

    def _ratio_to(self, one: GroupTarget, account: Callable[..., float]) -> float:
        machine = self._machine(one.group)
        return account(*machine, delta=one.delta) / one.epsilon if machine[0] > 0 else inf

    @property
    def cache_key(self) -> tuple[Any, ...]:
        r = self.releases
        return self.accountant, r.shift, r.records, r.batch, r.messages, r.group

    @property
    def proved(self) -> bool:
        return self.accountant.proved

    @property
    def accounting(self) -> str:
        return self.accountant.derivation

    def accountant_results(self, delta: float) -> tuple[AccountantResult, ...]:
        """Return the accountants' ε of the machine with the largest ε."""
        machine = self._worst(delta)
        return () if machine is None else self.accountant.accountant_results(*machine, delta=delta)

    def dp_event(self) -> "DpEvent":
        machine = self._worst(1e-5)
        if machine is None:
            raise Refusal("event must have noise and at least one release to be a dp-accounting event")
        return self.accountant.dp_event(*machine)

    def _worst(self, delta: float) -> tuple[float, int, int, int] | None:
        """Return the accountant's arguments for the machine with the largest ε, or None without noise or senders."""
        worst = self.largest_ratio(self._busiest(1.0, delta)).worst
        machine = None if worst is None else self._machine(worst.group)
        return machine if machine is not None and 0 < machine[0] < inf else None

    @property
    def sensitivity(self) -> float:
        return float(self.releases.shift.max())

    @property
    def mu(self) -> float:
        return inf if self.noise_std == 0 and self.releases.messages.any() else np.nan

    @property
    def curve(self) -> GaussianCurve | None:
        if type(self) is not RecordEvent or not self.proved:  # a subclass may define other ε
            return None
        found = [self.accountant.mu(*self._machine(group)) for group in np.flatnonzero(self.releases.messages)]
        gaussian = [mu for mu in found if mu is not None]
        return GaussianCurve(max(gaussian, default=0.0)) if len(gaussian) == len(found) else None

    def summary(self, delta: float) -> dict[str, float]:
        """Return the accountant's values at δ for the worst machine, and the median ε of the machines that send."""
        each = self.epsilons(delta)
        worst = int(np.argmax(each.values))
        summary = self.accountant.summary(*self._machine(worst), delta=delta) if each.max < inf else {}
        columns = self.accountant.columns
        return {**dict.fromkeys(columns, inf), **summary, "median ε": median_sender(each, self.releases.messages > 0)}

    def after(self, ends: np.ndarray, sent: np.ndarray, total: np.ndarray) -> "RecordEvent":
        r = self.releases
        each, rest = np.divmod(r.messages[r.group], np.maximum(total, 1))
        if rest.any():
            raise Refusal(f"samples of records must be secret for ε over rounds, got {self.terms.theorem!r:.90}")
        columns = np.broadcast_arrays(*(values[r.group] for values in (r.shift, r.records, r.batch)), sent * each)
        shift, records, batch, messages = (column.ravel() for column in columns)
        return replace(self, releases=Releases.of(shift, records, batch, messages))

    def for_group(self, size: int, one_machine: bool = False) -> "RecordEvent":
        accountant, releases, terms = self.accountant, self.releases, self.terms
        if type(self) is not RecordEvent:
            return super().for_group(size)
        if self.participation is not None and not self.participation.exchangeable:
            raise Refusal(f"participation must treat machines alike for an exact group, got {self.participation}")
        if not isinstance(accountant, Sampled) or type(accountant) not in (Sampled, SampledMachines):
            raise Refusal(f"accountant must be of Poisson samples for an exact group, got {type(accountant).__name__}")
        accountant = accountant.for_group(size, releases.records, releases.batch)
        if type(accountant.sampler) is not Poisson:
            terms = replace(terms, theorem=f"{terms.theorem}; {GROUPS_OF_GDP}")
            return replace(self, accountant=accountant, terms=terms, claim=None)
        if not one_machine and self.participation is None and releases.group.size > 1:
            if terms.against != "none":
                raise Refusal(f"trust must be 'none' for an exact group on several machines, got {terms.against!r}")
            releases = releases.largest(accountant.sampler)
        members = Assumption("group samples", {"size": accountant.group})
        proof = GROUPS.format(REPLACED if terms.relation == REPLACE_ONE else "")
        terms = replace(terms, theorem=f"{terms.theorem}; {proof}", assumptions=(*terms.assumptions, members))
        return replace(self, accountant=accountant, releases=releases, terms=terms, claim=None)

    def hidden(self, exposure: np.ndarray, own: np.ndarray, terms: Terms) -> "RecordEvent":
        """Return the event with other noise around each machine's messages.

        Args:
            exposure: 1 divided by the relative noise that hides the least hidden message, float64 [machines].
            own: relative noise of a machine's own messages, float64 [machines].
        """
        known = self.releases
        shift, *others = (each[known.group] for each in (known.shift, known.records, known.batch, known.messages))
        return replace(self, releases=Releases.of(shift * own * exposure, *others), terms=terms, claim=None)

    def mixture(self, machine: int) -> Mixture | None:
        ratio, records, batch, messages = self._machine(self.releases.group[machine])
        occurrences = self.accountant.occurrences(records, batch)
        return None if occurrences is None else Mixture(ratio, messages, *occurrences)

    def _busiest(self, epsilon: float, delta: float) -> list[GroupTarget]:
        """Return the target of every group in `Releases.busiest`."""
        return [GroupTarget(int(group), epsilon, delta) for group in self.releases.busiest]

    def _machine(self, group: Any) -> tuple[float, int, int, int]:
        """Return a group's noise divided by its shift, as it is accounted for, and its records, batch and messages."""
        r = self.releases
        ratio = inf if r.shift[group] == 0 else self.noise_std / r.shift[group]
        ratio = self.accountant.accounted(float(ratio))
        return ratio, int(r.records[group]), int(r.batch[group]), int(r.messages[group])
