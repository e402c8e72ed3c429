"""Record accountant of sums of users' bits, and the exact ε of one coordinate.

The accountant gives ε from the ratio of a user's noise to a replaced record's shift.

One coordinate is a binomial Z compared with itself shifted by an integer. The log-likelihood ratio of Z + k to Z at z,
`r(z) = log f(z−k) − log f(z)`, increases with z. The best tests are therefore thresholds: upper tails in favour of the
shifted distribution, lower tails in favour of the other. The power of a threshold increases with k, and so do both
divergences. The largest shift is the worst at every level of a test.

SciPy's tails were compared with direct sums of up to 10⁷ terms. Their relative errors stay below 10⁻¹² up to 10⁶
trials, 10⁻⁹ up to 10¹² and 3·10⁻⁹ at 10¹³. The accountant rejects more trials.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log, sqrt

import numpy as np
import scipy

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial import paper
from fedprivjax.privacy.accountants.binomial.vector import ROUNDINGS, gaussian_norm, possible_epsilon
from fedprivjax.privacy.accountants.dp_accounting_backend import EXACT, LOWER, UPPER, AccountantResult
from fedprivjax.privacy.accountants.records import RecordAccountant, accounted
from fedprivjax.privacy.target import search_min_noise

MAX_TRIALS = 10**13  # largest total for which SciPy's tails were checked
ACCOUNTINGS = ("exact", "gaussian-limit", "paper")
MAX_LEVELS = 2**15  # largest g for which all shifts up to g are evaluated
DERIVATIONS = {
    "exact": "Rényi divergences of the binomial over all shifts, added up over releases, and converted to (ε, δ); one "
    "coordinate released once by its exact tails",
    "gaussian-limit": "the Gaussian of the binomial's variance: an approximation, not a proof",
    "paper": "the paper's constants, composed by its own rule: a claim",
}
ROUNDED = 4e-8  # relative: bound on the effect of an event's rounding of a ratio, squared

Tails = Callable[[int], tuple[float, float]]


def log_ratio(place: int, total: int, probability: float, shift: int) -> float:
    """Return `log f(z−k) − log f(z)` for `k ≤ z ≤ m`, as a sum over its k factors."""
    steps = np.arange(shift, dtype=float)
    # (z−i)(1−p) / ((m−z+i+1)p) = 1 + (z − i − (m+1)p) / ((m−z+i+1)p) avoids differences of large logarithms
    excess = (place - (total + 1) * probability) - steps
    return float(np.sum(np.log1p(excess / ((total - place + 1 + steps) * probability))))


@lru_cache(maxsize=4096)
def scalar_epsilon(total: int, probability: float, shift: int, delta: float) -> float:
    """Return the smallest ε at δ of Z ~ Binomial(m, p) and its shifts by at most k, or inf if there is none.

    Both directions are bounded. ε is exact also for a message with random rounding: its distribution is a mixture of
    shifts up to k, and δ is convex.

    Args:
        total: m, trials of all users.
        probability: p in (0, 1).
        shift: k, largest shift of the sum by a replaced record, in levels.
        delta: δ in (0, 1).

    >>> round(scalar_epsilon(200, 0.5, 5, 0.12379326), 6)
    0.5
    """
    _require(total, probability, shift)
    require_between("delta", delta, 0, 1)
    if shift == 0:
        return 0.0
    if shift > total:
        return inf
    up, down = _tails(total, probability, shift)

    def ratio(place: int) -> float:
        return log_ratio(place, total, probability, shift)

    rising = _least(up, ratio, delta, range(shift, total + 2))
    # mirrored, so that the ratio again increases with the threshold: places m, m−1, … down to k−1
    falling = _least(lambda z: down(-z), lambda z: -ratio(-z), delta, range(-total, 2 - shift))
    return max(rising, falling, 0.0)


def _require(total: int, probability: float, shift: int) -> None:
    require_at_least("total", total, 1)
    require_at_least("shift", shift, 0)
    require_between("probability", probability, 0, 1)
    if total > MAX_TRIALS:
        raise Refusal(f"total must be at most {MAX_TRIALS} trials, where SciPy's tails were checked, got {total}")


def _tails(total: int, probability: float, shift: int) -> tuple[Tails, Tails]:
    """Return functions from a threshold to its tail's probability under the favoured and the other distribution.

    The first is for upper tails, the second for lower tails.
    """

    def up(place: int) -> tuple[float, float]:
        return tuple(scipy.stats.binom.sf([place - shift - 1, place - 1], total, probability).tolist())

    def down(place: int) -> tuple[float, float]:
        return tuple(scipy.stats.binom.cdf([place, place - shift], total, probability).tolist())

    return up, down


def _spill(epsilon: float, favoured: float, other: float) -> float:
    """Return `P − e^ε·Q` without overflow."""
    return favoured - (exp(epsilon + log(other)) if other > 0 and epsilon < inf else 0.0)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first integer in [low, high] at which a monotone condition holds, or `high` if there is none."""
    return low + bisect_left(range(low, high), True, key=holds)


