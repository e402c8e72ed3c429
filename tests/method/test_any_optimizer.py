"""Optax transformations, schedules and names in every server update and in local steps."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import PARTIAL, POOL, SHARES, SOME_MACHINES
from flax import struct

from fedprivjax import (
    AcceleratedMinibatchSGD,
    DPMu2,
    DPZero,
    FedAvg,
    FedDyn,
    FedExP,
    FedNova,
    LocalAlgorithm,
    LocalEpochs,
    LocalPrivacy,
    LocalSGD,
    MimeLite,
    NoisySGD,
    Protocol,
    Refusal,
    Scaffold,
    ServerOptimizer,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
    calibrate,
    draw_plan,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.checks.numbers import numbers_in, with_numbers
from fedprivjax.engine.chunked_sums import mean_loss
from fedprivjax.method.algorithm import At, Public
from fedprivjax.method.local_algorithm import Work, walked
from fedprivjax.method.server_step import optimizer_field
from fedprivjax.problem.random_keys import random_key
from fedprivjax.testing import PROPERTIES, Trial

W, G = jnp.array([0.3, -1.7, 0.9]), jnp.array([0.123, 4.567, -0.891])
STEP = jnp.float32(0.37)
WORK = {"local_steps": 2, "batch": 3}
MOMENTUM = partial(optax.sgd, momentum=0.9)
CONSTANT = optax.constant_schedule(1.0)


def project(w):
    return w / jnp.maximum(1.0, jnp.linalg.norm(w))


def served(algorithm, read=G, **changes):
    """The server's state after one round from W, and the one before."""
    public = Public.of(SHARES, 4, random_key(0))._replace(start=W)
    state = algorithm.init(public, STEP)._replace(**changes)
    at = At(jnp.float32(3), STEP, project, W, random_key(1), jnp.float32(2))
    return algorithm.serve(state, read, at), state


def of_mu2(server):
    return served(DPMu2(noise_std=1.0, server=server).algorithm)[0].w


def of_stale(server):
    return served(StaleMomentum(noise_std=1.0, server=server).algorithm)[0].w


def of_tree(server):
    return served(TreeMomentum(noise_std=1.0, alpha=0.5, server=server).algorithm)[0].w


def of_zero(server):
    state, before = served(DPZero(server=server), jnp.float32(0.71))
    return state.w, before.direction


def of_acsa(server):
    algorithm = AcceleratedMinibatchSGD(noise_std=1.0, batch=1, server=server).algorithm.planned(2, float(STEP))
    return served(algorithm)[0].w


def plain(w, g, step=STEP):
    return project(w - step * g)


@pytest.mark.slow
def test_steps_without_an_optimizer_are_the_papers_bit_for_bit():
    """By the papers' formulas, evaluated in the same order of operations."""
    for of in (of_mu2, of_stale):
        np.testing.assert_array_equal(of(None), plain(W, G))
    np.testing.assert_array_equal(of_tree(None), plain(W, G * (1 / jnp.linalg.norm(G))))
    w, direction = of_zero(None)
    np.testing.assert_array_equal(w, plain(W, direction, STEP * jnp.float32(0.71)))
    eta = 4 * np.float32(1 / float(STEP)) / (1.0 * jnp.float32(1.0) * 2.0)
    alpha = jnp.float32(1.0)
    np.testing.assert_array_equal(of_acsa(None), project(((1 - alpha) * 0.0 + eta) * W / eta - alpha * G / eta))


@pytest.mark.parametrize("of", [of_mu2, of_stale, of_tree, of_acsa, lambda server: of_zero(server)[0]])
def test_sgd_takes_the_plain_steps(of):
    """By name, by its factory, as a transformation of rate 1, and as a constant schedule."""
    for server in ("sgd", optax.sgd, optax.sgd(1.0), CONSTANT):
        np.testing.assert_allclose(of(server), of(None), rtol=1e-6)
    assert np.abs(np.subtract(of("adam"), of(None))).max() > 1e-3


@struct.dataclass
class Walks(LocalAlgorithm):
    """The functions without a default, with an optimiser of local steps."""

    local: Any = optimizer_field()

    def init(self, public, step):
        return public.start

    def move(self, carry, g, received, own, work):
        return walked(self.local, carry, g, work)

    def serve(self, server, mean, at):
        return at.project(server + mean)

    def point(self, server):
        return server


LOCAL = {
    "custom": lambda local: Walks(local=local),
    "fedavg": lambda local: FedAvg(prox=0.2, step_size=0.1, local=local, **WORK).algorithm,
    "local": lambda local: LocalSGD(batch=2, noise_std=1.0, local=local).algorithm,
    "scaffold": lambda local: Scaffold(step_size=0.1, local=local, **WORK).algorithm,
    "FedDyn": lambda local: FedDyn(local=local),
    "FedExP": lambda local: FedExP(local=local),
    "FedNova": lambda local: FedNova(local=local),
    "MimeLite": lambda local: MimeLite(local=local),
}


