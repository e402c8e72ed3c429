"""Privacy events: the released mechanisms with their noise, composed over each machine's messages."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.plan.participation import Participation
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.dp_accounting_backend import AccountantResult, gaussian_event, gaussian_results
from fedprivjax.privacy.curve import GaussianCurve
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.target import Target, TargetRatio
from fedprivjax.privacy.terms import PRIVATE_SEED, Assumption, Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Claim(NamedTuple):
    """Claim of a published noise rule, which may be invalid.

    Attributes:
        theorem: source of the claim.
        epsilon: function from δ to the claimed ε, NaN if none is claimed.
    """

    theorem: str
    epsilon: Callable[[float], float]


def _fixed(relative: np.ndarray, machine: int) -> np.ndarray:
    """Return the relative noise of the worst machine's releases, which alone is read."""
    return relative


class Mixture(NamedTuple):
    """Gaussian mixture: the distribution of each release of a machine whose records are sampled secretly.

    If a record occurs j times in the sample of a release, the release is Gaussian, and replacing the record shifts the
    mean by j times the shift for one occurrence.

    Attributes:
        ratio: noise divided by the shift from replacing the record if it occurs once.
        releases: number of the machine's releases.
        times, chances: numbers of occurrences and their probabilities. The rest is the probability of no occurrence.
    """

    ratio: float
    releases: int
    times: np.ndarray
    chances: np.ndarray


