"""Exponents of the scanned explicit bounds equal the theorems', without the terms that are due to sampling."""

import numpy as np
import pytest

from fedprivjax.theory import cheu

CLOSE = 0.15
CENTRAL = cheu.gaussian_noise_constant(1.0, 1e-6, 10)  # C of d = 10, ε = 1
ONE_PASS = {"lipschitz": 1.0, "sampling": False}
STRONG = {"diameter": 1.0, "strong_convexity": 0.5, **ONE_PASS}


def slope(values, bound):
    return np.polyfit(np.log(values), np.log([bound(value) for value in values]), 1)[0]


def smoothed(users, noise):
    return cheu.smoothed_scan(users=users, distance=1.0, noise=noise, **ONE_PASS).bound


def smooth(users, noise):
    return cheu.agd_scan(users=users, distance=1.0, smoothness=1.0, noise=noise, **ONE_PASS).bound


def strong(users, noise):
    return cheu.strong_phases(users=users, noise=noise, **STRONG)[-1].bound


def strong_smooth(users, noise):
    phases = cheu.strong_phase_count(users, shrinking=0.6)
    return cheu.strong_phases(users=users, noise=noise, smoothness=1.0, phases=phases, **STRONG)[-1].bound


def few_phases(users, noise):
    return cheu.strong_phases(users=users, noise=noise, smoothness=1.0, **STRONG)[-1].bound


def sgd(users, noise):
    return cheu.sgd_scan(users=users, distance=1.0, lipschitz=1.0, noise=noise).bound


BOUNDS = {"convex": smoothed, "smooth": smooth, "strong": strong, "strong-smooth": strong_smooth}


@pytest.mark.parametrize(("loss", "least", "most"), [("convex", 3, 6), ("smooth", 3, 6), ("strong", 5, 9)])
def test_in_the_users(loss, least, most):
    users = [10**k for k in range(least, most + 1)]
    fitted = slope(users, lambda n: BOUNDS[loss](n, CENTRAL))
    assert fitted == pytest.approx(cheu.TABLE_1[loss, "sequential"].users, abs=CLOSE)


def test_in_the_users_for_smooth_and_strongly_convex_losses():
    """With ⌈log₂ log₂ n⌉ phases, the slope is near −2 only over n in 10⁵..10¹¹; with five it is −2(1 − 0.6⁵)."""
    users = [10**k for k in range(5, 10)]
    assert slope(users, lambda n: strong_smooth(n, CENTRAL)) == pytest.approx(-2, abs=CLOSE)
    assert slope(users, lambda n: few_phases(n, CENTRAL)) == pytest.approx(-2 * (1 - 0.6**5), abs=0.03)
    assert slope([*users, 10**10, 10**11], lambda n: few_phases(n, CENTRAL)) == pytest.approx(-2, abs=CLOSE)


def test_the_first_gap_alone_is_too_shallow():
    """If a phase ignores the bound of the last phase, it starts from L·D_j, and a quarter of the exponent is lost."""

    def forgetful(users):
        distance = 1.0
        for _ in range(cheu.strong_phase_count(users)):
            each = users // cheu.strong_phase_count(users)
            bound = cheu.agd_scan(users=each, distance=distance, smoothness=1.0, noise=CENTRAL, **ONE_PASS).bound
            distance = min(distance, np.sqrt(4 * bound))
        return bound

    assert slope([10**k for k in range(5, 10)], forgetful) > -1.6


def test_sgd_is_slower():
    """Exponents n^{−1/2} and d^{1/4} of Theorem 4.1."""
    assert slope([10**4, 10**5, 10**6], lambda n: sgd(n, CENTRAL)) == pytest.approx(-0.5, abs=0.01)
    assert slope([1, 10, 100], lambda d: sgd(10**6, d * CENTRAL)) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("loss", BOUNDS)
def test_in_the_dimension_and_epsilon(loss):
    """C is a constant times d/ε², as in the paper; σ of the analytic Gaussian decreases as ε^{−0.93} near 1/2."""
    expected = cheu.TABLE_1[loss, "sequential"]
    dimension = slope([10, 20, 40, 80], lambda d: BOUNDS[loss](10**7, d / 10 * CENTRAL))
    epsilon = slope([0.25, 0.5, 1.0], lambda e: BOUNDS[loss](10**7, CENTRAL / e**2))
    assert dimension == pytest.approx(expected.dimension, abs=CLOSE)
    assert epsilon == pytest.approx(expected.epsilon, abs=CLOSE)


def full(users, noise, smoothness=None):
    return cheu.gd_scan(users=users, distance=1.0, lipschitz=1.0, noise=noise, smoothness=smoothness).bound


@pytest.mark.parametrize("smoothness", [None, 1.0])
def test_full_interaction(smoothness):
    """For √C < n ≪ C, n is about 10³ at d = 1000. Nothing is learnt for smaller n; 1/√n dominates for larger n."""
    noise = 100 * CENTRAL
    users = [800, 1000, 1250]
    assert np.sqrt(noise) < users[0] < users[-1] < noise / 10
    expected = cheu.TABLE_1["convex", "full"]
    assert slope(users, lambda n: full(n, noise, smoothness)) == pytest.approx(expected.users, abs=CLOSE)
    dimensions = slope([50, 100, 200], lambda d: full(1000, d * CENTRAL, smoothness))
    assert dimensions == pytest.approx(expected.dimension, abs=CLOSE)
    epsilon = slope([0.5, 0.7, 1.0], lambda e: full(1000, noise / e**2, smoothness))
    assert epsilon == pytest.approx(expected.epsilon, abs=CLOSE)
    assert slope([10**5, 10**6], lambda n: full(n, noise / 1000, smoothness)) == pytest.approx(-0.5, abs=0.05)


def test_full_interaction_strongly_convex():
    """Without generalisation and with enough rounds, the exponent in the last group's users, 8n/log₂ n, is −2."""

    def bound(users, noise=CENTRAL):
        settings = {"generalization": False, "max_rounds": 10**14, "tolerance": 0.01}
        problem = {"diameter": 1.0, "lipschitz": 1.0, "strong_convexity": 0.5}
        return cheu.gd_phases(users=users, noise=noise, **problem, **settings)[-1].bound

    expected = cheu.TABLE_1["strong", "full"]
    users = [10**5, 10**6, 10**7, 10**8]
    last = [cheu.gd_groups(n)[-1] for n in users]
    fitted = np.polyfit(np.log(last), np.log([bound(n) for n in users]), 1)[0]
    assert fitted == pytest.approx(expected.users, abs=CLOSE)
    assert slope([1, 4], lambda d: bound(10**7, d * CENTRAL)) == pytest.approx(expected.dimension, abs=CLOSE)
