"""Normalised SGD with private momentum: steps, distribution of the output, sensitivity, and refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from scipy.stats import chisquare

from fedprivjax import (
    Ball,
    Full,
    Logistic,
    ReducedTreeMomentum,
    TreeMomentum,
    Uniform,
    Varying,
    calibrate,
    draw_plan,
    general_problem,
    guarantee,
    linear_problem,
    ready,
    simulate,
    transcript,
)
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.simulate import execute
from fedprivjax.method.momentum import normalised, one_of
from fedprivjax.noise.factors import FACTORS, Independent, Tree
from fedprivjax.privacy import gdp

MACHINES, RECORDS, DIMENSION = 3, 8, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(MACHINES, RECORDS, DIMENSION)).astype(np.float32)
X /= np.linalg.norm(X, axis=2, keepdims=True)
PROBLEM = linear_problem(X, (X[..., 0] > 0).astype(int), Logistic(), feature_bound=1.0 + 1e-6)
TABLE = np.arange(MACHINES * RECORDS).reshape(MACHINES, RECORDS)
TREE = TreeMomentum(mu=1.0, alpha=0.3, batch=2)


def linear(vectors):
    """Machines' records are their own gradients, wherever one asks."""
    start = np.zeros(vectors.shape[-1], np.float32)
    pool = np.asarray(vectors, np.float32).reshape(-1, vectors.shape[-1])
    return general_problem(lambda w, x: jnp.vdot(w, x), pool, start, partition_table=TABLE)


def gradients_of(plan, vectors):
    """Every round's mean gradient, or every machine's, of `linear`."""
    used = vectors.reshape(-1, vectors.shape[-1])[plan.samples]
    return np.sum(plan.weights[..., None] * used, axis=2)


def momenta(gradients, alpha):
    path, total = [], 0.0
    for gradient in gradients:
        total = (1 - alpha) * total + alpha * gradient
        path.append(total)
    return np.array(path)


def noise_matrix(name, rounds, alpha, epoch):
    """B: what normals become, read off the stream one at a time, [rounds, rounds]."""

    def one(path, normal):
        path = FACTORS[name].step(path, normal, jnp.float32(alpha), jnp.float32(epoch))
        return path, path.last

    return np.asarray(jax.lax.scan(one, FACTORS[name].init(rounds, rounds), jnp.eye(rounds))[1], np.float64)


def test_a_run_without_noise_takes_normalised_steps():
    start = ready(replace(TREE, mu=np.inf, step_size=0.2), linear(X), Full(MACHINES), rounds=9, metrics=())
    path = -0.2 * np.array([m / np.linalg.norm(m) for m in momenta(gradients_of(start.plan, X).mean(axis=1), 0.3)])
    run = execute(start)
    iterates = np.concatenate([np.zeros((1, DIMENSION)), np.cumsum(path, axis=0)])[:-1]
    assert np.min(np.abs(iterates - np.asarray(run.params)).max(axis=1)) < 1e-6  # the output is one of w_1 … w_T
    seen = transcript(replace(TREE, mu=np.inf, step_size=0.2), linear(X), Full(MACHINES), rounds=9)
    np.testing.assert_allclose(seen.queries, iterates, atol=1e-6)


def test_no_momentum_is_no_step():
    assert not np.asarray(normalised(jnp.zeros(3))).any()
    run = simulate(replace(TREE, mu=np.inf, step_size=0.2), linear(0 * X), Full(MACHINES), rounds=9)
    assert not run.params.any()


def test_every_iterate_is_kept_as_likely():
    def kept(key):
        def one(kept, t):
            return one_of(kept, t, t, jax.random.fold_in(key, t)), None

        return jax.lax.scan(one, jnp.zeros((), jnp.int32), jnp.arange(1, 8))[0]

    found = np.bincount(np.asarray(jax.jit(jax.vmap(kept))(jax.random.split(jax.random.key(0), 7000))), minlength=8)
    assert found[0] == 0
    assert chisquare(found[1:]).pvalue > 1e-3
    assert chisquare(found[1:], 7000 * np.array([2, 1, 1, 1, 1, 1, 1]) / 8).pvalue < 1e-6


