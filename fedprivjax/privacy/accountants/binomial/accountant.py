"""Record accountant of sums of users' bits: ε from the ratio of a user's noise to a replaced record's shift."""

from dataclasses import dataclass
from math import inf, sqrt

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountant_result import EXACT, LOWER, UPPER, AccountantResult
from fedprivjax.privacy.accountants.binomial.paper import claimed_vector, composed_epsilon, paper_vector, round_budget
from fedprivjax.privacy.accountants.binomial.parameters import Bits, bits
from fedprivjax.privacy.accountants.binomial.scalar import MAX_TRIALS, scalar_epsilon
from fedprivjax.privacy.accountants.binomial.vector import ROUNDINGS, gaussian_norm, possible_epsilon
from fedprivjax.privacy.accountants.noise_search import search_min_noise
from fedprivjax.privacy.accountants.records import RecordAccountant, accounted

ACCOUNTINGS = ("exact", "gaussian-limit", "paper")
MAX_LEVELS = 2**15  # largest g for which all shifts up to g are evaluated
DERIVATIONS = {
    "exact": "Rényi divergences of the binomial over all shifts, added up over releases, and converted to (ε, δ); one "
    "coordinate released once by its exact tails",
    "gaussian-limit": "the Gaussian of the binomial's variance: an approximation, not a proof",
    "paper": "the paper's constants, composed by its own rule: a claim",
}
ROUNDED = 4e-8  # relative: bound on the effect of an event's rounding of a ratio, squared


@dataclass(frozen=True)
class BinomialSums(RecordAccountant):
    """Accountant of sums of bits with binomial noise, over n users and d coordinates. Ignores `records` and `batch`.

    Attributes:
        users: number of users in one sum who follow the protocol, n.
        dimension: d.
        levels: g.
        rounding: "averaged", "coupled" or "independent", the bound on the records' rounding (`binomial.vector`).
        accounting: "exact", which is proved; "gaussian-limit", the ε of a Gaussian of the same variance at the same
            shift, which is not proved and within about one percent of single directions' exact ε if sd ≳ g; or "paper",
            the paper's claim, composed by its own rule.
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

    def epsilon(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> float:
        """Return ε at δ after T releases, or inf if the noise's finite support is too small."""
        if not ratio >= 0:
            raise Refusal(f"ratio must be at least 0, got {ratio}")
        if ratio in (0.0, inf):
            return inf if ratio == 0 else 0.0
        if self.accounting == "gaussian-limit":
            return float(gdp.epsilon(self._norm * sqrt(releases / self.users) / ratio, delta))
        message = bits(ratio, self.levels)
        if self.accounting == "exact":
            return self._proved(message, releases, delta)
        part = delta if releases == 1 else delta / (releases + 1)
        return composed_epsilon(claimed_vector(message, self.users, self.dimension, part), delta, releases)

    def ratio(self, epsilon: float, releases: int, *, delta: float) -> float:
        """Return the smallest ratio, from above, whose ε is at most the given one. It is the inverse of `epsilon`.

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
            return self._proved(bits(accounted(ratio), self.levels), releases, delta)

        return search_min_noise(epsilon_of, epsilon, widened * sqrt(releases / self.users) / gdp.mu(epsilon, delta))

    def summary(self, ratio: float, records: int, batch: int, releases: int, *, delta: float) -> dict[str, float]:
        """Return the accounting's ε, and that of Gaussian noise of the same variance on a sum without rounding."""
        ours = self.epsilon(ratio, records, batch, releases, delta=delta)
        mu = inf if ratio == 0 else sqrt(releases / self.users) / ratio
        return dict(zip(self.columns, (ours, float(gdp.epsilon(mu, delta))), strict=True))

    @property
    def proved(self) -> bool:
        """True for the accounting "exact"."""
        return self.accounting == "exact"

    @property
    def derivation(self) -> str:
        """Derivation of ε from the noise, as text."""
        return DERIVATIONS[self.accounting]

    def accountant_results(
        self, ratio: float, records: int, batch: int, releases: int, *, delta: float
    ) -> tuple[AccountantResult, ...]:
        """Return a lower bound from exact tails, and the exact accounting's ε if another accounting is in use.

        The lower bound is for a record that differs by the whole range in one coordinate, summed over releases. It is
        exact for one coordinate released once.
        """
        if ratio in (0.0, inf):
            return ()
        message = bits(accounted(ratio), self.levels)
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

    def _proved(self, message: Bits, releases: int, delta: float) -> float:
        if self._single(releases):
            return scalar_epsilon(self.users * message.trials, message.probability, self.levels, delta)
        return possible_epsilon(message, self.users, self.dimension, releases, delta, self.rounding)

    def _single(self, releases: int) -> bool:
        """Return True for one coordinate released once, for which δ is exact."""
        return self.dimension == releases == 1 and self.rounding == "averaged"

    def _claiming(self, epsilon: float, releases: int, delta: float) -> float:
        """Return the ratio of the paper's rule. It keeps the claim if `bits` rounds trials up and p falls below 1/2."""
        part = round_budget(epsilon, delta, releases)
        least = paper_vector(part.epsilon, part.delta, self.users, self.dimension, self.levels)
        needed = least.trials * least.probability
        trials = (1 + sqrt(1 + 8 * needed)) ** 2 / 4  # q = ⌈4s²⌉ trials give q·p ≥ (q − √q)/2 for any s
        return sqrt(trials / 4 * (1 + ROUNDED)) / self.levels
