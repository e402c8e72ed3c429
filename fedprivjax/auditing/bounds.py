"""Lower bounds on the privacy loss from the scores of runs on two neighbouring datasets.

An attacker scores each run and answers "other" above a threshold. The attacker's error rates bound ε and μ from below,
for any scores. A guarantee below such a bound is wrong. If a guarantee is far above it, the attack or the guarantee is
loose.

The threshold must not be chosen on the counted runs. If a distribution of the scores is claimed, `expected_threshold`
and `sampled_threshold` compute the threshold from it in advance. Otherwise `fitted` uses half of the runs for the
choice. One threshold is enough: a second one in the other tail, each at half the level, would raise the bound on ε by
only one hundredth of the claim.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_between, require_number
from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import PrivacyGuarantee

LEAST = 4  # smallest number of runs per neighbouring dataset
_CANDIDATES = ndtr(np.linspace(-4.0, 4.0, 321))  # quantiles tried as thresholds, dense in both tails
_STEPS = np.linspace(0.0, 8.0, 401)  # thresholds above the midpoint of two normal distributions
_Rates = tuple[np.ndarray, np.ndarray]
_Value = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PrivacyBounds:
    """Lower bounds on a mechanism's privacy parameters, each wrong with probability at most `level`.

    Attributes:
        epsilon_lower: lower bound on the ε of (ε, δ)-DP, for any mechanism.
        mu_lower: lower bound on μ, if the mechanism is μ-GDP.
        delta: the δ of `epsilon_lower`.
        level: upper bound on the probability, over coins and noise of all runs, that the bound on ε is too large. The
            same holds for the bound on μ.
    """

    epsilon_lower: float
    mu_lower: float
    delta: float
    level: float

    @property
    def gdp_epsilon_lower(self) -> float:
        """ε at δ of a `mu_lower`-GDP mechanism, comparable with the ε of a GDP guarantee."""
        return float(gdp.epsilon(self.mu_lower, self.delta))

    def refute(self, claim: PrivacyGuarantee) -> bool:
        """Return True if a lower bound exceeds the claim."""
        return self.epsilon_lower > claim.epsilon or (claim.mu is not None and self.mu_lower > claim.mu)


@dataclass(frozen=True)
class LowerBounds(PrivacyBounds):
    """Lower bounds from the scores of runs on two neighbouring datasets.

    Attributes:
        runs: number of counted runs on each of the two datasets.
    """

    runs: tuple[int, int]


def rate_upper(errors: ArrayLike, trials: int, level: float) -> Any:
    """Return the Clopper-Pearson upper bound on an error rate: so few errors have probability `level` there.

    Args:
        errors: number of errors, at most `trials`; broadcasts. Between integers the bound is interpolated.
        trials: number of independent trials.
        level: probability that the rate is above the bound.

    Returns:
        Rates in (0, 1], 1 if every trial was an error.

    >>> rate_upper(0, 100, 0.05) == 1 - 0.05 ** (1 / 100)
    True
    """
    errors = np.asarray(errors, float)
    inside = np.minimum(errors, trials - 1)
    rates = np.where(errors < trials, scipy.stats.beta.isf(level, inside + 1, trials - inside), 1.0)
    return rates.item() if rates.ndim == 0 else rates


def epsilon_lower(null: ArrayLike, other: ArrayLike, threshold: float, delta: float, level: float = 0.05) -> float:
    """Return a lower bound on ε from a test whose threshold was fixed before the runs.

    With a and b the upper bounds, at `level`/2 each, on the rates of null > threshold and other ≤ threshold:

        ε ≥ log max{(1 − δ − b)/a, (1 − δ − a)/b}

    Args:
        null: independent scores of runs on one dataset, shape [runs].
        other: independent scores of runs on a neighbouring dataset, shape [runs']; they tend to be larger.
        threshold: chosen independently of these scores.
        delta: inside (0, 1).
        level: upper bound on the probability that the bound exceeds the true ε.

    Returns:
        The bound, at least 0.

    Raises:
        ValueError: if there are fewer than 4 scores, a score or the threshold is not finite, or delta or level is
            outside (0, 1).

    Source: Kairouz, Oh & Viswanath 2015 (the region of errors); Jagielski, Ullman & Oprea 2020 (Clopper-Pearson).

    >>> rng = np.random.default_rng(0)
    >>> 2.0 < epsilon_lower(rng.normal(0, 1, 9000), rng.normal(1, 1, 9000), expected_threshold(1.0, 1e-5, 9000), 1e-5)
    True
    """
    _require_confidence(level, delta)
    return _at_least_zero(_log_ratio(delta)(*_rates(_scores(null, other), _threshold(threshold), level)))


def mu_lower(null: ArrayLike, other: ArrayLike, threshold: float, level: float = 0.05) -> float:
    """Return a lower bound on μ from a test whose threshold was fixed before the runs. For a claimed μ, use μ/2.

    With a and b as in `epsilon_lower`: `μ ≥ Φ⁻¹(1 − a) − Φ⁻¹(b)`. The bound applies to GDP claims only: an (ε, δ)-DP
    mechanism may exceed the ε of that μ.

    Args:
        null, other, threshold, level: as in `epsilon_lower`.

    Source: Nasr et al. 2023; Dong, Roth & Su 2022 for the trade-off function of two normal distributions.

    >>> rng = np.random.default_rng(0)
    >>> 0.9 < mu_lower(rng.normal(0, 1, 9000), rng.normal(1, 1, 9000), 0.5) < 1.0
    True
    """
    _require_confidence(level)
    return _at_least_zero(_separation(*_rates(_scores(null, other), _threshold(threshold), level)))


def expected_threshold(mu: float, delta: float, runs: int, level: float = 0.05) -> float:
    """Return the best threshold for `epsilon_lower` if scores are N(0, 1) and N(μ, 1) on the two datasets.

    It maximises the bound at the expected numbers of errors, on a grid from μ/2 upwards. The lower tail is symmetric.

    Args:
        mu: claimed separation.
        delta: inside (0, 1).
        runs: number of runs per neighbouring dataset.
        level: level of the bound.

    >>> [round(expected_threshold(1.0, 1e-5, runs), 1) for runs in (1000, 100_000)]
    [2.2, 3.5]
    """
    _require_confidence(level, delta)
    require_at_least("runs", runs, LEAST)
    require_number("mu", mu)
    if not 0 <= mu < np.inf:
        raise Refusal(f"mu must be finite and at least 0, got {mu}")
    thresholds = mu / 2 + _STEPS
    return _best(thresholds, (ndtr(-thresholds), ndtr(thresholds - mu)), delta, runs, level)


def sampled_threshold(null: ArrayLike, other: ArrayLike, delta: float, runs: int, level: float = 0.05) -> float:
    """Return the best threshold for `epsilon_lower` from samples of any claimed distribution of the scores.

    The samples must be independent of the counted runs. A small number of samples costs tightness, never validity.

    Args:
        null, other: samples of the distribution claimed on each dataset, shapes [samples] and [samples'].
        delta, runs, level: as in `expected_threshold`.

    >>> rng = np.random.default_rng(0)
    >>> chosen = sampled_threshold(rng.normal(0, 1, 10**5), rng.normal(1, 1, 10**5), 1e-5, 1000)
    >>> bool(min(abs(chosen - 2.2), abs(chosen + 1.2)) < 0.2)  # normal scores are symmetric about 1/2
    True
    """
    _require_confidence(level, delta)
    require_at_least("runs", runs, LEAST)
    worlds = _scores(null, other)
    thresholds = np.quantile(np.concatenate(worlds), _CANDIDATES)
    positive, negative = _errors(worlds, thresholds)
    # one more error than observed: a finite sample does not bound the distribution's support
    rates = (positive + 1) / (worlds[0].size + 1), (negative + 1) / (worlds[1].size + 1)
    return _best(thresholds, rates, delta, runs, level)


def lower_bounds(
    null: ArrayLike, other: ArrayLike, threshold: float, middle: float, delta: float, level: float = 0.05
) -> LowerBounds:
    """Return both bounds, each at a threshold that was fixed before the runs.

    Args:
        null, other, delta, level: as in `epsilon_lower`.
        threshold: threshold of `epsilon_lower`.
        middle: threshold of `mu_lower`.

    >>> rng = np.random.default_rng(0)
    >>> lower_bounds(rng.normal(0, 1, 50), rng.normal(9, 1, 70), 4.5, 4.5, 1e-5).runs
    (50, 70)
    """
    worlds = _scores(null, other)
    epsilon, mu = epsilon_lower(*worlds, threshold, delta, level), mu_lower(*worlds, middle, level)
    return LowerBounds(epsilon, mu, float(delta), float(level), (worlds[0].size, worlds[1].size))


def fitted(null: ArrayLike, other: ArrayLike, delta: float, level: float = 0.05) -> LowerBounds:
    """Return lower bounds on ε and μ from scores with an unknown distribution.

    A score is one number per run, which an attack compares with a threshold. Half of the runs serve to choose the
    threshold. The bounds are computed from the other half.

    Args:
        null: independent scores of runs on one dataset, shape [runs].
        other: independent scores of runs on a neighbouring dataset, shape [runs']. They may tend to be larger or
            smaller than `null`.
        delta: δ of the bound on ε, inside (0, 1).
        level: error probability of each bound. Each bound exceeds the true ε or μ with at most this probability.

    >>> rng = np.random.default_rng(0)
    >>> 1.6 < fitted(rng.normal(0, 1, 4000), rng.normal(2, 1, 4000), delta=1e-5).mu_lower < 2.0
    True
    """
    _require_confidence(level, delta)
    worlds = _scores(null, other)
    first, second = ((worlds[0][start::2], worlds[1][start::2]) for start in (0, 1))
    epsilon, mu = (_fitted(value, first, second, level) for value in (_log_ratio(delta), _separation))
    return LowerBounds(epsilon, mu, float(delta), float(level), (second[0].size, second[1].size))


def _fitted(value: _Value, first: _Rates, second: _Rates, level: float) -> float:
    """Return the value on `second` at the threshold and direction that are best on `first`."""
    thresholds = np.quantile(np.concatenate(first), _CANDIDATES)
    values = np.stack([value(*_rates(first, thresholds, level, above)) for above in (True, False)])
    direction, best = np.unravel_index(np.argmax(values), values.shape)
    return _at_least_zero(value(*_rates(second, thresholds[best : best + 1], level, direction == 0)))


def _best(thresholds: np.ndarray, rates: _Rates, delta: float, runs: int, level: float) -> float:
    """Return the threshold whose expected numbers of errors give the largest bound on ε."""
    expected = (rate_upper(runs * rate, runs, level / 2) for rate in rates)
    return float(thresholds[np.argmax(_log_ratio(delta)(*expected))])


def _rates(worlds: _Rates, thresholds: np.ndarray, level: float, above: bool = True) -> _Rates:
    """Return upper bounds on the rates of both errors, each at half the level."""
    positive, negative = _errors(worlds, thresholds, above)
    return rate_upper(positive, worlds[0].size, level / 2), rate_upper(negative, worlds[1].size, level / 2)


def _errors(worlds: _Rates, thresholds: np.ndarray, above: bool = True) -> _Rates:
    """Return the numbers of errors on each dataset of the tests that answer "other" above (or below) each threshold."""
    null, other = (np.searchsorted(np.sort(world), thresholds, side="right") for world in worlds)  # not above
    return (worlds[0].size - null, other) if above else (null, worlds[1].size - other)


def _separation(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Return `Φ⁻¹(1 − a) − Φ⁻¹(b)`, −inf if a rate is 1."""
    return -ndtri(positive) - ndtri(negative)


def _log_ratio(delta: float) -> _Value:
    def value(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
        forward = np.maximum(1 - delta - negative, 0.0) / positive
        backward = np.maximum(1 - delta - positive, 0.0) / negative
        return np.log(np.maximum(np.maximum(forward, backward), 1e-300))

    return value


def _at_least_zero(value: np.ndarray) -> float:
    return max(float(value[0]), 0.0)


def _threshold(value: float) -> np.ndarray:
    require_number("threshold", value)
    if not np.isfinite(value):
        raise Refusal(f"threshold must be finite, got {value}")
    return np.array([value], float)


def _require_confidence(level: float, delta: float = 0.5) -> None:
    require_between("delta", delta, 0, 1)
    require_between("level", level, 0, 1)


def _scores(null: ArrayLike, other: ArrayLike) -> _Rates:
    worlds = np.asarray(null, float), np.asarray(other, float)
    for name, values in zip(("null", "other"), worlds, strict=True):
        if values.ndim != 1 or values.size < LEAST:
            raise Refusal(f"{name} must be a list of at least {LEAST} scores, got shape {list(values.shape)}")
        if not np.isfinite(values).all():
            raise Refusal(f"{name} must be finite, got {values[~np.isfinite(values)][0]}")
    return worlds
