"""FedAvg and SCAFFOLD: closed forms, NumPy loops, refusals, and sensitivities of the protected unit."""

from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from client_data import plan_of
from faults.clients import KeptTwice
from oracles import clients as oracle

from fedprivjax import (
    Ball,
    Dropouts,
    FedAvg,
    Full,
    LinearLoss,
    LocalEpochs,
    LocalPrivacy,
    Logistic,
    Protocol,
    Refusal,
    Scaffold,
    ServerOptimizer,
    Uniform,
    WholeSpace,
    general_problem,
    linear_problem,
    ready,
    simulate,
    transcript,
)
from fedprivjax.method.protocol import as_leaves
from fedprivjax.plan.samplers import Poisson
from fedprivjax.privacy import gdp
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.scaffold import ControlVariates

CURVATURES, CENTRES = np.array([1.0, 3.0, 10.0]), np.array([2.0, -1.0, 0.5])
STEPS, STEP, PROX = 8, 0.05, 0.5
MACHINES, ROUNDS = 5, 20
SIZES = (7, 2, 0, 4, 1)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(sum(SIZES), 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=len(X)) > 0).astype(int)


def rows_of(sizes):
    rows = np.full((len(sizes), max(sizes)), -1)
    for i, (first, last) in enumerate(pairwise(np.cumsum((0, *sizes)))):
        rows[i, : last - first] = np.arange(first, last)
    return rows


ROWS = rows_of(SIZES)


def fixed_point(contraction, weight=1.0):
    return np.sum(contraction * weight * CENTRES) / np.sum(contraction * weight)


def quadratics():
    pool = {"h": jnp.array(CURVATURES), "a": jnp.array(CENTRES)}
    table = np.arange(3)[:, None]
    return general_problem(
        lambda w, e: e["h"] / 2 * (w[0] - e["a"]) ** 2, pool, start=jnp.zeros(1), partition_table=table
    )


@pytest.mark.parametrize(
    "work", sparing([{"local_steps": STEPS}, {"local_epochs": STEPS}], [{"local_steps": STEPS}]), ids=str
)
@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        (FedAvg, {}, fixed_point(1 - (1 - STEP * CURVATURES) ** STEPS)),
        (
            FedAvg,
            {"prox": PROX},
            fixed_point(1 - (1 - STEP * (CURVATURES + PROX)) ** STEPS, CURVATURES / (CURVATURES + PROX)),
        ),
        (Scaffold, {}, fixed_point(CURVATURES)),
    ],
    ids=["FedAvg", "FedProx", "SCAFFOLD"],
)
def test_fixed_point_on_quadratics(method, settings, expected, work):
    run = simulate(method(step_size=STEP, **work, **settings), quadratics(), Full(3), rounds=400, eval_every=400)
    np.testing.assert_allclose(run.params, expected, atol=1e-6)


def problem(rows=ROWS, **settings):
    return linear_problem(X, Y, Logistic(), partition_table=rows, **settings)


def gradient(v, record):
    margin = 2 * Y[record] - 1
    return -margin * X[record] / (1 + np.exp(margin * X[record] @ v))


PARTICIPATIONS = {"uniform": Uniform(MACHINES, 3), "dropouts": Dropouts(Uniform(MACHINES, 4), 0.3)}
SETTINGS = {
    "epochs": {"local_epochs": 2, "batch": 3},
    "whole": {"local_epochs": 3},
    "steps": {"local_steps": 4, "batch": 2, "sampler": "replacement"},
    "proximal": {"local_epochs": 1, "batch": 2, "prox": 0.7},
    "ball": {"local_epochs": 2, "batch": 3},
}


EVERY = list(product([FedAvg, Scaffold], SETTINGS))
BRIEF = [(FedAvg, "epochs"), (Scaffold, "steps")]


