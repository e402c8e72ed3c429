from functools import cache
from itertools import product

import numpy as np
import pytest
from cases import sparing
from scipy import sparse
from scipy.optimize import linprog
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from fedprivjax.auditing.one_run_bounds import chance_of_guesses, epsilon_lower, mu_lower, refutes
from fedprivjax.privacy import gdp

# ---- the worst mechanism, by linear programming


def worst_chance(right, guesses, canaries, lines):
    """Return the largest P[W ≥ right] of a mechanism that is (ε, δ)-DP for every (ε, δ) of `lines`.

    Without loss, a mechanism is symmetric in the canaries and in the states of each, and so is the distribution p of W:
    given W = k, each set of r canaries, and of k among these, is as likely as another. Then canary i is right with
    W = k with probability p_k·k/m, wrong with (r−k)·p_k/m, and its coin's flip swaps right at k and wrong at k−1.
    """
    counts = np.arange(guesses + 1)
    size = counts.size
    hit, missed = np.diag(counts / canaries), np.diag((guesses - counts) / canaries)
    flipped_hit = np.eye(size, k=-1) * ((guesses - counts + 1) / canaries)[:, None]
    flipped_miss = np.eye(size, k=1) * ((counts + 1) / canaries)[:, None]
    rows, total = [], size * (1 + 2 * len(lines))
    for place, (epsilon, _) in enumerate(lines):
        for half, (here, there) in enumerate(((hit, flipped_hit), (missed, flipped_miss))):
            row = np.zeros((size, total))
            start = size * (1 + 2 * place + half)
            row[:, :size], row[:, start : start + size] = here - np.exp(epsilon) * there, -np.eye(size)
            rows.append(row)
    limits = np.zeros(len(rows) * size)
    excess = np.zeros((len(lines), total))
    for place in range(len(lines)):
        excess[place, size * (1 + 2 * place) : size * (3 + 2 * place)] = 1
    one = np.concatenate([np.ones(size), np.zeros(total - size)])[None]
    gain = np.zeros(total)
    gain[right:size] = -1
    above = np.concatenate([limits, [delta for _, delta in lines]])
    return -linprog(gain, sparse.csr_matrix(np.vstack([*rows, excess])), above, one, [1.0]).fun


def worst_of_all_tables(right, canaries, epsilon, delta):
    """Return the same over all tables P(guesses | coins) with a guess for every canary, without assuming symmetry."""
    states = list(product((0, 1), repeat=canaries))
    place = {pair: k for k, pair in enumerate(product(states, states))}
    pairs = [(s, i) for s in states for i in range(canaries)]
    total = len(place) * (1 + canaries)
    above, limits, sums = [], [], []
    for number, (s, i) in enumerate(pairs):
        near, spent = (*s[:i], 1 - s[i], *s[i + 1 :]), np.zeros(total)
        for k, t in enumerate(states):
            row, slack = np.zeros(total), len(place) + number * len(states) + k
            row[place[s, t]], row[place[near, t]], row[slack], spent[slack] = 1, -np.exp(epsilon), -1, 1
            above.append(row)
            limits.append(0.0)
        above.append(spent)
        limits.append(delta)
    for s in states:
        sums.append(np.zeros(total))
        sums[-1][[place[s, t] for t in states]] = 1
    gain = np.zeros(total)
    for (s, t), k in place.items():
        gain[k] = -float(np.sum(np.equal(s, t)) >= right) / len(states)
    return -linprog(gain, np.array(above), limits, np.array(sums), np.ones(len(states))).fun


@pytest.mark.parametrize(
    ("right", "canaries", "epsilon", "delta"), [(2, 2, 0.5, 0.1), (2, 3, 1.0, 0.05), (3, 3, 0.3, 0.2)]
)
def test_the_worst_mechanism_is_symmetric(right, canaries, epsilon, delta):
    by_tables = worst_of_all_tables(right, canaries, epsilon, delta)
    assert worst_chance(right, canaries, canaries, [(epsilon, delta)]) == pytest.approx(by_tables, abs=1e-7)


def curve_of(lines):
    """Return the trade-off curve of all mechanisms that are (ε, δ)-DP for every line."""

    def curve(x):
        sides = [(np.exp(-e) * (x - d), 1 - d - np.exp(e) * (1 - x)) for e, d in lines]
        return np.maximum(np.max(sides, axis=(0, 1)), 0.0)

    return curve


WORST = [
    (5, 5, 5, 0.5, 0.1),
    (15, 20, 20, 1.0, 0.01),
    (20, 20, 20, 1.0, 0.01),
    (8, 8, 20, 0.0, 0.05),
    (42, 50, 50, 1.0, 1e-3),
    (50, 50, 50, 3.0, 0.3),
    (80, 100, 1000, 1.0, 1e-5),
    (88, 100, 1000, 1.0, 1e-5),
    (180, 200, 1000, 1.2, 1e-5),
]


