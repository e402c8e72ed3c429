import numpy as np
import pytest

from fedprivjax import (
    Full,
    Given,
    NoisySGD,
    Plan,
    Refusal,
    Schedule,
    Seeds,
    Softmax,
    Uniform,
    draw_plan,
    guarantee,
    linear_problem,
)
from fedprivjax.plan.draw import most_rounds
from fedprivjax.plan.seeds import as_seeds


def refusal(function, *args, **kwargs):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        function(*args, **kwargs)
    return str(caught.value)


def make(examples=24, table=None):
    rng = np.random.default_rng(0)
    return linear_problem(
        rng.normal(size=(examples, 2)), rng.integers(0, 2, examples), Softmax(2), partition_table=table
    )


POOLED = make()
SHARES = np.array([[0, 1, 2, 3, 4], [5, 6, 7, -1, -1], [8, 9, 10, 11, -1]])
SPLIT = make(12, SHARES)
UNEVEN = Given(3, [[0, 2], [0, 1], [2, 0], [0, 1]])  # machine 0: four times, machine 1: twice, machine 2: twice


@pytest.mark.parametrize("order", ["shuffled", "stored"])
@pytest.mark.parametrize("participation", [Full(4), Uniform(10, 3), Full(24)])
def test_an_example_is_used_once_at_most(participation, order):
    plan = draw_plan(POOLED, participation, seed=3, order=order)
    assert plan.samples.shape == plan.schedule.participants.shape
    assert plan.samples.dtype == np.int32
    assert np.unique(plan.samples).size == plan.samples.size
    assert (plan.samples.min() >= 0, plan.samples.max() < 24) == (True, True)
    assert plan.size.rounds == 24 // participation.per_round


@pytest.mark.parametrize("order", ["shuffled", "stored"])
@pytest.mark.parametrize("seed", range(4))
def test_a_machine_uses_its_own_share_and_each_example_once(order, seed):
    plan = draw_plan(SPLIT, UNEVEN, 4, seed, order=order)
    for machine in range(3):
        own = plan.samples[plan.schedule.participants == machine]
        assert np.isin(own, SHARES[machine][SHARES[machine] >= 0]).all()
        assert np.unique(own).size == own.size == (4, 2, 2)[machine]


def test_stored_order():
    plan = draw_plan(POOLED, Uniform(10, 3), 4, order="stored")
    np.testing.assert_array_equal(plan.samples, np.arange(12).reshape(4, 3))
    plan = draw_plan(SPLIT, UNEVEN, 4, order="stored")
    np.testing.assert_array_equal(plan.samples, [[0, 8], [1, 5], [9, 2], [3, 6]])


@pytest.mark.parametrize(("problem", "rounds"), [(make(6), 3), (make(24), 4)])
def test_without_rounds_a_given_schedule_runs_as_long_as_it_and_the_samples_last(problem, rounds):
    assert draw_plan(problem, UNEVEN).size.rounds == rounds


@pytest.mark.parametrize(("problem", "participation"), [(POOLED, Full(4)), (SPLIT, Full(3))])
def test_every_example_is_as_likely_in_every_place(problem, participation):
    places = np.array([draw_plan(problem, participation, 1, seed).samples[0, 0] for seed in range(600)])
    choices = 24 if problem is POOLED else 5
    counts = np.bincount(places, minlength=choices)
    assert counts.size == choices
    # a chi-square with choices − 1 degrees of freedom, at ± 4 standard deviations
    statistic = np.sum((counts - 600 / choices) ** 2) * choices / 600
    assert abs(statistic - (choices - 1)) < 4 * np.sqrt(2 * (choices - 1))


def test_the_streams_of_a_plan_are_separate():
    base = draw_plan(POOLED, Uniform(10, 3), 4, Seeds(1, 2, 3))
    other_schedule = draw_plan(POOLED, Uniform(10, 3), 4, Seeds(8, 2, 3))
    other_samples = draw_plan(POOLED, Uniform(10, 3), 4, Seeds(1, 8, 3))
    other_noise = draw_plan(POOLED, Uniform(10, 3), 4, Seeds(1, 2, 8))
    np.testing.assert_array_equal(other_schedule.samples, base.samples)
    assert (other_schedule.schedule.participants != base.schedule.participants).any()
    assert (other_samples.samples != base.samples).any()
    np.testing.assert_array_equal(other_noise.samples, base.samples)
    np.testing.assert_array_equal(other_noise.schedule.participants, base.schedule.participants)


