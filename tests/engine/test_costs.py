"""Costs of a run, counted message by message."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedprivjax import (
    DPMu2,
    Dropouts,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Uniform,
    UserSGD,
    Varying,
    linear_problem,
    simulate,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.plan.samplers import Poisson
from fedprivjax.plan.seeds import Seeds
from fedprivjax.problem.problem import Procedural
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep

RECORDS, FEATURES, MACHINES = 60, 3, 6
X = np.random.default_rng(3).normal(size=(RECORDS, FEATURES)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
POOL = linear_problem(X, Y, Logistic(), feature_bound=5.0)
OWN = linear_problem(X.reshape(MACHINES, 10, FEATURES), Y.reshape(MACHINES, 10), Logistic(), feature_bound=5.0)
BYTES = 4 * FEATURES
STEP = {"noise_std": 1.0, "step_size": 0.1, "clip": 1.0}
MU2 = DPMu2(**STEP)


def counted(start):
    """Return messages per machine and all uses of records, counted slot by slot; of a Poisson sample 3 on average."""
    messages, uses, poisson = np.zeros(start.plan.size.machines), 0, isinstance(start.plan.sampler, Poisson)
    for t, row in enumerate(start.plan.schedule.participants):
        for slot, machine in enumerate(row):
            if start.plan.schedule.present[t, slot]:
                messages[machine] += 1
                weights = np.ones((*start.plan.schedule.participants.shape, 3)) if poisson else start.plan.weights
                uses += 1 if weights is None else np.count_nonzero(weights[t, slot])
    return messages, uses


LAWS = {
    "all": (MU2, POOL, Full(MACHINES), 2),
    "unequal": (MU2, POOL, Uniform(MACHINES, 2), 2),
    "dropouts": (MU2, POOL, Dropouts(Full(MACHINES), 0.4), 2),
    "varying": (MU2, POOL, Varying.between(MACHINES, 1, 3), 2),
    "batches": (replace(MU2, batch=2), POOL, Uniform(MACHINES, 2), 2),
    "secret": (NoisyMinibatchSGD(sampler="poisson", batch=3, **STEP), OWN, Uniform(MACHINES, 4), 1),
    "walks": (LocalSGD(batch=5, **STEP), OWN, Uniform(MACHINES, 4), 1),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_run_takes_what_its_messages_do(name):
    protocol, problem, participation, gradients = LAWS[name]
    start = ready(protocol, problem, participation, rounds=7, seed=2)
    messages, uses = counted(start)
    assert start.costs["rounds_taken"] == 7
    assert start.costs["gradients_per_use"] == gradients
    np.testing.assert_allclose(start.costs["sent_bytes"], BYTES * messages.mean())
    np.testing.assert_allclose(start.costs["gradients_per_record"], gradients * uses / RECORDS)


def test_records_that_no_machine_holds_do_not_count():
    table = OWN.partition_table.rows.copy()
    table[:, 5:] = -1
    start = ready(
        LAWS["walks"][0], replace(OWN, partition_table=type(OWN.partition_table)(table)), Full(MACHINES), rounds=4
    )
    assert start.costs["gradients_per_record"] == pytest.approx(4.0)


def test_records_without_end_have_no_gradients_each():
    endless = replace(POOL, pool=Procedural(0, lambda key, _: jax.tree.map(lambda leaf: leaf[0], POOL.pool)))
    costs = ready(MU2, endless, Full(MACHINES), rounds=4).costs
    assert np.isnan(costs["gradients_per_record"])
    assert costs["sent_bytes"] == 4 * BYTES


def test_bits_of_many_messages_are_converted_to_bytes():
    start = ready(UserSGD(epsilon=2.0, step_size=0.1, clip=1.0), POOL, Uniform(60, 30), rounds=2)
    assert start.costs["sent_messages"] > 1
    assert start.costs["sent_bytes"] == pytest.approx(start.costs["sent_bits"] / 8)


def test_a_run_reports_its_wall_time():
    run = simulate(MU2, POOL, Full(MACHINES), rounds=2)
    assert run.costs["seconds"] > 0
    assert run.costs["sent_bytes"] == 2 * BYTES


def test_a_sweep_has_the_costs_of_every_run(tmp_path):
    """With dropouts that are resampled along one of two axes. Cached chunks keep their wall time."""
    over = {"noise_std": [1.0, 2.0, 3.0], "step_scale": [0.5, 1.0]}
    protocol = DPMu2(step_size=0.1, clip=1.0)
    law = Dropouts(Full(MACHINES), 0.4)
    start = ready_sweep(protocol, POOL, law, over=over, seeds=[4, 7], rounds=5, resample=["step_scale"])
    found = execute(start, folder=tmp_path)
    assert (found["rounds_taken"] == 5).all()
    for seed, label in ((4, 0), (7, 1)):
        for point, scale in enumerate(over["step_scale"]):
            drawn = Seeds(seed, seed, seed).resample(point)
            costs = ready(MU2, POOL, law, rounds=5, seed=drawn).costs
            at = found.isel(seed=label).sel(step_scale=scale)
            for name in ("sent_bytes", "gradients_per_record"):
                np.testing.assert_allclose(at[name], costs[name], err_msg=name)
    assert len(np.unique(found["sent_bytes"])) > 2
    assert (found["seconds"] > 0).all()
    np.testing.assert_array_equal(execute(start, folder=tmp_path)["seconds"], found["seconds"])
