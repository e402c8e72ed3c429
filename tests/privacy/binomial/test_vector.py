"""d coordinates: divergences, claims and PLDs compared with direct sums, exact mixtures and A3.4's second table."""

from itertools import pairwise
from math import exp, inf, sqrt

import numpy as np
import pytest
from cases import sparing
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import logsumexp
from scipy.stats import binom

from fedprivjax import Refusal
from fedprivjax.privacy.accountants.binomial.accountant import BinomialSums
from fedprivjax.privacy.accountants.binomial.paper import Bits, bits, paper_vector
from fedprivjax.privacy.accountants.binomial.vector import (
    ROUNDINGS,
    _moments,
    mass_outside,
    per_squared_shift,
    possible_epsilon,
    shift_divergences,
)

# users, d, ε, levels; standard deviation of the sum over the norm bound: paper, independent, coupled, averaged rounding
TABLE = [
    (1000, 10, 1.0, 64, 3998, 9.95, 9.51, 9.07),
    (1000, 10, 4.0, 64, 1000, 2.79, None, None),
    (10000, 100, 1.0, 200, 4534, 10.0, None, None),
    (60000, 784, 2.0, 490, 2515, 5.31, 5.04, 4.77),
    (60000, 7850, 8.0, 490, 698, 1.89, 1.63, 1.385),
]
ORDERS = np.array([1.05, 1.7, 3.0, 6.0])


def vector_ratio(epsilon, users, levels, dimension, releases, delta, rounding="averaged"):
    return BinomialSums(users, dimension, levels, rounding).ratio(epsilon, releases, delta=delta)


def pmf(total, probability, size):
    return binom.pmf(np.arange(size), total, probability)


def rounded_law(base, place):
    """Distribution of ⌊u⌋ or ⌈u⌉ with mean u, plus noise with this pmf."""
    low = int(place)
    return (1 - place + low) * np.roll(base, low) + (place - low) * np.roll(base, low + 1)


def direct_divergence(first, second, order):
    with np.errstate(divide="ignore"):
        terms = order * np.log(first) + (1 - order) * np.log(second)
    return logsumexp(terms[first > 0]) / (order - 1)


@pytest.mark.parametrize(("total", "probability"), [(2000, 0.5), (2000, 0.3), (10**4, 0.5), (30000, 0.2)])
def test_divergences_are_direct_sums(total, probability):
    """Terms are at the integers, or at steps of half a standard deviation if that is at least 48."""
    shifts = np.array([1, 2, 7, 30])
    found = shift_divergences(total, probability, shifts, ORDERS)
    base = pmf(total, probability, total + 40)
    middle = slice(max(0, int(total * probability) - 900), int(total * probability) + 900)
    for row, order in zip(found, ORDERS, strict=True):
        for value, k in zip(row, shifts, strict=True):
            one, other = base[middle], np.roll(base, k)[middle]
            inside = (one > 1e-290) & (other > 1e-290)
            both = [direct_divergence(a[inside], b[inside], order) for a, b in ((one, other), (other, one))]
            assert value == pytest.approx(max(both), rel=2e-6)


def test_the_larger_direction_counts():
    one, other = (shift_divergences(3000, p, np.array([20]), np.array([40.0]))[0, 0] for p in (0.02, 0.5))
    base = pmf(3000, 0.02, 3100)
    keep = slice(20, 160)
    both = [
        direct_divergence(a[keep], b[keep], 40.0) for a, b in ((base, np.roll(base, 20)), (np.roll(base, 20), base))
    ]
    assert max(both) > 1.3 * min(both)
    assert one == pytest.approx(max(both), rel=1e-3)
    assert one > other


@pytest.mark.parametrize(("total", "levels", "order"), [(9 * 10**12, 1500, 33.0), (10**9, 64, 2.0), (10**8, 500, 15.0)])
def test_a_flat_binomial_is_a_gaussian_at_every_shift(total, levels, order):
    """D(k) is as small as 10⁻¹², below the error of differences of log-gammas."""
    found = per_squared_shift(total, 0.5, levels, np.array([1.03, order]))
    assert found == pytest.approx(np.array([1.03, order]) / (2 * total / 4), rel=1e-4)


