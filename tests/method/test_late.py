"""Late answers: runs against an event loop by time, guarantees by brute force, refusals, and one program."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from oracles import late

from fedprivjax import (
    AdaptiveClip,
    Buffered,
    Delays,
    DPMu2,
    FedAvg,
    FedDyn,
    Full,
    Given,
    Late,
    LocalEpochs,
    LocalPrivacy,
    Logistic,
    NoisyMinibatchSGD,
    Protocol,
    Quantiser,
    Refusal,
    Scaffold,
    Schedule,
    SecureSum,
    Timed,
    Uniform,
    guarantee,
    linear_problem,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.simulate import run_program
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.seeds import as_seeds, participation_rng
from fedprivjax.privacy import gdp

RNG = np.random.default_rng(5)
MACHINES, RECORDS, FEATURES = 6, 4, 3
X = RNG.normal(size=(MACHINES, RECORDS, FEATURES)).astype(np.float32)
Y = RNG.integers(0, 2, (MACHINES, RECORDS))
PROBLEM = linear_problem(X, Y, Logistic())
PLAIN = FedAvg(local_epochs=2, batch=2, step_size=0.3)
PRIVATE = FedAvg(unit="machine", update_clip=0.2, noise_std=0.1, local_epochs=2, batch=2, step_size=0.3)
HOURS = [1.0, 1.0, 0.2, 3.0, 1.0, 0.5]
LATE = Buffered(MACHINES, 3, concurrency=5, delays=Delays("exponential", HOURS), max_staleness=4)


def gradient(w, record):
    x, y = X.reshape(-1, FEATURES)[record].astype(float), 2.0 * Y.ravel()[record] - 1
    return -y * x / (1 + np.exp(y * (x @ w)))


def trained(protocol, scheme, rounds=30, **settings):
    return simulate(protocol, PROBLEM, scheme, rounds=rounds, metrics=[], **settings)


@pytest.mark.parametrize(
    ("clip", "power"),
    [(0.05, 0.5), pytest.param(None, 0.5, marks=pytest.mark.slow), pytest.param(None, 0.0, marks=pytest.mark.slow)],
)
def test_runs_follow_an_event_loop_by_time(clip, power):
    protocol = PLAIN if clip is None else replace(PRIVATE, update_clip=clip, noise_std=0.0)
    scheme, plan = replace(LATE, power=power), draw_plan(PROBLEM, LATE, 30, 3, sampler=PLAIN.minibatches)
    answers = zip(plan.samples.reshape(90, -1), plan.weights.reshape(90, -1), strict=True)
    path, times, seen = late.fedbuff(
        gradient, answers, np.zeros(FEATURES), machines=MACHINES, size=3, working=5, hours=HOURS,
        relative=lambda rng, shape: rng.exponential(size=shape), rng=participation_rng(as_seeds(3)), rounds=30,
        step=0.3, steps=4, power=power, clip=clip, oldest=4,
    )  # fmt: skip
    runs = [trained(protocol, scheme, rounds, seed=3) for rounds in (7, 30)]
    for run in runs:
        np.testing.assert_allclose(run.params, path[run.rounds[-1] - 1], atol=1e-6)
        np.testing.assert_allclose(run.hours, times[run.rounds - 1], rtol=1e-12)
    schedule = runs[1].plan.schedule
    np.testing.assert_array_equal(np.stack([schedule.participants, schedule.late.staleness], -1).reshape(-1, 2), seen)
    assert schedule.late.staleness.max() == 4
    assert any(len(set(row)) < 3 for row in schedule.participants.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [PRIVATE, PLAIN, replace(PRIVATE, trust="none")])
def test_equal_delays_with_a_full_buffer_are_the_synchronous_run(protocol):
    scheme = Buffered(MACHINES, 3, concurrency=3, delays="constant")
    run = trained(protocol, scheme)
    same = trained(protocol, Given(MACHINES, run.plan.schedule.participants))
    np.testing.assert_array_equal(run.params, same.params)
    if protocol is not PLAIN:
        assert run.guarantee.epsilon == pytest.approx(same.guarantee.epsilon, rel=1e-9)


def test_two_answers_in_one_buffer_add_under_a_server_and_compose_under_none():
    late = Late(np.zeros((1, 2), np.int32), np.ones((1, 2)), 1)
    schedule = Schedule(MACHINES, np.zeros((1, 2), np.int32), late=late)
    plan = replace(draw_plan(PROBLEM, Uniform(MACHINES, 2), 1, sampler=PLAIN.minibatches), schedule=schedule)
    for trust, noise, epsilon in (("server", 0.5, 10.0), ("none", 1.0, 6.57)):  # the server's noise is that of a mean
        one = replace(
            PLAIN, unit="machine", update_clip=1.0, noise_std=noise, relation="add-or-remove-one", trust=trust
        )
        assert one.event(PROBLEM, plan).epsilon(1e-5) == pytest.approx(epsilon, abs=0.01)


def test_the_sensitivity_is_that_of_all_messages_of_a_machine():
    """Opposite updates of norm C in all of a machine's answers move the means as the guarantee counts."""
    run = trained(PRIVATE, LATE, seed=3)
    schedule, clip, divisor = run.plan.schedule, 0.2, 3
    for machine in range(MACHINES):
        moved = np.where(schedule.participants == machine, schedule.late.weights, 0) * 2 * clip / divisor
        mu = np.sqrt((moved.sum(axis=1) ** 2).sum()) / 0.1
        assert run.guarantee.mus.each[machine] == pytest.approx(mu, rel=1e-9)
    worst = ready(PRIVATE, PROBLEM, LATE, rounds=30, seed=3).event
    assert float(np.sqrt(np.sum(worst.multipliers**-2.0))) == pytest.approx(run.guarantee.mu, rel=1e-9)
    assert any("late" not in str(one) and "delays" in str(one) for one in run.guarantee.terms.assumptions)