class Event:
    """Base class of privacy events, which describe the releases of a run and their noise.

    The privacy guarantee of a run follows from its event alone. A custom event defines `terms`, `sensitivity` and
    either `epsilons` or `mus`.

    Attributes:
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.
        sensitivity: largest L2 change of one release by the protected unit, divided by the release's relative noise.
            The relative noise is the release's noise in units of `noise_std`. NaN if there is no such number.
        participation: secret participation scheme, whose secrecy makes `epsilons` smaller. None if the participation
            schedule is public.
    """

    terms: Terms
    sensitivity: Any
    claim: Claim | None = None
    participation: Participation | None = None

    @property
    def proved(self) -> bool:
        """True if `epsilons` are proved upper bounds, False if a source only claims them."""
        return True

    @property
    def accounting(self) -> str:
        """Text that says how ε is derived from the releases, for guarantees."""
        return ""

    @property
    def cache_key(self) -> tuple[Any, ...] | None:
        """Key under which calibrated noise is cached on disk, or None if the noise is not cached.

        Noise that is fast to compute is not cached. The key holds all values on which the calibrated noise depends,
        except the privacy target.
        """
        return None

    @property
    def mus(self) -> Grouped | None:
        """Parameter μ of Gaussian differential privacy (GDP) of every machine, or None if only ε is known."""
        return None

    @property
    def curve(self) -> GaussianCurve | None:
        """Exact privacy curve of the least private machine, of an event without `mus` whose releases are Gaussian.

        Each machine's releases together then have the curve of a μ, and the guarantee states ε. Otherwise None.
        """
        return None

    def epsilons(self, delta: float) -> Grouped:
        """Return an upper bound on every machine's ε at δ, or inf without noise."""
        if self.mus is None:
            raise Undefined("an event must define epsilons, or mus")
        return self.mus.map(lambda mu: gdp.epsilon(mu, delta))

    def epsilon(self, delta: float) -> float:
        """Return ε at δ of the least private machine."""
        return self.epsilons(delta).max if self.mus is None else float(gdp.epsilon(self.mus.max, delta))

    def target_ratio(self, target: Target, delta: Any = None, only: Any = None) -> TargetRatio:
        """Return the largest ratio of a machine's ε or μ to its target. A ratio of at most 1 meets the target.

        Args:
            target: privacy target.
            delta: δ at which ε is compared with its target: one number, or one for each machine. None uses the δ of
                `target`.
            only: index of a single machine to evaluate, or None for all machines.
        """
        if self.mus is not None and not np.ndim(target.epsilon):
            return TargetRatio(self.mus.max / target.largest_mu)
        return TargetRatio(float(np.max(self.target_ratios(target))))

    def quick_target_ratio(self, target: Target, delta: Any = None, only: Any = None) -> TargetRatio:
        """Return an upper bound on `target_ratio` that is fast to compute.

        By default, the bound is inf.

        Args:
            target: privacy target.
            delta: δ at which ε is compared with its target: one number, or one for each machine. None uses the δ of
                `target`.
            only: index of a single machine to evaluate, or None for all machines.
        """
        return TargetRatio(inf)

    def target_ratios(self, target: Target) -> np.ndarray:
        """Return the ratio of every machine's ε to its target ε; float64 [machines].

        A machine's target is met if its ratio is at most 1.
        """
        mus = self.mus
        found = self.epsilons(target.stated_delta) if mus is None else mus.map(lambda mu: _of_mu(mu, target))
        required = target.worst_epsilon if target.mu is not None else np.asarray(target.epsilon, float)
        return found.each / required

    @property
    def mu(self) -> float:
        """Parameter μ of Gaussian differential privacy of the least private machine, or NaN if not known."""
        return np.nan if self.mus is None else self.mus.max

    def for_group(self, size: int, one_machine: bool = False) -> Self:
        """Return the event whose guarantee protects groups of units, instead of single units.

        The ε of this event holds if any `size` units change together. It is computed from the mechanism, so the general
        bound of group privacy is not smaller.

        Args:
            size: number of units in a group.
            one_machine: True if all units of a group are records of one machine.

        Raises:
            Refusal: if only the general bound of group privacy is known, as in this base class.
        """
        raise Refusal(f"event must be Gaussian with Poisson samples for an exact group, got {type(self).__name__}")

    def after(self, ends: np.ndarray, sent: np.ndarray, total: np.ndarray) -> Self:
        """Return the event of a run that is stopped early, for several stopping times at once.

        The result has one machine for each pair of a stopping time and a machine of the run. Machine i of a run that
        stops after `ends[j]` rounds has the index `j · machines + i`.

        Args:
            ends: numbers of rounds after which the run stops, int [ends].
            sent: number of rounds in which each machine takes part before each stop, int [ends, machines].
            total: number of rounds in which each machine takes part in the whole run, int [machines].

        Raises:
            Refusal: if the class of the event does not define this method. Also if noise is correlated over rounds, or
                if ε depends on how often each record is used.
        """
        raise Refusal(
            f"noise must be independent, or cancelled, for ε over rounds, got {type(self).__name__} of "
            f"{self.terms.theorem!r:.80}"
        )

    def guarantee(self, delta: float) -> PrivacyGuarantee:
        """Return the privacy guarantee that follows from the event, with ε stated at δ."""
        epsilons = self.epsilons(delta) if self.mus is None else None
        stated = PrivacyGuarantee(delta, self.terms, self.mus, epsilons, self.accounting, self, proved=self.proved)
        if not stated.private:
            return stated
        terms = replace(self.terms, assumptions=(*self.terms.assumptions, PRIVATE_SEED))
        return replace(stated, terms=terms, listed=self.curve)

    def assuming(self, assumption: Assumption) -> Self:
        """Return a copy of the event whose guarantee states one more assumption."""
        return self.restated(replace(self.terms, assumptions=(*self.terms.assumptions, assumption)))

    def without(self, assumption: Assumption) -> Self:
        """Return a copy of the event whose guarantee leaves out an assumption."""
        kept = tuple(one for one in self.terms.assumptions if one != assumption)
        return self.restated(replace(self.terms, assumptions=kept))

    def restated(self, terms: Terms) -> Self:
        """Return a copy of the event whose guarantee has other `Terms`, such as another trust model."""
        event = copy(self)
        object.__setattr__(event, "terms", terms)
        return event

    def mixture(self, machine: int) -> Mixture | None:
        """Return the distribution of a machine's releases if its records are sampled secretly, otherwise None.

        The number of times that a record occurs in the sample of a release is random. Given this number, the release is
        Gaussian, with a mean that depends on the number. The distribution of the release is therefore a Gaussian
        mixture.

        Args:
            machine: index of the machine.
        """
        return None

    def summary(self, delta: float) -> dict[str, float]:
        """Return the numbers that tables of guarantees show for this event, by column name. ε is stated at δ."""
        return {"ε (at most)": self.epsilon(delta)}

    def accountant_results(self, delta: float) -> tuple[AccountantResult, ...]:
        """Return ε at δ of the least private machine by other accountants, to check `epsilons` independently.

        The default is an empty tuple: no other accountant is known.
        """
        return ()

    def dp_event(self) -> "DpEvent":
        """Return the least private machine's releases as an event of the library dp-accounting.

        To compute ε, give the accountant of dp-accounting the right neighbouring relation:

        * ADD_OR_REMOVE_ONE, the accountant's default, if all releases are Gaussian mechanisms. A noise multiplier of
          the event is the noise divided by the shift from replacing one record.
        * REPLACE_ONE, if records are sampled in samples of fixed size.
        * The relation of the guarantee, if records are sampled independently (Poisson samples). In this case, a noise
          multiplier is the noise divided by the norm of one record's contribution.

        Raises:
            Refusal: if dp-accounting has no such event.
        """
        raise Refusal(f"event must consist of Gaussian mechanisms to be a dp-accounting event, got {self}")


def _of_mu(mus: np.ndarray, target: Target) -> np.ndarray:
    return np.asarray(gdp.epsilon(mus, target.stated_delta))