@pytest.mark.parametrize("sampler", sparing(["cyclic", "reshuffled"], ["reshuffled"]))
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("trust", ["server", "none"])
def test_the_guarantee_is_what_a_record_moves(trust, factor, sampler):
    """Gradients that no point changes: the noisy momenta of neighbours are two Gaussians, so μ is known exactly."""
    protocol = replace(TREE, factor=factor, sampler=sampler, trust=trust, clip=1.0)
    start = ready(protocol, linear(X), Full(MACHINES), rounds=12, seed=4)
    calibrated, plan = start.protocol, start.plan
    matrix = calibrated.noise_std * noise_matrix(factor, 12, 0.3, 4)
    rng, largest = np.random.default_rng(1), 0.0
    for record in range(MACHINES * RECORDS):
        machine, place = divmod(record, RECORDS)
        for adversarial in (False, True):
            one, other = X.copy(), X.copy()
            unit = rng.normal(size=DIMENSION)
            one[machine, place] = unit / np.linalg.norm(unit)
            other[machine, place] = -one[machine, place] if adversarial else X[machine, place]
            both = [momenta(gradients_of(plan, vectors), 0.3) for vectors in (one, other)]
            moved = both[0] - both[1]
            moved = moved.mean(axis=1) if trust == "server" else moved[:, machine]
            mu = np.linalg.norm(np.linalg.solve(matrix, moved))
            assert mu <= start.event.mus.each[machine] * (1 + 1e-5)
            largest = max(largest, mu)
    assert largest == pytest.approx(start.event.mu, rel=1e-4)
    assert start.event.mu == pytest.approx(1.0, rel=1e-6)


def test_a_record_of_another_place_is_exposed_no_more():
    """Machines of several sizes and cohorts of some of them: each record by its own places in the plan."""
    table = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]])
    problem = replace(linear(X), partition_table=type(PROBLEM.partition_table)(table))
    start = ready(TreeMomentum(mu=1.0, alpha=0.3, clip=1.0), problem, Uniform(3, 2), rounds=20, seed=2)
    matrix = noise_matrix("tree", 20, 0.3, 4)
    for machine, row in enumerate(table):
        uses = [np.any(start.plan.samples[..., 0] == record, axis=1) for record in row[row >= 0]]
        exposed = [np.linalg.norm(np.linalg.solve(matrix, momenta(use.astype(float), 0.3))) for use in uses]
        expected = max(exposed) / 0.3 * start.event.sensitivity / start.protocol.noise_std
        assert start.event.mus.each[machine] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("factor", list(FACTORS))
def test_messages_add_up_to_the_noisy_momentum(factor):
    """Without a trusted server, the point moves along the momentum of what machines are seen to send."""
    protocol = replace(TREE, trust="none", factor=factor, clip=1.0, step_size=0.1)
    seen = transcript(protocol, PROBLEM, Full(MACHINES), rounds=12)
    total, steps = 0.0, np.diff(seen.queries, axis=0)
    for sent, step in zip(seen.messages.mean(axis=1)[:-1], steps, strict=True):
        total = 0.7 * total + sent
        np.testing.assert_allclose(step, -0.1 * total / np.linalg.norm(total), atol=2e-5)


def test_machines_noises_are_trees_of_their_own():
    protocol = replace(TREE, trust="none", clip=1.0, step_size=0.1)
    silent = linear(np.zeros((MACHINES, RECORDS, 2000)))
    start = ready(protocol, silent, Full(MACHINES), rounds=12, seed=1)
    sent = np.asarray(transcript(protocol, silent, Full(MACHINES), rounds=12, seed=1).messages, np.float64)
    noise = momenta(sent / 0.3, 0.3)  # of every machine's momentum, [rounds, machines, d]
    expected = start.protocol.noise_std**2 * FACTORS["tree"].variances(12, 0.3)
    for machine in range(MACHINES):
        found = np.mean(noise[:, machine] ** 2, axis=1)
        np.testing.assert_allclose(found, expected, rtol=6 * np.sqrt(2 / 2000))
        other = noise[:, (machine + 1) % MACHINES]
        assert np.all(np.abs(np.mean(noise[:, machine] * other, axis=1)) < 6 * expected / np.sqrt(2000))


def test_the_papers_noise_is_theorem_4s_and_what_it_gives_is_accounted_for():
    plan = ready(TREE, PROBLEM, Full(MACHINES), rounds=12).plan
    count = (2 + 1) * 3 + 12 // 8  # V of N = 4, T = 12
    for factor, most in (("tree", 4), ("sensitivity tree", 2)):
        protocol = replace(TREE, noise_rule="paper", factor=factor, clip=1.0)
        ours = calibrate(protocol, PROBLEM, plan)
        assert ours.noise_std == pytest.approx(most * 0.3 / (2 * MACHINES) * np.sqrt(count), rel=1e-6)
        assert guarantee(ours, PROBLEM, plan).mu < 0.9
    asked = calibrate(replace(TREE, mu=None, epsilon=2.0, noise_rule="paper", clip=1.0), PROBLEM, plan, delta=1e-5)
    log = np.log(1e5)
    sigma = 4 * 0.3 / (2 * MACHINES) * np.sqrt(count) / (np.sqrt(2 * log + 4) - np.sqrt(2 * log))
    assert asked.noise_std == pytest.approx(sigma, rel=1e-6)
    assert gdp.epsilon(guarantee(asked, PROBLEM, plan).mu, 1e-5) < 2


