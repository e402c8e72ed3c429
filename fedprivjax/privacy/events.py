"""What a protocol does to privacy, noise included: (sampled) Gaussian mechanisms composed over a machine's messages."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountant_result import Opinion
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_event, gaussian_opinions
from fedprivjax.privacy.accountants.records import RecordAccountant, accounted
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped, alike
from fedprivjax.privacy.target import Target
from fedprivjax.privacy.terms import Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Claim(NamedTuple):
    """What a published rule says of a noise, which need not be so.

    Attributes:
        theorem: whose claim it is.
        epsilon: the ε that it claims at δ; NaN where it claims none.
    """

    theorem: str
    epsilon: Callable[[float], float]


class Excess(NamedTuple):
    """How much a machine's ε, or μ, is of what is asked for it: above 1 the target is missed.

    Attributes:
        ratio: the largest of all machines', or of those that were asked about.
        who: whose it is, as `Event.excess` can be asked about it alone; None for everyone.
    """

    ratio: float
    who: Any = None


class Event:
    """What was released: the interface of every event, with what follows for all of them.

    An event of one's own defines `terms`, `sensitivity` (the largest L2 change of one release by what is protected, in
    units of its relative noise; NaN where there is none), and `epsilons` or `mus`.
    """

    terms: Terms
    sensitivity: Any
    claim: Claim | None = None

    @property
    def proved(self) -> bool:
        """Whether `epsilons` are upper bounds, not claims."""
        return True

    @property
    def accounting(self) -> str:
        """How ε follows from what was released, in words."""
        return ""

    @property
    def cache_key(self) -> tuple[Any, ...] | None:
        """Everything that `excess` depends on except the noise and the target, see `disk_cache.digest`.

        None if solving for the noise is fast enough that it need not be cached.
        """
        return None

    @property
    def mus(self) -> Grouped | None:
        """Every machine's GDP parameter, or None where none is stated."""
        return None

    def epsilons(self, delta: float) -> Grouped:
        """Every machine's ε at δ: rigorous upper bounds; inf without noise."""
        raise Undefined("an event must define epsilons, or mus")

    def epsilon(self, delta: float) -> float:
        """The worst machine's ε at δ."""
        return self.epsilons(delta).max if self.mus is None else float(gdp.epsilon(self.mus.max, delta))

    def excess(self, target: Target, delta: Any = None, who: Any = None) -> Excess:
        """The largest of what machines' privacy parameters are over those that a target asks for.

        Args:
            delta: at which ε is asked for, of every machine; None is the target's.
            who: ask about these alone, of an `Excess`; None is everyone.
        """
        if self.mus is not None and not np.ndim(target.epsilon):
            return Excess(self.mus.max / target.largest_mu)
        return Excess(float(np.max(self.over(target))))

    def over(self, target: Target) -> np.ndarray:
        """Every machine's ε over the one that is asked for it, [machines]."""
        mus = self.mus
        found = self.epsilons(target.stated_delta) if mus is None else mus.map(lambda mu: _of_mu(mu, target))
        asked = target.worst_epsilon if target.mu is not None else np.asarray(target.epsilon, float)
        return found.each / asked

    @property
    def mu(self) -> float:
        """The worst machine's GDP parameter; NaN where none is stated."""
        return np.nan if self.mus is None else self.mus.max

    def guarantee(self, delta: float) -> PrivacyGuarantee:
        """What is promised, with ε stated at δ."""
        epsilons = self.epsilons(delta) if self.mus is None else None
        return PrivacyGuarantee(delta, self.terms, self.mus, epsilons, self.accounting, self, proved=self.proved)

    def assuming(self, assumption: Assumption) -> Self:
        """The event, resting on one thing more."""
        event = copy(self)
        object.__setattr__(event, "terms", replace(self.terms, assumptions=(*self.terms.assumptions, assumption)))
        return event

    def mixture(self, machine: int) -> "Mixture | None":
        """How one of the machine's releases is distributed, where its records are secretly sampled; else None."""
        return None

    def figures(self, delta: float) -> dict[str, float]:
        """What a table says of the event, by column."""
        return {"ε (at most)": self.epsilon(delta)}

    def opinions(self, delta: float) -> tuple[Opinion, ...]:
        """What others say of the worst machine's ε at δ, from what it releases and by other ways than `epsilons`."""
        return ()

    def dp_event(self) -> "DpEvent":
        """dp-accounting's tree of what the worst machine releases.

        Noise multipliers are over what one replaced record moves. So Gaussian mechanisms alone are for its default
        relation, ADD_OR_REMOVE_ONE, which takes them as they are (with REPLACE_ONE its PLD takes them over the norm of
        one record, and doubles the shift); samples of a fixed size are for REPLACE_ONE. So are Poisson samples, whose
        multipliers are over the norm of one record, as its PLD takes them there.

        Raises:
            Refusal: where it has none.
        """
        raise Refusal(f"event must be made of Gaussian mechanisms to be a tree of dp-accounting's, got {self}")


