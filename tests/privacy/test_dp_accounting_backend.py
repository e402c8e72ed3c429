import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_epsilon, gaussian_event

DELTA = 1e-5
RELEASES = 24
MULTIPLIERS = {
    "one": np.array([1.0]),
    "equal": np.full(RELEASES, np.sqrt(RELEASES) / 4),
    "growing": np.sqrt((1 + np.log(RELEASES)) * np.arange(1.0, RELEASES + 1)) / 8,
    "uneven": np.array([0.4, 3.0, 3.0, 11.0, 0.9]),
    "many": np.full(1200, np.sqrt(1200) / 12),
    "strong": np.full(4, 40.0),
}


def excess(multipliers, mu):
    """The accountant's ε of releases, divided by that of μ-GDP."""
    return gaussian_epsilon(multipliers, DELTA) / gdp.epsilon(mu, DELTA)


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_tight_accountant_agrees_with_gdp(name):
    exact = gdp.epsilon(gdp.compose(1 / MULTIPLIERS[name]), DELTA)
    assert gaussian_epsilon(MULTIPLIERS[name], DELTA) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_renyi_accountant_bounds_gdp_from_above(name):
    exact = gdp.epsilon(gdp.compose(1 / MULTIPLIERS[name]), DELTA)
    assert exact <= gaussian_epsilon(MULTIPLIERS[name], DELTA, "rdp") <= 1.4 * exact + 0.05


@pytest.mark.parametrize("mu", [0.5, 4.0, 8.0])
@pytest.mark.parametrize("schedule", ["uniform", "proportional"])
def test_noise_of_the_theorem_matches_the_accountant_at_twice_the_increment(mu, schedule):
    """σ_k from `4S²·n/μ²` (uniform) or `4S²·(1+ln n)·k/μ²`; a replaced sample moves every running sum by 2S."""
    bound, sent = 118.1, 12
    growth = np.full(sent, float(sent)) if schedule == "uniform" else (1 + np.log(sent)) * np.arange(1.0, sent + 1)
    sigma = np.sqrt(4 * bound**2 * growth / mu**2)
    spent = gdp.compose(2 * bound / sigma)
    assert spent == pytest.approx(mu) if schedule == "uniform" else spent < mu
    assert excess(sigma / (2 * bound), spent) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("mu", [0.5, 4.0])
def test_sensitivity_without_the_factor_two_exceeds_the_claim(mu):
    bound, sent = 3.0, 10
    too_little = np.full(sent, bound * np.sqrt(sent) / mu)  # noise calibrated to S where one sample moves 2S
    assert excess(too_little / (2 * bound), mu) > 1.9
    claimed_half = gdp.compose(bound / (2 * too_little))  # of a guarantee at half the sensitivity
    assert excess(too_little / bound, claimed_half) > 1.9


def test_equal_multipliers_are_merged():
    one, two = (SelfComposedDpEvent(GaussianDpEvent(sigma), count) for sigma, count in ((1.0, 1), (2.0, 2)))
    assert gaussian_event([2.0, 1.0, 2.0]) == ComposedDpEvent([one, two])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_epsilon([], DELTA), r"noise_multipliers must be a non-empty list, got shape \[0\]"),
        (lambda: gaussian_epsilon([1.0, 0.0], DELTA), "noise_multipliers must be positive and finite, got 0.0"),
        (lambda: gaussian_epsilon([np.nan], DELTA), "noise_multipliers must be positive and finite, got nan"),
        (lambda: gaussian_epsilon([1.0], 1.5), r"delta must be inside \(0, 1\), got 1.5"),
        (lambda: gaussian_epsilon([1.0], DELTA, "plf"), "unknown accountant 'plf', did you mean 'pld'.*"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