@pytest.mark.parametrize("participation", sparing(list(PARTICIPATIONS), ["dropouts"]))
@pytest.mark.parametrize(("method", "setting"), sparing(EVERY, BRIEF))
def test_a_run_is_the_loop_over_machines_and_steps(method, setting, participation):
    radius = 0.4 if setting == "ball" else None
    rows = rows_of((7, 2, 1, 3, 1)) if setting == "steps" else ROWS  # samples need records
    where = problem(rows, constraint=Ball(radius) if radius else WholeSpace())
    protocol = method(step_size=0.5, **SETTINGS[setting])
    run = simulate(protocol, where, PARTICIPATIONS[participation], rounds=ROUNDS, seed=3, metrics=[])
    steps = protocol.minibatches.cut(run.plan.samples.shape[-1])
    settings = {"steps": steps, "step": 0.5, "prox": protocol.prox or 0.0, "radius": radius}
    if method is FedAvg:
        path = oracle.fedavg(gradient, plan_of(run), np.zeros(3), **settings)
    else:
        path = oracle.scaffold(gradient, plan_of(run), np.zeros(3), machines=MACHINES, **settings)[0]
    np.testing.assert_allclose(run.params, path[-1], atol=1e-5)


def test_weights_by_size():
    run = simulate(
        FedAvg(step_size=0.5, local_epochs=2, batch=3),
        problem(machine_weights="sizes"),
        Uniform(MACHINES, 3),
        rounds=ROUNDS,
        seed=3,
        metrics=[],
    )
    path = oracle.fedavg(gradient, plan_of(run), np.zeros(3), steps=6, step=0.5, shares=np.array(SIZES))
    np.testing.assert_allclose(run.params, path[-1], atol=1e-5)


def test_one_full_step_is_gradient_descent():
    table = np.arange(12).reshape(3, 4)
    where = linear_problem(X[:12], Y[:12], Logistic(), partition_table=table)
    run = simulate(FedAvg(local_epochs=1, step_size=0.5), where, Full(3), rounds=ROUNDS, metrics=[])
    w = np.zeros(3)
    for _ in range(ROUNDS):
        w = w - 0.5 * np.mean([gradient(w, record) for record in range(12)], axis=0)
    np.testing.assert_allclose(run.params, w, atol=1e-5)


def test_an_epoch_uses_every_record_once():
    start = ready(FedAvg(local_epochs=2, batch=3, step_size=0.1), problem(), Full(MACHINES), rounds=2)
    for machines, _, samples, weights in plan_of(start):
        for slot, machine in enumerate(machines):
            used = np.sort(samples[slot][weights[slot] != 0])
            own = ROWS[machine][ROWS[machine] >= 0]
            np.testing.assert_array_equal(used, np.sort(np.tile(own, 2)))


@pytest.mark.slow
def test_server_optimizer():
    kwargs = {"local_epochs": 1, "batch": 3, "step_size": 0.5}
    plain = simulate(FedAvg(**kwargs), problem(), Full(MACHINES), rounds=3, metrics=[])
    served = FedAvg(server=ServerOptimizer("sgd"), server_step=1.0, **kwargs)
    run = simulate(served, problem(), Full(MACHINES), rounds=3, metrics=[])
    np.testing.assert_allclose(run.params, plain.params, atol=1e-6)


# ---- privacy


class Score(LinearLoss):
    """The score itself: the gradient is the record, at any point."""

    def value(self, score, label):
        return score


def of_machine(machine, factor):
    """The problem with one machine's records replaced, moved by a factor."""
    x = X.copy()
    own = ROWS[machine][ROWS[machine] >= 0]
    x[own] *= factor
    return linear_problem(x, Y, Logistic(), partition_table=ROWS)


MACHINE = {"unit": "machine", "step_size": 5.0, "noise_std": 1e-9, "trust": "none"}
CLIP = 0.3


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedAvg, Scaffold])
def test_a_machine_moves_its_message_by_at_most_two_clips(method):
    """Opposite data reach nearly 2C, which is the claimed sensitivity; other machines' messages stay in round 1."""
    protocol = method(local_epochs=2, batch=2, update_clip=CLIP, **MACHINE)
    sent = [
        transcript(protocol, of_machine(0, factor), Full(MACHINES), rounds=1, seed=2).messages[0] for factor in (9, -9)
    ]
    moved = np.linalg.norm(sent[0] - sent[1], axis=1)
    claimed = ready(protocol, problem(), Full(MACHINES), rounds=1).event.sensitivity
    assert claimed == pytest.approx(2 * CLIP)
    assert 0.9 * claimed < moved[0] <= claimed * (1 + 1e-5)
    np.testing.assert_allclose(moved[1:], 0, atol=1e-6)


@typed_jit
def after_round(protocol, problem, state, inputs, key):
    return protocol.round(problem, state, inputs, None, key)[0]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ControlVariates(), KeptTwice()], ids=str)
