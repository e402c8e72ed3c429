"""Plans of several epochs over machines' own records."""

from typing import Any

import numpy as np
import pytest

from fedprivjax import DPMu2, Full, Softmax, Uniform, draw_plan, linear_problem, simulate
from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import as_sampler
from fedprivjax.problem.constraints import Ball

ROWS = np.array([[0, 1, 2], [3, 4, -1], [5, 6, 7]])


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    features = rng.random((8, 3)) / 2
    return linear_problem(
        features, rng.integers(0, 2, 8), Softmax(2), feature_bound=1.0, constraint=Ball(1.0), partition_table=ROWS
    )


def used(plan: Plan, machine: int) -> list[int]:
    return plan.samples[plan.schedule.participants == machine].tolist()


@pytest.mark.parametrize("order", ["cyclic", "reshuffled"])
@pytest.mark.parametrize("participation", [Full(3), Uniform(3, 2)])
def test_each_epoch_uses_each_of_a_machines_records_once(problem, order, participation):
    plan = draw_plan(problem, participation, 13, 4, order=order)
    for machine, row in enumerate(ROWS):
        own, n = used(plan, machine), np.sum(row >= 0)
        for start in range(0, len(own) - n + 1, n):
            assert sorted(own[start : start + n]) == sorted(row[row >= 0])


def test_cyclic_order_repeats_and_reshuffled_order_does_not(problem):
    cyclic, fresh = (draw_plan(problem, Full(3), 30, 1, order=order) for order in ("cyclic", "reshuffled"))
    assert used(cyclic, 0)[:27] == used(cyclic, 0)[3:]
    assert used(fresh, 0)[:27] != used(fresh, 0)[3:]
    assert used(cyclic, 0)[:3] == used(fresh, 0)[:3]
    assert used(cyclic, 0)[:2] == used(draw_plan(problem, Full(3), 2, 1), 0)  # the first epoch is that of one pass


@pytest.mark.parametrize("order", ["cyclic", "reshuffled"])
def test_a_method_that_assumes_one_use_of_a_sample_is_refused(problem, order):
    settings: dict[str, Any] = {"rounds": 7, "order": order}
    with pytest.raises(Refusal, match=f"order must use each sample once, as DPMu2's guarantee assumes, got '{order}'"):
        simulate(DPMu2(mu=1.0, clip=1.0), problem, Full(3), **settings)
    run = simulate(DPMu2(mu=np.inf, clip=1.0, step_size=0.1), problem, Full(3), **settings)
    assert not run.guarantee.private


def test_epochs_need_per_machine_records_and_rounds():
    problem = linear_problem(np.eye(4), [0, 1, 1, 0], Softmax(2))
    with pytest.raises(Refusal, match="order 'cyclic' must have per-machine records"):
        draw_plan(problem, Full(2), 3, order="cyclic")
    owned = linear_problem(np.eye(4), [0, 1, 1, 0], Softmax(2), partition_table=np.arange(4).reshape(2, 2))
    with pytest.raises(Refusal, match="order must be 'shuffled' or 'stored' for a protocol with a sampler"):
        draw_plan(owned, Full(2), 3, order="cyclic", sampler=as_sampler("cyclic", 1))
    with pytest.raises(Refusal, match="rounds must be given if records are reused"):
        draw_plan(owned, Full(2), order="reshuffled")
