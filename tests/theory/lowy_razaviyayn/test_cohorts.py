import itertools

import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr


@pytest.mark.parametrize(("machines", "per_round"), [(1, 1), (7, 1), (7, 4), (7, 7)])
def test_a_fixed_number_is_both_means(machines, per_round):
    pmf = lr.uniform_cohort(machines=machines, min_machines=per_round, max_machines=per_round)
    assert lr.harmonic_machines(pmf) == pytest.approx(per_round)
    assert lr.second_moment_machines(pmf) == pytest.approx(per_round)


def test_uniform_cohort_by_hand():
    pmf = lr.uniform_cohort(machines=10, min_machines=2, max_machines=4)
    assert lr.harmonic_machines(pmf) == pytest.approx(3 / (1 / 2 + 1 / 3 + 1 / 4))
    assert lr.second_moment_machines(pmf) == pytest.approx((3 / (1 / 4 + 1 / 9 + 1 / 16)) ** 0.5)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.999])
def test_binomial_cohort_by_enumeration(rate):
    counts = [sum(who) for who in itertools.product([0, 1], repeat=6)]
    weights = np.array([rate**m * (1 - rate) ** (6 - m) for m in counts])
    expected = np.array([weights[np.equal(counts, m)].sum() for m in range(1, 7)])
    np.testing.assert_allclose(lr.binomial_cohort(machines=6, rate=rate), expected / expected.sum(), rtol=1e-12)


def test_binomial_limits():
    assert lr.harmonic_machines(lr.binomial_cohort(machines=9, rate=1.0)) == pytest.approx(9)
    assert lr.harmonic_machines(lr.binomial_cohort(machines=9, rate=1e-9)) == pytest.approx(1)


def test_the_second_moment_mean_is_below_the_harmonic_one():
    rng = np.random.default_rng(0)
    for _ in range(50):
        pmf = rng.dirichlet(np.full(8, 0.3))
        assert lr.second_moment_machines(pmf) <= lr.harmonic_machines(pmf) * (1 + 1e-12)
    assert lr.second_moment_machines([0.5, 0.5]) < 0.96 * lr.harmonic_machines([0.5, 0.5])


@pytest.mark.parametrize(
    ("pmf", "message"),
    [
        ([0.5, 0.4], "pmf must sum to 1, got 0.9"),
        ([1.5, -0.5], "pmf must be at least 0, got -0.5"),
        ([[1.0]], r"pmf must be a list of probabilities of 1..machines, got shape \(1, 1\)"),
        ([np.nan], "pmf must be at least 0, got nan"),
    ],
)
def test_refuses_a_bad_pmf(pmf, message):
    with pytest.raises(ValueError, match=message):
        lr.harmonic_machines(pmf)


def test_refuses_bad_sizes():
    with pytest.raises(ValueError, match=r"max_machines must be at most machines \(3\), got 4"):
        lr.uniform_cohort(machines=3, min_machines=4, max_machines=4)
    with pytest.raises(ValueError, match="max_machines must be at least 3, got 2"):
        lr.uniform_cohort(machines=5, min_machines=3, max_machines=2)
    with pytest.raises(ValueError, match="rate must be above 0 and at most 1, got 0"):
        lr.binomial_cohort(machines=5, rate=0)