def test_one_integer_seeds_every_stream():
    one, three = (draw_plan(POOLED, Uniform(10, 3), 4, seed) for seed in (7, Seeds(7, 7, 7)))
    np.testing.assert_array_equal(one.samples, three.samples)
    np.testing.assert_array_equal(one.schedule.participants, three.schedule.participants)
    assert as_seeds(np.int64(7)) == Seeds(7, 7, 7)
    order = np.random.default_rng(0).permutation(24)
    assert (draw_plan(POOLED, Full(24), 1, 0).samples[0] != order).any()


def test_all_rounds_that_the_samples_allow():
    assert most_rounds(POOLED, Full(5)) == 4
    assert most_rounds(POOLED, Uniform(30, 7)) == 3
    assert most_rounds(SPLIT, Full(3)) == 3
    assert draw_plan(SPLIT, Full(3)).size.rounds == 3


@pytest.mark.parametrize(
    ("problem", "participation", "options", "message"),
    [
        (
            POOLED,
            Full(5),
            {"rounds": 5},
            "per_round · rounds must be at most the 24 examples, got 5 · 5 = 25. Use at most 4 rounds",
        ),
        (
            POOLED,
            Full(25),
            {},
            "per_round · rounds must be at most the 24 examples, got 25 · 1 = 25. Use fewer machines per round",
        ),
        (POOLED, Full(4), {"rounds": 0}, "rounds must be at least 1, got 0"),
        (POOLED, Full(4), {"rounds": 2.5}, "rounds must be an integer, got 2.5"),
        (POOLED, Full(4), {"seed": -1}, "seed must be at least 0, got -1"),
        (POOLED, Full(4), {"seed": 0.5}, "seed must be an integer, got 0.5"),
        (
            POOLED,
            Full(4),
            {"order": "stored "},
            "unknown order 'stored ', did you mean 'stored'? (known: shuffled, stored, cyclic, reshuffled)",
        ),
        (
            SPLIT,
            Full(3),
            {"rounds": 5},
            "per_round · rounds must be at most the 12 examples, got 3 · 5 = 15. Use at most 3 rounds, because the "
            "smallest machine has 3 records",
        ),
        (SPLIT, Full(4), {"rounds": 1}, "machines must be 3, as the data are split, got 4"),
        (
            SPLIT,
            Full(3),
            {"rounds": 4},
            "machine 1 must have at least 4 examples for this schedule, got 3. "
            "Use fewer rounds, participation by_size (BySize), or a method that samples batches from each machine's "
            "records",
        ),
    ],
)
def test_refusals(problem, participation, options, message):
    assert refusal(draw_plan, problem, participation, **options) == message


def test_the_largest_number_of_rounds_is_not_refused():
    assert draw_plan(POOLED, Full(5), 4).samples.size == 20
    assert draw_plan(POOLED, Full(24), 1).samples.size == 24


@pytest.mark.parametrize("filled", [None, np.array([2, 1, 2])])
def test_a_plan_by_hand_that_repeats_samples_says_so_whether_or_not_its_cohorts_vary(filled):
    """Otherwise samples that are used three times would get the guarantee for a single use."""
    problem = linear_problem(np.eye(8), np.arange(8) % 2, Softmax(2))
    schedule = Schedule(2, np.array([[0, 1]] * 3), filled)
    again, fresh = np.array([[0, 4]] * 3), np.array([[0, 4], [1, 4], [2, 5]])  # 4 is not sent in the second round
    weights = schedule.present[..., None].astype(np.float32)
    plans = [
        Plan(schedule, samples) if filled is None else Plan(schedule, samples[..., None], weights)
        for samples in (again, fresh)
    ]
    assert (plans[0].repeats, plans[1].repeats) == (True, filled is None)
    np.testing.assert_array_equal(plans[0].uses, [3, 3 if filled is None else 2])
    with pytest.raises(Refusal, match=r"^order must use each sample once"):
        guarantee(NoisySGD(noise_std=1.0, clip=1.0, step_size=0.1), problem, plans[0])
    if filled is not None:
        assert guarantee(NoisySGD(noise_std=1.0, clip=1.0, step_size=0.1), problem, plans[1]).mu == 2.0
