"""Sums of bits as a record accountant: three accountings, and the smallest noise of each."""

from math import inf, sqrt

import numpy as np
import pytest
from one_coordinate import hockey_stick

from fedprivjax import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial.accountant import ACCOUNTINGS, BinomialSums, scalar_epsilon
from fedprivjax.privacy.accountants.binomial.paper import bits, claimed_vector, paper_vector
from fedprivjax.privacy.accountants.binomial.vector import possible_epsilon
from fedprivjax.privacy.accountants.records import accounted
from fedprivjax.privacy.target import search_min_noise

SUMS = {name: BinomialSums(users=1000, dimension=10, levels=64, accounting=name) for name in ACCOUNTINGS}


def epsilon_of(sums, ratio, releases=1, delta=1e-6):
    return sums.epsilon(ratio, 1, 1, releases, delta=delta)


def test_each_accounting_is_its_function():
    message = bits(accounted(0.2), 64)
    assert epsilon_of(SUMS["exact"], 0.2, 3) == possible_epsilon(message, 1000, 10, 3, 1e-6)
    limit = gdp.epsilon(sqrt(3 / 1000) * sqrt(64**2 + 2.5) / 64 / 0.2, 1e-6)
    assert epsilon_of(SUMS["gaussian-limit"], 0.2, 3) == pytest.approx(limit)
    message = bits(accounted(60.0), 64)
    assert epsilon_of(SUMS["paper"], 60.0) == claimed_vector(message, 1000, 10, 1e-6)


def test_one_coordinate_released_once_is_exact():
    sums = BinomialSums(users=1000, dimension=1, levels=64)
    message = bits(accounted(0.2), 64)
    exact = scalar_epsilon(1000 * message.trials, message.probability, 64, 1e-6)
    assert epsilon_of(sums, 0.2) == exact
    assert exact < possible_epsilon(message, 1000, 1, 1, 1e-6) < 1.1 * exact
    assert epsilon_of(sums, 0.2, 2) == possible_epsilon(message, 1000, 1, 2, 1e-6)


def test_epsilon_is_that_of_the_bits_that_are_sent():
    """With σ twice the bound, p would be 1/2 without the ratio's rounding, and δ of the sent bits 0.1% above."""
    sums, message = BinomialSums(users=4, dimension=1, levels=2), bits(accounted(1.0), 2)
    stated = epsilon_of(sums, 1.0, delta=1e-5)
    assert hockey_stick(stated, 4 * message.trials, message.probability, 2) == pytest.approx(1e-5, rel=1e-6)
    (exact,) = sums.accountant_results(1.0, 1, 1, 1, delta=1e-5)
    assert exact.epsilon == stated


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("dimension", [1, 10])
@pytest.mark.parametrize(("epsilon", "releases"), [(0.3, 1), (1.0, 1), (6.0, 1), (1.0, 50)])
def test_the_least_ratio_meets_its_target(accounting, dimension, epsilon, releases):
    sums = BinomialSums(users=1000, dimension=dimension, levels=64, accounting=accounting)
    ratio = sums.ratio(epsilon, releases, delta=1e-6)
    found = epsilon_of(sums, ratio, releases)
    # the paper's own composition spends 0.59 to 0.69 of a budget
    least = 0.55 if accounting == "paper" and releases > 1 else 0.999
    assert epsilon * least < found <= epsilon * (1 + 1e-6)


def test_the_papers_noise_is_found_from_its_target():
    ratio = SUMS["paper"].ratio(1.0, 1, delta=1e-6)
    assert ratio * 64 == pytest.approx(paper_vector(1.0, 1e-6, 1000, 10, 64).std, rel=2e-4)
    assert ratio / SUMS["exact"].ratio(1.0, 1, delta=1e-6) == pytest.approx(3998.3 / 9.07, rel=2e-3)


def test_the_accountings_agree_where_the_binomial_is_flat():
    exact, limit = (SUMS[name].ratio(1.0, 1, delta=1e-6) for name in ("exact", "gaussian-limit"))
    assert 1.02 < exact / limit < 1.1  # the divergences' conversion


def test_figures_show_a_trusted_servers_gaussian():
    summary = SUMS["exact"].summary(0.2, 1, 1, 4, delta=1e-6)
    assert tuple(summary) == SUMS["exact"].columns
    ours, theirs = summary.values()
    assert theirs == gdp.epsilon(sqrt(4 / 1000) / accounted(0.2), 1e-6)
    assert theirs < ours == epsilon_of(SUMS["exact"], 0.2, 4)
    assert tuple(SUMS["exact"].summary(inf, 1, 1, 4, delta=1e-6).values()) == (0.0, 0.0)


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_no_noise_is_no_privacy_and_endless_noise_is_perfect(accounting):
    assert epsilon_of(SUMS[accounting], 0.0) == inf
    assert epsilon_of(SUMS[accounting], inf) == 0.0


def test_too_little_noise_for_a_claim_is_no_privacy():
    assert epsilon_of(SUMS["exact"], 1e-3) == inf


def test_the_search_needs_few_evaluations_and_survives_jumps():
    calls = []

    def rough(ratio):
        calls.append(ratio)
        return inf if ratio < 0.3 else (2 + 0.003 * np.sin(1000 * ratio)) / ratio

    found = search_min_noise(rough, 0.5, 3.0)
    assert rough(found) <= 0.5 < rough(found * 0.99)
    assert len(calls) < 30
    calls.clear()
    found = search_min_noise(lambda ratio: calls.append(ratio) or 3 / ratio**1.3, 1.0, 2.0)
    assert found == pytest.approx(3 ** (1 / 1.3), rel=2e-5)
    assert len(calls) < 10


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"levels": 0}, "levels must be at least 1, got 0"),
        ({"rounding": "down"}, "unknown rounding 'down'"),
        ({"accounting": "guess"}, "unknown accounting 'guess'"),
    ],
)
def test_refusals(changes, says):
    with pytest.raises(Refusal, match=says):
        BinomialSums(**({"users": 10, "dimension": 2, "levels": 8} | changes))
    with pytest.raises(Refusal, match="ratio must be at least 0, got -1"):
        epsilon_of(SUMS["exact"], -1.0)
