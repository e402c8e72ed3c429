"""Secret participation: distributions of the cohorts, width and cut, checks, and the public part of a plan."""

import time
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
import scipy
from frequencies import within

from fedprivjax import (
    Dropouts,
    Full,
    Participation,
    PoissonCohorts,
    Refusal,
    Schedule,
    SecretSubsets,
    Softmax,
    Uniform,
    draw_plan,
    linear_problem,
)
from fedprivjax.plan.participation import SCHEMES, draw_schedule
from fedprivjax.plan.samplers import Poisson, Subset

ROUNDS = 4000


def draw(scheme, rounds=ROUNDS, seed=3):
    return draw_schedule(scheme, rounds, np.random.default_rng(seed))


def members(schedule):
    """Return who sends in each round, bool [rounds, machines]."""
    found = np.zeros((schedule.size.rounds, schedule.machines), bool)
    rounds = np.broadcast_to(np.arange(schedule.size.rounds)[:, None], schedule.present.shape)
    found[rounds[schedule.present], schedule.participants[schedule.present]] = True
    return found


def fits_rate(schedule, rate):
    """Return True if machines' frequencies are `rate`, pairs' are rate², and sizes are binomial."""
    who = members(schedule).astype(float)
    machines = who.shape[1]
    sizes = who.sum(axis=1)
    pairs = all(within(who[:, i] * who[:, j], rate**2) for i, j in combinations(range(min(machines, 6)), 2))
    spread = within((sizes - rate * machines) ** 2, machines * rate * (1 - rate))
    return all(within(one, rate) for one in who.T) and pairs and spread


@pytest.mark.parametrize(("machines", "rate"), [(6, 0.3), (40, 0.1)])
def test_machines_take_part_independently_with_the_rate_and_other_rates_are_rejected(machines, rate):
    drawn = draw(PoissonCohorts(machines, rate))
    assert fits_rate(drawn, rate)
    assert not fits_rate(drawn, rate * 2 / 3)
    assert not fits_rate(drawn, rate * 3 / 2)
    assert not fits_rate(draw(Uniform(machines, round(machines * rate))), rate), "pairs of a fixed size depend"


def test_rounds_are_independent_and_some_are_empty():
    who = members(draw(PoissonCohorts(5, 0.2))).astype(float)
    assert within(who[1:, 0] * who[:-1, 0], 0.04)
    assert within((who.sum(axis=1) == 0).astype(float), 0.8**5)


def test_secret_subsets_have_one_size_and_equal_chances():
    scheme = SecretSubsets(6, 2)
    who = members(draw(scheme)).astype(float)
    assert (who.sum(axis=1) == 2).all()
    for first, second in combinations(range(6), 2):
        assert within(who[:, first], 1 / 3)
        assert within(who[:, first] * who[:, second], 1 / 15)
        assert not within(who[:, first] * who[:, second], 1 / 9)
    np.testing.assert_array_equal(draw(scheme).participants, draw(Uniform(6, 2)).participants)


@pytest.mark.parametrize(("machines", "rate"), [(1, 0.5), (3, 1.0), (10, 0.01), (1000, 0.1), (10**6, 1e-5), (64, 0.9)])
def test_a_round_exceeds_the_width_with_the_stated_probability_of_at_most_1e_12(machines, rate):
    scheme = PoissonCohorts(machines, rate)
    beyond = np.arange(scheme.per_round + 1, min(machines, scheme.per_round + 200) + 1)
    exact = scipy.stats.binom.pmf(beyond, machines, rate).sum()
    assert scheme.cut <= 1e-12
    np.testing.assert_allclose(scheme.cut, exact, rtol=1e-6, atol=1e-30)
    least = scipy.stats.binom.sf(scheme.per_round - 1, machines, rate)
    assert scheme.per_round == 1 or least > 1e-12, "no wider than needed"
    none = (1 - rate) ** machines
    np.testing.assert_allclose(scheme.cohort_size_pmf.sum(), 1 - none, rtol=1e-9)


def test_rounds_beyond_the_width_are_sampled_again(monkeypatch):
    """A cohort that is cut to its width would favour large cohorts: P(S = W) would be P(S ≥ W)."""
    monkeypatch.setattr("fedprivjax.plan.participation.secret._width", lambda machines, rate: 2)
    scheme = PoissonCohorts(6, 0.3)
    filled = draw(scheme).filled
    given = scipy.stats.binom.pmf(np.arange(3), 6, 0.3)
    assert filled.max() == 2
    assert within((filled == 2).astype(float), given[2] / given.sum())
    np.testing.assert_allclose(scheme.cohort_size_pmf, given[1:] / given.sum())


@pytest.mark.parametrize(("machines", "rate"), [(4, 0.4), (5, 0.6)])
def test_given_the_others_a_machine_takes_part_with_the_rate_or_never(machines, rate):
    """Exact: sizes are binomial given S ≤ W, and all subsets of a size are equally likely."""
    width = 2
    sizes = np.array([scipy.stats.binom.pmf(s, machines, rate) for s in range(width + 1)])
    sizes /= sizes.sum()
    for others in range(width + 1):
        without = sizes[others] / scipy.special.comb(machines, others)
        included = sizes[others + 1] / scipy.special.comb(machines, others + 1) if others < width else 0.0
        np.testing.assert_allclose(included / (included + without), rate if others < width else 0.0, atol=1e-12)


