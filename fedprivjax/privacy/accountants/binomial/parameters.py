"""Parameters of one user's message for one coordinate: fixed-point levels and trials of noise."""

from math import ceil, isfinite, sqrt
from typing import NamedTuple

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive

RULES = ("exact", "sqrt", "linear")
MAX_TRIALS = 10**15  # largest number per user that float64 counts exactly


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
    """Return the message with the fewest trials whose noise has standard deviation `s = ratio·levels`, in levels.

        trials = ⌈4s²⌉,   probability = (1 − √(1 − 4s²/trials))/2,   so trials·p·(1−p) = s²

    Args:
        ratio: a user's noise divided by the shift of the sum from replacing one record; positive.
        levels: the shift in levels, at least 1.

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
