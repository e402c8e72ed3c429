import time
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, chi2

from fedprivjax import Ball, Seeds, Softmax, draw_plan, linear_problem
from fedprivjax.plan.participation import Balanced, Full, Given, Uniform, Varying
from fedprivjax.plan.participation.interface import binomial_quantile
from fedprivjax.plan.schedule import Schedule, Size

MACHINES, PER_ROUND, ROUNDS = 7, 3, 6000
LEVEL = 1e-4  # of every chi-square test below


def refusal(function, *args):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        function(*args)
    return str(caught.value)


def machines_p_value(participants, machines):
    """Chi-square over machines; a cohort without repetition has variance smaller by (N−m)/(N−1)."""
    rounds, per_round = participants.shape
    expected = rounds * per_round / machines
    statistic = np.sum((np.bincount(participants.ravel(), minlength=machines) - expected) ** 2) / expected
    return chi2.sf(statistic * (machines - 1) / (machines - per_round), machines - 1)


def pairs_p_value(participants, machines):
    """Chi-square over the machines' pairs, one pair (the first two in a random order) of each round's cohort."""
    rng = np.random.default_rng(99)
    pairs = np.sort(rng.permuted(participants, axis=1)[:, :2], axis=1)
    index = {pair: i for i, pair in enumerate(combinations(range(machines), 2))}
    counts = np.bincount([index[tuple(pair)] for pair in pairs.tolist()], minlength=len(index))
    expected = len(pairs) / len(index)
    return chi2.sf(np.sum((counts - expected) ** 2) / expected, len(index) - 1)


def uniform_by_p_values(participants, machines):
    return min(machines_p_value(participants, machines), pairs_p_value(participants, machines)) > LEVEL


def loaded(rng):
    """Machine 0 is taken a fifth more often than the others."""
    odds = np.ones(MACHINES)
    odds[0] = 1.2
    rows = [rng.choice(MACHINES, PER_ROUND, replace=False, p=odds / odds.sum()) for _ in range(ROUNDS)]
    return np.array(rows)


def neighbours(rng):
    """Every machine equally often, but one round in eight is a run of neighbours."""
    rows = Uniform(MACHINES, PER_ROUND).draw(ROUNDS, rng).participants.copy()
    runs = (rng.integers(0, MACHINES, ROUNDS)[:, None] + np.arange(PER_ROUND)) % MACHINES
    return np.where(rng.uniform(size=(ROUNDS, 1)) < 1 / 8, runs, rows)


def test_uniform_is_uniform_over_machines_and_over_pairs():
    schedule = Uniform(MACHINES, PER_ROUND).draw(ROUNDS, np.random.default_rng(1))
    assert uniform_by_p_values(schedule.participants, MACHINES)


@pytest.mark.parametrize("sampler", [loaded, neighbours])
def test_a_biased_sampler_would_be_caught(sampler):
    assert not uniform_by_p_values(sampler(np.random.default_rng(1)), MACHINES)


def test_only_pairs_reveal_neighbours():
    rows = neighbours(np.random.default_rng(1))
    assert machines_p_value(rows, MACHINES) > LEVEL > pairs_p_value(rows, MACHINES)


