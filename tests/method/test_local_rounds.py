"""Cohorts of unequal machines: idle steps, equality with one class, and client state in memory."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import optax
import pytest

from fedprivjax import (
    Dropouts,
    FedAvg,
    Full,
    Logistic,
    Refusal,
    Scaffold,
    Seeds,
    Uniform,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.engine.simulate import run_program
from fedprivjax.method.round import IN_A_STEP
from fedprivjax.plan.schedule import class_sizes, idle_share
from fedprivjax.problem import devices
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.sweep import sweep

RNG = np.random.default_rng(3)


def problem(sizes, dimension=3):
    records, ends = sum(sizes), np.cumsum(sizes)
    rows = np.full((len(sizes), max(sizes)), -1)
    for i, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        rows[i, :size] = np.arange(end - size, end)
    features = RNG.normal(size=(records, dimension)).astype(np.float32)
    return linear_problem(features, RNG.integers(0, 2, records), Logistic(), partition_table=rows)


def known_otherwise(protocol, **changes):
    """A calibrated protocol with other facts of its plan."""
    return replace(protocol, known=replace(protocol.known, **changes))


def test_one_long_machine_beside_99_short_ones_leaves_few_steps_idle():
    start = ready(
        FedAvg(local_epochs=1, batch=10, step_size=0.1), problem((*50 * [10], 600, *49 * [10])), Full(100), rounds=2
    )
    assert start.costs["idle_steps"] <= 0.5
    unsplit = known_otherwise(start.protocol, slot_classes=(100,))
    assert unsplit.rounds.run_costs(start.problem, start.plan)["idle_steps"] > 0.97


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_few_steps_are_idle_on_typical_splits(alpha):
    steps = np.ceil(RNG.dirichlet(np.full(100, alpha)) * 6000 / 10).astype(int)
    cohorts = np.stack([RNG.choice(steps, 20, replace=False) for _ in range(50)])
    assert len(class_sizes(steps, 20)) <= 4
    assert idle_share(cohorts, class_sizes(steps, 20), 20) < 0.4 < idle_share(cohorts, (20,), 20)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param(FedAvg, {}, id="FedAvg"),
        pytest.param(
            *(Scaffold, {"noise_std": 0.1, "unit": "record", "clip": 1.0, "batch": 2}),
            id="SCAFFOLD",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sorted_classes_are_equal_to_the_cohort_in_slot_order(method, settings, monkeypatch):
    where = problem((1, 9, 2, 0, 3, 30, 1))
    protocol = method(**{"local_epochs": 2, "batch": 3, "step_size": 0.3, **settings})
    start = ready(protocol, where, Dropouts(Uniform(7, 5), 0.3), rounds=6, metrics=[])
    assert len(start.protocol.known.slot_classes) > 1
    split = run_program(start.arguments, start.static)[0]
    unsplit = replace(start, protocol=known_otherwise(start.protocol, slot_classes=(5,)))
    monkeypatch.setattr(jax.numpy, "argsort", lambda keys: jax.numpy.arange(keys.size))
    np.testing.assert_allclose(split, run_program(unsplit.arguments, unsplit.static)[0], rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(split) > 0.01


def test_the_idle_share_counts_the_computed_steps():
    steps = np.array([[2, 0, 7, 1], [4, 4, 0, 3]])
    assert idle_share(steps, (1, 3), 9) == pytest.approx(1 - 21 / (7 + 3 * 2 + 4 + 3 * 4))
    assert idle_share(steps, (1, 3), 2) == pytest.approx(1 - 21 / (7 + 2 * 2 + 0 + 4 + 2 * 4 + 0))


def test_equal_machines_are_one_class_without_idle_steps():
    start = ready(FedAvg(local_epochs=2, batch=3, step_size=0.1), problem(5 * [6]), Uniform(5, 2), rounds=3)
    assert start.protocol.known.slot_classes == ()
    assert start.costs["idle_steps"] == 0.0


@pytest.mark.parametrize(("local_steps", "rounds"), [pytest.param(1, 4, marks=pytest.mark.slow), (6, 1)])
def test_local_steps_share_a_step_of_their_loop_on_an_accelerator(local_steps, rounds):
    records = problem((10, 10, 10))

    def compute():
        method = FedAvg(local_steps=local_steps, batch=5, step_size=0.1)
        start = ready(method, records, Full(3), rounds=4, eval_every=4, metrics=())
        run_program.clear_cache()
        program = jax.make_jaxpr(lambda arguments: run_program(arguments, start.static))(start.arguments)
        return start.static.unroll, f"unroll={IN_A_STEP}" in str(program), run_program(start.arguments, start.static)[0]

    *here, expected = compute()
    with devices.programs_for("gpu"):
        *there, found = compute()
    assert (here, there) == ([1, False], [rounds, True])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_client_state_is_stated_in_bytes_and_refused_if_it_does_not_fit(monkeypatch):
    where, protocol = problem(5 * [6]), Scaffold(local_epochs=1, batch=3, step_size=0.1)
    run = {"problem": where, "participation": Uniform(5, 2), "rounds": 3}
    assert ready(protocol, **run).costs["client_state_bytes"] == 5 * 3 * 4
    assert ready(FedAvg(local_epochs=1, batch=3, step_size=0.1), **run).costs["client_state_bytes"] == 0
    monkeypatch.setattr(devices, "memory", lambda: 59.0)
    with pytest.raises(Refusal, match=r"client state must fit in .* got 60 bytes for 5 machines .* Use fewer machines"):
        devices.require_state_room(60, 5, jax.devices()[:1])
    monkeypatch.setattr(devices, "require_room", lambda *_, **__: None)
    monkeypatch.setattr("fedprivjax.plan.draw.require_room", lambda *_, **__: None)
    for job in (ready, lambda protocol, **run: sweep(protocol, **run, over={"step_size": [0.1, 0.2]}, seeds=2)):
        with pytest.raises(Refusal, match="client state must fit"):
            job(protocol, **run)


def test_a_sweep_counts_the_client_state_of_every_configuration():
    protocol, where = Scaffold(local_epochs=1, batch=3, step_size=0.1), problem(50 * [6], dimension=40)
    run = {
        "problem": where,
        "participation": Uniform(50, 2),
        "rounds": 3,
        "over": {"step_size": [0.1, 0.2]},
        "seeds": 2,
    }
    with pytest.raises(Refusal, match="memory_budget must be at least"):
        sweep(protocol, **run, memory_budget=2 * 50 * 40 * 4)


@pytest.mark.slow
def test_a_sweep_has_the_idle_steps_and_client_state_of_every_run():
    """Schedules of three seeds, resampled along one of two axes."""
    run = {"problem": problem((1, 9, 2, 0, 3, 30, 1)), "participation": Uniform(7, 3), "rounds": 4}
    over = {"step_size": [0.1, 0.2], "step_scale": [0.5, 1.0]}
    protocol = Scaffold(local_epochs=1, batch=3, step_size=0.1)
    start = ready_sweep(protocol, **run, over=over, seeds=[4, 7, 9], resample=["step_scale"])
    found = execute(start)
    for seed, label in ((4, 0), (7, 1), (9, 2)):
        for point, scale in enumerate(over["step_scale"]):
            costs = ready(protocol, **run, seed=Seeds(seed, seed, seed).resample(point)).costs
            at = found.isel(seed=label).sel(step_scale=scale)
            np.testing.assert_allclose(at["idle_steps"], costs["idle_steps"])
            np.testing.assert_allclose(at["client_state_bytes"], 7 * 3 * 4)
    assert len(np.unique(found["idle_steps"])) > 2


def test_client_state_must_fit_an_accelerators_own_memory(monkeypatch):
    """The devices report less memory than this computer has. Four CPUs share this computer's."""

    @dataclass
    class Accelerator:
        bytes_limit: int
        device_kind, process_index = "H100", 0

        def memory_stats(self):
            return {"bytes_limit": self.bytes_limit, "bytes_in_use": 0}

    run = {"problem": problem(5 * [6]), "participation": Uniform(5, 2), "rounds": 3}
    protocol = Scaffold(local_epochs=1, batch=3, step_size=0.1)
    monkeypatch.setattr(jax, "local_devices", lambda: [Accelerator(59)])
    with pytest.raises(Refusal, match=r"client state must fit in .* \(H100\), got 60 bytes for 5 machines"):
        ready(protocol, **run)
    monkeypatch.setattr(jax, "local_devices", lambda: [Accelerator(60)])
    assert ready(protocol, **run).costs["client_state_bytes"] == 60
    with pytest.raises(Refusal, match="client state must fit"):
        devices.require_state_room(60, 5, [Accelerator(60), Accelerator(59)])
    monkeypatch.setattr(devices, "memory", lambda: 60.0)
    devices.require_state_room(15, 2, jax.devices()[:4])
    with pytest.raises(Refusal, match=r"\(this computer\), got 16 bytes"):
        devices.require_state_room(16, 2, jax.devices()[:4])