def _of_mu(mus: np.ndarray, target: Target) -> np.ndarray:
    return np.asarray(gdp.epsilon(mus, target.stated_delta))


@dataclass(frozen=True, eq=False)
class GaussianEvent(Event):
    """Every machine's messages are Gaussian mechanisms with noise fixed beforehand, so machine i is μ_i-GDP with
    `μ_i = sensitivity · exposure_i / noise_std`.

    Attributes:
        noise_std: the noise at relative scale 1; 0 is non-private.
        sensitivity: largest L2 change of what is released by one replaced sample.
        exposure: `√Σ_k 1/r_k²` over a machine's messages with relative noise r; 0 for one that sends none.
        terms: what is protected, against whom, and why.
        releases: from a machine to the relative noise of each of its releases, over the largest part of `sensitivity`
            by which one sample moves it, [releases]; from the plan, by another way than `exposure`. None takes a single
            release for all.
        claim: what a published rule says of this noise, where that made it.
        shares: each machine's part of the largest μ, which it is asked to keep to, [machines]; None is 1 for all.

    >>> event = GaussianEvent(2.0, 2.0, Grouped.of([1.0, 0.5]), Terms("none", "the Gaussian mechanism"))
    >>> event.mu, round(event.epsilon(1e-5), 2)
    (1.0, 4.38)
    """

    noise_std: float
    sensitivity: float
    exposure: Grouped
    terms: Terms
    releases: Callable[[int], Any] | None = None
    claim: Claim | None = None
    shares: np.ndarray | None = None

    def __str__(self) -> str:
        return f"Gaussian messages: noise {self.noise_std:.4g}, sensitivity {self.sensitivity:.4g}\n  μ of {self.mus}"

    __repr__ = __str__

    @property
    def mus(self) -> Grouped:
        def of_exposure(exposure: np.ndarray) -> np.ndarray:
            exposed = exposure != 0  # what is not a number is no 0
            mu = np.zeros_like(exposure)
            mu[exposed] = inf if self.noise_std == 0 else self.sensitivity * exposure[exposed] / self.noise_std
            return mu

        return self.exposure.map(of_exposure)

    def excess(self, target: Target, delta: Any = None, who: Any = None) -> Excess:
        if self.shares is None or np.ndim(target.epsilon):
            return super().excess(target, delta, who)
        return Excess(float(np.max(self.mus.each / self.shares)) / target.largest_mu)

    @property
    def accounting(self) -> str:
        return "adaptive composition of Gaussian mechanisms (GDP), converted to (ε, δ) exactly"

    @property
    def multipliers(self) -> np.ndarray:
        """The worst machine's noise over sensitivity, release by release, float64 [releases]; none where nothing is
        exposed."""
        worst = int(np.argmax(self.exposure.values))
        exposure = float(self.exposure.values[worst])
        if exposure == 0:
            return np.zeros(0)
        relative: Any = [1 / exposure]
        if self.releases is not None and self.exposure.group is not None:
            relative = self.releases(int(np.flatnonzero(self.exposure.group == worst)[0]))
        with np.errstate(divide="ignore"):
            return self.noise_std * np.asarray(relative, float) / np.float64(self.sensitivity)

    def opinions(self, delta: float) -> tuple[Opinion, ...]:
        """dp-accounting's, of the worst machine's releases one by one."""
        return gaussian_opinions(self.multipliers, delta)

    def dp_event(self) -> "DpEvent":
        return gaussian_event(self.multipliers)

    def figures(self, delta: float) -> dict[str, float]:
        """The worst machine's μ, and senders' median; the worst's ε at δ, exact and as the papers convert."""
        worst = self.mu
        return {
            "μ (worst machine)": worst,
            "median μ": _median_sender(self.mus, self.exposure.values > 0),
            "ε (exact)": float(gdp.epsilon(worst, delta)),
            "ε (papers')": float(gdp.paper_epsilon(worst, delta)),
        }


