from itertools import pairwise
from math import exp, log, sqrt, tanh

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.bounds import _composed, shuffled_epsilon, shuffled_noise_multiplier, shuffling
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.theory.lowy_razaviyayn import shuffled_machines

SETTINGS = {"records": 50, "per_round": 10**6, "rounds": 500, "delta": 1e-6}


def test_a_rounds_amplification_is_the_theorems():
    found = shuffling(0.3, 1e-8, 10**5)
    assert found == pytest.approx(
        shuffled_machines(epsilon=0.3, delta=0.0, failure=1e-8, machines=10**5, records=1).epsilon
    )
    whole = exp(0.3)
    inner = 8 * sqrt(whole * log(4 / 1e-8) / 1e5) + 8 * whole / 1e5
    assert found == pytest.approx(log(1 + tanh(0.15) * inner))


def test_no_amplification_beyond_the_theorems_range():
    most = log(10**4 / (16 * log(2 / 1e-8)))
    assert np.isfinite(shuffling(most * 0.999, 1e-8, 10**4))
    assert shuffling(most * 1.001, 1e-8, 10**4) == np.inf
    assert shuffling(0.1, 1.5, 10**4) == np.inf


@pytest.mark.parametrize("z", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("per_round", [1, 100, 10**4, 10**6])
def test_never_above_the_bound_without_a_shuffler(z, per_round):
    in_sight = sampled_epsilon(z, SampledReleases(sampler="subset", records=50, batch=1, rounds=500, delta=1e-6))
    found = shuffled_epsilon(z, **{**SETTINGS, "per_round": per_round})
    assert found <= in_sight
    if per_round <= 100:
        assert found == in_sight  # too few machines for amplification


def test_more_noise_machines_records_or_delta_is_more_privacy_and_more_rounds_less():
    for name, values in {
        "per_round": [10**5, 10**6, 10**7],
        "records": [20, 50, 200],
        "delta": [1e-8, 1e-6, 1e-4],
    }.items():
        found = [shuffled_epsilon(6.0, **{**SETTINGS, name: value}) for value in values]
        assert all(later < earlier for earlier, later in pairwise(found)), name
    found = [shuffled_epsilon(6.0, **{**SETTINGS, "rounds": rounds}) for rounds in (50, 500, 5000)]
    assert all(later > earlier for earlier, later in pairwise(found))
    found = [shuffled_epsilon(z, **SETTINGS) for z in (3.0, 6.0, 12.0)]
    assert all(later < earlier for earlier, later in pairwise(found))


def test_secret_participation_is_worth_the_share_of_machines():
    public = shuffled_epsilon(6.0, **SETTINGS)
    secret = shuffled_epsilon(6.0, machines=10**7, **SETTINGS)
    assert secret < public / 5
    assert shuffled_epsilon(6.0, machines=10**6, **SETTINGS) == pytest.approx(public)


def test_composition_is_within_the_advanced_one():
    """The steps by hand, with advanced instead of optimal composition and the same split of δ."""
    share, z, rate = 0.1, 6.0, 1 / 50
    part = share * 1e-6 / (500 * rate)
    local = min(e for e in np.linspace(0.05, 5, 2000) if 3 * 1.5 * 10**6 * float(gdp.delta(e, 2 / z)) <= part)
    sampled = log(1 + rate * (exp(shuffling(local, part, 10**6)) - 1))
    slack = 1e-6 * (1 - 2 * share)
    advanced = 500 * sampled * tanh(sampled / 2) + sqrt(2 * 500 * sampled**2 * log(1 / slack))
    found = shuffled_epsilon(z, **SETTINGS)
    assert 0.6 * advanced < found < 1.05 * advanced


def optimally_composed(epsilon, delta, rounds, total):
    """ε at δ = `total` of composed (ε, δ)-DP mechanisms: losses are ±ε, or infinite with δ (Kairouz et al. 2015)."""
    ups = np.arange(rounds + 1)
    chances = binom.pmf(ups, rounds, 1 / (1 + exp(-epsilon)))

    def leak(target):
        kept = np.sum(chances * np.maximum(-np.expm1(target - epsilon * (2 * ups - rounds)), 0))
        return 1 - (1 - delta) ** rounds * (1 - kept)

    return brentq(lambda target: leak(target) - total, 0, rounds * epsilon)


def by_the_docstring(z, share, local_part=True):
    """ε of `SETTINGS` by the formulas of the accountant, with `share` of δ for δ' and as much for the local δ₀."""
    machines, rounds, delta, rate = (
        SETTINGS["per_round"],
        SETTINGS["rounds"],
        SETTINGS["delta"],
        1 / SETTINGS["records"],
    )
    part = share * delta / (rounds * rate)

    def shuffled(epsilon):
        inner = 8 * sqrt(exp(epsilon) * log(4 / part) / machines) + 8 * exp(epsilon) / machines
        return log(1 + tanh(epsilon / 2) * inner)

    def spilt(epsilon):
        local = norm.cdf(1 / z - epsilon * z / 2) - exp(epsilon) * norm.cdf(-1 / z - epsilon * z / 2)
        return (exp(shuffled(epsilon)) + 1) * (1 + exp(-epsilon) / 2) * machines * local

    local = brentq(lambda epsilon: spilt(epsilon) - part, 1e-3, 4)
    every = part + spilt(local) if local_part else part
    return optimally_composed(log(1 + rate * (exp(shuffled(local)) - 1)), rate * every, rounds, delta)


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("z", [4.0, 6.0, 12.0])
def test_every_component_of_delta_is_counted(z, share):
    found = _composed(z, 1 / SETTINGS["records"], SETTINGS["per_round"], SETTINGS["rounds"], SETTINGS["delta"], share)
    assert found == pytest.approx(by_the_docstring(z, share), rel=1e-3)
    assert found > by_the_docstring(z, share, local_part=False) * 1.002  # omitting δ₀ would fail


@pytest.mark.parametrize("z", [4.0, 6.0, 12.0])
def test_the_best_share_is_taken(z):
    best = min(by_the_docstring(z, share) for share in (0.02, 0.1, 0.3))
    assert shuffled_epsilon(z, **SETTINGS) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_inverse(epsilon):
    z = shuffled_noise_multiplier(epsilon, **SETTINGS)
    assert epsilon * 0.99 < shuffled_epsilon(z, **SETTINGS) <= epsilon
    assert shuffled_epsilon(z * 0.97, **SETTINGS) > epsilon


def exact_delta(epsilon, z, per_round):
    """δ of one round for the sum of the cohort's scalar messages, which reveals less than the shuffled messages.

    Others hold 0; the record is +L or −L, so the sum is Gaussian with the variance of all messages.
    """
    shift = 2 / (z * sqrt(per_round))
    return norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)


