"""One coordinate: A3.1 compared with direct sums, A3.4's first table, and SciPy's tails."""

from bisect import bisect_left
from math import exp, inf, log, sqrt

import numpy as np
import pytest
from one_coordinate import claimed_scalar, hockey_stick, paper_scalar, with_dropouts
from scipy.special import gammaln
from scipy.stats import binom

from fedprivjax import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.binomial.accountant import log_ratio, scalar_epsilon

CASES = [(200, 0.5, 5, 0.5), (2000, 0.3, 20, 1.0), (5000, 0.4999, 64, 0.3), (300, 0.1, 3, 2.0), (10**4, 0.5, 100, 1.0)]
# users, ε, δ, levels; standard deviation over levels, the paper's and exact; ε of the paper's noise, exact and claimed
TABLE = [
    (100, 1.0, 1e-5, 10, "23.44", "3.73", "0.135", "1.20"),
    (1000, 1.0, 1e-6, 64, "25.55", "4.225", "0.146", "1.03"),
    (1000, 0.2, 1e-6, 64, "127.8", "18.99", "0.026", "0.206"),
    (10000, 4.0, 1e-6, 200, "6.39", "1.194", "0.641", "4.04"),
    (400, 10.0, 1e-3, 20, "1.87", "0.413", "1.47", "11.0"),
]


def shown(value, text):
    return f"{value:.{len(text.split('.')[1])}f}" == text


def direct(epsilon, first, second):
    return max(np.maximum(a - exp(epsilon) * b, 0).sum() for a, b in ((first, second), (second, first)))


def shifted_pmf(total, probability, shift, places):
    return binom.pmf(places - shift, total, probability)


@pytest.mark.parametrize(("total", "probability", "shift", "epsilon"), CASES)
def test_delta_is_the_direct_sum_and_epsilon_its_inverse(total, probability, shift, epsilon):
    places = np.arange(total + shift + 1)
    expected = direct(epsilon, *(shifted_pmf(total, probability, k, places) for k in (0, shift)))
    found = hockey_stick(epsilon, total, probability, shift)
    assert found == pytest.approx(expected, rel=1e-8)
    assert scalar_epsilon(total, probability, shift, found) == pytest.approx(epsilon, abs=1e-9)
    assert hockey_stick(epsilon, total, 1 - probability, shift) == pytest.approx(expected, rel=1e-8)


def test_both_directions_count():
    """For p < 1/2 the shifted distribution's upper tail gives another δ than the lower tails."""
    total, probability, shift = 300, 0.1, 3
    places = np.arange(total + shift + 1)
    first, second = (shifted_pmf(total, probability, k, places) for k in (0, shift))
    one, other = (np.maximum(a - exp(2.0) * b, 0).sum() for a, b in ((first, second), (second, first)))
    assert one > 2 * other
    assert hockey_stick(2.0, total, probability, shift) == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize(("total", "probability", "levels", "epsilon"), [(4000, 0.5, 30, 0.7), (9000, 0.1, 24, 1.0)])
def test_the_largest_shift_is_the_worst(total, probability, levels, epsilon):
    found = [hockey_stick(epsilon, total, probability, k) for k in range(levels + 1)]
    assert found[0] == 0
    assert np.all(np.diff(found) >= 0)
    epsilons = [scalar_epsilon(total, probability, k, 1e-5) for k in range(levels + 1)]
    assert np.all(np.diff(epsilons) >= 0)


def test_a_randomly_rounded_message_is_no_worse():
    """Exact mixtures over the rounding of records u and u', compared with the largest shift."""
    total, probability, levels, delta = 150, 0.4, 6, 1e-4
    claimed = scalar_epsilon(total, probability, levels, delta)
    places = np.arange(total + levels + 2)

    def law(u):
        low = int(u)
        return (1 - u + low) * shifted_pmf(total, probability, low, places) + (u - low) * shifted_pmf(
            total, probability, low + 1, places
        )

    grid = np.linspace(0, levels, 25)
    spilt = [direct(claimed, law(u), law(v)) for u in grid for v in grid]
    assert max(spilt) == pytest.approx(delta, rel=1e-6)  # attained by the ends of the range, which are not rounded