def test_control_variates_stay_the_mean_of_the_machines_where_the_clip_binds(algorithm):
    privacy = LocalPrivacy(work=LocalEpochs(2, 2), unit="machine", update_clip=0.02)
    protocol = Protocol(algorithm, privacy=privacy, step_size=0.5, noise_std=0.0)
    start = ready(protocol, problem(), Full(MACHINES), rounds=1, seed=3, metrics=[])
    state = start.protocol.init(start.problem, start.plan.size, start.key)
    at = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], start.inputs)
    state = after_round(as_leaves(start.protocol), start.problem, state, at, start.key)
    drift = jnp.abs(state.own.mean(axis=0) - state.server.server.control).max()
    wrong = isinstance(algorithm, KeptTwice)
    assert (drift > 1e-3) == wrong
    assert wrong or drift < 1e-6


@pytest.mark.filterwarnings("error")
def test_a_machine_without_records_has_no_loss_with_full_batches():
    protocol = FedAvg(local_steps=2, unit="record", clip=CLIP, step_size=1.0, noise_std=0.4)
    start = ready(protocol, problem(), Full(MACHINES), rounds=3)
    mu = 2 * CLIP / 0.4 * np.sqrt(3 * 2)  # machine 4 has one record
    assert start.event.epsilon(1e-5) == pytest.approx(float(gdp.epsilon(mu, 1e-5)), rel=1e-6)


def test_weights_of_poisson_samples_are_refused():
    """A machine whose sample is empty would weigh nothing, which tells that no record was sampled."""
    protocol = FedAvg(local_steps=1, batch=1, sampler="poisson", unit="record", clip=CLIP, noise_std=1.0, step_size=1.0)
    with pytest.raises(Refusal, match="machine_weights must be left out with the sampler 'poisson'"):
        ready(protocol, problem(rows_of((7, 2, 1, 3, 1)), machine_weights="sizes"), Full(MACHINES), rounds=1)


def test_weights_of_protected_machines_are_refused():
    """The sum of a cohort's weights depends on who takes part."""
    protocol = FedAvg(local_steps=1, unit="machine", update_clip=CLIP, noise_std=1.0, step_size=1.0)
    with pytest.raises(Refusal, match=r"machine_weights must be left out with unit = 'machine', got 'sizes': "):
        ready(protocol, problem(rows_of((7, 2, 1, 3, 1)), machine_weights="sizes"), Full(MACHINES), rounds=1)


def test_relation_of_machines():
    both = [
        ready(
            FedAvg(local_epochs=1, update_clip=CLIP, relation=relation, unit="machine", step_size=1.0, noise_std=0.1),
            problem(),
            Uniform(MACHINES, 2),
            rounds=9,
        )
        for relation in ("replace-one", "add-or-remove-one")
    ]
    assert both[0].event.mu == pytest.approx(2 * both[1].event.mu)
    times = both[1].plan.schedule.total.max()
    assert both[1].event.mu == pytest.approx(CLIP / 2 / 0.1 * times**0.5)
    assert "all records of one machine (add-or-remove-one (zero-out))" in str(both[1].guarantee)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "records", "batch"), [(FedAvg, 4, 2), (Scaffold, 5, 2), (FedAvg, 7, 3)])
def test_a_record_moves_a_noisy_step_by_at_most_two_clips_over_the_batch(method, records, batch):
    """Also in the last, shorter batch: every step divides by B (records = 2B + 1)."""
    protocol = method(local_epochs=1, batch=batch, clip=CLIP, unit="record", step_size=1.0, noise_std=1e-9)

    def steps(replaced, factor):
        x = X[:records].copy()
        x[replaced] *= factor
        where = linear_problem(x, np.ones(records), Score(), partition_table=np.arange(records)[None])
        view = transcript(protocol, where, Full(1), rounds=1, seed=2)
        return view.steps[0, 0], ready(protocol, where, Full(1), rounds=1, seed=2).event.sensitivity

    for replaced in range(records):
        (one, claimed), (other, _) = steps(replaced, 50.0), steps(replaced, -50.0)
        assert claimed == pytest.approx(2 * CLIP / batch)
        changed = np.linalg.norm(one - other, axis=1)
        assert np.count_nonzero(changed > 1e-6) == 1
        assert changed.max() == pytest.approx(claimed, rel=1e-4)


