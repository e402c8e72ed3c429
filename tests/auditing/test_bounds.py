import dataclasses

import numpy as np
import pytest
from cases import sparing
from scipy.stats import binom, norm

from fedprivjax.auditing.bounds import (
    epsilon_lower,
    expected_threshold,
    fitted,
    lower_bounds,
    mu_lower,
    rate_upper,
    sampled_threshold,
)
from fedprivjax.privacy import gdp

DELTA = 1e-5


def worlds(mu, runs, times, seed=7):
    """Return normally distributed scores, [times, 2, runs]."""
    drawn = np.random.default_rng(seed).normal(size=(times, 2, runs))
    drawn[:, 1] += mu
    return drawn


def audits(claimed, runs, times, level=0.05, true=None, seed=7):
    """Return audits of runs with the true μ, with thresholds from the claimed μ."""
    threshold = expected_threshold(claimed, DELTA, runs, level)
    drawn = worlds(claimed if true is None else true, runs, times, seed)
    return [lower_bounds(*pair, threshold, claimed / 2, DELTA, level) for pair in drawn]


def repeated(mu, runs, times, level=0.05):
    return [fitted(*pair, delta=DELTA, level=level) for pair in worlds(mu, runs, times)]


# ---- one rate


@pytest.mark.parametrize("errors", [0, 1, 3, 40, 199])
@pytest.mark.parametrize("level", [0.2, 0.025, 1e-6])
def test_so_few_errors_are_as_rare_as_the_level_at_the_bound(errors, level):
    assert binom.cdf(errors, 200, rate_upper(errors, 200, level)) == pytest.approx(level, rel=1e-9)


def test_a_rate_is_at_most_one_and_grows_with_its_errors():
    rates = rate_upper(np.arange(11), 10, 0.05)
    assert rates[-1] == 1.0
    assert (np.diff(rates) > 0).all()


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.7])
def test_a_rate_has_its_coverage(rate):
    """Exact probability of the numbers of errors whose bound is below the true rate."""
    errors = np.arange(1001)
    assert binom.pmf(errors, 1000, rate)[rate_upper(errors, 1000, 0.05) < rate].sum() <= 0.05


# ---- thresholds fixed beforehand


@pytest.mark.parametrize(("claim", "least"), sparing([(1.0, 0.47), (2.0, 0.54), (4.0, 0.56)], [(2.0, 0.54)]))
def test_normal_scores_give_the_claim_back(claim, least):
    found = audits(gdp.mu(claim, DELTA), runs=50_000, times=20)
    assert least * claim <= np.median([result.epsilon_lower for result in found]) <= claim
    assert 0.85 * claim <= np.median([result.gdp_epsilon_lower for result in found]) <= claim


@pytest.mark.parametrize("claim", sparing([1.0, 2.0, 4.0], [2.0]))
def test_no_more_false_alarms_than_the_level_allows(claim):
    mu = gdp.mu(claim, DELTA)
    found = audits(mu, runs=10_000, times=200)
    assert sum(result.epsilon_lower > claim for result in found) <= 18
    assert sum(result.mu_lower > mu for result in found) <= 4
    verdicts = audits(mu, runs=10_000, times=200, level=1e-4)
    assert not any(result.epsilon_lower > claim or result.mu_lower > mu for result in verdicts)


def test_the_levels_are_no_wider_than_they_must_be():
    """A bound that never fails would pass the test above too. At a large level some bounds exceed the truth."""
    mu = gdp.mu(2.0, DELTA)
    found = audits(mu, runs=2000, times=200, level=0.8)
    assert 5 <= sum(result.mu_lower > mu for result in found) <= 160