@pytest.mark.parametrize(("right", "guesses", "canaries", "epsilon", "delta"), WORST)
def test_no_mechanism_exceeds_what_the_proofs_allow(right, guesses, canaries, epsilon, delta):
    worst = worst_chance(right, guesses, canaries, [(epsilon, delta)])
    most = chance_of_guesses(right, guesses, canaries, epsilon, delta)
    assert worst <= most * (1 + 1e-6)
    curve = curve_of([(epsilon, delta)])
    assert not refutes(right, guesses, canaries, worst * (1 - 1e-5), curve)
    # one of the two is not much above it
    assert most < 1.3 * worst or refutes(right, guesses, canaries, 1.3 * worst, curve)


@pytest.mark.parametrize(("right", "epsilon", "delta"), [(4, 0.0, 5e-4), (6, 0.0, 5e-4), (8, 2.0, 0.02)])
def test_below_the_mean_no_mechanism_exceeds_it_either(right, epsilon, delta):
    """There P[W ≥ v] can exceed the theorem's right side, but only if both are near 1."""
    assert worst_chance(right, 12, 12, [(epsilon, delta)]) <= chance_of_guesses(right, 12, 12, epsilon, delta)
    assert chance_of_guesses(right, 12, 12, epsilon, 0.0) < 1


@pytest.mark.parametrize(("right", "guesses", "canaries"), [(6, 6, 6), (18, 20, 20), (20, 20, 60), (95, 100, 400)])
@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_no_mechanism_of_a_trade_off_curve_exceeds_what_it_allows(right, guesses, canaries, mu):
    """Some lines of the μ-GDP curve define a larger class of mechanisms, so a limit for them is a limit for μ-GDP."""
    lines = [(epsilon, gdp.delta(epsilon, mu)) for epsilon in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)]
    worst = worst_chance(right, guesses, canaries, lines)
    assert not refutes(right, guesses, canaries, worst * (1 - 1e-5), curve_of(lines))
    assert refutes(right, guesses, canaries, 1.3 * worst, curve_of(lines))


# ---- exact coverage, with the known distribution of W


def false_alarm(law, true, bound):
    """Return P[bound(W) > true], with the probability `law` of each W."""
    return sum(chance for right, chance in enumerate(law) if chance > 0 and bound(right) > true)


RESPONSES = [(0.5, 0.05), (0.5, 1e-3), (2.0, 0.05), (2.0, 1e-3)]


@pytest.mark.parametrize(("epsilon", "level"), sparing(RESPONSES, [(2.0, 0.05)]))
def test_randomised_response_is_held_to_its_epsilon_exactly(epsilon, level):
    law = binom.pmf(np.arange(61), 60, expit(epsilon))
    wrong = false_alarm(law, epsilon, lambda right: epsilon_lower(right, 60, 60, 1e-12, level))
    assert 0.2 * level < wrong <= level


def told_by_blocks(canaries, block, epsilon, delta):
    """Return the distribution of W for randomised response that reveals one block with probability m·δ/block."""
    chance = min(canaries * delta / block, 1.0)
    plain = binom.pmf(np.arange(canaries + 1), canaries, expit(epsilon))
    told = binom.pmf(np.arange(canaries + 1) - block, canaries - block, expit(epsilon))
    return (1 - chance) * plain + chance * told


@cache
def bounds_by_count(delta, level):
    return [epsilon_lower(right, 50, 50, delta, level) for right in range(51)]


@pytest.mark.parametrize("block", [50, 25, 10, 5])
@pytest.mark.parametrize("level", sparing([0.015, 0.05], [0.015]))
def test_canaries_that_are_told_together_raise_no_false_alarms(block, level):
    """(ε, δ)-DP: each canary is revealed with probability δ, together with its block, or all 50 canaries."""
    law = told_by_blocks(50, block, 1.0, 0.02)
    assert false_alarm(law, 1.0, lambda right: bounds_by_count(0.02, level)[right]) <= level


@pytest.mark.parametrize("block", [50, 25])
def test_canaries_that_are_told_together_need_delta(block):
    """Without δ there are more false alarms than the level allows."""
    law = told_by_blocks(50, block, 1.0, 0.02)
    assert false_alarm(law, 1.0, lambda right: bounds_by_count(1e-12, 0.015)[right]) > 0.015


