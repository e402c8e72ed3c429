"""Numbers of local steps by machine: NumPy loops, guarantees of records and machines, files, and refusals."""

import numpy as np
import pytest
from cases import MACHINES, PARTIAL, SHARES, sparing
from client_data import plan_of
from oracles import clients as oracle

from fedprivjax import (
    Buffered,
    Dropouts,
    FedAvg,
    Full,
    Logistic,
    Refusal,
    Scaffold,
    Uniform,
    datasets,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.experiment.build import make_protocol
from fedprivjax.experiment.read import load
from fedprivjax.plan.samplers import LocalSteps, Poisson, Subset
from fedprivjax.plan.uses import data_used
from fedprivjax.privacy import gdp
from fedprivjax.testing import check_protocol

STEPS, SIZES, ROUNDS, CLIP = (4, 1, 6, 2, 3), (7, 2, 1, 4, 3), 20, 0.3
RNG = np.random.default_rng(8)
X = RNG.normal(size=(sum(SIZES), 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=len(X)) > 0).astype(int)
ROWS = datasets.table(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))[0]


def problem(**settings):
    return linear_problem(X, Y, Logistic(), partition_table=ROWS, **settings)


def gradient(v, record):
    margin = 2 * Y[record] - 1
    return -margin * X[record] / (1 + np.exp(margin * X[record] @ v))


def method(kind=FedAvg, local_steps=STEPS, **settings):
    given = {"local_steps": local_steps, "batch": 2, "sampler": "replacement", "step_size": 0.5}
    return kind(**given | settings)


@pytest.mark.parametrize(
    ("kind", "weighted"), sparing([(FedAvg, False), (FedAvg, True), (Scaffold, False)], [(FedAvg, False)])
)
def test_a_run_is_the_loop_over_each_machines_own_steps(kind, weighted):
    weights = {"machine_weights": "sizes"} if weighted else {}
    run = simulate(method(kind), problem(**weights), Dropouts(Uniform(5, 4), 0.3), rounds=ROUNDS, seed=3, metrics=[])
    for machines, present, samples, own in plan_of(run):
        taken = [len(oracle.batches_of(*of_slot, 6)) for of_slot in zip(samples, own, strict=True)]
        np.testing.assert_array_equal(taken, np.where(present, np.array(STEPS)[machines], 0))
    settings = {"steps": 6, "step": 0.5}
    if kind is FedAvg:
        shares = np.array(SIZES) if weighted else None
        path = oracle.fedavg(gradient, plan_of(run), np.zeros(3), shares=shares, **settings)
    else:
        path = oracle.scaffold(gradient, plan_of(run), np.zeros(3), machines=5, **settings)[0]
    assert np.linalg.norm(path[-1]) > 0.1
    np.testing.assert_allclose(run.params, path[-1], atol=1e-5)


def test_equal_numbers_are_those_of_one_number():
    runs = [simulate(method(local_steps=k), problem(), Uniform(5, 3), rounds=3, metrics=[]) for k in (3, [3] * 5)]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)


def test_a_record_is_in_as_many_noisy_steps_as_its_machine_takes():
    """With full batches, a record of a machine with n records moves each of its K·R steps by 2C/n."""
    private = method(batch=None, sampler="subset", unit="record", clip=CLIP, noise_std=0.4)
    start = ready(private, problem(), Full(5), rounds=3)
    mus = 2 * CLIP / np.array(SIZES) / 0.4 * np.sqrt(3 * np.array(STEPS))
    found = start.event.epsilons(1e-5).each
    np.testing.assert_allclose(found, [float(gdp.epsilon(mu, 1e-5)) for mu in mus], rtol=1e-6)
    assert any(one.name == "public work" for one in start.event.terms.assumptions)
    assert mus.argmax() == 2


