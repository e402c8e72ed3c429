import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedprivjax import Refusal
from fedprivjax.privacy import gdp

DELTA = 1e-5
MUS = np.geomspace(1e-4, 1e3, 57)


def hockey_stick(epsilon, mu):
    """∫ max(p(x) − e^ε·q(x), 0) dx for p = N(mu, 1), q = N(0, 1), by quadrature."""
    threshold = epsilon / mu + mu / 2  # the point with p = e^ε·q
    top = max(threshold, mu) + 12.0

    def excess(x):
        return norm.pdf(x - mu) * -np.expm1(epsilon + mu**2 / 2 - mu * x)

    return quad(excess, threshold, top, epsabs=1e-16, epsrel=1e-11, limit=400, points=[max(threshold, mu)])[0]


@pytest.mark.parametrize("mu", [0.02, 0.3, 1.0, 2.5, 6.0, 15.0])
@pytest.mark.parametrize("shift", [0.0, 0.7, 2.0, 4.0])
def test_delta_is_the_hockey_stick_divergence_of_two_gaussians(mu, shift):
    epsilon = mu**2 / 2 + shift * mu
    np.testing.assert_allclose(gdp.delta(epsilon, mu), hockey_stick(epsilon, mu), rtol=1e-8)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 2.0), (1, 4.4), (2, 10.0), (4, 24.4), (8, 65.3), (12, 122.3)])
def test_known_epsilons(mu, epsilon):
    assert gdp.epsilon(mu, DELTA) == pytest.approx(epsilon, abs=0.051)


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.1, 0.9])
def test_epsilon_inverts_delta(delta):
    epsilon = gdp.epsilon(MUS, delta)
    reached = gdp.delta(epsilon, MUS)
    zero = epsilon == 0
    assert (reached[zero] <= delta).all()
    np.testing.assert_allclose(reached[~zero], delta, rtol=1e-6)


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.1, 0.9])
def test_mu_inverts_epsilon(delta):
    epsilon = gdp.epsilon(MUS, delta)
    positive = epsilon > 1e-9
    np.testing.assert_allclose(gdp.mu(epsilon, delta)[positive], MUS[positive], rtol=1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.5, 30.0, 1e5])
def test_mu_is_the_largest_that_satisfies_the_pair(epsilon):
    mu = gdp.mu(epsilon, DELTA)
    assert gdp.delta(epsilon, mu * 0.999999) < DELTA < gdp.delta(epsilon, mu * 1.000001)


def test_monotone_in_every_argument():
    assert (np.diff(gdp.epsilon(MUS, DELTA)) >= 0).all()
    assert (np.diff(gdp.epsilon(2.0, np.geomspace(1e-12, 0.9, 40))) <= 0).all()
    assert (np.diff(gdp.delta(1.0, MUS)) >= 0).all()
    assert (np.diff(gdp.delta(np.linspace(0, 30, 50), 2.0)) < 0).all()


def test_extremes():
    assert gdp.epsilon(0.0, DELTA) == 0.0
    assert gdp.epsilon(np.inf, DELTA) == np.inf
    assert gdp.epsilon(1e-6, DELTA) == 0.0  # δ(0) = 4e-7 is met already
    assert gdp.delta(3.0, 0.0) == 0.0
    assert gdp.delta(3.0, np.inf) == 1.0
    assert gdp.delta(np.inf, 3.0) == 0.0
    assert gdp.delta(1.0, [1e-310, 1e-200, 1e200, 1e308]).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert gdp.mu(np.inf, DELTA) == np.inf
    assert gdp.paper_epsilon(np.inf, DELTA) == np.inf


@pytest.mark.parametrize("mu", [1e-4, 1e-3, 30.0, 1e3])
def test_inverse_at_the_ends_of_the_range_against_quadrature(mu):
    epsilon = gdp.epsilon(mu, DELTA)
    assert 0 < epsilon < np.inf
    assert hockey_stick(epsilon, mu) == pytest.approx(DELTA, rel=1e-6)


def test_epsilon_zero_is_total_variation():
    np.testing.assert_allclose(gdp.delta(0.0, MUS), 2 * norm.cdf(MUS / 2) - 1, rtol=1e-9)


def test_broadcasts_and_returns_plain_scalars():
    assert type(gdp.epsilon(1, DELTA)) is float
    assert type(gdp.mu(1, DELTA)) is float
    table = gdp.epsilon(MUS[:, None], [1e-6, 1e-5])
    assert table.shape == (57, 2)
    assert table[30, 1] == gdp.epsilon(MUS[30], 1e-5)


def test_looser_conversion_is_never_below_the_exact_one():
    assert (gdp.paper_epsilon(MUS, DELTA) > gdp.epsilon(MUS, DELTA)).all()
    assert gdp.paper_epsilon(4.0, DELTA) == pytest.approx(8 + 4 * np.sqrt(2 * np.log(1e5)))


def test_renyi_divergence_of_two_gaussians():
    mu, order = 1.3, 4.0
    moment = quad(lambda x: norm.pdf(x) * np.exp(order * (mu * x - mu**2 / 2)), -12, 20)[0]
    assert gdp.rdp(mu, order) == pytest.approx(np.log(moment) / (order - 1), rel=1e-8)
    assert gdp.zcdp(mu) == pytest.approx(gdp.rdp(mu, order) / order)


def test_composition():
    assert gdp.compose([]) == 0.0
    assert gdp.compose([0.0, 0.0]) == 0.0
    assert gdp.compose([1.0, np.inf]) == np.inf
    assert gdp.compose(np.full(400, 0.1)) == pytest.approx(2.0)
    assert gdp.compose([3e-200, 4e-200]) == pytest.approx(5e-200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gdp.epsilon(-1.0, DELTA), "mu must be at least 0, got -1.0"),
        (lambda: gdp.epsilon([1.0, np.nan], DELTA), "mu must be at least 0, got nan"),
        (lambda: gdp.epsilon(1.0, 0.0), r"delta must be inside \(0, 1\), got 0.0"),
        (lambda: gdp.mu(1.0, 1.0), r"delta must be inside \(0, 1\), got 1.0"),
        (lambda: gdp.paper_epsilon(1.0, np.nan), r"delta must be inside \(0, 1\), got nan"),
        (lambda: gdp.mu(-0.1, DELTA), "epsilon must be at least 0, got -0.1"),
        (lambda: gdp.delta(-2.0, 1.0), "epsilon must be at least 0, got -2.0"),
        (lambda: gdp.rdp(1.0, 1.0), "order must be above 1, got 1.0"),
        (lambda: gdp.compose([1.0, -3.0]), "mus must be at least 0, got -3.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()


def test_a_missing_delta_is_named():
    with pytest.raises(Refusal, match=r"^delta must be given, as in gdp\.mu\(2\.0, 1e-5\), got none"):
        gdp.mu(2.0)
