import numpy as np
import pytest
from cases import sparing

from fedprivjax.privacy import gdp
from fedprivjax.privacy.audit import audit

DELTA = 1e-5


def repeated(mu, samples, times, confidence=0.95):
    rng = np.random.default_rng(7)
    worlds = rng.normal(size=(times, 2, samples)) + mu * np.array([0.0, 1.0])[:, None]
    return [audit(*pair, delta=DELTA, confidence=confidence) for pair in worlds]


@pytest.mark.parametrize("mu", sparing([0.5, 1.0, 4.0], [1.0]))
def test_bounds_hold_as_often_as_they_say(mu):
    results = repeated(mu, samples=1000, times=200)
    assert np.mean([result.mu_lower <= mu for result in results]) >= 0.95
    assert np.mean([result.epsilon_lower <= gdp.epsilon(mu, DELTA) for result in results]) >= 0.95


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_bound_on_mu_has_power(mu):
    for result in repeated(mu, samples=20_000, times=5):
        assert 0.8 * mu <= result.mu_lower <= mu
        assert result.gdp_epsilon_lower == gdp.epsilon(result.mu_lower, DELTA)


@pytest.mark.parametrize(("mu", "least"), [(2.0, 2.5), (4.0, 6.0), (8.0, 7.0)])
def test_bound_on_epsilon_has_power(mu, least):
    for result in repeated(mu, samples=20_000, times=5):
        assert least <= result.epsilon_lower <= gdp.epsilon(mu, DELTA)


def test_a_claim_of_half_the_true_mu_is_caught():
    """Noise calibrated to S where one sample moves 2S: the claimed μ is half the real one."""
    assert all(result.mu_lower > 1.0 for result in repeated(2.0, samples=2000, times=20))


def test_identical_worlds_show_nothing():
    results = repeated(0.0, samples=1000, times=200)
    assert np.mean([result.mu_lower > 0 for result in results]) <= 0.05
    assert np.mean([result.epsilon_lower > 0 for result in results]) <= 0.05
    assert max(result.mu_lower for result in results) < 0.2


def test_direction_does_not_matter():
    rng = np.random.default_rng(3)
    low, high = rng.normal(0, 1, 4000), rng.normal(2, 1, 4000)
    for pair in ((low, high), (high, low), (-low, -high)):
        result = audit(*pair, delta=DELTA)
        assert 1.6 < result.mu_lower < 2.0
        assert 2.0 < result.epsilon_lower < 10.0


def test_pure_randomised_response():
    """P(1) is e^ε/(1+e^ε) in one world and 1/(1+e^ε) in the other; the statistic has two values only."""
    rng = np.random.default_rng(11)
    epsilon = 2.0
    rate = 1 / (1 + np.exp(epsilon))
    result = audit(rng.random(20_000) < rate, rng.random(20_000) < 1 - rate, delta=DELTA)
    assert 1.85 < result.epsilon_lower < epsilon


def test_delta_is_given_its_due():
    """With probability 0.3 the output names its world, else nothing: (0, 0.3)-DP, but no better."""
    told = (np.random.default_rng(13).random(20_000) < 0.3).astype(float)
    assert audit(np.zeros(20_000), told, delta=0.3).epsilon_lower == 0.0
    assert audit(np.zeros(20_000), told, delta=0.1).epsilon_lower > 5


def test_a_constant_statistic_that_gives_the_world_away():
    result = audit(np.zeros(2000), np.ones(2000), delta=DELTA)
    assert result.epsilon_lower > 5
    assert result.mu_lower > 5


def test_more_confidence_gives_a_lower_bound():
    loose, strict = (repeated(1.0, 2000, 1, confidence)[0] for confidence in (0.9, 0.999))
    assert strict.mu_lower < loose.mu_lower
    assert strict.epsilon_lower < loose.epsilon_lower


def test_unequal_sample_sizes():
    rng = np.random.default_rng(5)
    result = audit(rng.normal(0, 1, 3001), rng.normal(3, 1, 8000), delta=DELTA)
    assert result.samples == (1500, 4000)
    assert 2.4 < result.mu_lower < 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0] * 3, [1.0] * 9, DELTA), r"outputs must be a list of at least 4 samples, got shape \[3\]"),
        (
            ([1.0] * 9, [[1.0]] * 9, DELTA),
            r"outputs_neighbour must be a list of at least 4 samples, got shape \[9, 1\]",
        ),
        (([1.0] * 9, [1.0, np.nan, 1.0, 1.0], DELTA), "outputs_neighbour must be finite, got nan"),
        (([1.0] * 9, [1.0] * 9, 0.0), r"delta must be inside \(0, 1\), got 0.0"),
        (([1.0] * 9, [1.0] * 9, DELTA, 1.0), r"confidence must be inside \(0, 1\), got 1.0"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        audit(*arguments)
