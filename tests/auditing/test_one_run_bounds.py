from functools import cache

import numpy as np
import pytest
from cases import sparing

from fedprivjax.auditing.one_run_bounds import epsilon_lower, expected_guesses, mu_lower, one_run_bounds, right_guesses
from fedprivjax.privacy import gdp

DELTA, CANARIES = 1e-5, 1000


def runs(mu, times, canaries=CANARIES, seed=3):
    """Return scores and coins of runs with independent canaries: N(0, 1) if excluded, N(μ, 1) if included."""
    rng = np.random.default_rng(seed)
    coins = rng.random((times, canaries)) < 0.5
    return zip(mu * coins + rng.normal(size=coins.shape), coins, strict=True)


@cache
def chosen(mu, delta=None, level=0.05):
    return expected_guesses(mu, CANARIES, delta, level)


def found_epsilons(claim, times, level=0.05, true=None):
    """Return the ε of the bounds on ε and on μ, each with the number of guesses chosen from the claim."""
    mu = gdp.mu(claim, DELTA)
    by_epsilon, by_mu = chosen(mu, DELTA, level), chosen(mu, level=level)
    drawn = list(runs(mu if true is None else true, times))
    right = np.array([[right_guesses(*run, guesses) for guesses in (by_epsilon, by_mu)] for run in drawn])
    known = {int(k): epsilon_lower(int(k), by_epsilon, CANARIES, DELTA, level) for k in np.unique(right[:, 0])}
    epsilons = np.array([known[int(k)] for k in right[:, 0]])
    return epsilons, gdp.epsilon(mu_lower(right[:, 1], by_mu, CANARIES, level), DELTA)


@pytest.mark.parametrize("claim", sparing([2.0, 4.0], []))
def test_a_thousand_canaries_give_the_claim_back(claim):
    for bounds in found_epsilons(claim, times=40):
        assert 0.3 * claim <= np.median(bounds) <= claim


@pytest.mark.slow
@pytest.mark.parametrize("claim", [0.5, 2.0, 4.0])
def test_normal_canaries_raise_no_more_false_alarms_than_the_level_allows(claim):
    for bounds in found_epsilons(claim, times=400):
        assert (bounds > claim).sum() <= 20


@pytest.mark.slow
def test_a_claim_far_below_the_truth_is_caught():
    claim = 2.0
    _, bounds = found_epsilons(claim, times=20, level=1e-4, true=4 * gdp.mu(claim, DELTA))
    assert (bounds > claim).all()


@pytest.mark.slow
def test_guesses_without_knowledge_show_nothing():
    epsilons, by_mu = found_epsilons(2.0, times=400, true=0.0)
    assert (epsilons > 0).mean() <= 0.05
    assert (by_mu > 0).mean() <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("claim", [2.0, 4.0])
def test_the_expected_number_of_guesses_serves_nearly_best(claim):
    mu = gdp.mu(claim, DELTA)
    drawn = list(runs(mu, 200))

    def mean(guesses):
        return np.mean(mu_lower([right_guesses(*run, guesses) for run in drawn], guesses, CANARIES))

    best = max(mean(guesses) for guesses in (20, 50, 100, 150, 200, 300, 500))
    assert mean(chosen(mu)) >= 0.95 * best


def test_guesses_are_even_and_fit():
    for canaries in (2, 3, 11, 5000):
        guesses = expected_guesses(1.0, canaries)
        assert guesses % 2 == 0
        assert 2 <= guesses <= canaries


@pytest.mark.parametrize("guesses", [1, 4, 7, 9])
def test_right_guesses_are_counted(guesses):
    rng = np.random.default_rng(guesses)
    scores, coins = rng.normal(size=9), rng.random(9) < 0.5
    ranked = sorted(range(9), key=lambda k: scores[k])
    said_out, said_in = ranked[: guesses // 2], ranked[9 - (guesses + 1) // 2 :]
    expected = sum(bool(coins[k]) for k in said_in) + sum(not coins[k] for k in said_out)
    assert right_guesses(scores, coins, guesses) == expected


def test_ties_are_broken_without_the_coins():
    coins = np.random.default_rng(0).random(400) < 0.5
    assert right_guesses(np.zeros(400), coins, 200) == coins[-100:].sum() + (~coins[:100]).sum()


def test_a_result_prints_its_settings():
    scores, coins = next(iter(runs(2.0, 1)))
    found = one_run_bounds(scores, coins, 100, DELTA, 0.1)
    assert (found.guesses, found.canaries, found.level, found.delta) == (100, CANARIES, 0.1, DELTA)
    assert found.right == right_guesses(scores, coins, 100)
    assert found.mu_lower == mu_lower(found.right, 100, CANARIES, 0.1)
    assert found.epsilon_lower == epsilon_lower(found.right, 100, CANARIES, DELTA, 0.1)
    assert found.gdp_epsilon_lower == gdp.epsilon(found.mu_lower, DELTA)


TWO, COINS = [0.0, 1.0], [True, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: right_guesses([0.0, np.nan], COINS, 1), "scores must be finite, got nan"),
        (lambda: right_guesses([[0.0]], [[True]], 1), r"scores must be a list of numbers, got shape \[1, 1\]"),
        (lambda: right_guesses(TWO, [1, 0], 1), r"included must be 2 flags, got int64 of shape \[2\]"),
        (lambda: right_guesses(TWO, [True], 1), r"included must be 2 flags, got bool of shape \[1\]"),
        (lambda: right_guesses(TWO, COINS, 3), "guesses must be between 1 and 2, got 3"),
        (lambda: one_run_bounds(TWO, COINS, 2, 0.0), "delta must be between 0 and 1, got 0.0"),
        (lambda: one_run_bounds(TWO, COINS, 2, DELTA, 1.0), "level must be between 0 and 1, got 1.0"),
        (lambda: expected_guesses(0.0, 100), "mu must be positive and finite, got 0.0"),
        (lambda: expected_guesses(np.inf, 100), "mu must be positive and finite, got inf"),
        (lambda: expected_guesses(1.0, 1), "canaries must be at least 2, got 1"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