def test_every_shift_is_covered():
    orders = np.array([1.5, 4.0, 12.0])
    found = per_squared_shift(3000, 0.3, 40, orders)
    each = np.array([shift_divergences(3000, 0.3, np.array([k]), orders)[:, 0] / k**2 for k in range(1, 41)])
    assert found == pytest.approx(each.max(axis=0), rel=1e-12)


def shift_vectors(levels, dimension, seed):
    """Δ of norm at most g: a spike, spread over some or all coordinates, with fractions 0, 1/2 and any."""
    unit, ones = np.eye(dimension)[0], np.ones(dimension)
    few = np.where(np.arange(dimension) < 2, 1, 0)
    random = np.random.default_rng(seed).standard_normal((4, dimension))
    whole = [levels * v / np.linalg.norm(v) for v in (unit, ones, few, *random)]
    halves = np.where(np.arange(dimension) < 2 * levels**2, 0.5, 0)
    return [*whole, unit * (levels - 0.5), halves, np.floor(2 * levels * ones / sqrt(dimension)) / 2]


def mixture_divergence(base, start, end, order):
    """Divergence of one coordinate's records u and u + Δ with independent roundings; the larger direction first."""
    laws = [rounded_law(base, place) for place in (start, end)]
    inside = (laws[0] > 1e-200) & (laws[1] > 1e-200)
    one, other = (law[inside] for law in laws)
    return np.array([direct_divergence(one, other, order), direct_divergence(other, one, order)])


@pytest.mark.parametrize(("total", "probability", "levels"), [(400, 0.5, 5), (900, 0.15, 8), (60, 0.5, 3)])
@pytest.mark.parametrize("dimension", sparing([1, 3, 50], [1, 3]))
def test_never_below_the_divergence_of_an_exact_mixture(total, probability, levels, dimension):
    """Divergences add up over coordinates exactly."""
    orders = np.array([1.2, 2.0, 4.0, 8.0])
    scales = (orders - 1) * per_squared_shift(total, probability, levels, orders)
    bounds = {rounding: _moments(scales, levels, dimension, rounding) / (orders - 1) for rounding in ROUNDINGS}
    base = pmf(total, probability, total + levels + 2)
    worst = np.zeros(orders.size)
    for shift in shift_vectors(levels, dimension, total):
        for start in (0.0, 0.5, 0.3):
            starts = np.where(shift < 0, levels - start, start)
            pairs = np.stack([starts, np.clip(starts + shift, 0, levels)], -1).round(9)
            distinct, counts = np.unique(pairs, axis=0, return_counts=True)
            for i, order in enumerate(orders):
                each = [
                    count * mixture_divergence(base, *pair, order) for pair, count in zip(distinct, counts, strict=True)
                ]
                worst[i] = max(worst[i], *np.sum(each, axis=0))
    assert np.all(worst <= bounds["averaged"] * (1 + 1e-9))
    assert np.all(bounds["averaged"] <= bounds["coupled"])
    assert np.all(bounds["coupled"] < bounds["independent"])
    if dimension <= 3:
        assert np.all((worst > 0.75 * bounds["averaged"])[:3])  # a bound at 3/4 would fail


def rounded_moment(shift, scale):
    """`Σ_j log E e^{s·k_j²}` with k_j the floor or the ceiling of Δ_j."""
    low = np.floor(np.abs(shift))
    fraction = np.abs(shift) - low
    return np.sum(scale * low**2 + np.log1p(fraction * np.expm1(scale * (2 * low + 1))))


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 0.02, 0.3, 1.0])
@pytest.mark.parametrize(("levels", "dimension"), [(3, 4), (8, 30), (8, 256), (16, 100), (3, 10**4)])
def test_the_averaged_bound_covers_every_shift_and_is_near_one(scale, levels, dimension):
    """Weak duality, for shifts of the same norm: halves in some coordinates, the rest in a few others."""
    bound = _moments(np.array([scale]), levels, dimension, "averaged")[0]
    attained = 0.0
    for halves in np.unique(np.geomspace(1, dimension, 30).round()).astype(int) - 1:
        left = levels**2 - halves / 4
        for others in np.unique(np.geomspace(1, dimension - halves, 30).round()).astype(int):
            if left >= 0:
                shift = np.append(np.full(halves, 0.5), np.full(others, sqrt(left / others)))
                attained = max(attained, rounded_moment(shift, scale))
    assert attained <= bound * (1 + 1e-12)
    if scale < 0.1:
        assert attained > 0.95 * bound