@pytest.mark.parametrize("method", [TreeMomentum, ReducedTreeMomentum])
def test_a_guarantee_is_of_a_plan_by_the_methods_own_sampler(method):
    protocol = method(noise_std=0.1, alpha=0.3, batch=2)
    plan = ready(protocol, PROBLEM, Full(MACHINES), rounds=12).plan
    filled_in = guarantee(calibrate(protocol, PROBLEM, plan), PROBLEM, plan)
    assert guarantee(protocol, PROBLEM, plan).mu == pytest.approx(filled_in.mu, rel=1e-9)
    with pytest.raises(Refusal, match=f"plan must be drawn by the sampler of {method.__name__}"):
        calibrate(protocol, PROBLEM, draw_plan(PROBLEM, Full(MACHINES), 8))


def test_a_guarantee_names_what_proves_it():
    class Own(Independent):
        theorem = "mine"

    factors = {"tree": "Theorem 4", Tree(): "Theorem 4", "independent": "on every gradient", Own(): "mine"}
    for factor, words in factors.items():
        start = ready(replace(TREE, factor=factor, clip=1.0), PROBLEM, Full(MACHINES), rounds=12)
        assert words in guarantee(start.protocol, PROBLEM, start.plan).theorem


def test_defaults_are_theorem_6s():
    start = ready(TreeMomentum(epsilon=2.0, batch=2), PROBLEM, Full(MACHINES), rounds=16)
    load = 2.0 * 2 * MACHINES * 4 / np.sqrt(DIMENSION * np.log(1e5)) / (16 * 4)
    assert start.protocol.alpha == pytest.approx(np.clip(load, 1 / 4, 1))
    assert start.protocol.step_size == pytest.approx(1 / np.sqrt(4 * 16))
    assert ready(TreeMomentum(mu=np.inf), PROBLEM, Full(MACHINES), rounds=16).protocol.alpha == 1 / RECORDS


@pytest.mark.parametrize(
    ("settings", "participation", "rounds", "message"),
    [
        ({"alpha": 0.2}, Full(3), 8, r"alpha must be at least 1/4, 1/\(rounds of an epoch\), got 0.2"),
        ({}, Full(3), 3, r"rounds must be at least those of one epoch \(4\), got 3"),
        ({"batch": 3}, Full(3), 8, r"batch must divide the 8 records of machine 0 \(cyclic\), got 3"),
        ({"trust": "none"}, Uniform(3, 2), 8, "participation must be Full with trust = 'none'.* got 2 of 3 machines"),
        ({"trust": "none"}, Varying.between(3, 1, 3), 8, "participation must be Full with trust = 'none'.* got 1 of 3"),
        ({"clip": None}, Full(3), 8, "clip must be set, because the loss has no finite gradient bound here"),
        ({"clip": None, "noise_rule": "paper"}, Full(3), 8, "clip must be set"),
    ],
)
def test_refusals_on_a_plan(settings, participation, rounds, message):
    with pytest.raises(Refusal, match=message):
        ready(replace(TREE, **{"clip": 1.0, **settings}), linear(X), participation, rounds=rounds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha must be above 0 and at most 1, got 0.0"),
        ({"alpha": 1.5}, "alpha must be above 0 and at most 1, got 1.5"),
        ({"sampler": "subset"}, "unknown sampler 'subset'"),
        ({"factor": "three"}, "unknown factor 'three'"),
        ({"factor": "independent", "noise_rule": "paper"}, "factor must be one of tree, sensitivity tree"),
        ({"epsilon": 1.0, "noise_std": 1.0}, "epsilon or noise_std must be given, not both"),
    ],
)
def test_refusals_of_settings(settings, message):
    with pytest.raises(Refusal, match=message):
        TreeMomentum(**settings)


def test_a_pool_without_shares_is_refused():
    problem = linear_problem(X.reshape(-1, DIMENSION), np.zeros(24, int), Logistic(), constraint=Ball(1.0))
    with pytest.raises(
        Refusal, match="partition_table must be given, because machines sample minibatches from their own records"
    ):
        ready(TREE, problem, Full(3), rounds=8)
