"""DPZero: NumPy loops on linear and network losses, directions, the contract with every privacy, and audits."""

from typing import Any

import jax
import numpy as np
import pytest
from cases import COMPILED, PARTIAL, POOL, SHARES, SOME_MACHINES, sparing
from jax.flatten_util import ravel_pytree
from oracles.pseudocode import project
from oracles.zeroth_order import dpzero

from fedprivjax import (
    BitMean,
    DPZero,
    GaussianMean,
    NoisyMessages,
    NoisyMomentum,
    NoisyRecords,
    Protocol,
    Refusal,
    WholeSpace,
    audit,
    general_problem,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.protocols.dpzero import on_sphere
from fedprivjax.testing import PROPERTIES, check_protocol
from fedprivjax.testing.combinations import DEFINED, combinations

ROUNDS, STEP, RADIUS, CLIP = 6, 0.05, 0.1, 0.4
X, Y = np.asarray(POOL.pool.features, float), np.asarray(POOL.pool.label)


def made(privacy, **settings) -> Any:
    return Protocol(DPZero(radius=RADIUS), privacy=privacy, **({"epsilon": 4.0, "step_size": STEP} | settings))


def cross_entropy(flat, record):
    scores = flat.reshape(3, 5) @ X[record]
    return np.log(np.sum(np.exp(scores - scores[Y[record]])))


START = {"hidden": 0.3 * np.random.default_rng(0).normal(size=(4, 5)), "out": np.linspace(-1, 1, 4)}


def network(params, example):
    return (params["out"] @ jax.numpy.tanh(params["hidden"] @ example["x"]) - example["y"]) ** 2 / 2


def network_loss(flat, record):
    hidden, out = flat[:20].reshape(4, 5), flat[20:]
    return (out @ np.tanh(hidden @ X[record]) - Y[record]) ** 2 / 2


NETWORK = general_problem(
    network,
    {"x": X.astype(np.float32), "y": Y.astype(np.float32)},
    start=jax.tree.map(np.float32, START),
    constraint=WholeSpace(),
)
PROBLEMS = {"linear": (POOL, cross_entropy, 1.0), "network": (NETWORK, network_loss, np.inf)}


CASES = [(kind, batch) for kind in PROBLEMS for batch in (1, 2)]


@pytest.mark.parametrize(("kind", "batch"), sparing(CASES, [("network", 2)]))
def test_a_run_is_the_loop_of_the_paper(kind, batch):
    """Without noise. Directions are those of the transcript, and the first that of the protocol's own key."""
    problem, loss, radius = PROBLEMS[kind]
    method = made(NoisyMessages(clip=CLIP, batch=batch), epsilon=None, noise_std=0.0)
    view: Any = transcript(method, problem, SOME_MACHINES, rounds=ROUNDS, seed=3)
    directions = [first_direction(method, problem)]
    directions += [jax.tree.map(lambda leaf, t=t: leaf[t], view.broadcast[0]) for t in range(ROUNDS - 1)]
    flat = [np.asarray(ravel_pytree(one)[0], float) for one in directions]
    settings = {"step": STEP, "radius": RADIUS, "clip": CLIP, "project": lambda w: project(w, radius)}
    start = np.asarray(ravel_pytree(problem.start)[0], float)
    points, messages = dpzero(loss, start, view.plan.samples, flat, **settings)
    np.testing.assert_allclose(ravel_pytree(view.params)[0], points[-1], atol=1e-5)
    np.testing.assert_allclose(view.queries, [start, *points[:-1]], atol=1e-5)
    np.testing.assert_allclose(view.messages[..., 0], messages, atol=1e-5)
    assert (np.abs(messages) >= CLIP / 2).any()
    assert np.linalg.norm(points[-1] - start) > 0.05


def first_direction(method, problem, seed=3):
    start = ready(method, problem, SOME_MACHINES, rounds=ROUNDS, seed=seed, metrics=())
    return start.protocol.init(start.problem, start.plan.size, protocol_key(start.key)).server.direction


@pytest.mark.slow
def test_directions_are_uniform_on_the_sphere_and_differ_between_seeds():
    method = made(NoisyMessages(clip=CLIP))
    keys = jax.random.split(jax.random.key(1), 4000)
    found = np.asarray(jax.vmap(lambda key: ravel_pytree(on_sphere(key, START))[0])(keys), float)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 24**0.5, rtol=1e-5)
    assert np.abs(found.mean(axis=0)).max() < 5 / 4000**0.5
    assert np.abs(found.T @ found / 4000 - np.eye(24)).max() < 0.12
    one, other = (np.ravel(first_direction(method, POOL, seed)) for seed in (3, 4))
    assert abs(one @ other) < 0.9 * 15