class Mixture(NamedTuple):
    """A normal whose mean depends on how often a record occurs.

    Attributes:
        ratio: noise over the shift that the record makes where it is replaced and occurs once.
        releases: of the machine.
        times, chances: how often it occurs, and how likely; it may also not occur.
    """

    ratio: float
    releases: int
    times: np.ndarray
    chances: np.ndarray


class Asked(NamedTuple):
    """What is asked for a group of machines: an ε at δ."""

    group: int
    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False)
class RecordEvent(Event):
    """Every machine releases Gaussian-noised means of its own records, and an accountant says what a machine's releases
    come to.

    Attributes:
        noise_std: the noise at relative scale 1; 0 is non-private.
        accountant: from a machine's noise multiplier, records, batch and releases to ε.
        releases: machines alike in groups, see `Releases`.
        terms: what is protected, against whom, and why.
        claim: what a published rule says of this noise, where that made it.
    """

    noise_std: float
    accountant: RecordAccountant
    releases: "Releases"
    terms: Terms
    claim: Claim | None = None

    def __str__(self) -> str:
        releases = Grouped(self.releases.messages, self.releases.counts)
        noise = f"noise {self.noise_std:.4g}, sensitivity {self.sensitivity:.4g}"
        return f"Gaussian means of records: {noise}, {self.accountant}\n  releases of {releases}"

    __repr__ = __str__

    def epsilons(self, delta: float) -> Grouped:
        return self._each(lambda *machine: self.accountant.epsilon(*machine, delta=delta))

    def epsilon(self, delta: float) -> float:
        """The worst machine's ε at δ: of machines that differ in their messages only, those with the most."""
        return self.largest([Asked(int(group), 1.0, delta) for group in self.releases.busiest]).ratio

    def excess(self, target: Target, delta: Any = None, who: Any = None) -> Excess:
        delta = target.stated_delta if delta is None else delta
        epsilon = target.worst_epsilon if target.epsilon is None else target.epsilon
        if who is not None:
            return self.largest([who])
        if np.ndim(epsilon) == 0 and np.ndim(delta) == 0:
            return self.largest([Asked(int(group), float(epsilon), float(delta)) for group in self.releases.busiest])
        columns = [np.asarray(c) for c in np.broadcast_arrays(self.releases.group, epsilon, delta)]
        first, _ = alike(columns)
        asked = [Asked(*(column[machine].item() for column in columns)) for machine in first]
        return self.largest([one for one in asked if self.releases.messages[one.group]])

    def largest(self, asked: "Sequence[Asked]") -> Excess:
        """The largest excess of those asked about. Those whose rough bound is below another's are not looked at."""
        most = Excess(0.0)
        rough = np.array([self._over(one, self.accountant.rough_epsilon) for one in asked])
        for place in np.argsort(-rough, kind="stable"):
            if rough[place] <= most.ratio:
                break
            ratio = self._over(asked[place], self.accountant.epsilon)
            most = Excess(ratio, asked[place]) if ratio > most.ratio else most
        return most

    def _over(self, one: "Asked", account: Callable[..., float]) -> float:
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
        return self.accountant.words

    def opinions(self, delta: float) -> tuple[Opinion, ...]:
        """The accountants', of the machine with the largest ε."""
        machine = self._worst(delta)
        return () if machine is None else self.accountant.opinions(*machine, delta=delta)

    def dp_event(self) -> "DpEvent":
        machine = self._worst(1e-5)
        if machine is None:
            raise Refusal("noise_std must be positive and something be released to be a tree of dp-accounting's")
        return self.accountant.dp_event(*machine)

    def _worst(self, delta: float) -> tuple[float, int, int, int] | None:
        """What the accountant is told of the machine with the largest ε; None without noise, or where none sends."""
        worst = self.largest([Asked(int(group), 1.0, delta) for group in self.releases.busiest]).who
        machine = None if worst is None else self._machine(worst.group)
        return machine if machine is not None and 0 < machine[0] < inf else None

    @property
    def sensitivity(self) -> float:
        return float(self.releases.shift.max())

    @property
    def mu(self) -> float:
        return inf if self.noise_std == 0 and self.releases.messages.any() else np.nan

    def figures(self, delta: float) -> dict[str, float]:
        """ε at δ in the accountant's figures for the worst machine, and the median of machines that send."""
        each = self.epsilons(delta)
        worst = int(np.argmax(each.values))
        figures = self.accountant.figures(*self._machine(worst), delta=delta) if each.max < inf else {}
        columns = self.accountant.columns
        return {**dict.fromkeys(columns, inf), **figures, "median ε": _median_sender(each, self.releases.messages > 0)}

    def mixture(self, machine: int) -> "Mixture | None":
        ratio, records, batch, messages = self._machine(self.releases.group[machine])
        occurrences = self.accountant.occurrences(records, batch)
        return None if occurrences is None else Mixture(ratio, messages, *occurrences)

    def _each(self, account: Callable[..., float]) -> Grouped:
        releases = self.releases
        values = np.zeros(releases.messages.size)
        for group in np.flatnonzero(releases.messages):
            machine = self._machine(group)
            values[group] = account(*machine) if machine[0] > 0 else inf
        return Grouped(values, releases.counts, releases.group)

    def _machine(self, group: Any) -> tuple[float, int, int, int]:
        """Noise over shift, as `accounted`, and sizes."""
        r = self.releases
        ratio = inf if r.shift[group] == 0 else self.noise_std / r.shift[group]
        return accounted(float(ratio)), int(r.records[group]), int(r.batch[group]), int(r.messages[group])