@pytest.mark.parametrize("mu", sparing([0.0, 0.3, 1.0, 3.0], [1.0]))
def test_bounds_fail_less_often_than_their_level_for_any_claim(mu):
    """Exact, over all numbers of errors. The claim that set the threshold may be wrong."""
    runs, level = 20, 0.1
    errors = np.arange(runs + 1)
    for claimed in (0.1, 1.0, 4.0):
        threshold = expected_threshold(claimed, 0.01, runs, level)
        rates = norm.sf(threshold), norm.cdf(threshold - mu)
        chances = np.outer(*(binom.pmf(errors, runs, rate) for rate in rates))
        scores = [np.where(errors[:-1] < k, threshold + 1.0, threshold - 1.0) for k in errors]
        pairs = [(scores[k], scores[runs - j]) for k in errors for j in errors]
        found = np.array([lower_bounds(*pair, threshold, threshold, 0.01, level).epsilon_lower for pair in pairs])
        wrong = found.reshape(chances.shape) > gdp.epsilon(mu, 0.01)
        assert chances[wrong].sum() <= level


@pytest.mark.parametrize("claimed", [0.5, 1.0])
def test_a_claim_of_half_the_true_mu_is_caught(claimed):
    """Noise for sensitivity S although one sample has 2S: the claimed μ is half the true one."""
    found = audits(claimed, runs=50_000, times=20, level=1e-4, true=2 * claimed)
    assert all(result.mu_lower > claimed for result in found)
    assert all(result.epsilon_lower > 0.9 * gdp.epsilon(claimed, DELTA) for result in found)


def test_identical_worlds_show_nothing():
    found = audits(1.0, runs=1000, times=200, true=0.0)
    assert sum(result.epsilon_lower > 0 for result in found) <= 10
    assert sum(result.mu_lower > 0 for result in found) <= 10


def best_of_all_thresholds(null, other, level):
    """Invalid bound on μ: the largest |Φ⁻¹(1 − a) − Φ⁻¹(b)| of all thresholds, each at its fraction of the level.

    If a + b > 1, the absolute value treats a and b as bounds on the mirrored test, with rates 1 − a and 1 − b. That
    test needs lower bounds, and a and b are upper bounds. jax-privacy 2.0.0 does this (`epsilon_from_gdp`): for equal
    distributions of 500, 5000 and 50 000 normal scores it returns ε = 4.0, 1.7 and 2.6.
    """
    thresholds, runs = np.sort(np.concatenate([null, other])), null.size
    share = level / (2 * thresholds.size)
    positive = rate_upper(runs - np.searchsorted(np.sort(null), thresholds, side="right"), runs, share)
    negative = rate_upper(np.searchsorted(np.sort(other), thresholds, side="right"), runs, share)
    inside = np.maximum(positive, negative) < 1 - DELTA
    return np.abs(-norm.ppf(positive[inside]) - norm.ppf(negative[inside])).max()


@pytest.mark.parametrize("runs", [500, 5000])
def test_upper_bounds_on_both_rates_say_nothing_of_the_mirrored_test(runs):
    """The largest absolute value over all thresholds is not a bound: it finds ε > 1 for identical distributions."""
    for pair in worlds(0.0, runs, 5):
        assert gdp.epsilon(best_of_all_thresholds(*pair, 0.05), DELTA) > 1.0
        assert fitted(*pair, DELTA, 0.01).gdp_epsilon_lower == 0.0
        assert mu_lower(*pair, 0.5, 0.01) == 0.0
        assert epsilon_lower(*pair, 2.0, DELTA, 0.01) == 0.0


@pytest.mark.parametrize("claim", sparing([1.0, 4.0], [1.0]))
def test_the_expected_threshold_is_where_the_mean_bound_is_largest(claim):
    runs, mu = 10_000, gdp.mu(claim, DELTA)
    rng = np.random.default_rng(1)

    def mean(threshold):
        a = rate_upper(rng.binomial(runs, norm.sf(threshold), 4000), runs, 0.025)
        b = rate_upper(rng.binomial(runs, norm.cdf(threshold - mu), 4000), runs, 0.025)
        return np.log(np.maximum(1 - DELTA - b, 1e-9) / a).mean()

    best = max(mean(threshold) for threshold in np.arange(0, 5, 0.1))
    assert mean(expected_threshold(mu, DELTA, runs)) >= best - 0.02 * claim