def _least(tails: Tails, ratio: Callable[[int], float], delta: float, places: range) -> float:
    """Return ε at which the best threshold test has δ. At the last place the other distribution's probability is 0."""
    last = places[-1]

    def enough(place: int) -> bool:
        return place == last or _spill(ratio(place), *tails(place)) <= delta

    favoured, other = tails(_first(enough, places[0], last))
    if favoured <= delta:
        return 0.0
    return inf if other == 0 else log(favoured - delta) - log(other)


@dataclass(frozen=True)
class BinomialSums(RecordAccountant):
    """Accountant of private sums of users' vectors, which are sent as single bits through a shuffler.

    A user rounds each coordinate of its vector at random to an integer from 0 to g. The user sends g bits whose sum is
    this integer, and further random bits. The server sees only the sum of all users' bits for each coordinate.

    Attributes:
        users: n, number of users in one sum who follow the protocol.
        dimension: d, number of coordinates of a vector.
        levels: g, number of steps into which the range of a coordinate is divided for rounding. The range is from −C to
            C if vectors have L2 norm at most C.
        rounding: "averaged", "coupled" or "independent": bound on the effect of random rounding on ε. All three values
            of ε are valid, and "averaged" gives the smallest.
        accounting: "exact" gives a proved upper bound on ε. "gaussian-limit" gives the ε of Gaussian noise with the
            same variance, which is an approximation without proof. "paper" gives the ε that Cheu et al. 2022 claim.
    """

    users: int
    dimension: int
    levels: int
    rounding: str = "averaged"
    accounting: str = "exact"

    columns = ("ε (at most)", "ε of a trusted server's Gaussian")

    def __post_init__(self) -> None:
        for name, value in (("users", self.users), ("dimension", self.dimension), ("levels", self.levels)):
            require_at_least(name, value, 1)
        if self.accounting == "exact" and self.levels > MAX_LEVELS:
            raise Refusal(f"levels must be at most {MAX_LEVELS} to be accounted for exactly, got {self.levels}")
        require_choice("rounding", self.rounding, ROUNDINGS)
        require_choice("accounting", self.accounting, ACCOUNTINGS)

    def accounted(self, ratio: float) -> float:
        """Return the ratio that is passed to `epsilon`, which is `ratio` itself.

        Other accountants round the ratio down, so that ε of nearly equal ratios is computed only once.

        Args:
            ratio: standard deviation of one user's noise in one coordinate, in steps, divided by g = `levels`.
        """
        return ratio

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """Return ε at δ after `releases` sums, or inf if the noise has too few values for a finite ε.

        The noise of a sum is binomial, because it is a sum of random bits. A user sends as many random bits as
        `BitMean` does for this ratio.

        Args:
            ratio: standard deviation of one user's noise in one coordinate, in steps, divided by g = `levels`.
            records, batch: not used.
            releases: number of released sums.
            delta: δ in (0, 1).
        """
        if not ratio >= 0:
            raise Refusal(f"ratio must be at least 0, got {ratio}")
        if ratio in (0.0, inf):
            return inf if ratio == 0 else 0.0
        ratio = accounted(ratio)
        if self.accounting == "gaussian-limit":
            return float(gdp.epsilon(self._norm * sqrt(releases / self.users) / ratio, delta))
        message = paper.bits(ratio, self.levels)
        if self.accounting == "exact":
            return self._proved(message, releases, delta)
        part = delta if releases == 1 else delta / (releases + 1)
        return paper.composed_epsilon(paper.claimed_vector(message, self.users, self.dimension, part), delta, releases)

    def ratio(self, epsilon: float, releases: int, *, delta: float) -> float:
        """Return the smallest ratio of noise to sensitivity whose ε is at most `epsilon`.

        The ratio is the standard deviation of one user's noise in one coordinate, in steps, divided by g = `levels`.
        With `accounting` "paper", the ratio follows from the paper's rule, and need not be the smallest.

        Args:
            epsilon: target ε.
            releases: number of released sums.
            delta: δ in (0, 1).

        >>> sums = BinomialSums(users=1000, dimension=10, levels=64)
        >>> 0.9999 < sums.epsilon(sums.ratio(1.0, 1, delta=1e-6), 1, 1, 1, delta=1e-6) <= 1
        True
        """
        if self.accounting == "paper":
            return self._claiming(epsilon, releases, delta)
        if self.accounting == "gaussian-limit":
            return self._norm * sqrt(releases / self.users) / gdp.mu(epsilon, delta)
        require_positive("epsilon", epsilon)
        widened = 1.0 if self._single(releases) else 1.07 * self._norm

        def epsilon_of(ratio: float) -> float:
            return self._proved(paper.bits(accounted(ratio), self.levels), releases, delta)

        return search_min_noise(epsilon_of, epsilon, widened * sqrt(releases / self.users) / gdp.mu(epsilon, delta))

    def summary(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """Return two values of ε at δ for a table, by column name.

        The column "ε (at most)" is the result of `epsilon`. The column "ε of a trusted server's Gaussian" is for
        another mechanism: a trusted server adds Gaussian noise of the same variance to the sum, without rounding.

        Args:
            ratio: standard deviation of one user's noise in one coordinate, in steps, divided by g = `levels`.
            records, batch: not used.
            releases: number of released sums.
            delta: δ in (0, 1).
        """
        ours = self.epsilon(ratio, records, batch, releases, delta=delta)
        mu = inf if ratio == 0 else sqrt(releases / self.users) / accounted(ratio)
        return dict(zip(self.columns, (ours, float(gdp.epsilon(mu, delta))), strict=True))

    @property
    def proved(self) -> bool:
        """True if ε is a proved upper bound, as with `accounting` "exact"."""
        return self.accounting == "exact"

    @property
    def derivation(self) -> str:
        """Text that says how ε is derived from the noise, for guarantees."""
        return DERIVATIONS[self.accounting]

    def accountant_results(
        self, ratio: float, records: int, batch: int, releases: int, *, delta: float
    ) -> tuple[AccountantResult, ...]:
        """Return further bounds on ε at δ, with which the result of `epsilon` can be compared.

        * A lower bound: the exact ε of the total of all released sums, if one coordinate of a user changes from one end
          of its range to the other. If vectors have one coordinate and one sum is released, this bound is the exact ε.
        * A proved upper bound, if `accounting` is "gaussian-limit" or "paper": the ε with `accounting` "exact".

        The lower bound is left out if all sums together have more than 10¹³ random bits in one coordinate. The upper
        bound is left out above 2¹⁵ levels.

        Args:
            ratio: standard deviation of one user's noise in one coordinate, in steps, divided by g = `levels`.
            records, batch: not used.
            releases: number of released sums.
            delta: δ in (0, 1).
        """
        if ratio in (0.0, inf):
            return ()
        message = paper.bits(accounted(ratio), self.levels)
        found, total = (), releases * self.users * message.trials
        if total <= MAX_TRIALS:
            tails = scalar_epsilon(total, message.probability, releases * self.levels, delta)
            kind = EXACT if self._single(releases) else LOWER
            found = (AccountantResult("one coordinate, exact tails", tails, kind),)
        if self.proved or self.levels > MAX_LEVELS:
            return found
        proved = self._proved(message, releases, delta)
        return *found, AccountantResult("Rényi divergence over all shifts", proved, UPPER)

    @property
    def _norm(self) -> float:
        """Factor K/g by which rounding increases the shift."""
        return gaussian_norm(self.levels, self.dimension, self.rounding) / self.levels

    def _proved(self, message: paper.Bits, releases: int, delta: float) -> float:
        if self._single(releases):
            return scalar_epsilon(self.users * message.trials, message.probability, self.levels, delta)
        return possible_epsilon(message, self.users, self.dimension, releases, delta, self.rounding)

    def _single(self, releases: int) -> bool:
        """Return True for one coordinate released once, for which δ is exact."""
        return self.dimension == releases == 1 and self.rounding == "averaged"

    def _claiming(self, epsilon: float, releases: int, delta: float) -> float:
        """Return the ratio of the paper's rule. It keeps the claim if `bits` rounds trials up and p falls below 1/2."""
        part = paper.round_budget(epsilon, delta, releases)
        least = paper.paper_vector(part.epsilon, part.delta, self.users, self.dimension, self.levels)
        needed = least.trials * least.probability
        trials = (1 + sqrt(1 + 8 * needed)) ** 2 / 4  # q = ⌈4s²⌉ trials give q·p ≥ (q − √q)/2 for any s
        return sqrt(trials / 4 * (1 + ROUNDED)) / self.levels