def test_secret_samples_are_counted_for_the_steps_of_each_machine():
    """A machine with K steps has the ε of a run in which all machines take K steps."""
    private = {"unit": "record", "clip": CLIP, "noise_std": 0.4}
    found = ready(method(**private), problem(), Full(5), rounds=3).event.epsilons(1e-5).each
    for machine in (0, 2):
        same = ready(method(local_steps=STEPS[machine], **private), problem(), Full(5), rounds=3)
        assert found[machine] == pytest.approx(same.event.epsilons(1e-5).each[machine], rel=1e-9)
        assert not any(one.name == "public work" for one in same.event.terms.assumptions)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_a_machines_message_is_bounded_whatever_its_number_of_steps(relation):
    private = {"unit": "machine", "update_clip": CLIP, "noise_std": 0.1, "relation": relation}
    events = [ready(method(local_steps=k, **private), problem(), Full(5), rounds=3).event for k in (STEPS, 6)]
    assert events[0].epsilon(1e-5) == pytest.approx(events[1].epsilon(1e-5), rel=1e-9)
    assert any(one.name == "public work" for one in events[0].terms.assumptions)


@pytest.mark.slow
def test_the_contract_holds_with_noise_in_every_step():
    private = method(local_steps=np.arange(MACHINES) % 3 + 1, batch=1, noise_std=0.4, unit="record", clip=CLIP)
    properties = "the transcript follows the run", "the noise has the stated distribution"
    assert check_protocol(private, SHARES, PARTIAL, properties=properties).held == properties


def test_expected_uses_count_the_steps_of_each_machine():
    start = ready(method(sampler="replacement"), problem(), Full(5), rounds=3, metrics=[])
    assert data_used(start.problem, start.plan).uses * len(X) == pytest.approx(3 * 2 * sum(STEPS))


@pytest.mark.parametrize("text", ["local_steps = [4, 1, 6, 2, 3]", "local_steps = 4"])
def test_a_file_names_numbers_of_machines(text, tmp_path):
    file = tmp_path / "partial.toml"
    file.write_text(
        f"""
title = "Partial work"
[problem]
dataset = "digits"
partition = {{ kind = "iid" }}
[participation]
kind = "full"
machines = 5
rounds = 2
[[protocol]]
name = "fedavg"
batch = 2
step_size = 0.1
{text}
"""
    )
    (protocol,) = load(file).protocol
    assert make_protocol(protocol).work.number in (4, STEPS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSteps([2, 0], Subset(1)), "local_steps must be at least 1, got 0"),
        (lambda: LocalSteps([2, 1.5], Subset(1)), "local_steps must be an integer, got"),  # type: ignore[arg-type]
        (lambda: LocalSteps([2, 1], Poisson(1)), "sampler must be 'replacement', 'subset' or 'full' with one number"),
        (lambda: method(local_steps=(1, 2, 3)), "local_steps must be one number or one for each of 5 machines, got 3"),
        (lambda: method(sampler="poisson"), "sampler must be 'replacement', 'subset' or 'full' with one number"),
    ],
)
def test_invalid_numbers_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        ready(make(), problem(), Full(5), rounds=2)


@pytest.mark.slow
def test_late_answers_have_the_steps_of_their_machine():
    """A loop over the realised schedule: an answer starts from an earlier version, and has a weight."""
    run = simulate(method(), problem(), Buffered(5, 2, concurrency=4), rounds=ROUNDS, seed=3, metrics=[])
    late, path = run.plan.schedule.late, [np.zeros(3)]
    assert late is not None
    for t, (_, _, samples, weights) in enumerate(plan_of(run)):
        total = 0
        for slot in range(2):
            w = path[t - late.staleness[t, slot]]
            end, _ = oracle.walk(gradient, w, oracle.batches_of(samples[slot], weights[slot], 6), step=0.5)
            total = total + late.weights[t, slot] * (end - w)
        path.append(path[-1] + total / 2)
    assert late.staleness.max() > 1
    np.testing.assert_allclose(run.params, path[-1], atol=1e-5)