def test_machines_own_noise_counts_every_answer_once():
    own = trained(replace(PRIVATE, trust="none"), LATE, seed=3)
    total = own.plan.schedule.total
    np.testing.assert_allclose(own.guarantee.mus.each, np.sqrt(total) * 2 * 0.2 / 0.1)
    start = ready(replace(PRIVATE, trust="none"), PROBLEM, LATE, rounds=30, seed=3)
    weights = own.plan.schedule.late.weights
    np.testing.assert_allclose(start.mechanism.inputs, np.sqrt((weights**2).sum(axis=1)) / 3, rtol=1e-6)


@pytest.mark.slow
def test_noise_is_calibrated_to_epsilon_on_the_schedule():
    run = trained(replace(PRIVATE, noise_std=None, epsilon=3.0), LATE, seed=3)
    assert run.guarantee.epsilon == pytest.approx(3, rel=1e-6)
    assert gdp.epsilon(run.guarantee.mu, 1e-5) == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize("sampler", ["full", "subset"])
def test_a_record_is_counted_by_all_answers_of_its_machine(sampler):
    """Late answers cost a record as much as the same answers one after another, each in a round of its own."""
    local = {"local_steps": 2, "batch": None if sampler == "full" else 2, "sampler": sampler}
    record = FedAvg(**local, step_size=0.1, unit="record", clip=1.0, noise_std=3.0)
    scheme = Buffered(MACHINES, 2, delays=Delays("exponential", HOURS))
    plan = draw_plan(PROBLEM, scheme, 6, 3, sampler=record.minibatches)
    apart = draw_plan(PROBLEM, Given(MACHINES, plan.schedule.participants.reshape(-1, 1)), sampler=record.minibatches)
    assert any(len(set(row)) < 2 for row in plan.schedule.participants.tolist())
    stated = [guarantee(record, PROBLEM, each).epsilon for each in (plan, apart)]
    assert stated[0] == pytest.approx(stated[1], rel=1e-9)


@pytest.mark.slow
def test_only_shapes_compile():
    run_program.clear_cache()
    for scheme in (LATE, replace(LATE, delays=Delays("log_normal", 2.0)), replace(LATE, power=1.0, concurrency=4)):
        trained(PRIVATE, scheme)
    assert run_program._cache_size() == 1


@pytest.mark.slow
def test_sweeps_have_the_runs_of_each_seed_with_hours():
    swept = sweep(PRIVATE, PROBLEM, LATE, rounds=12, seeds=3, metrics=["train_loss"], over={"noise_std": [0.1, 0.2]})
    for seed in range(3):
        run = simulate(replace(PRIVATE, noise_std=0.2), PROBLEM, LATE, rounds=12, seed=seed, metrics=["train_loss"])
        one = swept.sel(seed=seed, noise_std=0.2)
        np.testing.assert_allclose(one["train_loss"].values[-1], run.metrics["train_loss"][-1], rtol=1e-6)
        assert float(one["hours"]) == run.costs["hours"] == run.hours[-1]
        assert float(one["realised_epsilon"]) == pytest.approx(run.guarantee.epsilon)