@pytest.mark.slow
def test_records_that_are_all_used_are_known_before_the_program_is_compiled():
    """Batches of 3 divide 6 records, but not 7."""
    method, runs = FedAvg(local_epochs=2, batch=3, step_size=0.1), {"rounds": 3, "metrics": []}
    full = ready(method, problem(5 * [6]), Uniform(5, 2), **runs)
    assert full.protocol.known.all_records
    assert not ready(method, problem(5 * [7]), Uniform(5, 2), **runs).protocol.known.all_records
    unknown = replace(full, protocol=known_otherwise(full.protocol, all_records=False))
    one, other = (run_program(start.arguments, start.static)[0] for start in (full, unknown))
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_records_of_one_plan_do_not_tell_those_of_another():
    """A sweep has one program for the plans of all seeds, and those of the first seeds hold no padding by chance."""
    seeds, unequal = [0, 1, 12], problem((4, 4, 4, 2))
    method, runs = FedAvg(local_epochs=1, step_size=1.0), {"rounds": 1, "metrics": ["train_loss"]}
    starts = [ready(method, unequal, Uniform(4, 1), seed=seed, **runs) for seed in seeds]
    assert [int(start.plan.schedule.participants.max()) == 3 for start in starts] == [False, False, True]
    assert not any(start.protocol.known.all_records for start in starts)
    swept = sweep(method, unequal, Uniform(4, 1), seeds=seeds, **runs)["train_loss"].values.ravel()
    np.testing.assert_allclose(
        swept[-1], simulate(method, unequal, Uniform(4, 1), seed=12, **runs).metrics["train_loss"]
    )


@pytest.mark.parametrize(
    ("local", "vectors"), [(None, 4), (optax.sgd(0.1), 4), ("adam", 6), (optax.sgd(0.1, momentum=0.9), 5)]
)
def test_the_state_of_a_local_optimiser_is_counted_in_the_memory(local, vectors):
    step = {} if local is not None and not isinstance(local, str) else {"step_size": 0.1}
    start = ready(FedAvg(local_epochs=1, batch=3, local=local, **step), problem(5 * [6]), Uniform(5, 2), rounds=3)
    assert start.protocol.rounds.vectors_in_memory(start.problem, start.plan.size, 100) == vectors * 2
