"""What a protocol does to privacy, noise included: (sampled) Gaussian mechanisms composed over a machine's messages."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.records import RecordAccountant, accounted
from fedprivjax.privacy.grouped import Grouped, alike
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import Terms


class Event:
    """What was released: the interface of every event, with what follows for all of them.

    An event of one's own defines `terms`, `sensitivity` (the largest L2 change of one release by what is protected, in
    units of its relative noise; NaN where there is none), and `epsilons` or `mus`.
    """

    terms: Terms
    sensitivity: Any

    @property
    def mus(self) -> Grouped | None:
        """Every machine's GDP parameter, or None where none is stated."""
        return None

    def epsilons(self, delta: float) -> Grouped:
        """Every machine's ε at δ: rigorous upper bounds; inf without noise."""
        raise TypeError("an event must define epsilons, or mus")

    def epsilon(self, delta: float) -> float:
        """The worst machine's ε at δ."""
        return self.epsilons(delta).max if self.mus is None else float(gdp.epsilon(self.mus.max, delta))

    @property
    def mu(self) -> float:
        """The worst machine's GDP parameter; NaN where none is stated."""
        return np.nan if self.mus is None else self.mus.max

    def guarantee(self, delta: float) -> PrivacyGuarantee:
        """What is promised, with ε stated at δ."""
        epsilons = self.epsilons(delta) if self.mus is None else None
        return PrivacyGuarantee(delta, self.terms, self.mus, epsilons)

    def figures(self, delta: float) -> dict[str, float]:
        """What a table says of the event, by column."""
        return {"ε (at most)": self.epsilon(delta)}


@dataclass(frozen=True, eq=False)
class GaussianEvent(Event):
    """Every machine's messages are Gaussian mechanisms with noise fixed beforehand, so machine i is μ_i-GDP with
    `μ_i = sensitivity · exposure_i / noise_std`.

    Attributes:
        noise_std: the noise at relative scale 1; 0 is non-private.
        sensitivity: largest L2 change of what is released by one replaced sample.
        exposure: `√Σ_k 1/r_k²` over a machine's messages with relative noise r; 0 for one that sends none.
        terms: what is protected, against whom, and why.

    >>> event = GaussianEvent(2.0, 2.0, Grouped.of([1.0, 0.5]), Terms("none", "the Gaussian mechanism"))
    >>> event.mu, round(event.epsilon(1e-5), 2)
    (1.0, 4.38)
    """

    noise_std: float
    sensitivity: float
    exposure: Grouped
    terms: Terms

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

    def figures(self, delta: float) -> dict[str, float]:
        """The worst machine's μ, and senders' median; the worst's ε at δ, exact and as the papers convert."""
        worst = self.mu
        return {
            "μ (worst machine)": worst,
            "median μ": _median_sender(self.mus, self.exposure.values > 0),
            "ε (exact)": float(gdp.epsilon(worst, delta)),
            "ε (papers')": float(gdp.paper_epsilon(worst, delta)),
        }


@dataclass(frozen=True, eq=False)
class RecordEvent(Event):
    """Every machine releases Gaussian-noised means of its own records, and an accountant says what a machine's releases
    come to.

    Attributes:
        noise_std: the noise at relative scale 1; 0 is non-private.
        accountant: from a machine's noise multiplier, records, batch and releases to ε.
        releases: machines alike in groups, see `Releases`.
        terms: what is protected, against whom, and why.
    """

    noise_std: float
    accountant: RecordAccountant
    releases: "Releases"
    terms: Terms

    def __str__(self) -> str:
        releases = Grouped(self.releases.messages, self.releases.counts)
        noise = f"noise {self.noise_std:.4g}, sensitivity {self.sensitivity:.4g}"
        return f"Gaussian means of records: {noise}, {self.accountant}\n  releases of {releases}"

    __repr__ = __str__

    def epsilons(self, delta: float) -> Grouped:
        return self._each(lambda *machine: self.accountant.epsilon(*machine, delta=delta))

    def epsilon(self, delta: float) -> float:
        """The worst machine's ε at δ: of machines that differ in their messages only, those with the most."""
        return self._each(lambda *machine: self.accountant.epsilon(*machine, delta=delta), self.releases.busiest).max

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

    def _each(self, account: Callable[..., float], groups: np.ndarray | None = None) -> Grouped:
        releases = self.releases
        values = np.zeros(releases.messages.size)
        for group in np.flatnonzero(releases.messages) if groups is None else groups:
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