def test_a_quarter_a_coordinate_is_not_enough_for_a_large_scale():
    """The specification's `c·(g² + d/4)` for averaged rounding holds for small s only."""
    levels, scale = 8, 1.0
    attained = rounded_moment(np.full(4 * levels**2, 0.5), scale)
    assert attained > 1.2 * scale * (levels**2 + 4 * levels**2 / 4)
    assert _moments(np.array([scale]), levels, 4 * levels**2, "averaged")[0] >= attained


def product(laws):
    """Distribution of independent coordinates over all outcomes."""
    result = np.ones(())
    for law in laws:
        result = np.multiply.outer(result, law)
    return result


@pytest.mark.parametrize("probability", sparing([0.5, 0.25], [0.25]))
@pytest.mark.parametrize(
    ("dimension", "total", "releases"), [(1, 240, 1), (2, 200, 1), (3, 120, 1), (1, 200, 2), (1, 160, 3)]
)
def test_never_below_a_brute_force_exact_mixture(probability, dimension, total, releases):
    """δ over all outcomes, for records on a grid with independent roundings, is at most the claimed δ."""
    levels, delta = 4, 1e-4
    claimed = possible_epsilon(Bits(levels, total, probability), 1, dimension, releases, delta)
    base = pmf(total, probability, total + levels + 2)
    grid = np.array([0, 0.5, 1.5, 2, 2.5, 3.5, 4])
    ends = np.stack(np.meshgrid(*[grid] * dimension), -1).reshape(-1, dimension)
    pairs = [(np.full(dimension, start), end) for start in (0, 0.5, 4) for end in ends if list(end) == sorted(end)]
    pairs = [pair for pair in pairs if 0.9 * levels < np.linalg.norm(pair[0] - pair[1]) <= levels]
    spilt = []
    for pair in pairs:
        one, other = (product([rounded_law(base, place) for place in record] * releases) for record in pair)
        spilt += [np.maximum(a - exp(claimed) * b, 0).sum() for a, b in ((one, other), (other, one))]
    assert len(pairs) >= 2
    assert 0.02 * delta < max(spilt) <= delta


def composed_epsilon(message, users, shifts, releases, delta):
    """dp-accounting's ε for a vector of integer shifts {k: how many}."""
    total, probability = users * message.trials, message.probability
    mean, sd = total * probability, sqrt(users) * message.std
    whole = None
    for k, count in shifts.items():
        places = np.arange(max(0, int(mean - 12 * sd)), min(total, int(mean + 12 * sd)) + 1 + k)
        lower, upper = (
            dict(zip(places.tolist(), binom.logpmf(places - shift, total, probability).tolist(), strict=True))
            for shift in (k, 0)
        )
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            lower, upper, value_discretization_interval=1e-4, symmetric=False
        ).self_compose(count * releases)
        whole = loss if whole is None else whole.compose(loss)
    return whole.get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("dimension", "levels", "epsilon", "releases"),
    [(9, 30, 1.0, 1), (9, 30, 4.0, 1), (16, 40, 1.0, 10), (4, 12, 2.0, 3)],
)
def test_dp_accounting_finds_no_more_and_little_less(dimension, levels, epsilon, releases):
    """Shifts are one spike, or spread over all coordinates."""
    users, delta = 100, 1e-6
    ratio = vector_ratio(epsilon, users, levels, dimension, releases, delta)
    spread = int(levels / sqrt(dimension))
    for shifts in ({levels: 1}, {spread: dimension}):
        found = composed_epsilon(bits(ratio, levels), users, shifts, releases, delta)
        assert 0.88 * epsilon < found <= epsilon


@pytest.mark.parametrize(
    ("dimension", "epsilon", "releases"),
    [(9, 1.0, 1), pytest.param(16, 3.0, 1, marks=pytest.mark.slow), pytest.param(16, 1.0, 4, marks=pytest.mark.slow)],
)
def test_the_gaussian_limit_is_that_of_single_directions(dimension, epsilon, releases):
    users, levels, delta = 100, 60, 1e-6
    ratio = BinomialSums(users, dimension, levels, accounting="gaussian-limit").ratio(epsilon, releases, delta=delta)
    spread = int(levels / sqrt(dimension))
    for shifts in ({levels: 1}, {spread: dimension}):
        found = composed_epsilon(bits(ratio, levels), users, shifts, releases, delta)
        assert found == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize(("users", "dimension", "epsilon", "levels", "paper", *ROUNDINGS[::-1]), TABLE)
