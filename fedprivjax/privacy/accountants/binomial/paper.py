"""Parameters of one user's message for one coordinate, and accounting with the paper's constants.

The message has fixed-point levels and trials of noise. The accounting gives parameters for a target, the claimed ε of a
noise, and its conditions.

With c = g²·ln(2/δ)/(ε²n), a user adds Binomial(q, p), q = ⌊180c⌋ + 1 and p = 90c/q. In total m·p = 90·g²·ln(2/δ)/ε².
For vectors each coordinate has `δˆ = δ/(d+1)` and `εˆ = ε/(18·√ln(1/δˆ))`. The smallest q gives p near 1/2, and half
the variance of a large q.

At equal (ε, δ) the standard deviation is 5 to 7 times that of exact accounting for a scalar, and hundreds of times that
for a vector.

Source: Cheu, Joseph, Mao & Peng, ICLR 2022, Lemma 3.1, Theorem 3.2, Claim A.8.
"""

from math import ceil, expm1, floor, isfinite, log, sqrt
from typing import NamedTuple

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_choice, require_positive

RULES = ("exact", "sqrt", "linear")
MAX_TRIALS = 10**15  # largest number per user that float64 counts exactly
MAX_EPSILON = 15.0  # largest ε in Lemma 3.1
STEEPEST = 0.858  # largest a with ln((1+a)/(1−a)) ≤ 3a, rounded down


class Bits(NamedTuple):
    """A user's message for one coordinate: `levels + trials` bits, of which Binomial(trials, probability) are noise.

    Attributes:
        levels: g, number of fixed-point steps over the coordinate's range.
        trials: q, number of noise trials.
        probability: p, probability of one trial, in (0, 1/2].
    """

    levels: int
    trials: int
    probability: float

    @property
    def std(self) -> float:
        """Standard deviation of a user's noise in levels, `√(q·p·(1−p))`."""
        return sqrt(self.trials * self.probability * (1 - self.probability))


def bits(ratio: float, levels: int) -> Bits:
    """Return the fewest random bits that give a user's noise the standard deviation s = `ratio`·`levels`.

    A user sends a number as `levels` bits, and q further random bits. Each random bit is 1 with probability p. The
    number of ones among the random bits is the noise. The result has

        q = ⌈4s²⌉,   p = (1 − √(1 − 4s²/q))/2,   so that the noise variance is q·p·(1−p) = s²

    Args:
        ratio: standard deviation of one user's noise, divided by `levels`; positive.
        levels: g, largest change of the sum of all users' bits if one record is replaced; at least 1.

    Source: derived for this implementation.

    >>> bits(0.5, 10)
    Bits(levels=10, trials=100, probability=0.5)
    """
    require_positive("ratio", ratio)
    require_at_least("levels", levels, 1)
    fourfold = 4 * (ratio * levels) ** 2
    if not isfinite(fourfold) or fourfold > MAX_TRIALS:
        raise Refusal(f"ratio must need at most {MAX_TRIALS} trials of noise per user, got {ratio} at {levels} levels")
    trials = max(1, ceil(fourfold * (1 - 1e-15)))
    filled = min(1.0, fourfold / trials)
    return Bits(levels, trials, filled / (2 * (1 + sqrt(1 - filled))))


def default_levels(users: int, dimension: int, rule: str = "exact") -> int:
    """Return the default number of fixed-point levels g for a sum over n users in d coordinates.

        exact    ⌈max(2√n, 16√d)⌉: the cost of rounding is negligible, in accuracy and in privacy
        sqrt     ⌈max(2√n, √d, 4)⌉: the paper's rule
        linear   ⌈max(2√n, d, 4)⌉: the paper's rule without the square root of d, which its text may lack

    Source: "sqrt" and "linear" Cheu et al. 2022, Theorem 3.2; "exact" this implementation.

    >>> [default_levels(1000, 100, rule) for rule in ("exact", "sqrt", "linear")]
    [160, 64, 100]
    """
    require_at_least("users", users, 1)
    require_at_least("dimension", dimension, 1)
    require_choice("rule", rule, RULES)
    least = {"exact": 16 * sqrt(dimension), "sqrt": max(sqrt(dimension), 4), "linear": max(dimension, 4)}[rule]
    return ceil(max(2 * sqrt(users), least))


class Budget(NamedTuple):
    """(ε, δ) of one component of a release."""

    epsilon: float
    delta: float


def paper_vector(epsilon: float, delta: float, users: int, dimension: int, levels: int) -> Bits:
    """Return Theorem 3.2's parameters for one coordinate of a sum of vectors over n users.

    Raises:
        ValueError: if ε > 15, δ ≥ 1/2, or g is below √n, √d or εˆ/2.57.

    >>> paper_vector(1.0, 1e-6, users=1000, dimension=10, levels=64).trials
    65479717
    """
    require_target(epsilon, delta)
    _require_levels(levels, sqrt(users), "the square root of the users")
    _require_levels(levels, sqrt(dimension), "the square root of the dimension")
    part = coordinate_budget(epsilon, delta, dimension)
    _require_lemma(part.epsilon, part.delta, levels)
    return _least_bits(part.epsilon, part.delta, users, levels)