def points(name, local):
    """The machine's points after each of two local steps."""
    algorithm = LOCAL[name](local)
    public = Public.of(SHARES, 4, random_key(0))._replace(start=W)
    received, own = algorithm.sends(algorithm.init(public, STEP)), algorithm.own(public)
    work, carry, found = Work(STEP, 2.0, 2.0, project), algorithm.enter(received, own), []
    for g in (0.1 * G, jnp.array([0.2, 0.1, 0.3])):
        carry = algorithm.move(carry, g, received, own, work)
        found.append(algorithm.ask(carry)._points[0])
    return found


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_take_any_optimizer(name):
    one = points(name, None)
    for local in ("sgd", optax.sgd(1.0), CONSTANT):
        for point, known in zip(points(name, local), one, strict=True):
            np.testing.assert_allclose(point, known, rtol=1e-6)
    first, second = points(name, MOMENTUM)
    np.testing.assert_allclose(first, one[0], rtol=1e-6)
    assert np.abs(second - one[1]).max() > 1e-3


def test_a_machine_sends_how_far_its_optimizer_moved_by_default():
    received, work = W, Work(STEP, 1.0, 1.0, project)
    sent = []
    for local in (None, MOMENTUM):
        algorithm = Walks(local=local and ServerOptimizer(local))
        carry = algorithm.move(algorithm.enter(received, ()), G, received, (), work)
        sent.append(algorithm.leave(carry, received, (), work))
    np.testing.assert_array_equal(sent[0], plain(W, G) - W)
    np.testing.assert_allclose(sent[1], sent[0], rtol=1e-6)


def test_a_plain_local_step_is_that_of_fedavg_bit_for_bit():
    known = W - STEP * (0.1 * G + 0.2 * (W - W))
    np.testing.assert_array_equal(points("fedavg", None)[0], project(known))


def test_the_state_of_a_servers_optimizer_is_not_sent():
    algorithm = MimeLite(server="adam", server_step=0.1)
    state = algorithm.init(Public.of(SHARES, 4, random_key(0)), STEP)
    assert len(jax.tree.leaves(state)) > 2
    assert jax.tree.leaves(algorithm.sends(state)) == [*state[:2]]


@pytest.mark.slow
def test_local_momentum_begins_anew_in_every_round():
    """A transcript follows heavy-ball steps by hand, on all records of every machine."""
    gradient = jax.jit(jax.grad(lambda v, rows: mean_loss(SHARES, v, SHARES.take(rows))))
    method = FedAvg(local_steps=3, batch=None, local=optax.sgd(0.4, momentum=0.9))
    view = transcript(method, SHARES, PARTIAL, rounds=2, seed=1)
    for query, sent, machines in zip(view.queries, view.messages, view.plan.schedule.participants, strict=True):
        for message, machine in zip(sent, machines, strict=True):
            rows = np.asarray(SHARES.partition_table.rows[machine])
            rows = rows[rows >= 0]
            v, speed = np.asarray(query), 0.0
            for _ in range(3):
                speed = 0.9 * speed + gradient(v, rows)
                v = np.asarray(SHARES.constraint.project(v - 0.4 * speed))
            np.testing.assert_allclose(message, v - query, atol=1e-5)


def test_numbers_of_local_optimizers_are_swept_by_name():
    method = FedAvg(step_size=0.1, local=ServerOptimizer("sgd", momentum=0.5), **WORK)
    assert numbers_in(method)["local.momentum"] == 0.5
    assert 0.5 in jax.tree.leaves(method)
    assert with_numbers(method, {"local.momentum": 0.9}).local == ServerOptimizer("sgd", momentum=0.9)
    assert "local.decay_rate" not in numbers_in(FedAvg(step_size=0.1, local=optax.adam(0.1), **WORK))


@pytest.mark.slow
def test_a_cell_of_a_sweep_is_a_run_of_its_own():
    options = {"rounds": 4, "eval_every": 4, "metrics": ("train_loss",)}
    method = FedAvg(step_size=0.3, local=ServerOptimizer("sgd", momentum=0.5), **WORK)
    grid = sweep(method, SHARES, PARTIAL, over={"local.momentum": [0.0, 0.9]}, seeds=[1], **options)
    losses = grid.train_loss.values.ravel()
    alone = simulate(with_numbers(method, {"local.momentum": 0.9}), SHARES, PARTIAL, seed=1, **options)
    np.testing.assert_allclose(losses[-1], alone.metrics["train_loss"], rtol=1e-5)
    assert abs(losses[0] - losses[-1]) > 1e-4


@pytest.mark.slow
def test_the_contract_holds_with_a_step_of_its_own():
    for method in (DPMu2(clip=0.5, server=optax.adam(0.1)), NoisySGD(clip=0.5, server=CONSTANT, step_size=0.1)):
        trial = Trial(replace(method, noise_std=1.0), POOL, SOME_MACHINES)
        for name in ("new numbers do not recompile", "every leaf can be swept"):
            PROPERTIES[name](trial)


