from functools import reduce
from itertools import pairwise, permutations
from math import exp, log, log1p, sqrt, tanh

import numpy as np
import pytest
from cases import sparing
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.composition import loss_of_profile
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.accountants.shuffled import (
    clone_delta,
    round_profile,
    shuffled_epsilon,
    shuffled_noise_multiplier,
    shuffling,
)
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
    if per_round == 1:
        assert found == in_sight


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_more_noise_machines_records_or_delta_is_more_privacy_and_more_rounds_less(stride):
    for name, values in {
        "per_round": [10**5, 10**6, 10**7],
        "records": [20, 50, 200],
        "delta": [1e-8, 1e-6, 1e-4],
    }.items():
        found = [shuffled_epsilon(6.0, **{**SETTINGS, name: value}) for value in values[::stride]]
        assert all(later < earlier for earlier, later in pairwise(found)), name
    found = [shuffled_epsilon(6.0, **{**SETTINGS, "rounds": rounds}) for rounds in (50, 500, 5000)[::stride]]
    assert all(later > earlier for earlier, later in pairwise(found))
    found = [shuffled_epsilon(z, **SETTINGS) for z in (3.0, 6.0, 12.0)[::stride]]
    assert all(later < earlier for earlier, later in pairwise(found))


def test_secret_participation_is_worth_the_share_of_machines():
    public = shuffled_epsilon(6.0, **SETTINGS)
    secret = shuffled_epsilon(6.0, machines=10**7, **SETTINGS)
    assert secret < public / 5
    assert shuffled_epsilon(6.0, machines=10**6, **SETTINGS) == pytest.approx(public)


AUTHORS = {  # M, ε₀, δ: upper and lower bound of `numericalanalysis` of apple/ml-shuffling-amplification
    (100, 1.0, 1e-5): (0.57799, 0.55317),
    (100, 0.5, 1e-4): (0.17262, 0.16326),
    (500, 1.0, 1e-6): (0.273, 0.265),
    (500, 2.0, 1e-6): (0.84394, 0.81971),
    (1000, 0.5, 1e-5): (0.06193, 0.05827),
    (1000, 1.0, 1e-6): (0.18882, 0.18241),
    (1000, 3.0, 1e-6): (1.3012, 1.2646),
    (2000, 2.0, 1e-8): (0.47405, 0.46433),
    (10000, 1.0, 1e-6): (0.05456, 0.05293),
    (10000, 4.0, 1e-6): (0.63061, 0.58541),
}


@pytest.mark.parametrize(("machines", "local", "delta"), AUTHORS)
def test_clones_are_those_of_the_authors_code(machines, local, delta):
    upper, lower = AUTHORS[machines, local, delta]
    found = brentq(lambda epsilon: clone_delta(np.array([epsilon]), local, machines)[0] - delta, 1e-4, local * 0.999)
    assert lower * (1 - 1e-4) < found < upper * (1 + 1e-4)


@pytest.mark.parametrize(("machines", "local"), [(1, 1.0), (2, 0.3), (7, 2.0), (30, 1.0)])
def test_clones_by_enumeration(machines, local):
    """Σ (P − e^ε·Q)₊ over the number of clones and of those that are Q_0, in both directions."""
    factor, epsilons = exp(local), np.array([0.0, 0.1, 0.5 * local, 0.95 * local, 2 * local])
    clones, first = np.arange(machines)[:, None], np.arange(machines + 1)
    chance = binom.pmf(clones, machines - 1, 1 / factor)
    own, other = chance * binom.pmf(first - 1, clones, 0.5), chance * binom.pmf(first, clones, 0.5)
    one, two = (factor * own + other) / (factor + 1), (own + factor * other) / (factor + 1)
    for p, q in ((one, two), (two, one)):
        expected = [np.maximum(p - exp(epsilon) * q, 0).sum() for epsilon in epsilons]
        np.testing.assert_allclose(clone_delta(epsilons, local, machines), expected, rtol=1e-9, atol=2e-15)