@pytest.mark.parametrize("z", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("per_round", [10**4, 10**6])
def test_the_sums_leakage_is_within_the_claim(z, per_round):
    claimed = shuffled_epsilon(z, records=1, per_round=per_round, rounds=1, delta=1e-6)
    assert exact_delta(claimed, z, per_round) <= 1e-6


def test_two_messages_are_not_claimed_to_hide_a_record():
    """One round of two machines: the largest message alone distinguishes ±L, computed exactly."""
    z, claimed = 1.0, shuffled_epsilon(1.0, records=1, per_round=2, rounds=1, delta=1e-3)
    grid = np.linspace(-12, 12, 20001)
    # others at −L; the view is the larger of the two messages
    density = [
        norm.pdf(grid - a) * norm.cdf(grid + 1) + norm.pdf(grid + 1) * norm.cdf(grid - a) for a in (1 / z, -1 / z)
    ]
    attained = np.trapezoid(np.maximum(density[0] - exp(claimed) * density[1], 0), grid)
    assert attained <= 1e-3
    halved = np.trapezoid(np.maximum(density[0] - exp(claimed / 2) * density[1], 0), grid)
    assert halved > 1e-3  # a claim at half the sensitivity would fail


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"records": 0}, "records must be at least 1, got 0"),
        ({"per_round": 0}, "per_round must be at least 1, got 0"),
        ({"machines": 10}, "machines must be at least 1000000, got 10"),
        ({"delta": 1.5}, "delta must be"),
    ],
)
def test_refusals(changes, says):
    with pytest.raises(ValueError, match=says):
        shuffled_epsilon(2.0, **{**SETTINGS, **changes})
    with pytest.raises(ValueError, match="noise_multiplier must be positive"):
        shuffled_epsilon(-1.0, **SETTINGS)
