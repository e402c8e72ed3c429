"""Cohort sizes: sampled from their distribution, with exact moments."""

import numpy as np
import pytest
from frequencies import within
from scipy.stats import binom, chisquare

from fedprivjax import Balanced, BySize, Cohorts, Cyclic, Dropouts, Full, Given, OnePass, Uniform, Varying, Weighted
from fedprivjax.plan.participation.interface import binomial_pmf, thinned, thinned_cohorts, thinned_subsets

ROUNDS, LEVEL = 6000, 1e-4
RATES = (0.0, 0.1, 0.5, 0.8, 0.3, 0.6)
VARYING = {
    "binomial": Varying.binomial(12, 0.3),
    "cut": Varying.binomial(12, 0.3, tail=1.0),
    "between": Varying.between(9, 2, 5),
    "pmf": Varying(7, (0.3, 0.0, 0.2, 0.5)),
    "everyone, dropouts": Dropouts(Full(6), 0.4),
    "subsets, dropouts": Dropouts(Uniform(9, 4), 0.3),
    "binomial, dropouts": Dropouts(Varying.binomial(8, 0.5), 0.25),
    "everyone, own rates": Dropouts(Full(6), RATES),
    "subsets, own rates": Dropouts(Uniform(6, 3), RATES),
    "binomial, own rates": Dropouts(Varying.binomial(6, 0.4), RATES),
    "one pass, dropouts": Dropouts(OnePass(4 * ROUNDS, 4), 0.3),
    "in turn, dropouts": Dropouts(Cyclic(5, 3), 0.3),
    "by weight, dropouts": Dropouts(Weighted(6, 3, [1, 1, 2, 3, 4, 5]), 0.3),
}
FIXED = {
    "full": Full(4),
    "uniform": Uniform(7, 3),
    "balanced": Balanced(8, 4),
    "cyclic": Cyclic(7, 3),
    "weighted": Weighted(5, 2, [1, 2, 3, 4, 5]),
    "by share": BySize(4, 2, [20, 20, 10, 10]),
    "given": Given(4, [[0, 1], [2, 3]] * 15),
    "no dropouts": Dropouts(Uniform(7, 3), 0.0),
}


@pytest.mark.parametrize("name", VARYING)
def test_moments_agree_with_samples(name):
    law = VARYING[name]
    schedule = law.draw(ROUNDS, np.random.default_rng(1))
    sizes = schedule.present.sum(axis=1)
    assert schedule.expected == pytest.approx(law.mean_size)
    assert 1 / schedule.mean == pytest.approx(law.inverse_moment())
    for power, exact in ((1, law.mean_size), (-1, law.inverse_moment()), (-2, law.inverse_moment(2))):
        values = sizes.astype(float) ** power
        assert within(values, exact)
        assert not within(values, 2 / 3 * exact)
        assert not within(values, 3 / 2 * exact)


@pytest.mark.parametrize("name", VARYING)
def test_the_number_follows_its_distribution(name):
    law = VARYING[name]
    sizes = law.draw(ROUNDS, np.random.default_rng(2)).present.sum(axis=1)
    pmf = law.cohort_size_pmf
    assert (pmf.size, pmf.sum()) == (law.per_round, pytest.approx(1.0))
    seen = np.bincount(sizes - 1, minlength=pmf.size)
    assert not seen[pmf == 0].any()
    often = ROUNDS * pmf > 5
    observed, expected = (np.append(x[often], x[~often].sum()) for x in (seen, ROUNDS * pmf))
    kept = expected > 0
    assert chisquare(observed[kept], expected[kept] * observed.sum() / expected.sum()).pvalue > LEVEL


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_number_has_a_distribution(name):
    law = FIXED[name]
    schedule = law.draw(20, np.random.default_rng(0))
    assert not schedule.varies
    assert not law.varies
    assert schedule.divisor == schedule.cohort == law.mean_size == law.per_round
    assert law.inverse_moment(2) == pytest.approx(law.per_round**-2.0)


def test_announced_cohorts_count_each_round_equally():
    law = Cohorts(20, (2, 2, 9, 6))
    assert law.cohort_size_pmf.tolist() == [0, 0.5, 0, 0, 0, 0.25, 0, 0, 0.25]
    schedule = law.draw(4, np.random.default_rng(0))
    assert (law.mean_size, schedule.expected) == (4.75, 4.75)
    assert 1 / schedule.mean == pytest.approx(law.inverse_moment()) == np.mean([1 / 2, 1 / 2, 1 / 9, 1 / 6])
    rows = np.sort(schedule.participants, axis=1)
    assert (np.diff(rows, axis=1) > 0).all()  # empty slots hold other machines


def test_a_binomial_number_is_cut_by_the_stated_rule():
    law = Varying.binomial(100, 0.5)
    assert law.per_round == 70  # 50 + 4·5
    assert law.per_round < 1.45 * law.mean_size
    whole = binom.pmf(np.arange(1, 71), 100, 0.5)
    np.testing.assert_allclose(law.cohort_size_pmf, whole / whole.sum(), rtol=1e-12)
    assert Varying.binomial(100, 0.5, tail=2.0).per_round == 60
    assert Varying.binomial(4, 0.9).per_round == 4
    assert binomial_pmf(10**6, 1e-7, 4.0).size == 2


def test_thinning_by_brute_force():
    """Over every subset and every pattern of dropouts."""
    rates = np.array(RATES)
    law = np.array([0.2, 0.5, 0.3])
    found = np.zeros(4)
    patterns = ((np.arange(2**6)[:, None] >> np.arange(6)) & 1).astype(bool)
    for subset in patterns:
        size = subset.sum()
        if not 1 <= size <= 3:
            continue
        weight = law[size - 1] / sum(p.sum() == size for p in patterns)
        for stays in patterns:
            if not (stays & ~subset).any():
                chance = np.where(stays, 1 - rates, rates)[subset].prod()
                found[stays.sum()] += weight * chance
    expected = np.append(found[0] + found[1], found[2:])
    np.testing.assert_allclose(thinned_subsets(law, rates), expected, atol=1e-12)
    np.testing.assert_allclose(thinned_subsets(law, np.full(6, 0.3)), thinned(law, 0.3), atol=1e-12)
    cohorts = np.array([[0.3, 0.3, 1.0], [0.3, 0.3, 0.3]])
    np.testing.assert_allclose(thinned_cohorts(cohorts), thinned(np.array([0.0, 0.5, 0.5]), 0.3), atol=1e-12)