def test_the_other_tail_serves_as_well():
    """The threshold is mirrored at μ/2, so that the other error is the rare one."""
    mu = gdp.mu(2.0, DELTA)
    threshold = expected_threshold(mu, DELTA, 50_000)
    high, low = (
        np.median([epsilon_lower(*pair, at, DELTA) for pair in worlds(mu, 50_000, 20)])
        for at in (threshold, mu - threshold)
    )
    assert low == pytest.approx(high, rel=0.05)


def laplace(rng, shift, size):
    return rng.laplace(size=size) + shift


def test_a_law_that_is_not_normal_gives_its_threshold_by_samples():
    """Laplace noise of scale 1 and sensitivity 2 has ε = 2, which every threshold in a tail achieves."""
    rng = np.random.default_rng(17)
    claimed = laplace(rng, 0, 50_000), laplace(rng, 2, 50_000)
    threshold = sampled_threshold(*claimed, DELTA, 10_000)
    found = [epsilon_lower(laplace(rng, 0, 10_000), laplace(rng, 2, 10_000), threshold, DELTA, 0.05) for _ in range(20)]
    assert 1.8 < np.median(found) < 2.0
    assert sum(bound > 2.0 for bound in found) <= 2


def test_samples_of_a_normal_law_choose_nearly_as_well_as_the_law():
    mu, runs = gdp.mu(2.0, DELTA), 10_000
    pairs = worlds(mu, runs, 20)
    by_law = expected_threshold(mu, DELTA, runs)
    by_samples = sampled_threshold(*worlds(mu, 100_000, 1, seed=8)[0], DELTA, runs)
    law, samples = (np.median([epsilon_lower(*p, at, DELTA) for p in pairs]) for at in (by_law, by_samples))
    assert samples >= 0.95 * law


@pytest.mark.slow
def test_a_threshold_beforehand_is_worth_more_than_one_fitted():
    """Half of the same runs used for fitting loses some hundredths of the claim."""
    mu = gdp.mu(2.0, DELTA)
    pairs = worlds(mu, 50_000, 20)
    beforehand = np.median([result.epsilon_lower for result in audits(mu, 50_000, 20)])
    assert beforehand - np.median([fitted(*pair, DELTA).epsilon_lower for pair in pairs]) > 0.05 * 2.0


def test_delta_enters_the_bound():
    """With probability 0.3 the output reveals its dataset, else nothing: (0, 0.3)-DP and not better."""
    told = (np.random.default_rng(13).random(20_000) < 0.3).astype(float)
    assert fitted(np.zeros(20_000), told, delta=0.3).epsilon_lower == 0.0
    assert epsilon_lower(np.zeros(20_000), told, 0.5, delta=0.31) == 0.0
    assert epsilon_lower(np.zeros(20_000), told, 0.5, delta=0.1) > 5


def test_results_are_frozen_and_readable():
    result = audits(1.0, runs=500, times=1)[0]
    assert (result.delta, result.level, result.runs) == (DELTA, 0.05, (500, 500))
    assert result.gdp_epsilon_lower == gdp.epsilon(result.mu_lower, DELTA)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.level = 0.5


# ---- thresholds fitted on half of the runs


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.0, 4.0])
def test_bounds_have_their_coverage(mu):
    results = repeated(mu, runs=1000, times=200)
    assert np.mean([result.mu_lower <= mu for result in results]) >= 0.95
    assert np.mean([result.epsilon_lower <= gdp.epsilon(mu, DELTA) for result in results]) >= 0.95


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_bound_on_mu_has_power(mu):
    for result in repeated(mu, runs=20_000, times=5):
        assert 0.8 * mu <= result.mu_lower <= mu
        assert result.gdp_epsilon_lower == gdp.epsilon(result.mu_lower, DELTA)


@pytest.mark.parametrize(("mu", "least"), [(2.0, 2.5), (4.0, 6.0), (8.0, 7.0)])
def test_bound_on_epsilon_has_power(mu, least):
    for result in repeated(mu, runs=20_000, times=5):
        assert least <= result.epsilon_lower <= gdp.epsilon(mu, DELTA)


