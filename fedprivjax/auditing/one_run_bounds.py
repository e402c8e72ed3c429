"""Lower bounds from the scores of one run's canaries: number of guesses, correct guesses, and bounds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from fedprivjax.auditing.bounds import PrivacyBounds
from fedprivjax.auditing.guess_bounds import epsilon_lower, mu_lower, require_guesses
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_number

_FRACTIONS = np.geomspace(0.01, 1.0, 16)  # fractions of the canaries tried as numbers of guesses


@dataclass(frozen=True)
class OneRunBounds(PrivacyBounds):
    """Lower bounds from the correct guesses on one run's canaries.

    Attributes:
        right: number of correct guesses.
        guesses: number of guessed canaries.
        canaries: number of canaries.
    """

    right: int
    guesses: int
    canaries: int


def one_run_bounds(
    scores: ArrayLike, included: ArrayLike, guesses: int, delta: float, level: float = 0.05
) -> OneRunBounds:
    """Return both bounds from the scores of one run's canaries.

    Args:
        scores: shape [canaries], computed from the run's output without the coins; larger if a canary seems included.
        included: shape [canaries], bool results of fair and independent coins.
        guesses: number of guesses, fixed before the run (see `expected_guesses`).
        delta: inside (0, 1).
        level: probability that a bound exceeds the true value.

    Raises:
        ValueError: if scores are not finite, coins are not bool, there are more guesses than canaries, or delta or
            level is outside (0, 1).

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> found = one_run_bounds(rng.normal(2.0 * coins, 1), coins, guesses=100, delta=1e-5)
    >>> 1.0 < found.mu_lower < 2.0
    True
    """
    right, canaries = right_guesses(scores, included, guesses), np.size(scores)
    epsilon = epsilon_lower(right, guesses, canaries, delta, level)
    mu = mu_lower(right, guesses, canaries, level)
    return OneRunBounds(epsilon, mu, float(delta), float(level), right, int(guesses), canaries)


def right_guesses(scores: ArrayLike, included: ArrayLike, guesses: int) -> int:
    """Return the number of correct guesses: "in" for the largest scores, "out" for the smallest, half of them each.

    >>> right_guesses([0.3, -2.0, 5.0, 1.0], [True, False, True, True], guesses=3)
    3
    """
    scores, included = np.asarray(scores, float), np.asarray(included)
    if scores.ndim != 1 or scores.size < 1:
        raise Refusal(f"scores must be a list of numbers, got shape {list(scores.shape)}")
    if not np.isfinite(scores).all():
        raise Refusal(f"scores must be finite, got {scores[~np.isfinite(scores)][0]}")
    if included.shape != scores.shape or included.dtype != bool:
        raise Refusal(f"included must be {scores.size} flags, got {included.dtype} of shape {list(included.shape)}")
    require_guesses(0, guesses, scores.size)
    order = np.argsort(scores, kind="stable")
    said_out, said_in = order[: guesses // 2], order[scores.size - (guesses - guesses // 2) :]
    return int(included[said_in].sum() + (~included[said_out]).sum())


def expected_guesses(mu: float, canaries: int, delta: float | None = None, level: float = 0.05) -> int:
    """Return the best number of guesses for a bound, if scores are independent N(0, 1) and N(μ, 1) as claimed.

    Args:
        mu: claimed separation, above 0.
        canaries: number of canaries.
        delta: δ of `epsilon_lower`, the bound to maximise, or None to maximise `mu_lower`.
        level: level of the bound.

    Returns:
        An even number that maximises the bound on a grid. The bound is averaged over one standard deviation less and
        more than the expected number of correct guesses.

    >>> expected_guesses(1.0, 1000)
    158
    """
    require_number("mu", mu)
    if not 0 < mu < np.inf:
        raise Refusal(f"mu must be positive and finite, got {mu}")
    require_at_least("canaries", canaries, 2)
    require_between("level", level, 0, 1)
    guesses = np.unique(np.maximum(2 * np.round(canaries * _FRACTIONS / 2), 2).astype(int))
    guesses = guesses[guesses <= canaries]
    accuracy = np.array([_accuracy(mu, part) for part in guesses / canaries])
    spread = np.sqrt(guesses * accuracy * (1 - accuracy))
    ends = [np.clip(np.floor(guesses * accuracy + side * spread), 0, guesses).astype(int) for side in (-1, 1)]
    if delta is None:
        bounds = [mu_lower(end, guesses, canaries, level) for end in ends]
    else:
        bounds = [
            [epsilon_lower(*pair, canaries, delta, level) for pair in zip(end, guesses, strict=True)] for end in ends
        ]
    return int(guesses[np.argmax(np.sum(bounds, axis=0))])


def _accuracy(mu: float, fraction: float) -> float:
    """Return the accuracy of guesses on `fraction` of an equal mixture of N(0, 1) and N(μ, 1), the extremes first."""
    low, high = mu / 2 - 40, mu / 2 + 40
    for _ in range(60):
        threshold = (low + high) / 2
        low, high = (threshold, high) if ndtr(-threshold) + ndtr(mu - threshold) > fraction else (low, threshold)
    return float(ndtr(mu - low) / fraction)
