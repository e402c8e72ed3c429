import itertools

import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

VALUES = np.array([0.3, 2.0, 1.1, 0.0, 5.0])


def test_top_averages_are_the_worst_subsets():
    worst = [max(np.mean(s) for s in itertools.combinations(VALUES, m)) for m in range(1, 6)]
    np.testing.assert_allclose(lr.top_averages(VALUES), worst, rtol=1e-14)


def test_expected_top_by_enumeration():
    pmf = np.random.default_rng(0).dirichlet(np.ones(5))
    squares = [max(np.mean(s) for s in itertools.combinations(VALUES, m)) ** 2 for m in range(1, 6)]
    assert lr.expected_top(VALUES, pmf) == pytest.approx(np.sqrt(pmf @ squares))
    assert lr.expected_top(3.0, pmf) == pytest.approx(3.0)


def test_average_or_max_bounds_the_mean_over_subsets():
    """E[(1/M_r²)·Σ_{i∈S} a_i] over all sizes and subsets is at most the chosen ratio; equal values attain it."""
    rng = np.random.default_rng(1)
    chosen = set()
    for _ in range(40):
        values, pmf = rng.gamma(0.3, size=5), rng.dirichlet(np.full(5, 0.5))
        mean = sum(
            pmf[m - 1] * np.mean([sum(s) / m**2 for s in itertools.combinations(values, m)]) for m in range(1, 6)
        )
        effective = lr.average_or_max(values, pmf)
        assert mean <= effective.ratio * (1 + 1e-12)
        chosen.add(effective.per_round == lr.harmonic_machines(pmf))
    assert chosen == {True, False}
    assert lr.average_or_max(2.0, [0.25, 0.75]).ratio == pytest.approx(2.0 * (0.25 + 0.75 / 2))


def test_average_or_max_takes_the_smaller_ratio():
    equal = lr.average_or_max([2.0, 2.0], [0.5, 0.5])
    assert equal == (pytest.approx(lr.harmonic_machines([0.5, 0.5])), 2.0)
    unequal = lr.average_or_max([2.0, 0.0], [0.1, 0.9])
    assert unequal.per_round == pytest.approx(lr.second_moment_machines([0.1, 0.9]))
    assert unequal.value == pytest.approx(np.sqrt(0.1 * 4 + 0.9))


def test_loads_of_unequal_machines_reach_the_noise():
    """Σ² = 256·R·Ψ."""
    pmf = lr.uniform_cohort(machines=3, min_machines=1, max_machines=3)
    records, epsilon, rounds = np.array([50, 200, 100]), np.array([1.0, 0.5, 2.0]), 20
    psi = lr.privacy_load(records=records, epsilon=epsilon, delta=1e-5, rounds=rounds, lipschitz=[1.0, 2.0, 3.0])
    noise = 256 * rounds * psi
    assert lr.expected_top(noise, pmf) == pytest.approx(256 * rounds * lr.expected_top(psi, pmf))


@pytest.mark.parametrize("machines", [2, 5, 9])
def test_client_variance_is_the_variance_of_choosing(machines):
    """E[(N−M_r)/((N−1)M_r)] = Υ²/(M·υ²) for any distribution of M_r."""
    pmf = np.random.default_rng(machines).dirichlet(np.ones(machines))
    sizes = np.arange(1, machines + 1)
    exact = pmf @ ((machines - sizes) / ((machines - 1) * sizes))
    mean = lr.harmonic_machines(pmf)
    assert lr.client_variance(diversity=3.0, machines=machines, per_round=mean) / (3.0 * mean) == pytest.approx(exact)


def test_client_variance_at_the_ends():
    assert lr.client_variance(diversity=3.0, machines=1, per_round=1) == 0
    assert lr.client_variance(diversity=3.0, machines=4, per_round=4) == 0
    assert lr.client_variance(diversity=3.0, machines=4, per_round=1) == 3.0
    with pytest.raises(ValueError, match=r"per_round must be at most machines \(4\), got 5"):
        lr.client_variance(diversity=3.0, machines=4, per_round=5)


def test_client_diversity():
    gradients = np.random.default_rng(0).normal(size=(4, 3))
    pairs = [np.sum((a - b) ** 2) for a in gradients for b in gradients]
    assert lr.client_diversity(gradients) == pytest.approx(np.mean(pairs) / 2)


def test_refuses_shapes():
    with pytest.raises(ValueError, match=r"values must be one per machine \(2\), got shape \(3,\)"):
        lr.expected_top([1.0, 2.0, 3.0], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"values must be one per machine, got shape \(\)"):
        lr.top_averages(1.0)
    with pytest.raises(ValueError, match=r"values must be at least 0 and finite, got -1.0"):
        lr.average_or_max([-1.0, 0.0], [0.5, 0.5])
