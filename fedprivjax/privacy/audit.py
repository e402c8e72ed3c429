"""An empirical lower bound on the privacy loss: what an attacker demonstrably learns from samples of a statistic.

A guarantee that this bound exceeds is wrong; a bound far below it says that the attack, or the guarantee, is loose.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy import gdp

_LEVELS = ndtr(np.linspace(-4.0, 4.0, 321))  # candidate thresholds: quantiles, dense in both tails
_Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
_Worlds = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class AuditResult:
    """Lower bounds on a mechanism's privacy parameters, each holding with probability `confidence`.

    Attributes:
        epsilon_lower: no (ε, δ)-DP mechanism has a smaller ε; assumes nothing about the mechanism.
        mu_lower: no μ-GDP mechanism has a smaller μ.
        delta: the δ of `epsilon_lower`.
        confidence: probability that one of the two bounds holds, over the samples.
        samples: how many samples each world's bound was computed from, half of those given.
    """

    epsilon_lower: float
    mu_lower: float
    delta: float
    confidence: float
    samples: tuple[int, int]

    @property
    def gdp_epsilon_lower(self) -> float:
        """The ε at δ of a `mu_lower`-GDP mechanism: compare it with a GDP guarantee's ε."""
        return float(gdp.epsilon(self.mu_lower, self.delta))


def audit(outputs: ArrayLike, outputs_neighbour: ArrayLike, delta: float, confidence: float = 0.95) -> AuditResult:
    """Bound the privacy loss from below by a threshold test between two neighbouring data sets.

    Every other sample chooses the threshold and its direction; the rest count errors, whose rates get
    one-sided Clopper-Pearson upper bounds a (false positives) and b (false negatives) of level (1−confidence)/2:

        μ ≥ Φ⁻¹(1 − a) − Φ⁻¹(b)          e^ε ≥ max{(1 − δ − b)/a, (1 − δ − a)/b}

    Args:
        outputs: [samples], an independent draw each of a real statistic of the output on one data set.
        outputs_neighbour: [samples'], the same on a neighbouring data set.
        delta: inside (0, 1).
        confidence: inside (0, 1).

    Returns:
        Both bounds, never below 0.

    Raises:
        ValueError: for fewer than 4 samples, a sample that is not finite, a delta or confidence outside (0, 1).

    Source: Kairouz, Oh & Viswanath 2015 (the region of errors); Jagielski, Ullman & Oprea 2020 (Clopper-Pearson);
    Nasr et al. 2023 (through GDP).

    >>> rng = np.random.default_rng(0)
    >>> result = audit(rng.normal(0, 1, 4000), rng.normal(2, 1, 4000), delta=1e-5)
    >>> 1.6 < result.mu_lower < 2.0
    True
    """
    gdp.epsilon(0.0, delta)
    if not 0 < confidence < 1:
        raise Refusal(f"confidence must be inside (0, 1), got {confidence}")
    worlds = _samples("outputs", outputs), _samples("outputs_neighbour", outputs_neighbour)
    first, second = _half(worlds, 0), _half(worlds, 1)
    level = (1 - confidence) / 2
    return AuditResult(
        epsilon_lower=_bound(_log_ratio(delta), first, second, level),
        mu_lower=_bound(_separation, first, second, level),
        delta=float(delta),
        confidence=float(confidence),
        samples=(second[0].size, second[1].size),
    )


def _bound(score: _Score, first: _Worlds, second: _Worlds, level: float) -> float:
    """The score of `second` at the threshold and direction which are best on `first`."""
    thresholds = np.quantile(np.concatenate(first), _LEVELS)
    scores = np.stack([score(*_errors(first, thresholds, above, level)) for above in (True, False)])
    direction, best = np.unravel_index(np.argmax(scores), scores.shape)
    value = score(*_errors(second, thresholds[best : best + 1], direction == 0, level))
    return max(float(value[0]), 0.0)


def _errors(worlds: _Worlds, thresholds: np.ndarray, above: bool, level: float) -> _Worlds:
    """Upper bounds on the error rates of the tests that say "neighbour" above (or not above) each threshold."""
    null, neighbour = worlds
    null_above, neighbour_above = (
        world.size - np.searchsorted(np.sort(world), thresholds, side="right") for world in worlds
    )
    if above:
        wrong_null, wrong_neighbour = null_above, neighbour.size - neighbour_above
    else:
        wrong_null, wrong_neighbour = null.size - null_above, neighbour_above
    return _rate_upper(wrong_null, null.size, level), _rate_upper(wrong_neighbour, neighbour.size, level)


def _rate_upper(errors: np.ndarray, trials: int, level: float) -> np.ndarray:
    """Clopper-Pearson: the rate which would show as few errors as these with probability `level`."""
    some_right = np.minimum(errors, trials - 1)
    return np.where(errors < trials, beta.isf(level, some_right + 1, trials - some_right), 1.0)


def _separation(false_positive: np.ndarray, false_negative: np.ndarray) -> np.ndarray:
    """`Φ⁻¹(1 − a) − Φ⁻¹(b)`; a rate of 1 makes it −inf."""
    return -ndtri(false_positive) - ndtri(false_negative)


def _log_ratio(delta: float) -> _Score:
    def score(false_positive: np.ndarray, false_negative: np.ndarray) -> np.ndarray:
        forward = np.maximum(1 - delta - false_negative, 0.0) / false_positive
        backward = np.maximum(1 - delta - false_positive, 0.0) / false_negative
        return np.log(np.maximum(np.maximum(forward, backward), 1e-300))

    return score


def _half(worlds: _Worlds, start: int) -> _Worlds:
    return worlds[0][start::2], worlds[1][start::2]


def _samples(name: str, values: ArrayLike) -> np.ndarray:
    values = np.asarray(values, float)
    if values.ndim != 1 or values.size < 4:
        raise Refusal(f"{name} must be a list of at least 4 samples, got shape {list(values.shape)}")
    if not np.isfinite(values).all():
        raise Refusal(f"{name} must be finite, got {values[~np.isfinite(values)][0]}")
    return values