def coordinate_budget(epsilon: float, delta: float, dimension: int) -> Budget:
    """Return the budget of one of d coordinates in Theorem 3.2: `δˆ = δ/(d+1)`, `εˆ = ε/(18·√ln(1/δˆ))`.

    >>> round(1 / coordinate_budget(1.0, 1e-6, 10).epsilon, 1)
    72.5
    """
    failure = delta / (dimension + 1)
    return Budget(epsilon / (18 * sqrt(log(1 / failure))), failure)


def claimed_vector(message: Bits, users: int, dimension: int, delta: float) -> float:
    """Return the ε that Theorem 3.2 claims for a sum of vectors with this noise, the inverse of `paper_vector`.

    >>> round(claimed_vector(paper_vector(1.0, 1e-6, 1000, 10, 64), 1000, 10, 1e-6), 6)
    1.0
    """
    failure = coordinate_budget(1.0, delta, dimension).delta
    part = _lemma_epsilon(message, users, failure)
    epsilon = part / coordinate_budget(1.0, delta, dimension).epsilon
    require_target(epsilon, delta)
    _require_levels(message.levels, sqrt(dimension), "the square root of the dimension")
    _require_lemma(part, failure, message.levels)
    return epsilon


def round_budget(epsilon: float, delta: float, rounds: int) -> Budget:
    """Return the budget of each of T releases from the same users: `ε/(2·√(2T·ln(1/δ)))` and `δ/(T+1)`.

    A single release has the whole budget.

    Raises:
        ValueError: if `composed_epsilon` exceeds ε, as at ε = 15, δ = 0.1, T = 10.

    Source: Cheu et al. 2022, Algorithm 5.

    >>> round(1 / round_budget(1.0, 1e-6, 100).epsilon, 1)
    105.1
    """
    require_at_least("rounds", rounds, 1)
    require_target(epsilon, delta)
    if rounds == 1:
        return Budget(epsilon, delta)
    part = Budget(epsilon / (2 * sqrt(2 * rounds * log(1 / delta))), delta / (rounds + 1))
    total = composed_epsilon(part.epsilon, delta, rounds)
    if total > epsilon:
        raise Refusal(f"epsilon must be at least the composed ε, got {epsilon}: {rounds} rounds compose to {total:.4g}")
    return part


def composed_epsilon(epsilon: float, delta: float, rounds: int) -> float:
    """Return ε at δ of T releases, each (ε_r, δ/(T+1)): `√(2T·ln((T+1)/δ))·ε_r + T·ε_r·(e^{ε_r} − 1)`.

    >>> round(composed_epsilon(round_budget(1.0, 1e-6, 100).epsilon, 1e-6, 100), 2)
    0.59
    """
    if rounds == 1:
        return epsilon
    return sqrt(2 * rounds * log((rounds + 1) / delta)) * epsilon + rounds * epsilon * expm1(epsilon)


def _least_bits(epsilon: float, delta: float, users: int, levels: int) -> Bits:
    require_at_least("users", users, 1)
    share = levels**2 * log(2 / delta) / (epsilon**2 * users)
    trials = floor(180 * share) + 1
    return Bits(levels, trials, 90 * share / trials)


def _lemma_epsilon(message: Bits, users: int, delta: float) -> float:
    """Return ε with `m·p = 90·g²·ln(2/δ)/ε²`."""
    _require_delta(delta)
    return message.levels * sqrt(90 * log(2 / delta) / (users * message.trials * message.probability))


def _require_delta(delta: float) -> None:
    require_between("delta", delta, 0, 1)
    if delta >= 0.5:
        raise Refusal(f"delta must be below 1/2 with the paper's constants, got {delta}")


def require_target(epsilon: float, delta: float) -> None:
    require_positive("epsilon", epsilon)
    if epsilon > MAX_EPSILON * (1 + 1e-9):  # tolerance for rounding of a claim of 15
        raise Refusal(f"epsilon must be at most 15 with the paper's constants, got {epsilon:.6g}")
    _require_delta(delta)


def _require_lemma(epsilon: float, delta: float, levels: int) -> None:
    require_target(epsilon, delta)
    _require_levels(levels, epsilon / (3 * STEEPEST), "epsilon/2.57")


def _require_levels(levels: int, least: float, what: str) -> None:
    require_at_least("levels", levels, 1)
    if levels < least:
        raise Refusal(f"levels must be at least {what}, {ceil(least)}, with the paper's constants, got {levels}")