def test_the_term_of_delta_is_stated_as_it_is():
    """Three correct guesses at ε = 0, by hand: 1/8 + 2·3·δ·max{3/8, 6/8/2, 7/8/3}."""
    assert chance_of_guesses(3, 3, 3, 0.0, 0.01) == pytest.approx(1 / 8 + 0.06 * 3 / 8, rel=1e-12)
    assert chance_of_guesses(3, 3, 30, 0.0, 0.01) == pytest.approx(1 / 8 + 0.6 * 3 / 8, rel=1e-12)
    assert chance_of_guesses(0, 3, 3, 1.0, 0.01) == 1.0


# ---- values of another implementation of these bounds (jax-privacy 2.0.0), at δ = 1e-5, computed separately

FIGURES = [
    (74, 100, 1000, 0.05, 0.6517325, 0.9324221),
    (89, 100, 1000, 0.05, 1.5427198, 2.3240219),
    (170, 200, 1000, 0.05, 1.3974589, 2.2406909),
    (170, 200, 1000, 1e-4, 0.0, 1.1836181),
    (30, 30, 30, 0.05, 2.2527770, 5.7097982),
]


@pytest.mark.parametrize(("right", "guesses", "canaries", "level", "binomial", "by_gdp"), FIGURES)
def test_bounds_agree_with_another_implementation(right, guesses, canaries, level, binomial, by_gdp):
    assert gdp.epsilon(mu_lower(right, guesses, canaries, level), 1e-5) == pytest.approx(by_gdp, abs=2e-6)
    bound = epsilon_lower(right, guesses, canaries, 1e-5, level)
    assert bound >= binomial - 1e-6
    if binomial > 0:
        assert chance_of_guesses(right, guesses, canaries, binomial, 1e-5) == pytest.approx(level, rel=1e-4)
        assert bound <= binomial + 1e-3


# ---- shapes of the bounds


def test_bounds_grow_with_right_guesses_and_with_the_level():
    counts = np.arange(40, 101, 10)
    for level in (0.05, 0.01):
        assert (np.diff(mu_lower(counts, 100, 500, level)) >= 0).all()
        assert (np.diff([epsilon_lower(int(count), 100, 500, 1e-5, level) for count in counts]) >= 0).all()
    assert (mu_lower(counts[3:], 100, 500, 0.05) > mu_lower(counts[3:], 100, 500, 0.01)).all()


def test_many_bounds_at_once_are_those_of_each():
    right, guesses = np.array([10, 45, 190, 0]), np.array([10, 60, 200, 7])
    together = mu_lower(right, guesses, 300)
    np.testing.assert_allclose(together, [mu_lower(*pair, 300) for pair in zip(right, guesses, strict=True)])


def test_half_right_is_nothing():
    assert mu_lower(50, 100, 1000) == epsilon_lower(50, 100, 1000, 1e-5) == 0.0
    assert mu_lower(5, 5, 5, 1e-9) == epsilon_lower(5, 5, 5, 1e-5, 1e-9) == 0.0


def test_a_claim_is_refuted_just_below_the_bound_and_not_above():
    bound = mu_lower(170, 200, 1000)
    below, above = (
        refutes(170, 200, 1000, 0.05, lambda x, mu=mu: ndtr(ndtri(x) - mu)) for mu in (bound - 1e-9, bound + 1e-9)
    )
    assert below
    assert not above


def test_the_curve_serves_where_m_times_delta_is_not_small():
    """At the level of verdicts the binomial bound is trivial for 270 right guesses among 300."""
    assert chance_of_guesses(270, 300, 1000, 0.0, 1e-5) > 1e-4
    assert epsilon_lower(270, 300, 1000, 1e-5, 1e-4) > 1.4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mu_lower(11, 10, 100), "right must be between 0 and 10, got 11"),
        (lambda: mu_lower(-1, 10, 100), "right must be between 0 and 10, got -1"),
        (lambda: mu_lower(5.5, 10, 100), "right must be an integer, got 5.5"),
        (lambda: epsilon_lower(5, 101, 100, 1e-5), "guesses must be between 1 and 100, got 101"),
        (lambda: epsilon_lower(0, 0, 100, 1e-5), "guesses must be between 1 and 100, got 0"),
        (lambda: epsilon_lower(5, 10, 100, 0.0), "delta must be between 0 and 1, got 0.0"),
        (lambda: epsilon_lower(5, 10, 100, 1e-5, 1.0), "level must be between 0 and 1, got 1.0"),
        (lambda: mu_lower(5, 10, 100, np.nan), "level must be between 0 and 1, got nan"),
        (lambda: mu_lower(5, 10, 0), "canaries must be at least 1, got 0"),
        (lambda: chance_of_guesses(5, 10, 100, -1.0, 0.0), "epsilon must be at least 0, got -1.0"),
        (lambda: chance_of_guesses(5, 10, 100, 1.0, 1.0), "delta must be at least 0 and below 1, got 1.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
