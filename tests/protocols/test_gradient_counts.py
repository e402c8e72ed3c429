"""The contract detects a method that computes more or fewer gradients than it states."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, REPRESENTATIVES, ROUNDS
from restating import buggy, planted, unsealed

from fedprivjax import DPMu2, FedAvg, Full, LocalSGD, Logistic, NoisySGD, ReducedTreeMomentum, linear_problem
from fedprivjax.method.release import Released
from fedprivjax.problem.models import GeneralModel
from fedprivjax.testing import PROPERTIES, Trial

COUNTED = "the number of gradients is as stated"
STATED = {DPMu2: 2.0, LocalSGD: 1.0, NoisySGD: 1.0, ReducedTreeMomentum: 3.0}


def counting(gradients, **others):
    """Return a function that makes a method of settings with another number of gradients in its costs."""
    copy = unsealed(costs=lambda private, problem, plain: plain | {"gradients_per_use": gradients}, **others)
    return lambda method: lambda **settings: planted(method(**settings), copy)


def nothing(private, problem, message, inputs, noise, memory, limits, key):
    """Return a release of zeros, without any gradient."""
    return Released(jax.tree.map(jnp.zeros_like, problem.start), memory, {})


def on_trial(method, name):
    case = CASES[name]
    settings = {key: value for key, value in vars(case.protocol).items() if value is not None}
    return Trial(method(**settings), case.problem, case.participation, ROUNDS)


@pytest.mark.parametrize(
    ("method", "name", "counted"),
    [
        (counting(1.0)(DPMu2), "mu2-none-clipped-uniform", "2, and is 1"),
        (counting(2.0)(NoisySGD), "sgd-server-clipped-last", "1, and is 2"),
        pytest.param(
            buggy(ReducedTreeMomentum, gradients_spared=0), "reduced-server", "1, and is 3", marks=pytest.mark.slow
        ),
    ],
)
def test_a_wrong_number_fails(method, name, counted):
    with pytest.raises(AssertionError, match=rf"^gradients_per_use less .* round 1 over its \d+ records, {counted}$"):
        PROPERTIES[COUNTED](on_trial(method, name))


@pytest.mark.slow
def test_empty_places_of_unequal_machines_are_no_uses():
    """Machines of 4 and 1 records fill 5 of 8 places in a round."""
    rows = np.array([[0, 1, 2, 3], [4, -1, -1, -1]])
    problem = linear_problem(np.ones((5, 2)), np.arange(5) % 2, Logistic(), partition_table=rows)
    PROPERTIES[COUNTED](Trial(FedAvg(local_epochs=1, batch=2, step_size=0.1), problem, Full(2), rounds=4))


def test_a_method_that_asks_no_model_has_nothing_to_show():
    PROPERTIES[COUNTED](on_trial(counting(7.0, release=nothing)(NoisySGD), "sgd-server-clipped-last"))


@pytest.mark.slow
def test_dense_gradients_are_counted_too():
    case = CASES["mu2-none-clipped-uniform"]
    dense = replace(case.problem, model=GeneralModel(case.problem.model.value), own_lipschitz=1.0, own_smoothness=1.0)
    for clip in (0.5, None):  # record by record, and of the sum of their losses
        for method, holds in ((DPMu2, True), (counting(1.0)(DPMu2), False)):
            trial = Trial(method(mu=6.0, step_size=0.02, clip=clip), dense, case.participation, ROUNDS)
            if holds:
                PROPERTIES[COUNTED](trial)
            else:
                with pytest.raises(AssertionError, match="2, and is 1"):
                    PROPERTIES[COUNTED](trial)


@pytest.mark.slow
def test_what_a_use_costs_is_stated():
    cases = [Trial(*CASES[name][:3], ROUNDS) for name in REPRESENTATIVES]
    costs = {type(trial.protocol): trial.start.protocol.rounds.costs(trial.problem) for trial in cases}
    assert {method: costs[method]["gradients_per_use"] for method in STATED} == STATED
    assert all({"sent_messages", "sent_bits", "gradients_per_use"} == each.keys() for each in costs.values())
