"""One pass in cohorts of announced sizes: each machine at most once, with its own samples, and empty padding."""

import numpy as np
import pytest

from fedprivjax import Cohorts, Logistic, Refusal, draw_plan, linear_problem
from fedprivjax.plan.schedule import Size

SIZES = (2, 2, 9, 6)
ROWS = np.eye(20, 2)
PROBLEM = linear_problem(ROWS, np.arange(20) % 2, Logistic())


def test_cohorts_have_the_announced_sizes():
    schedule = Cohorts(20, SIZES).draw(4, np.random.default_rng(0))
    np.testing.assert_array_equal(schedule.present.sum(axis=1), SIZES)
    assert schedule.total.max() == 1
    assert schedule.total.sum() == sum(SIZES)
    assert schedule.announced
    assert schedule.mean == pytest.approx(1 / np.mean(1 / np.array(SIZES)))


def test_a_pool_needs_no_examples_for_the_padding():
    """Four rounds of nine slots are more than the twenty examples."""
    plan = draw_plan(PROBLEM, Cohorts(20, SIZES))
    assert plan.weights is not None
    assert plan.size == Size(20, 9, 4)
    used = plan.samples[..., 0][plan.schedule.present]
    assert np.unique(used).size == sum(SIZES)
    np.testing.assert_array_equal(plan.weights[..., 0], plan.schedule.present)
    assert not plan.repeats
    assert plan.uses.max() == 1


def test_cut_short():
    assert draw_plan(PROBLEM, Cohorts(20, SIZES), 2).size == Size(20, 2, 2)
    assert [Cohorts(20, SIZES).most_rounds(n) for n in (1, 4, 12, 13, 100)] == [0, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("machines", "sizes", "says"),
    [
        (20, (), "sizes must be at least 1 and add up to at most the 20 machines, got 0 that add up to 0"),
        (20, (3, 0), "sizes must be at least 1, got 0"),
        (18, SIZES, "add up to at most the 18 machines, got 4 that add up to 19"),
    ],
)
def test_refused(machines, sizes, says):
    with pytest.raises(Refusal, match=says):
        Cohorts(machines, sizes)
    with pytest.raises(Refusal, match=r"^rounds must be at most the cohorts \(4\), got 5$"):
        Cohorts(20, SIZES).draw(5, np.random.default_rng(0))
