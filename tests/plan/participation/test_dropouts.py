"""Dropouts: scheduled and counted by guarantees, without sending a message or using a sample."""

import numpy as np
import pytest
from frequencies import within

from fedprivjax import (
    BySize,
    Cohorts,
    Cyclic,
    Dropouts,
    Full,
    NoisyMinibatchSGD,
    OnePass,
    Refusal,
    Softmax,
    Uniform,
    Varying,
    Weighted,
    draw_plan,
    guarantee,
    linear_problem,
)

RATES = (0.0, 0.1, 0.5, 0.8, 0.3, 0.6)
LAWS = [Uniform(6, 4), Varying.between(6, 2, 4), Cyclic(6, 4), Weighted(6, 4, [1, 2, 3, 4, 5, 6])]


def draw(law, rounds=4000, seed=3):
    return law.draw(rounds, np.random.default_rng(seed))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rate", [0.3, RATES])
def test_the_planned_schedule_is_the_schemes_own(law, rate):
    planned, schedule = draw(law), draw(Dropouts(law, rate))
    np.testing.assert_array_equal(schedule.participants, planned.participants)
    np.testing.assert_array_equal(schedule.scheduled, planned.scheduled)
    np.testing.assert_array_equal(schedule.total, planned.total)
    assert schedule.dropped is not None
    assert not (schedule.dropped & ~schedule.scheduled).any()
    assert schedule.present.any(axis=1).all()
    sizes = schedule.present.sum(axis=1).astype(float)
    assert within(sizes, schedule.expected)
    assert within(1 / sizes, 1 / schedule.mean)
    assert not within(sizes, 2 / 3 * schedule.expected)
    assert not within(1 / sizes, 3 / 2 / schedule.mean)


def test_each_machine_drops_out_at_its_own_rate():
    """Fifty machines, so that hardly a round is empty."""
    rates = np.linspace(0, 0.9, 50)
    schedule = draw(Dropouts(Full(50), rates))
    for machine in (0, 10, 30, 49):
        gone = (~schedule.present[:, machine]).astype(float)
        assert gone.any() == (machine > 0)
        assert machine == 0 or within(gone, rates[machine])
        assert machine == 0 or not within(gone, 2 / 3 * rates[machine])
        assert machine == 0 or not within(gone, min(1.0, 3 / 2 * rates[machine]))


def test_each_machine_is_equally_likely_to_stay():
    schedule = draw(Dropouts(Full(4), 0.999))
    stays = schedule.present[schedule.present.sum(axis=1) == 1]
    assert len(stays) > 3900
    for machine in range(4):
        assert within(stays[:, machine].astype(float), 1 / 4)


def test_a_dropout_uses_up_no_sample():
    schedule = draw(Dropouts(Uniform(6, 4), 0.5), rounds=40)
    sent = np.zeros(6, int)
    for t, row in enumerate(schedule.participants):
        for j, machine in enumerate(row):
            sent[machine] += schedule.present[t, j]
            assert schedule.counts[t, j] == sent[machine]
    rows = np.arange(6 * 40).reshape(6, 40)
    problem = linear_problem(np.eye(240, 2), np.arange(240) % 2, Softmax(2), partition_table=rows)
    plan = draw_plan(problem, Dropouts(Uniform(6, 4), 0.5), 40, 3, order="stored")
    assert plan.weights is not None
    present = plan.schedule.present
    np.testing.assert_array_equal(plan.weights[..., 0], present)
    for machine in range(6):
        own = plan.samples[..., 0][present & (plan.schedule.participants == machine)]
        np.testing.assert_array_equal(own, rows[machine, : own.size])
    assert plan.used == present.sum()


def test_guarantees_are_those_of_the_planned_schedule():
    rows = np.arange(240).reshape(6, 40)
    problem = linear_problem(np.eye(240, 2), np.arange(240) % 2, Softmax(2), feature_bound=1.0, partition_table=rows)
    protocol = NoisyMinibatchSGD(noise_std=1.0, step_size=0.1, batch=4)
    stated = []
    for law in (Uniform(6, 4), Dropouts(Uniform(6, 4), 0.5)):
        plan = draw_plan(problem, law, 40, 3, sampler=protocol.minibatches)
        stated.append(guarantee(protocol, problem, plan))
    np.testing.assert_array_equal(stated[0].per_machine, stated[1].per_machine)


@pytest.mark.parametrize("order", ["cyclic", "reshuffled"])
def test_uses_in_epochs_are_the_planned_ones(order):
    """Planned uses are at least the actual uses, and do not depend on the dropouts."""
    rows = np.arange(24).reshape(6, 4)
    problem = linear_problem(np.eye(24, 2), np.arange(24) % 2, Softmax(2), partition_table=rows)
    laws = Uniform(6, 4), Dropouts(Uniform(6, 4), 0.5)
    plans = [draw_plan(problem, law, 40, 3, order=order) for law in laws]
    np.testing.assert_array_equal(plans[0].uses, plans[1].uses)
    np.testing.assert_array_equal(plans[0].uses, -(-plans[0].schedule.total // 4))
    happened = np.bincount(plans[1].samples[..., 0][plans[1].schedule.present], minlength=24)
    assert (happened[rows].max(axis=1) <= plans[1].uses).all()


def test_a_scheme_with_shares_keeps_them():
    law = Dropouts(BySize(3, 2), 0.3).fitted(np.array([5, 4, 3]))
    assert (law.rounds_given, law.depends_on_sizes) == (6, True)
    assert Dropouts(Varying.between(3, 1, 2), 0.1).most_rounds(10) == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dropouts(Full(4), 1.0), "dropouts must be at least 0 and below 1, got 1.0"),
        (lambda: Dropouts(Full(4), [0.1, -0.2, 0.1, 0.1]), "dropouts must be at least 0 and below 1, got -0.2"),
        (lambda: Dropouts(Full(4), float("nan")), "dropouts must be at least 0 and below 1, got nan"),
        (lambda: Dropouts(Full(4), [0.1, 0.2]), "dropouts must be one rate or one for each of 4 machines, got 2"),
        (lambda: Dropouts(Full(4), "often"), "dropouts must be one rate or one for each machine, got often"),
        (lambda: Dropouts(4, 0.1), r"scheme must be a Participation, such as Uniform\(100, 10\), got 4"),
        (
            lambda: Dropouts(Cyclic(3, 1), [0.1, 0.2, 0.3]).cohort_size_pmf,
            r"dropouts must be one rate for Cyclic\(machines=3, per_round=1\) to have one cohort-size distribution",
        ),
        (
            lambda: draw(Dropouts(Cohorts(9, (2, 3)), 0.1), 2),
            "dropouts must be left out if cohort sizes are announced",
        ),
    ],
)
def test_refused(make, says):
    with pytest.raises(Refusal, match=f"^{says}$"):
        make()


@pytest.mark.parametrize("law", [Dropouts(Full(6), 0.5), Dropouts(OnePass(6, 2), 0.5)])
def test_dropouts_of_dropouts_are_refused(law):
    """Otherwise machines that dropped out would return, and the stated mean size would be wrong."""
    with pytest.raises(Refusal, match=r"^dropouts must be given once, got others from "):
        Dropouts(law, 0.1).draw(3, np.random.default_rng(0))
    assert Dropouts(law, 0.0).draw(3, np.random.default_rng(0)).dropped is not None