@pytest.mark.parametrize("sampler", sparing([Poisson(2), "poisson"], ["poisson"]))
def test_a_step_on_a_poisson_sample_divides_by_the_stated_batch(sampler):
    """The number of sampled records depends on the data, so it is no divisor."""
    given = {"batch": 2} if sampler == "poisson" else {}
    protocol = FedAvg(local_steps=9, sampler=sampler, clip=1.0, unit="record", step_size=1.0, noise_std=1e-9, **given)
    where = linear_problem(np.ones((6, 1)), np.ones(6), Score(), partition_table=np.arange(6)[None])
    moves = transcript(protocol, where, Full(1), rounds=1, seed=2).steps[0, 0, :, 0]
    assert {*np.round(-2 * moves).astype(int)} <= set(range(7))
    np.testing.assert_allclose(-2 * moves, np.round(-2 * moves), atol=1e-5)
    assert len({*np.round(moves, 3)}) > 2


def test_records_are_released_once_an_epoch():
    protocol = FedAvg(local_epochs=3, batch=2, clip=CLIP, unit="record", step_size=1.0, noise_std=0.4)
    start = ready(protocol, problem(), Uniform(MACHINES, 2), rounds=6)
    mu = 2 * CLIP / 2 / 0.4 * np.sqrt(3 * start.plan.schedule.total.max())
    assert start.event.epsilon(1e-5) == pytest.approx(float(gdp.epsilon(mu, 1e-5)), rel=1e-6)


REFUSED = {
    "neither": ({}, "local_epochs or local_steps must be given, not both, got neither"),
    "both": ({"local_epochs": 1, "local_steps": 2}, "must be given, not both, got 1 and 2"),
    "a client": (
        {"local_epochs": 1, "unit": "client", "epsilon": 1.0},
        r"unknown unit 'client', did you mean 'machine'\? The unit machine protects all records of one client",
    ),
    "no clip": ({"local_epochs": 1, "unit": "machine", "epsilon": 1.0}, "update_clip must be given"),
    "record clip": (
        {"local_epochs": 1, "unit": "machine", "epsilon": 1.0, "clip": 1.0},
        "clip must be left out with unit = 'machine', got 1.0",
    ),
    "no unit": ({"local_epochs": 1, "epsilon": 1.0}, "unit must be 'record' or 'machine' for a private run"),
    "batch": ({"local_steps": 1, "batch": 3}, "batch must be at most the 2 records of machine 1"),
    "sampler": ({"local_steps": 1, "batch": 1, "sampler": "disjoint"}, "sampler must be 'replacement', 'subset'"),
    "sampler of epochs": (
        {"local_epochs": 1, "batch": 3, "sampler": "poisson"},
        "sampler must be left out with local_epochs, which pass over all records, got 'poisson'",
    ),
    "trust": ({"local_epochs": 1, "trust": "server"}, "trust must be 'none' with unit = None"),
    "no step": ({"local_epochs": 1, "step_size": None}, "step_size must be given for FedAvg"),
    "window": ({"local_epochs": 1, "window": 0}, "window must be at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_settings(name):
    settings, message = REFUSED[name]
    with pytest.raises(Refusal, match=message):
        simulate(FedAvg(**{"step_size": 0.1, **settings}), problem(), Full(MACHINES), rounds=2)


def test_scaffold_refuses_weights():
    with pytest.raises(Refusal, match="machine_weights must not be set for Scaffold"):
        simulate(Scaffold(local_epochs=1, step_size=0.1), problem(machine_weights="sizes"), Full(MACHINES), rounds=2)


def test_control_variates_follow_the_loop():
    protocol = Scaffold(step_size=0.5, local_epochs=2, batch=3)
    start = ready(protocol, problem(), Uniform(MACHINES, 3), rounds=ROUNDS, seed=3, metrics=[])
    state = jax.tree.map(jnp.asarray, start.protocol.init(start.problem, start.plan.size, start.key))
    inputs = jax.tree.map(jnp.asarray, start.inputs)
    for t in range(4):
        one = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state = after_round(as_leaves(start.protocol), start.problem, state, one, start.key)
    _, c, own = oracle.scaffold(gradient, plan_of(start)[:4], np.zeros(3), machines=MACHINES, steps=6, step=0.5)
    np.testing.assert_allclose(state.server.server.control, c, atol=1e-6)
    np.testing.assert_allclose(state.own, own, atol=1e-6)
    np.testing.assert_allclose(state.own.mean(axis=0), c, atol=1e-6)
