"""Bounds from the scores of one run's canaries: how many coins to guess, how many guesses were right, the proof."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from fedprivjax.auditing.guess_bounds import epsilon_lower, mu_lower, require_guesses
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_number
from fedprivjax.privacy import gdp

_FRACTIONS = np.geomspace(0.01, 1.0, 16)  # of the canaries that may be guessed


@dataclass(frozen=True)
class OneRunBounds:
    """Lower bounds on a mechanism's privacy parameters from one run, each wrong with probability at most `level`.

    Attributes:
        epsilon_lower: no (ε, δ)-DP mechanism has a smaller ε; assumes nothing about the mechanism.
        mu_lower: no μ-GDP mechanism has a smaller μ.
        delta: the δ of `epsilon_lower`.
        level: probability, over coins and noise, that one of the two bounds is too large.
        right: how many guesses were right.
        guesses: how many canaries were guessed.
        canaries: how many had a coin.
    """

    epsilon_lower: float
    mu_lower: float
    delta: float
    level: float
    right: int
    guesses: int
    canaries: int

    @property
    def gdp_epsilon_lower(self) -> float:
        """The ε at δ of a `mu_lower`-GDP mechanism: compare it with a GDP guarantee's ε."""
        return float(gdp.epsilon(self.mu_lower, self.delta))


def one_run_bounds(
    scores: ArrayLike, included: ArrayLike, guesses: int, delta: float, level: float = 0.05
) -> OneRunBounds:
    """Both bounds from the scores of one run's canaries.

    Args:
        scores: [canaries], computed from the run's output without the coins; larger where a canary seems to be in.
        included: [canaries], what the coins said; each fair, and independent of all others.
        guesses: how many canaries are guessed, decided before the run (`expected_guesses`).
        delta: inside (0, 1).
        level: probability that a bound exceeds the truth.

    Raises:
        ValueError: for scores that are not finite, coins that are no flags, more guesses than canaries, or a delta or
            level outside (0, 1).

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(1000) < 0.5
    >>> found = one_run_bounds(rng.normal(2.0 * coins, 1), coins, guesses=100, delta=1e-5)
    >>> 1.0 < found.mu_lower < 2.0
    True
    """
    right, canaries = right_guesses(scores, included, guesses), np.size(scores)
    return OneRunBounds(
        epsilon_lower=epsilon_lower(right, guesses, canaries, delta, level),
        mu_lower=mu_lower(right, guesses, canaries, level),
        delta=float(delta),
        level=float(level),
        right=right,
        guesses=int(guesses),
        canaries=canaries,
    )


def right_guesses(scores: ArrayLike, included: ArrayLike, guesses: int) -> int:
    """How often one is right who says "in" of the largest scores, half of the guesses, and "out" of the smallest.

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
    """The number of guesses that serves a bound best, if scores are N(0, 1) and N(μ, 1), independent, as is claimed.

    Args:
        mu: the separation that is claimed, above 0.
        canaries: how many have a coin.
        delta: that of `epsilon_lower`, which is then served; None serves `mu_lower`.
        level: that of the bound.

    Returns:
        An even number, where the bound is largest on a grid: its mean over one deviation less and one more right
        guesses than are expected.

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
    bounds = [_bounds(end, guesses, canaries, delta, level) for end in ends]
    return int(guesses[np.argmax(np.sum(bounds, axis=0))])


def _bounds(right: np.ndarray, guesses: np.ndarray, canaries: int, delta: float | None, level: float) -> np.ndarray:
    if delta is None:
        return mu_lower(right, guesses, canaries, level)
    pairs = zip(right, guesses, strict=True)
    return np.array([epsilon_lower(*pair, canaries, delta, level) for pair in pairs])


def _accuracy(mu: float, fraction: float) -> float:
    """How often the larger `fraction`/2 of scores, an equal mixture of two normal laws, are of the larger law."""
    low, high = mu / 2 - 40, mu / 2 + 40
    for _ in range(60):
        threshold = (low + high) / 2
        low, high = (threshold, high) if ndtr(-threshold) + ndtr(mu - threshold) > fraction else (low, threshold)
    return float(ndtr(mu - low) / fraction)
