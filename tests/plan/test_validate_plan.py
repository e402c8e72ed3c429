"""Plans made by hand: a record that counts for more than the sampler says is counted, or the plan is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import (
    DPMu2,
    Dropouts,
    FedAvg,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    Uniform,
    UserSGD,
    draw_plan,
    linear_problem,
    procedural_problem,
)
from fedprivjax.privacy.calibration import guarantee

MACHINES, RECORDS = 4, 8
ROWS = np.random.default_rng(0).normal(size=(MACHINES, RECORDS, 3))
ROWS /= np.linalg.norm(ROWS, axis=2, keepdims=True)
OWN = linear_problem(ROWS, (ROWS[..., 0] > 0).astype(int), Logistic(), feature_bound=1.0)
POOL = linear_problem(ROWS.reshape(-1, 3), (ROWS[..., 0] > 0).astype(int).ravel(), Logistic(), feature_bound=1.0)
COMPUTED = procedural_problem(lambda key, machine: jax.random.normal(key, (3,)), jnp.vdot, start=jnp.zeros(3))
NOISE = {"noise_std": 1.0, "clip": 0.5, "step_size": 0.1}
ONE_PASS = NoisyMinibatchSGD(batch=2, sampler="disjoint", **NOISE)
ALL = NoisyMinibatchSGD(sampler="full", **NOISE)
EPOCHS = FedAvg(unit="record", local_epochs=1, batch=2, **NOISE)
STEPS = FedAvg(unit="record", local_steps=2, sampler="full", **NOISE)
SUBSETS = NoisyMinibatchSGD(batch=2, **NOISE)


def first_again(plan):
    return {"samples": np.broadcast_to(plan.samples[:1], plan.samples.shape)}


def one_alone(plan):
    return {"samples": np.broadcast_to(plan.samples[..., :1], plan.samples.shape)}


def first_batch_again(plan):
    return {"samples": np.tile(plan.samples[..., :2], plan.samples.shape[2] // 2)}


def few_records(plan):
    return {"weights": np.where(np.arange(plan.width) % RECORDS < 2, plan.weights, 0)}


def first_of_the_round(plan):
    return {"samples": np.broadcast_to(plan.samples[:, :1], plan.samples.shape)}


def heavier(plan):
    return {"weights": 2 * plan.weights}


def lighter_than_nothing(plan):
    return {"weights": -plan.weights}


def of_others(plan):
    return {"samples": plan.samples[:, ::-1]}


def beyond(plan):
    return {"samples": plan.samples + 1000}


def from_the_end(plan):
    return {"samples": plan.samples - MACHINES * RECORDS}


def from_the_absent(plan):
    return {"weights": np.ones_like(plan.weights)}


@pytest.mark.parametrize(
    ("protocol", "problem", "law", "change", "why"),
    [
        (ONE_PASS, OWN, Full(4), first_again, "must use each sample once"),
        (ONE_PASS, OWN, Full(4), one_alone, "samples must occur once in a message"),
        (ALL, OWN, Full(4), one_alone, "samples must occur once in a message, got 0 in round 1, slot 1"),
        (EPOCHS, OWN, Full(4), one_alone, "samples must occur once in a local step, got"),
        (EPOCHS, OWN, Full(4), first_batch_again, "samples must be in at most 1 local steps of a round, got"),
        (
            EPOCHS.replace(batch=None),
            OWN,
            Full(4),
            few_records,
            "divisors of LocalEpochs .* got 8 on machine 0 with no",
        ),
        (STEPS, OWN, Full(4), one_alone, "samples must occur once in a local step, got"),
        (
            STEPS,
            OWN,
            Full(4),
            few_records,
            "divisors of LocalSteps must be at most .* got 8 on machine 0 with no batch",
        ),
        (SUBSETS, OWN, Full(4), one_alone, "samples must occur once in a message"),
        (SUBSETS, OWN, Full(4), heavier, r"weights must be from 0 to 0\.5, got 1 in round 1, slot 1"),
        (SUBSETS, OWN, Full(4), lighter_than_nothing, r"weights must be from 0 to 0\.5, got -0\.5"),
        (SUBSETS, OWN, Full(4), of_others, "samples must be the machine's own records"),
        (DPMu2(batch=2, **NOISE), POOL, Full(4), heavier, r"weights must be from 0 to 0\.5, got 1"),
        (DPMu2(**NOISE), POOL, Dropouts(Full(4), 0.2), heavier, "weights must be from 0 to 1, got 2"),
        (DPMu2(**NOISE), POOL, Dropouts(Full(4), 0.5), from_the_absent, "must be 0 in empty slots"),
        (NoisySGD(**NOISE), POOL, Full(4), beyond, "samples must be among the 32 examples"),
        (NoisySGD(**NOISE), POOL, Full(4), from_the_end, "samples must be among the 32 examples"),
        (
            UserSGD(trust="server", **NOISE),
            POOL,
            Full(4),
            first_of_the_round,
            "samples must occur once in a round, got",
        ),
        (UserSGD(**NOISE), POOL, Dropouts(Full(4), 0.2), first_of_the_round, "samples must occur once in a round, got"),
        (DPMu2(**NOISE), COMPUTED, Uniform(4, 2), first_again, "must use each sample once"),
        (DPMu2(batch=2, **NOISE), COMPUTED, Uniform(4, 4), first_again, "must use each sample once"),
    ],
)
def test_a_record_that_counts_for_more_than_the_sampler_says_is_refused(protocol, problem, law, change, why):
    plan = draw_plan(problem, law, 4, sampler=protocol.minibatches)
    assert guarantee(protocol, problem, plan).private
    with pytest.raises(Refusal, match=why):
        guarantee(protocol, problem, replace(plan, **change(plan)))


def test_other_fresh_examples_that_are_computed_are_as_good():
    plan = draw_plan(COMPUTED, Uniform(4, 2), 6)
    other = replace(plan, samples=plan.samples + 7)
    protocol = DPMu2(**NOISE)
    assert guarantee(protocol, COMPUTED, other).mu == guarantee(protocol, COMPUTED, plan).mu


@pytest.mark.parametrize("law", [Full(4), Dropouts(Full(4), 0.2)])
def test_uses_are_those_of_the_samples_and_no_fewer_than_planned(law):
    protocol = UserSGD(trust="none", **NOISE)
    plan = draw_plan(OWN, law, 8, order="cyclic")
    again = replace(plan, **first_again(plan))
    assert plan.uses.tolist() == [1] * MACHINES
    present = np.bincount(plan.schedule.participants[plan.schedule.present], minlength=MACHINES)
    assert again.uses.tolist() == present.tolist()
    assert guarantee(protocol, OWN, again).epsilon > 3 * guarantee(protocol, OWN, plan).epsilon


def test_a_plan_without_its_secret_samples_has_the_same_guarantee():
    plan = draw_plan(OWN, Full(4), 4, sampler=SUBSETS.minibatches)
    assert guarantee(SUBSETS, OWN, plan.public).epsilon == guarantee(SUBSETS, OWN, plan).epsilon