@pytest.mark.slow
def test_nothing_is_fitted_to_identical_worlds():
    results = repeated(0.0, runs=1000, times=200)
    assert np.mean([result.mu_lower > 0 for result in results]) <= 0.05
    assert np.mean([result.epsilon_lower > 0 for result in results]) <= 0.05
    assert max(result.mu_lower for result in results) < 0.2


def test_direction_does_not_matter():
    rng = np.random.default_rng(3)
    low, high = rng.normal(0, 1, 4000), rng.normal(2, 1, 4000)
    for pair in ((low, high), (high, low), (-low, -high)):
        result = fitted(*pair, delta=DELTA)
        assert 1.6 < result.mu_lower < 2.0
        assert 2.0 < result.epsilon_lower < 10.0


def test_pure_randomised_response():
    """P(1) is e^ε/(1+e^ε) for one dataset and 1/(1+e^ε) for the other. The statistic has two values only."""
    rng = np.random.default_rng(11)
    epsilon = 2.0
    rate = 1 / (1 + np.exp(epsilon))
    pair = rng.random(20_000) < rate, rng.random(20_000) < 1 - rate
    assert 1.85 < fitted(*pair, delta=DELTA).epsilon_lower < epsilon
    assert 1.85 < epsilon_lower(*pair, 0.5, delta=DELTA) < epsilon


def test_a_constant_statistic_that_reveals_the_dataset():
    result = fitted(np.zeros(2000), np.ones(2000), delta=DELTA)
    assert result.epsilon_lower > 5
    assert result.mu_lower > 5


def test_more_confidence_gives_a_lower_bound():
    loose, strict = (repeated(1.0, 2000, 1, level)[0] for level in (0.1, 0.001))
    assert strict.mu_lower < loose.mu_lower
    assert strict.epsilon_lower < loose.epsilon_lower


def test_unequal_numbers_of_runs():
    rng = np.random.default_rng(5)
    pair = rng.normal(0, 1, 3001), rng.normal(3, 1, 8000)
    result = fitted(*pair, delta=DELTA)
    assert result.runs == (1500, 4000)
    assert 2.4 < result.mu_lower < 3.0
    assert 2.4 < mu_lower(*pair, 1.5) < 3.0


# ---- refusals

FOUR = [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fitted([1.0] * 3, FOUR, DELTA), r"null must be a list of at least 4 scores, got shape \[3\]"),
        (
            lambda: mu_lower(FOUR, [[1.0]] * 9, 0.5),
            r"other must be a list of at least 4 scores, got shape \[9, 1\]",
        ),
        (lambda: epsilon_lower(FOUR, [1.0, np.nan, 1.0, 1.0], 0.5, DELTA), "other must be finite, got nan"),
        (lambda: epsilon_lower([1.0, 1.0, 1.0, -np.inf], FOUR, 0.5, DELTA), "null must be finite, got -inf"),
        (lambda: epsilon_lower(FOUR, FOUR, np.nan, DELTA), "threshold must be finite, got nan"),
        (lambda: epsilon_lower(FOUR, FOUR, None, DELTA), "threshold must be a number, got None"),
        (lambda: fitted(FOUR, FOUR, 0.0), "delta must be between 0 and 1, got 0.0"),
        (lambda: epsilon_lower(FOUR, FOUR, 0.5, 1.0), "delta must be between 0 and 1, got 1.0"),
        (lambda: expected_threshold(1.0, np.nan, 100), "delta must be between 0 and 1, got nan"),
        (lambda: mu_lower(FOUR, FOUR, 0.5, 1.0), "level must be between 0 and 1, got 1.0"),
        (lambda: fitted(FOUR, FOUR, DELTA, 0.0), "level must be between 0 and 1, got 0.0"),
        (lambda: expected_threshold(1.0, DELTA, 3), "runs must be at least 4, got 3"),
        (lambda: sampled_threshold(FOUR, FOUR, DELTA, 10.5), "runs must be an integer, got 10.5"),
        (lambda: expected_threshold(np.inf, DELTA, 100), "mu must be finite and at least 0, got inf"),
        (lambda: expected_threshold(-1.0, DELTA, 100), "mu must be finite and at least 0, got -1.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