def test_the_specifications_table(users, dimension, epsilon, levels, paper, independent, coupled, averaged):
    message = paper_vector(epsilon, 1e-6, users, dimension, levels)
    theirs = 2 * sqrt(users) * message.std / levels
    assert round(theirs) == paper
    for rounding, value in zip(ROUNDINGS[::-1], (independent, coupled, averaged), strict=True):
        if value is not None:
            ours = 2 * sqrt(users) * vector_ratio(epsilon, users, levels, dimension, 1, 1e-6, rounding)
            assert ours == pytest.approx(value, rel=0.01)
    factor = theirs / (2 * sqrt(users) * vector_ratio(epsilon, users, levels, dimension, 1, 1e-6, "independent"))
    assert 350 < factor < 480


def test_more_noise_or_delta_is_more_privacy_and_more_coordinates_or_releases_less():
    settings = {"users": 1000, "dimension": 20, "releases": 3, "delta": 1e-6}

    def falls(values):
        return all(later < earlier for earlier, later in pairwise(values))

    message = bits(0.1, 64)
    assert falls([possible_epsilon(bits(ratio, 64), **settings) for ratio in (0.02, 0.03, 0.1, 0.3, 2.0)])
    for name, values in {"delta": (1e-9, 1e-6, 1e-3), "users": (500, 1000, 3000)}.items():
        assert falls([possible_epsilon(message, **(settings | {name: value})) for value in values])
    for name, values in {"releases": (30, 3, 1), "dimension": (2000, 20, 2)}.items():
        assert falls([possible_epsilon(message, **(settings | {name: value})) for value in values])
    assert falls([possible_epsilon(message, **settings, rounding=rounding) for rounding in ROUNDINGS[::-1]])


@pytest.mark.parametrize("levels", sparing([8, 64, 500], [64]))
@pytest.mark.parametrize(("epsilon", "releases"), [(0.1, 1), (1.0, 1), (15.0, 1), (2.0, 1000)])
@pytest.mark.parametrize("dimension", [3, 5000])
def test_the_inverse(levels, epsilon, releases, dimension):
    users = 2000
    ratio = vector_ratio(epsilon, users, levels, dimension, releases, 1e-6)
    found = possible_epsilon(bits(ratio, levels), users, dimension, releases, 1e-6)
    assert found <= epsilon
    less = possible_epsilon(bits(ratio * 0.999, levels), users, dimension, releases, 1e-6)
    assert found > epsilon * (1 - 1e-4) or less > epsilon


def test_the_windows_mass_is_what_lies_outside():
    total, probability, levels = 100, 0.3, 12
    reach = 14 * sqrt(21)
    places = np.arange(total + 1)
    base = pmf(total, probability, total + 1)
    out = (places < levels) | (places > total - levels) | (np.abs(places - 30) > reach)
    found = mass_outside(total, probability, levels)
    assert base[out].sum() <= found <= 2 * base[out].sum()


@pytest.mark.parametrize(("trials", "finite"), [(40, False), (60, False), (140, False), (200, True), (400, True)])
def test_a_near_support_has_no_epsilon_or_is_paid_for(trials, finite):
    """20 levels exceed the noise of few trials: no ε is stated if the support alone costs δ."""
    message = Bits(20, trials, 0.5)
    found = possible_epsilon(message, 1, 1, 1, 1e-6)
    assert (found < inf) == finite
    if binom.cdf(19, trials, 0.5) > 1e-6:
        assert found == inf


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"dimension": 0}, "dimension must be at least 1, got 0"),
        ({"releases": 0}, "releases must be at least 1, got 0"),
        ({"delta": 1.5}, "delta must be"),
        ({"rounding": "none"}, "unknown rounding 'none'"),
    ],
)
def test_refusals(changes, says):
    settings = {"users": 1000, "dimension": 20, "releases": 3, "delta": 1e-6}
    with pytest.raises(Refusal, match=says):
        possible_epsilon(bits(0.1, 64), **(settings | changes))