def _median_sender(each: Grouped, sends: np.ndarray) -> float:
    """The median over the groups' machines that send, bool [groups]; 0 where none does."""
    return Grouped(each.values[sends], each.counts[sends]).median if sends.any() else 0.0


@dataclass(frozen=True, eq=False)
class Releases:
    """What machines release, machines alike in one group; arrays [groups].

    Attributes:
        shift: largest L2 change of one release by one replaced record that occurs once, over its relative noise.
        records, batch: a machine's own.
        messages: its noisy releases.
        counts: machines in each group.
        group: the group of each machine, int [machines].
    """

    shift: np.ndarray
    records: np.ndarray
    batch: np.ndarray
    messages: np.ndarray
    counts: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, shift: Any, records: Any, batch: Any, messages: Any) -> "Releases":
        """From one number for each machine, [machines] each."""
        columns = [np.asarray(column) for column in np.broadcast_arrays(shift, records, batch, messages)]
        first, group = alike(columns)
        shift, records, batch, messages = (column[first] for column in columns)
        return cls(shift, records, batch, messages, np.bincount(group, minlength=first.size), group)

    @property
    def busiest(self) -> np.ndarray:
        """Groups that send, without those that differ from another in fewer messages only."""
        order = np.lexsort((-self.messages, self.batch, self.records, self.shift))
        rows = np.stack([self.shift, self.records, self.batch])[:, order]
        first = np.append(True, (rows[:, 1:] != rows[:, :-1]).any(axis=0))
        groups = order[first]
        return groups[self.messages[groups] > 0]