def test_numbers_of_a_schedule_are_leaves_unless_it_branches_on_them():
    settings = {"init_value": 1.0, "transition_steps": 2, "decay_rate": 0.5}
    schedule = ServerOptimizer("exponential_decay", **settings)
    assert schedule.leaves() == {"init_value": 1.0}
    assert jax.tree.leaves(ServerOptimizer("linear_schedule", init_value=1.0, end_value=0.1, transition_steps=9)) == [
        0.1,
        1.0,
    ]
    half, one = (schedule.with_values({"init_value": value}) for value in (0.5, 1.0))
    assert jax.tree.structure(half) == jax.tree.structure(one)
    np.testing.assert_allclose(half.step(half.init(W, 0.1), W, G, 0.1)[0], W - 0.05 * G, rtol=1e-6)
    given = DPMu2(mu=1.0, server=optax.exponential_decay(**settings)).server
    states = [server.init(W, 0.1) for server in (schedule, given)]
    for factor in (1.0, 0.5**0.5):
        moved = [server.step(state, W, G, 0.1) for server, state in zip((schedule, given), states, strict=True)]
        for after, _ in moved:
            np.testing.assert_allclose(after, W - 0.1 * factor * G, rtol=1e-6)
        states = [state for _, state in moved]


def weight_decay(learning_rate, strength=0.1):
    """A custom optimiser with a name like those of optax's schedules."""
    return optax.chain(optax.add_decayed_weights(strength), optax.sgd(learning_rate))


def test_a_custom_optimizer_is_no_schedule_by_its_name():
    optimizer = ServerOptimizer(weight_decay, strength=0.2)
    assert optimizer.leaves() == {"strength": 0.2}
    assert ServerOptimizer(partial(weight_decay, strength=0.2)).leaves() == {"strength": None}
    np.testing.assert_allclose(optimizer.step(optimizer.init(W, 0.1), W, G, 0.1)[0], W - 0.1 * (G + 0.2 * W), rtol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        DPMu2(noise_std=1.0, clip=0.5, server=optax.adam(0.1)),
        StaleMomentum(noise_std=1.0, clip=0.5, server=optax.adam(0.1)),
        UserAGD(noise_std=1.0, clip=0.5, trust="none", server=optax.adam(0.1)),
        UserSGD(noise_std=1.0, clip=0.5, trust="none", server=optax.adam(0.1)),
    ],
    ids=lambda method: method.name,
)
def test_a_step_of_its_own_is_the_default(method):
    plan = draw_plan(POOL, SOME_MACHINES, 3)
    ready = calibrate(method, POOL, plan)
    assert ready.step_size == 1.0
    assert ready.theory.error_bound(ready, None).theorem.startswith("its bound is for plain steps, not for ServerOpt")


NO_STEP = r"step_size must be given for {} with {} = ServerOptimizer\(adam\), because its default is for plain steps"
TWICE = "step_size must be left out with a {} that has its own step, got 0.1. Give a factory"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (DPMu2(mu=1.0, clip=0.5, server="adam"), NO_STEP.format("DPMu2", "server")),
        (StaleMomentum(mu=1.0, clip=0.5, server="adam"), NO_STEP.format("StaleMomentum", "server")),
        (UserSGD(noise_std=1.0, clip=0.5, server="adam", trust="none"), NO_STEP.format("UserSGD", "server")),
        (UserAGD(noise_std=1.0, clip=0.5, server="adam", trust="none"), NO_STEP.format("UserAGD", "server")),
        (NoisySGD(mu=1.0, server=optax.adam(0.1), step_size=0.1), TWICE.format("server")),
        (
            UserAGD(noise_std=1.0, strong_convexity=0.1, server="adam", step_size=0.1, trust="none"),
            "server must be left out with a modulus, whose weights are for plain steps",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_only_plain_steps_have_is_refused(method, message):
    with pytest.raises(Refusal, match=message):
        calibrate(method, POOL, draw_plan(POOL, SOME_MACHINES, 3))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LocalSGD(noise_std=1.0, clip=0.1, batch=2, local="adam"), NO_STEP.format("LocalSGD", "local")),
        (FedAvg(local=optax.adam(0.1), step_size=0.1, **WORK), TWICE.format("local")),
        (
            FedAvg(server=optax.adam(0.1), server_step=0.1, step_size=0.1, **WORK),
            "server_step must be left out of a server with its own step, got 0.1",
        ),
        (
            Protocol(FedDyn(server="adam"), privacy=LocalPrivacy(work=LocalEpochs(1)), step_size=0.1),
            "server and server_step must be given together, got only server",
        ),
        (
            FedAvg(local=optax.inject_hyperparams(optax.sgd), step_size=0.1, **WORK),
            "optimiser sgd must be given without inject_hyperparams, got the state Inject.*State. Its numbers",
        ),
        (
            AcceleratedMinibatchSGD(noise_std=1.0, batch=1, form="regularised", server="adam", step_size=0.1),
            "server must be left out with a modulus",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_of_machines_too(method, message):
    with pytest.raises(Refusal, match=message):
        calibrate(method, SHARES, draw_plan(SHARES, PARTIAL, 3, sampler=method.minibatches))