@dataclass(frozen=True, eq=False)
class GaussianEvent(Event):
    """Event of a run whose releases are all Gaussian mechanisms, with noise that was fixed before the run.

    Let σ_k be the standard deviation of the noise of release k in one coordinate. Let Δ_k be the largest L2 change of
    release k between neighbouring datasets, for example if one record of machine i is replaced. Machine i is μ_i-GDP
    (Gaussian differential privacy) with

        μ_i = √(Σ_k (Δ_k/σ_k)²) = exposure_i · sensitivity/noise_std

    Attributes:
        noise_std: standard deviation per coordinate that is the unit of the relative noise r_k. 0 is non-private.
        sensitivity: Δ, the largest Δ_k.
        exposure: √(Σ_k 1/r_k²) of each machine, over the releases k that the machine changes. The relative noise of
            release k is r_k = (σ_k/noise_std)·(Δ/Δ_k).
        terms: guarantee statement: protected unit, trust model, theorem and assumptions.
        releases: function from the index of a machine to r_k of the releases that the machine changes, shape
            [releases]. With None, each machine has one release with relative noise 1/exposure.
        claim: privacy claimed by the published rule that set the noise, or None.
        shares: each machine's target μ divided by the largest target, shape [machines]. None if all targets are equal.
        in_order: True if `releases` is in the order of rounds, and if a record that changes the first release changes
            all of them.

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
    in_order: bool = False

    def __str__(self) -> str:
        return f"Gaussian messages: noise {self.noise_std:.4g}, sensitivity {self.sensitivity:.4g}\n  μ of {self.mus}"

    __repr__ = __str__

    @property
    def mus(self) -> Grouped:
        def of_exposure(exposure: np.ndarray) -> np.ndarray:
            exposed = exposure != 0  # NaN counts as exposed
            mu = np.zeros_like(exposure)
            mu[exposed] = inf if self.noise_std == 0 else self.sensitivity * exposure[exposed] / self.noise_std
            return mu

        return self.exposure.map(of_exposure)

    def target_ratio(self, target: Target, delta: Any = None, only: Any = None) -> TargetRatio:
        if self.shares is None or np.ndim(target.epsilon):
            return super().target_ratio(target, delta, only)
        return TargetRatio(float(np.max(self.mus.each / self.shares)) / target.largest_mu)

    def after(self, ends: np.ndarray, sent: np.ndarray, total: np.ndarray) -> Self:
        if not self.in_order or self.releases is None:
            return super().after(ends, sent, total)
        squares = np.zeros(sent.shape)
        for machine in np.flatnonzero(total):
            so_far = np.cumsum(np.append(0.0, np.asarray(self.releases(int(machine)), float) ** -2.0))
            rounds = sent[:, machine]
            if so_far.size - 1 != total[machine]:  # releases of all rounds, or one
                rounds = np.where(rounds > 0, ends, 0)
            squares[:, machine] = so_far[np.minimum(rounds, so_far.size - 1)]
        return replace(self, exposure=Grouped.of(np.sqrt(squares).ravel()))

    @property
    def accounting(self) -> str:
        return "adaptive composition of Gaussian mechanisms (GDP), converted to (ε, δ) exactly"

    @property
    def multipliers(self) -> np.ndarray:
        """Noise multiplier of each release of the least private machine; float64 [releases].

        A noise multiplier is the standard deviation of a release's noise, divided by the release's sensitivity. The
        array is empty if no machine sends a message.
        """
        with np.errstate(divide="ignore"):
            return self.noise_std * self._relative / np.float64(self.sensitivity)

    @property
    def _relative(self) -> np.ndarray:
        """Relative noise of each release of the worst machine; float64 [releases]."""
        worst = int(np.argmax(self.exposure.values))
        exposure = float(self.exposure.values[worst])
        if exposure == 0:
            return np.zeros(0)
        if self.releases is None or self.exposure.group is None:
            return np.array([1 / exposure])
        return np.asarray(self.releases(int(np.flatnonzero(self.exposure.group == worst)[0])), float)

    def __copy__(self) -> Self:
        return replace(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle, with the worst machine's releases in place of a function of private data."""
        releases = None if self.releases is None else partial(_fixed, self._relative)
        return self.__dict__ | {"releases": releases, "in_order": False}

    def accountant_results(self, delta: float) -> tuple[AccountantResult, ...]:
        """Return ε at δ of the least private machine by the library dp-accounting, to check `epsilons`."""
        return gaussian_results(self.multipliers, delta)

    def dp_event(self) -> "DpEvent":
        return gaussian_event(self.multipliers)

    def summary(self, delta: float) -> dict[str, float]:
        """Return the numbers that tables of guarantees show for this event, by column name. ε is stated at δ.

        The first column is the largest μ of Gaussian differential privacy over machines. The second column is the
        median μ over machines that send. The last two columns are the largest ε: the exact ε, and the larger ε of a
        looser formula (`gdp.paper_epsilon`).
        """
        worst = self.mu
        return {
            "μ (worst machine)": worst,
            "median μ": median_sender(self.mus, self.exposure.values > 0),
            "ε (exact)": float(gdp.epsilon(worst, delta)),
            "ε (papers')": float(gdp.paper_epsilon(worst, delta)),
        }


def median_sender(each: Grouped, sends: np.ndarray) -> float:
    """Return the median over the machines of groups that send (`sends`: bool [groups]), or 0 if none sends."""
    return Grouped(each.values[sends], each.counts[sends]).median if sends.any() else 0.0