@pytest.mark.parametrize(("machines", "per_round"), [(1000, 5), (1000, 400), (50_000, 5), (50_000, 4000)])
def test_large_federations_are_uniform_too(machines, per_round):
    """Different sizes use different algorithms. Ten blocks of machines must be sampled equally often."""
    rows = Uniform(machines, per_round).draw(400_000 // per_round // 10, np.random.default_rng(2)).participants
    observed = np.bincount(rows.ravel() * 10 // machines, minlength=10)
    statistic = np.sum((observed - rows.size / 10) ** 2) / (rows.size / 10) / (1 - per_round / machines)
    assert chi2.ppf(LEVEL, 9) < statistic < chi2.isf(LEVEL, 9)
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all()


@pytest.mark.parametrize(
    "participation", [Full(5), Uniform(5, 5), Uniform(9, 4), Uniform(9, 1), Balanced(12, 4), Balanced(12, 4, False)]
)
def test_cohorts_are_distinct_machines_of_the_stated_number(participation):
    schedule = participation.draw(50, np.random.default_rng(3))
    rows = schedule.participants
    assert rows.dtype == np.int32
    assert schedule.size == Size(participation.machines, participation.per_round, 50)
    assert rows.min() >= 0
    assert rows.max() < participation.machines
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all()


@pytest.mark.parametrize("reshuffle", [True, False])
def test_balanced_takes_every_machine_once_in_a_pass(reshuffle):
    rows = Balanced(12, 3, reshuffle).draw(18, np.random.default_rng(4)).participants  # four and a half passes
    passes = rows[:16].reshape(4, 12)
    assert (np.sort(passes, axis=1) == np.arange(12)).all()
    assert (passes[0] != np.arange(12)).any()
    assert np.unique(rows[16:]).size == 6
    assert all((passes[k] == passes[0]).all() != reshuffle for k in (1, 2, 3))


def test_without_reshuffling_every_gap_is_a_pass():
    schedule = Balanced(12, 3, reshuffle=False).draw(16, np.random.default_rng(4))
    assert (schedule.gaps[:12] == 4).all()
    assert (Balanced(12, 3).draw(16, np.random.default_rng(4)).gaps[:12] != 4).any()


def test_a_given_schedule_is_used_unchanged():
    rows = np.array([[0, 2], [1, 3], [3, 0]])
    given = Given(4, rows)
    schedule = given.draw(2, np.random.default_rng(5))
    np.testing.assert_array_equal(schedule.participants, rows[:2])
    assert (given.per_round, schedule.participants.dtype) == (2, np.int32)
    assert refusal(given.draw, 4, np.random.default_rng(5)) == "rounds must be at most the schedule's (3), got 4"


@pytest.mark.parametrize(
    ("machines", "rows", "message"),
    [
        (3, [0, 1], "schedule must be integers [rounds, per_round], got int64 (2,)"),
        (3, [[0.0, 1.0]], "schedule must be integers [rounds, per_round], got float64 (1, 2)"),
        (3, [[0, 3]], "schedule must have machines in 0..2, got 0..3"),
        (3, [[-1, 1]], "schedule must have machines in 0..2, got -1..1"),
        (3, [[0, 1], [2, 2]], "schedule must have distinct machines in a round, got a machine twice"),
        (1, [[0, 1]], "per_round must be at most machines (1), got 2"),
        (0, [[0]], "machines must be at least 1, got 0"),
        (3, np.zeros((2, 0), int), "per_round must be at least 1, got 0"),
    ],
)
def test_schedules_that_cannot_be_are_refused(machines, rows, message):
    assert refusal(Given, machines, rows) == message


@pytest.mark.parametrize("rows", [np.zeros((0, 2), int), [[0, 1], [2]]], ids=["no rounds", "ragged"])
def test_odd_schedules_are_refused_by_name(rows):
    assert refusal(Given, 3, rows).startswith("schedule must ")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Full(0), "machines must be at least 1, got 0"),
        (lambda: Full(2.0), "machines must be an integer, got 2.0"),
        (lambda: Uniform(100, 120), "per_round must be at most machines (100), got 120"),
        (lambda: Uniform(100, 0), "per_round must be at least 1, got 0"),
        (lambda: Uniform(0, 1), "machines must be at least 1, got 0"),
        (lambda: Balanced(100, 30), "per_round must divide machines (100), got 30"),
        (lambda: Balanced(4, 8), "per_round must be at most machines (4), got 8"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    assert refusal(make) == message


def drawn(participation, rounds=ROUNDS):
    return participation.draw(rounds, np.random.default_rng(2))


def sizes_p_value(schedule, law):
    expected = schedule.filled.size * np.asarray(law)
    observed = np.bincount(schedule.filled - 1, minlength=len(law))
    return chi2.sf(np.sum((observed - expected) ** 2 / expected), len(law) - 1)


def test_a_varying_number_follows_its_distribution():
    for participation, law in (
        (Varying(MACHINES, (0.5, 0.1, 0.4)), (0.5, 0.1, 0.4)),
        (Varying.between(MACHINES, 1, 4), np.full(4, 0.25)),
        (Varying.binomial(MACHINES, 0.3), binom.pmf(np.arange(1, 8), 7, 0.3) / (1 - 0.7**7)),
    ):
        schedule = drawn(participation)
        assert sizes_p_value(schedule, law) > LEVEL
        assert sizes_p_value(schedule, np.roll(law, 1) if len(set(law)) > 1 else (0.3, 0.25, 0.25, 0.2)) < LEVEL
    assert drawn(Varying.between(MACHINES, 3, 5)).filled.min() == 3


@pytest.mark.parametrize("participation", [Varying(MACHINES, (0.2, 0.3, 0.5)), Varying.binomial(MACHINES, 0.3)])
def test_a_varying_cohort_is_uniform_at_each_size(participation):
    schedule = drawn(participation)
    for size in (1, 2, 3):
        rows = schedule.participants[schedule.filled == size, :size]
        assert all(len(set(row)) == size for row in rows.tolist())
        assert machines_p_value(rows, MACHINES) > LEVEL
        if size > 1:
            assert pairs_p_value(rows, MACHINES) > LEVEL


def test_counts_of_a_varying_cohort_pass_over_empty_slots():
    schedule = drawn(Varying.between(4, 1, 4), 30)
    total = np.zeros(4, int)
    for t, row in enumerate(schedule.participants):
        for j in range(schedule.filled[t]):
            total[row[j]] += 1
            assert schedule.counts[t, j] == total[row[j]]
    np.testing.assert_array_equal(schedule.total, total)
    assert schedule.present.sum() == total.sum() == schedule.filled.sum()


@pytest.mark.parametrize("seed", range(6))
def test_counts_gaps_totals_and_previous_values_by_brute_force(seed):
    rng = np.random.default_rng([6, seed])
    machines = int(rng.integers(2, 9))
    per_round, rounds = int(rng.integers(1, machines + 1)), int(rng.integers(1, 12))
    schedule = Uniform(machines, per_round).draw(rounds, rng)
    counts, gaps = (np.zeros(schedule.participants.shape, int) for _ in range(2))
    total = [0] * machines
    for t, row in enumerate(schedule.participants):
        for j, machine in enumerate(row):
            total[machine] += 1
            counts[t, j] = total[machine]
            later = [u for u in range(t + 1, rounds) if machine in schedule.participants[u]]
            gaps[t, j] = (later[0] if later else rounds) - t
    np.testing.assert_array_equal(schedule.counts, counts)
    np.testing.assert_array_equal(schedule.gaps, gaps)
    np.testing.assert_array_equal(schedule.total, total)
    values = rng.normal(size=counts.shape)
    latest, previous = {}, np.zeros(counts.shape)
    for t, row in enumerate(schedule.participants.tolist()):
        previous[t] = [latest.get(machine, 0.0) for machine in row]
        latest.update(zip(row, values[t], strict=True))
    np.testing.assert_array_equal(schedule.previous(values), previous)
    assert schedule.total.shape == (machines,)


def test_one_seed_is_one_schedule():
    drawn = [Uniform(20, 4).draw(10, np.random.default_rng(seed)).participants for seed in (7, 7, 8)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def problem(seed, table=None):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(40, 3))
    return linear_problem(features, rng.integers(0, 2, 40), Softmax(2), constraint=Ball(1.0), partition_table=table)


def test_schedules_ignore_the_data_and_the_other_streams():
    shares = np.arange(40).reshape(10, 4)
    plans = [
        draw_plan(problem(0), Uniform(10, 3), 4, Seeds(5, 1, 1)),
        draw_plan(problem(1), Uniform(10, 3), 4, Seeds(5, 2, 1)),
        draw_plan(problem(1), Uniform(10, 3), 4, Seeds(5, 1, 9)),
        draw_plan(problem(0), Uniform(10, 3), 4, Seeds(5, 1, 1), order="stored"),
        draw_plan(problem(0, shares), Uniform(10, 3), 4, Seeds(5, 1, 1)),
    ]
    for plan in plans[1:]:
        np.testing.assert_array_equal(plan.schedule.participants, plans[0].schedule.participants)
    other = draw_plan(problem(0), Uniform(10, 3), 4, Seeds(6, 1, 1))
    assert (other.schedule.participants != plans[0].schedule.participants).any()


def test_schedules_are_a_stream_of_their_own():
    """Independent of a generator that may have split the dataset, and of the samples' stream at another seed."""
    for seed in (0, 5):
        drawn = draw_plan(problem(0), Balanced(40, 10, False), 4, seed).schedule.participants.ravel()
        assert (drawn != np.random.default_rng(seed).permutation(40)).any()
    samples = draw_plan(problem(0), Full(40), 1, Seeds(0, 5, 0)).samples.ravel()
    drawn = draw_plan(problem(0), Balanced(40, 10, False), 4, 5).schedule.participants.ravel()
    assert (drawn != samples).any()


def test_a_huge_federation_is_drawn_in_reasonable_time():
    started = time.perf_counter()
    schedule = Uniform(10**6, 50).draw(1200, np.random.default_rng(0))
    total = schedule.total, schedule.counts.max(), schedule.gaps.min()
    assert time.perf_counter() - started < 20
    assert (total[0].sum(), total[0].size, total[0].max()) == (60_000, 10**6, total[1])
    assert (np.diff(np.sort(schedule.participants, axis=1), axis=1) > 0).all()


def test_a_schedule_may_be_given():
    schedule = Schedule(4, np.array([[0, 1], [1, 2], [1, 0]]))
    assert schedule.counts.tolist() == [[1, 1], [2, 1], [3, 2]]
    assert schedule.gaps.tolist() == [[2, 1], [1, 2], [1, 1]]
    assert schedule.total.tolist() == [2, 3, 1, 0]


def test_the_mean_cohort_is_of_the_distribution_not_the_sample():
    law = Varying.between(20, 1, 20)
    drawn = [law.draw(5, np.random.default_rng(seed)).cohort for seed in range(3)]
    assert drawn == [pytest.approx(20 / sum(1 / m for m in range(1, 21)))] * 3
    assert Uniform(20, 7).draw(5, np.random.default_rng(0)).cohort == 7


def test_a_participation_says_whether_its_size_varies_and_what_rounds_it_has():
    rows = np.array([[0, 1], [1, 2], [0, 2]])
    kinds = [Full(3), Uniform(3, 2), Balanced(4, 2), Varying.between(3, 1, 2), Given(3, rows)]
    assert [kind.varies for kind in kinds] == [False, False, False, True, False]
    assert [kind.rounds_given for kind in kinds] == [None, None, None, None, 3]


@pytest.mark.parametrize("level", [0.5, 1e-3, 1e-12, 1e-18])
def test_a_quantile_of_the_binomial_is_the_smallest_number_that_is_seldom_exceeded(level):
    trials, chance = np.array([0, 1, 7, 100, 12_345, 10**6])[:, None], np.array([1e-6, 0.01, 0.3, 0.999, 1.0])
    found = binomial_quantile(level, trials, chance)
    assert (binom.sf(found, trials, chance) <= level * (1 + 1e-9)).all()
    assert (binom.sf(found - 1, trials, chance)[found > 0] > level * (1 - 1e-9)).all()