@pytest.mark.parametrize(("users", "epsilon", "delta", "levels", "paper", "exact", "realised", "claimed"), TABLE)
def test_the_specifications_table(users, epsilon, delta, levels, paper, exact, realised, claimed):
    message = paper_scalar(epsilon, delta, users, levels)
    assert shown(sqrt(users) * message.std / levels, paper)
    fewest = 1 + bisect_left(range(1, 10**8), True, key=lambda m: hockey_stick(epsilon, m, 0.5, levels) <= delta)
    assert shown(sqrt(fewest) / 2 / levels, exact)
    assert shown(scalar_epsilon(users * message.trials, message.probability, levels, delta), realised)
    assert claimed_scalar(message, users, delta) == pytest.approx(epsilon * (1 + 2 / levels), rel=1e-9)
    assert shown(epsilon * (1 + 2 / levels), claimed)


@pytest.mark.parametrize("total", [10**6, 10**8, 10**11])
def test_many_trials_are_a_gaussian(total):
    shift = round(sqrt(total) / 2)  # μ = 1
    found = scalar_epsilon(total, 0.5, shift, 1e-6)
    assert found == pytest.approx(gdp.epsilon(2 * shift / sqrt(total), 1e-6), rel=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("total", [10**8, 10**12, 10**13])
@pytest.mark.parametrize("probability", [0.5, 0.3, 0.4999, 0.001])
@pytest.mark.parametrize("deviations", [0, 3, 6])
def test_scipys_tails_are_direct_sums(total, probability, deviations):
    sd = sqrt(total * probability * (1 - probability))
    start = int(total * probability + deviations * sd)
    places = np.arange(1 - round(3 * sd) if deviations == 0 else 0, round(10 * sd), dtype=float)
    # by ratios of neighbours from the first term, whose scale cancels between two tails
    steps = np.append(0.0, total * probability - (start + 1 + places[:-1]) - (1 - probability))
    steps[1:] /= (start + 2 + places[:-1]) * (1 - probability)
    terms = np.exp(np.cumsum(np.log1p(steps)))
    cut = round(sd) - int(places[0])
    ours = terms[cut:].sum() / terms[cut + round(sd) :].sum()
    upper = binom.sf([start + round(sd), start + 2 * round(sd)], total, probability)
    assert upper[0] / upper[1] == pytest.approx(ours, rel=1e-8)


def test_dropouts_cost_less_than_the_papers_factor():
    users, levels, delta = 1000, 32, 1e-6
    message = paper_scalar(1.0, delta, users, levels)
    whole = scalar_epsilon(users * message.trials, message.probability, levels, delta)
    for honest, factor in ((0.8, 1.13), (0.5, 1.45), (1 / 3, 1.80)):
        left = int(honest * users * message.trials)
        found = scalar_epsilon(left, message.probability, levels, delta) / whole
        assert found == pytest.approx(factor, abs=0.005)
        assert (
            found
            < 1.05 * with_dropouts(1.0, delta, levels, honest)
            < 1.2 * with_dropouts(1.0, delta, levels, max(honest, 1 / 3), "paper")
        )


def test_what_stands_out_has_no_epsilon():
    assert scalar_epsilon(10, 0.5, 11, 1e-3) == inf
    assert scalar_epsilon(10, 0.5, 5, 1e-3) == inf  # Z + 5 > 10 in half of all cases
    assert hockey_stick(1.0, 10, 0.5, 11) == 1
    assert scalar_epsilon(10, 0.5, 0, 1e-3) == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: scalar_epsilon(10**14, 0.5, 3, 1e-6), "total must be at most 10000000000000 trials"),
        (lambda: scalar_epsilon(100, 1.5, 3, 1e-6), "probability must be"),
        (lambda: scalar_epsilon(100, 0.5, 3, 0.0), "delta must be"),
        (lambda: hockey_stick(-1.0, 100, 0.5, 3), "epsilon must be at least 0, got -1.0"),
        (lambda: scalar_epsilon(100, 0.5, -3, 1e-6), "shift must be at least 0, got -3"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(Refusal, match=says):
        call()


def test_the_likelihood_ratio_is_that_of_the_pmfs():
    total, probability, shift, place = 500, 0.2, 9, 110

    def logpmf(z):
        return gammaln(total + 1) - gammaln(z + 1) - gammaln(total - z + 1) + z * log(0.2) + (total - z) * log(0.8)

    assert log_ratio(place, total, probability, shift) == pytest.approx(logpmf(place - shift) - logpmf(place))