@pytest.mark.slow
def test_steps_are_along_directions_alone():
    """With noise, too: the server adds what it read times the direction."""
    method = made(NoisyRecords(clip=CLIP, batch=4))
    view: Any = transcript(method, SHARES, PARTIAL, rounds=ROUNDS, seed=3)
    directions = np.array([np.ravel(one) for one in view.broadcast[0]])
    assert np.abs(directions @ directions.T / 3 - np.eye(ROUNDS)).max() < 0.999
    assert float(view.broadcast[1][0]) == pytest.approx(RADIUS)
    for t in range(ROUNDS - 2):
        w = view.queries[t + 1] - STEP * view.messages[t + 1].mean() * np.ravel(view.broadcast[0][t])
        np.testing.assert_allclose(view.queries[t + 2], project(w, 1.5), atol=1e-5)


# ---- privacy

SWEEPS = ("a sweep equals a loop", "every leaf can be swept")
PRIVACY = {
    "none": (NoisyMessages(clip=CLIP), POOL, SOME_MACHINES),
    "server": (NoisyMessages(clip=CLIP, trust="server"), POOL, SOME_MACHINES),
    "uniform": (NoisyMessages(clip=CLIP, noise="uniform", batch=2), POOL, SOME_MACHINES),
    "toeplitz": (NoisyMessages(clip=CLIP, noise="toeplitz", trust="server"), POOL, SOME_MACHINES),
    "poisson": (NoisyRecords(clip=CLIP, batch=4, sampler="poisson"), SHARES, PARTIAL),
    "shuffler": (NoisyRecords(clip=CLIP, batch=1, trust="shuffler"), SHARES, PARTIAL),
    "gaussian": (GaussianMean(clip=CLIP), POOL, SOME_MACHINES),
    "bits": (BitMean(clip=CLIP, levels=8), POOL, SOME_MACHINES),
}


def test_its_guarantee_can_be_saved():
    check_protocol(made(PRIVACY["none"][0]), POOL, SOME_MACHINES, properties=["the guarantee can be saved and printed"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVACY)
def test_it_keeps_the_contract(name):
    """Sweeps of `BitMean` are held with other algorithms in test_contract.py, and those of DPZero with the others."""
    privacy, problem, scheme = PRIVACY[name]
    properties = PROPERTIES if name == "none" else COMPILED
    if isinstance(privacy, BitMean):
        properties = [one for one in properties if one not in SWEEPS]
    report = check_protocol(made(privacy), problem, scheme, properties=properties)
    assert set(report.held) | set(report.not_applicable) == set(properties)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "server"])
@pytest.mark.usefixtures("small_audits")
def test_an_audit_does_not_refute_it(name):
    """The canary's sign follows that of the public direction, so that a linear score of the messages misses it.

    The iterates show it, along the canary: by 0.8 of the claim, the mean of a normal's absolute value.
    """
    found = audit(made(PRIVACY[name][0], epsilon=6.0), runs=4000)
    assert not found.refuted
    assert found.tightness > 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPZero(radius=0.0), "radius must be positive, got 0.0"),
        (lambda: ready(made(NoisyMessages(clip=1.0), step_size=None), POOL, SOME_MACHINES), "step_size must be given"),
        (lambda: ready(made(NoisyMessages()), POOL, SOME_MACHINES), "clip must be set, .* Set clip in NoisyMessages$"),
        (lambda: ready(made(NoisyMomentum(clip=1.0, batch=12)), SHARES, PARTIAL, rounds=6), "reads must be Momentum"),
    ],
    ids=["radius", "step", "clip", "momentum"],
)
def test_what_is_not_defined_is_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


@pytest.mark.slow
def test_combinations_are_those_of_algorithms_that_read_means():
    found = {
        name: [(*cell[1:], outcome) for cell, outcome in combinations([name], participation=["uniform"]).items()]
        for name in ("sgd", "dpzero")
    }
    assert found["dpzero"] == found["sgd"]
    assert DEFINED in {row[-1] for row in found["dpzero"]}
