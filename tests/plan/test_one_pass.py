"""One pass over the machines in cohorts of one size, with dropouts."""

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from fedprivjax import Dropouts, Logistic, OnePass, Refusal, draw_plan, linear_problem
from fedprivjax.plan.schedule import Size

LEVEL = 1e-4


def drawn(machines, per_round, rounds, seed=0, dropouts=0.0):
    return Dropouts(OnePass(machines, per_round), dropouts).draw(rounds, np.random.default_rng(seed))


@pytest.mark.parametrize(("machines", "per_round"), [(12, 4), (13, 4), (15, 4), (7, 7), (5, 1), (9, 5)])
def test_every_machine_at_most_once_and_the_remainder_is_dropped(machines, per_round):
    rounds = machines // per_round
    assert OnePass(machines, per_round).rounds_given == rounds
    schedule = drawn(machines, per_round, rounds)
    assert schedule.size == Size(machines, per_round, rounds)
    assert schedule.participants.dtype == np.int32
    assert schedule.filled is None
    assert schedule.total.max() == 1
    assert schedule.total.sum() == rounds * per_round
    assert (schedule.counts == 1).all()


def test_machines_are_in_a_random_order():
    """Places of the first and last machine over many seeds. One machine (10 % 3) is left out, each equally often."""
    rows = np.array([drawn(10, 3, 3, seed).participants for seed in range(3000)]).reshape(3000, 9)
    for machine in (0, 9):
        places = np.append((rows == machine).sum(axis=0), (rows != machine).all(axis=1).sum())
        assert places.sum() == 3000
        assert chisquare(places).pvalue > LEVEL


def test_a_shorter_run_is_the_start_of_a_longer_one():
    for dropouts in (0.0, 0.3):
        short, long = (drawn(40, 4, rounds, 3, dropouts) for rounds in (4, 10))
        np.testing.assert_array_equal(short.participants, long.participants[:4])
        np.testing.assert_array_equal(short.present, long.present[:4])


def test_seeds_decide():
    one, same, other = (drawn(40, 4, 10, seed, 0.3) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.participants, same.participants)
    np.testing.assert_array_equal(one.present, same.present)
    assert not np.array_equal(one.participants, other.participants)
    assert not np.array_equal(one.present, other.present)


def misfit(filled, per_round, rate):
    """The p-value of cohort sizes against Binomial(per_round, rate), with 0 counted as 1."""
    expected = binom.pmf(np.arange(per_round + 1), per_round, rate)
    expected[1] += expected[0]
    expected = expected[1:] * filled.size
    observed = np.bincount(filled, minlength=per_round + 1)[1:]
    return chisquare(observed, expected).pvalue


def test_dropouts_are_independent():
    schedule = drawn(80_000, 4, 20_000, dropouts=0.3)
    assert schedule.present.sum(axis=1).min() == 1
    sent = schedule.present.sum(axis=1)
    assert misfit(sent, 4, 0.7) > LEVEL
    assert max(misfit(sent, 4, rate) for rate in (0.67, 0.73)) < LEVEL
    assert schedule.mean == pytest.approx(1 / np.mean(1 / sent), rel=5e-3)
    assert schedule.expected == pytest.approx(sent.mean(), rel=5e-3)
    assert schedule.total.max() == 1
    assert schedule.total.sum() == schedule.scheduled.sum() == 80_000  # who drops out has been asked


def test_dropouts_do_not_depend_on_the_index():
    """Dropouts do not depend on a machine's index."""
    schedules = [drawn(10, 5, 2, seed, 0.5) for seed in range(1000)]
    often = np.sum([np.bincount(s.participants[s.present], minlength=10) for s in schedules], axis=0)
    assert chisquare(often).pvalue > LEVEL


def test_one_round_may_lose_all_but_one():
    schedule = drawn(60, 3, 20, dropouts=0.999)
    assert (schedule.present.sum(axis=1) == 1).all()


def test_no_more_rounds_than_a_pass():
    rows = np.eye(60, 2)
    problem = linear_problem(rows, np.arange(60) % 2, Logistic())
    assert draw_plan(problem, OnePass(20, 6)).size == Size(20, 6, 3)  # though there are examples for ten rounds
    with pytest.raises(Refusal, match=r"^machines must be at most the 60 examples, got 500$"):
        draw_plan(problem, OnePass(500, 6))
    with pytest.raises(Refusal, match=r"^rounds must be at most 3 for one pass over the machines, got 4$"):
        draw_plan(problem, OnePass(20, 6), 4)


def test_own_records_are_used_once():
    rows = np.random.default_rng(0).normal(size=(12, 1, 2))
    problem = linear_problem(rows, np.zeros((12, 1), int), Logistic())
    plan = draw_plan(problem, OnePass(12, 4), 3)
    assert not plan.repeats
    np.testing.assert_array_equal(plan.samples, plan.schedule.participants)
    np.testing.assert_array_equal(np.sort(plan.samples.ravel()), np.arange(12))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((0, 1), "machines must be at least 1, got 0"),
        ((4, 0), "per_round must be at least 1, got 0"),
        ((4, 5), r"per_round must be at most machines \(4\), got 5"),
    ],
)
def test_refused(settings, says):
    with pytest.raises(Refusal, match=f"^{says}$"):
        OnePass(*settings)