@pytest.mark.slow
def test_machines_are_divided_over_devices():
    whole, divided = (trained(PRIVATE, LATE, seed=3, mesh=mesh) for mesh in (None, {"machines": 2}))
    np.testing.assert_allclose(divided.params, whole.params, atol=1e-6)


@pytest.mark.slow
def test_a_transcript_has_the_points_of_the_run():
    seen, run = transcript(PRIVATE, PROBLEM, LATE, rounds=9, seed=3), trained(PRIVATE, LATE, 9, seed=3)
    np.testing.assert_allclose(seen.params, run.params, atol=1e-6)
    record = FedAvg(local_epochs=1, batch=2, step_size=0.1, unit="record", clip=1.0, noise_std=1.0)
    seen = transcript(record, PROBLEM, LATE, rounds=9, seed=3)
    late, points = seen.plan.schedule.late, np.vstack([seen.queries, seen.params])
    np.testing.assert_allclose(seen.steps.sum(axis=2), seen.messages, atol=1e-6)
    sums = (late.weights[..., None] * seen.messages).sum(axis=1)
    np.testing.assert_allclose(np.diff(points, axis=0), sums / 3, atol=1e-5)


@pytest.mark.slow
def test_synchronous_runs_have_hours_and_the_same_numbers():
    run, timed = trained(PLAIN, Uniform(6, 3)), trained(PLAIN, Timed(Uniform(6, 3), Delays(hours=HOURS)))
    np.testing.assert_array_equal(run.params, timed.params)
    assert run.hours is None
    assert "hours" not in run.costs
    assert timed.hours.shape == timed.rounds.shape
    start = ready(PLAIN, PROBLEM, Uniform(6, 3), rounds=2)
    assert start.inputs.late is None
    assert not jax.tree.leaves(start.protocol.init(PROBLEM, start.plan.size, start.key).server.sent)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            DPMu2(noise_std=1.0, clip=1.0, step_size=0.1),
            "participation must be synchronous for DPMu2, got late answers",
        ),
        (
            NoisyMinibatchSGD(noise_std=1.0, clip=1.0, batch=2, step_size=0.1),
            "must be synchronous for NoisyMinibatchSGD",
        ),
        (
            Scaffold(local_epochs=1, batch=2, step_size=0.1),
            "must be synchronous for Scaffold, whose machines keep a state",
        ),
        (
            Protocol(FedDyn(alpha=0.1), privacy=LocalPrivacy(work=LocalEpochs(1, 2)), step_size=0.1, noise_std=0.0),
            "must be synchronous for FedDyn, whose machines keep",
        ),
        (replace(PRIVATE, update_clip=AdaptiveClip()), "update_clip must be a number with late answers"),
        (replace(PRIVATE, noise_schedule="tree"), "noise_schedule must be left out with late answers"),
        (replace(PLAIN, encoder=Quantiser(levels=4)), "encoder must be left out with late answers"),
        (replace(PRIVATE, trust="none", adversary=SecureSum()), "adversary must be left out with late answers"),
    ],
)
def test_what_is_not_proved_is_refused(protocol, message):
    with pytest.raises(Refusal, match=message):
        ready(protocol, PROBLEM, LATE, rounds=1)


@pytest.mark.slow
def test_noise_of_each_answer_is_refused_unless_weights_are_equal():
    own = replace(PRIVATE, trust="none")
    with pytest.raises(Refusal, match="noise method must be 'auto' or 'aggregate'"):
        transcript(own, PROBLEM, LATE, rounds=9, seed=3)
    seen = transcript(own, PROBLEM, replace(LATE, power=0.0), rounds=9, seed=3)
    points = np.vstack([seen.queries, seen.params])
    np.testing.assert_allclose(np.diff(points, axis=0), seen.messages.sum(axis=1) / 3, atol=1e-5)
    assert ready(PLAIN, PROBLEM, Full(MACHINES), rounds=1).plan.schedule.late is None