@pytest.mark.parametrize("scheme", [PoissonCohorts(10**6, 1e-4), SecretSubsets(10**6, 100)])
def test_draws_of_a_million_machines_are_fast_and_small(scheme):
    scheme.draw(1, np.random.default_rng(0))
    before = time.perf_counter()
    drawn = scheme.draw(1000, np.random.default_rng(0))
    assert time.perf_counter() - before < 1.0
    assert drawn.participants.shape == (1000, scheme.per_round)
    assert scheme.per_round < 200


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonCohorts(0, 0.1), "machines must be at least 1, got 0"),
        (lambda: PoissonCohorts(10, 0.0), "rate must be a probability above 0 and at most 1, got 0.0"),
        (lambda: PoissonCohorts(10, 1.5), "rate must be a probability above 0 and at most 1, got 1.5"),
        (lambda: PoissonCohorts(10, float("nan")), "rate must be a probability above 0 and at most 1, got nan"),
        (lambda: PoissonCohorts(10, "0.1"), "rate must be a probability above 0 and at most 1, got '0.1'"),
        (lambda: SecretSubsets(10, 11), "per_round must be at most machines \\(10\\), got 11"),
        (lambda: PoissonCohorts(10, 0.1).inverse_moment(), "must have no empty rounds"),
        (lambda: PoissonCohorts(10, 0.1).resized(per_round=3), "per_round must be a setting"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_names_in_files():
    assert SCHEMES["poisson_cohorts"] is PoissonCohorts
    assert SCHEMES["secret_subsets"] is SecretSubsets


def test_the_schedule_carries_its_scheme_and_a_constant_divisor():
    for scheme, divisor in ((PoissonCohorts(30, 0.1), 3.0), (PoissonCohorts(4, 0.1), 0.4), (SecretSubsets(30, 5), 5.0)):
        drawn = draw(scheme, 3)
        assert drawn.secret == scheme
        np.testing.assert_allclose((drawn.divisor, drawn.cohort, drawn.public.divisor), divisor)
    assert draw(Full(3), 2).secret is None


@pytest.mark.parametrize("scheme", [PoissonCohorts(8, 0.25), SecretSubsets(8, 2)])
@pytest.mark.parametrize("rate", [0.5, np.linspace(0.0, 0.7, 8)])
def test_dropouts_count_as_present_and_the_divisor_is_the_mean_number_that_send(scheme, rate):
    drawn = draw(Dropouts(scheme, rate))
    assert drawn.secret == scheme, "guarantees are for the planned schedule"
    np.testing.assert_allclose(drawn.divisor, 2 * np.mean(1 - np.broadcast_to(rate, 8)))
    assert within(drawn.present.sum(axis=1).astype(float), drawn.divisor)
    assert not drawn.present.any(axis=1).all(), "no rule keeps one machine"
    assert drawn.planned.divisor == drawn.divisor


@dataclass(frozen=True)
class Pairs(Participation):
    machines: int
    per_round = 2
    secret = True

    def draw(self, rounds, rng):
        first = 2 * rng.integers(self.machines // 2, size=rounds)
        return Schedule(self.machines, np.stack([first, first + 1], axis=1))


def test_a_custom_secret_scheme_is_carried_even_if_its_draw_forgets_it():
    drawn = draw(Pairs(6), 4)
    assert drawn.secret == Pairs(6)
    assert drawn.divisor == 2


@dataclass(frozen=True)
class Leaky(Participation):
    machines: int
    per_round = 2

    def draw(self, rounds, rng):
        return SecretSubsets(self.machines, 2).draw(rounds, rng)


def test_a_public_scheme_may_not_draw_a_secret_schedule():
    with pytest.raises(Refusal, match=r"Leaky\.secret must be True if its schedule is secret, got False"):
        draw(Leaky(6), 4)


PROBLEM = linear_problem(np.eye(4)[np.arange(24) % 4].reshape(6, 4, 4), np.arange(24).reshape(6, 4) % 2, Softmax(2))


@pytest.mark.parametrize("scheme", [PoissonCohorts(6, 0.5), SecretSubsets(6, 2), Dropouts(PoissonCohorts(6, 0.5), 0.3)])
@pytest.mark.parametrize("sampler", [Poisson(2), Subset(2), None])
def test_the_public_part_of_a_plan_is_the_same_for_all_cohorts(scheme, sampler):
    order = {"sampler": sampler} if sampler else {"order": "cyclic"}
    plans = [draw_plan(PROBLEM, scheme, 9, seed, **order) for seed in (1, 2)]
    shown = [replace(plan.public, schedule=plan.public.schedule) for plan in plans]
    assert not np.array_equal(plans[0].schedule.participants, plans[1].schedule.participants)
    assert str(plans[0]) == str(plans[1]) == repr(plans[1])
    assert str(plans[0].schedule) == str(plans[0].public.schedule)
    for one in shown:
        assert one.schedule.participants.shape == (9, 0)
        assert one.samples.size == one.weights.size == 0
        assert (one.schedule.filled, one.schedule.dropped, one.planned_uses, one.data_used) == (None, None, None, "")
        assert np.isnan(one.part_used)
        assert one.schedule.secret == getattr(scheme, "scheme", scheme)
        assert one.schedule.total.sum() == 0
        np.testing.assert_allclose(one.schedule.divisor, plans[0].schedule.divisor)
    assert [plan.data_used for plan in plans] == ["", ""]