def shuffled_views(z, machines, others_up, points):
    """The distributions of scalar messages in random order, on a grid: the record is +L or −L, others are either."""
    grid = np.linspace(-1 - 6.5 * z, 1 + 6.5 * z, points)
    densities = {"+": norm.pdf(grid, 1, z), "-": norm.pdf(grid, -1, z)}
    densities = {key: density / density.sum() for key, density in densities.items()}
    for record in "+-":
        senders = [record, *"+" * others_up, *"-" * (machines - 1 - others_up)]
        orders = set(permutations(senders))
        yield sum(reduce(np.multiply.outer, [densities[key] for key in order]) for order in orders) / len(orders)


EPSILONS = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0])


def bounded(z, machines, tails=True):
    if not tails:
        return np.min([clone_delta(EPSILONS, local, machines) for local in (0.3, 1.0, 3.0)], axis=0)
    epsilons, deltas = round_profile(z, machines, 1e-12)
    kept = epsilons <= epsilons[np.argmin(deltas)]
    loss = loss_of_profile(epsilons[kept], np.minimum(deltas[kept], 1), 1e-3)
    return np.array([float(loss.get_delta_for_epsilon(epsilon)) for epsilon in EPSILONS])


@pytest.mark.parametrize(("machines", "points"), [(2, 200), (3, 60), pytest.param(4, 36, marks=pytest.mark.slow)])
def test_shuffled_gaussians_are_never_above_the_bound(machines, points):
    """δ(ε) of the exact view of 2 to 4 machines, for all vectors of two values. Clones without tails would fail."""
    below = False
    for z in (0.7, 1.0, 2.0, 4.0, 8.0):
        claimed, cut = bounded(z, machines), bounded(z, machines, tails=False)
        for others_up in range(machines):
            one, other = shuffled_views(z, machines, others_up, points)
            exact = np.array([np.maximum(one - exp(epsilon) * other, 0).sum() for epsilon in EPSILONS])
            assert (exact <= claimed * (1 + 1e-6) + 1e-9).all()
            below |= bool((exact > cut + 1e-6).any())
    assert below


@pytest.mark.parametrize("local", [0.5, 1.0, 2.0])
def test_tails_of_gaussians_are_within_what_is_moved(local):
    """∫((P_0 + P_1)/(2λ) − P_i)₊ ≤ δ₀/λ, and the clipped P_0 moves δ₀/(λ + 1), by quadrature."""
    factor, z = exp(local), 1.5
    grid = np.linspace(-16, 16, 20001)
    tail = float(gdp.delta(local, 2 / z))
    one, two = norm.pdf(grid, 1, z), norm.pdf(grid, -1, z)
    for other in np.linspace(-1, 1, 9):
        moved = np.trapezoid(np.maximum((one + two) / (2 * factor) - norm.pdf(grid, other, z), 0), grid)
        assert moved <= tail / factor + 1e-9
    clipped = np.clip(one, (one + two) / (factor + 1), factor * (one + two) / (factor + 1))
    assert np.trapezoid(clipped, grid) == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(np.abs(clipped - one), grid) / 2 == pytest.approx(tail / (factor + 1), rel=1e-4)


@pytest.mark.parametrize("z", [4.0, 6.0, 12.0])
def test_the_bound_of_theorem_3_8_is_larger(z):
    """One ε₀ with advanced composition: the closed form of Theorem 3.8, and a tenth of δ for each of its parts."""
    rate, part = 1 / 50, 0.1 * 1e-6 / (500 / 50)
    local = min(e for e in np.linspace(0.05, 5, 2000) if 3 * 1.5 * 10**6 * float(gdp.delta(e, 2 / z)) <= part)
    sampled = log1p(rate * (exp(shuffling(local, part, 10**6)) - 1))
    advanced = 500 * sampled * tanh(sampled / 2) + sqrt(2 * 500 * sampled**2 * log(1 / 0.8e-6))
    assert shuffled_epsilon(z, **SETTINGS) < advanced / 5


@pytest.mark.parametrize("epsilon", sparing([0.1, 1.0, 4.0], []))
def test_the_inverse(epsilon):
    """Above ε = 0.2, a little less noise is no longer amplified, so ε is not reached from below."""
    z = shuffled_noise_multiplier(epsilon, **SETTINGS)
    assert (0.99 if epsilon < 0.2 else 0) * epsilon < shuffled_epsilon(z, **SETTINGS) <= epsilon
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
