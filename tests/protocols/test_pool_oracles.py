"""Methods with one fresh sample per message against the papers' pseudocode in NumPy, and their special cases."""

from dataclasses import replace
from itertools import product

import chex
import jax
import numpy as np
import pytest
from cases import DATA, MACHINES, POOL_CASES, SEQUENCE, SETTINGS, SOME_MACHINES, sparing
from oracles import pseudocode

from fedprivjax import DPMu2, Full, Given, NoisySGD, sweep
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute, run_program
from fedprivjax.engine.transcript import transcript
from fedprivjax.method import round as cohort
from fedprivjax.method.protocol import as_leaves
from fedprivjax.plan.seeds import round_keys
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.problem import numbers_of_one
from fedprivjax.testing.trial import PROBE, close

CYCLE = np.array([[0, 1], [2, 3], [1, 2], [3, 0], [0, 2], [1, 3]])  # each machine three times in six rounds
CYCLIC = Given(MACHINES, np.tile(CYCLE, (5, 1)))
METRICS = ("test_loss", "noise_norm", PROBE)
SCHEDULES = ("proportional", "gap", "sequence", "toeplitz")  # left out
ONCE = [name for name in POOL_CASES if not name.endswith(SCHEDULES)]
QUICK = ("mu2-none-clipped-batch", "mu2-fresh-clipped", "sgd-none-bounded-last", "stale-clipped-uniform")
MESSAGES = [  # one of each kind of message
    name for name in ONCE if not name.endswith("average") and "server" not in name and "fresh" not in name
]


def start_of(protocol, problem, participation=SOME_MACHINES, *, seed=3, **settings):
    settings = {"metrics": METRICS, "eval_every": 1, "order": "stored", "noise_method": "materialised", **settings}
    return ready(protocol, problem, participation, seed=seed, **settings)


def run(protocol, problem, participation=SOME_MACHINES, **settings):
    return execute(start_of(protocol, problem, participation, **settings))


def drawn(start):
    """The noise that is drawn, at unit scale: every participant's fresh noise [rounds, per_round, *shape], or the
    server's [rounds, *shape]."""
    mechanism, plan, problem = start.mechanism, start.plan, start.problem
    dimension, keys = problem.dimension, round_keys(start.key, np.arange(1, plan.size.rounds + 1))
    if privacy_of(start.protocol).trust == "server":
        noise = mechanism.draw(mechanism.init(dimension, start.key), mechanism.inputs, keys, dimension)[1]
        return np.asarray(noise).reshape(-1, *problem.start.shape)
    memory, rows = mechanism.message_memory(dimension, start.key), []
    standing = np.zeros((MACHINES, dimension))
    for t, machines in enumerate(plan.schedule.participants):
        inputs = jax.tree.map(lambda leaf, t=t: leaf[t], mechanism.inputs)
        kept = len(jax.tree.leaves(memory)) > 0  # then messages are increments of a sum, with noise of its own
        memory, added = mechanism.message_noise(memory, inputs, keys[t], dimension)
        standing[machines] = np.asarray(added) + kept * standing[machines]
        rows.append(standing[machines])
    return np.array(rows).reshape(plan.size.rounds, -1, *problem.start.shape)


def replayed(oracle, start, noise=0.0):
    return oracle(
        pseudocode.softmax_gradient(DATA[0], DATA[1]),
        start.plan.samples,
        start.plan.schedule.participants,
        np.asarray(start.problem.start, np.float64),
        radius=1.0,
        step_size=start.protocol.step_size,
        clip=start.protocol.clip,
        noise=noise,
    )


def probes(points):
    rows = points.reshape(len(points), -1)
    return rows @ np.sin(1.0 + np.arange(rows.shape[1]) ** 2)


@pytest.mark.parametrize("name", sparing(POOL_CASES, ["mu2-none-clipped-uniform"]))
def test_metrics_see_the_trajectory_of_the_oracle_with_the_same_noise(name, softmax_problem):
    case = POOL_CASES[name]
    start = start_of(case.protocol, softmax_problem)
    result = execute(start)
    outcome = replayed(case.oracle, start, start.protocol.noise_std * drawn(start))
    close(result.metrics["probe"], probes(outcome.points))
    close(result.params, outcome.points[-1])
    view = transcript(case.protocol, softmax_problem, SOME_MACHINES, seed=3, order="stored")
    close(view.params, result.params, 1e-5)
    assert (view.messages is None) == (privacy_of(start.protocol).trust == "server")
    if view.messages is not None:
        close(view.messages, outcome.messages.reshape(view.messages.shape))


@pytest.mark.parametrize("name", sparing(ONCE, QUICK))
def test_without_noise_equals_the_oracle(name, softmax_problem):
    case = POOL_CASES[name]
    start = start_of(replace(case.protocol, mu=np.inf), softmax_problem)
    silent, outcome = execute(start), replayed(case.oracle, start)
    assert not silent.metrics["noise_norm"].any()
    close(silent.metrics["probe"], probes(outcome.points))
    close(silent.params, outcome.points[-1])


@pytest.mark.parametrize("protocol", [DPMu2(mu=1.0), NoisySGD(mu=1.0)], ids=type)
def test_another_trust_is_no_new_program(protocol):
    one, other = (jax.tree.structure(as_leaves(replace(protocol, trust=trust).traced)) for trust in ("none", "server"))
    assert one == other


def test_another_noise_schedule_is_no_new_program(softmax_problem):
    protocol = DPMu2(noise_schedule=SEQUENCE, **SETTINGS)
    one = run(protocol, softmax_problem)
    before = run_program._cache_size()
    two = run(replace(protocol, noise_schedule=SEQUENCE[::-1]), softmax_problem)
    three = run(replace(protocol, noise_schedule="gap"), softmax_problem)
    assert run_program._cache_size() <= before
    assert not np.array_equal(one.params, two.params)
    assert not np.array_equal(one.params, three.params)


@pytest.mark.slow
def test_sweep_over_the_numbers_that_calibration_fills_in(softmax_problem):
    over = {"noise_std": [0.1, 0.4], "step_size": [0.01, 0.05]}
    settings = {"metrics": (PROBE,), "eval_every": 1}
    grid = sweep(NoisySGD(clip=0.5), softmax_problem, SOME_MACHINES, over=over, seeds=[2], **settings)
    for noise_std, step_size in product(*over.values()):
        protocol = NoisySGD(clip=0.5, noise_std=noise_std, step_size=step_size)
        alone = execute(ready(protocol, softmax_problem, SOME_MACHINES, seed=2, **settings))
        cell = grid.probe.sel(noise_std=noise_std, step_size=step_size, seed=2, iterate="output")
        close(cell, alone.metrics["probe"], 1e-5)


@pytest.mark.parametrize("name", sparing(MESSAGES, []))
def test_factored_dense_and_chunked_are_one(name, softmax_problem, general_twin, monkeypatch):
    protocol = POOL_CASES[name].protocol
    rounds = 20 // getattr(protocol, "batch", 1)
    everyone = Given(3, np.tile(np.arange(3), (rounds, 1)))
    settings = {"metrics": ("test_accuracy", PROBE), "rounds": rounds}
    factored = run(protocol, softmax_problem, everyone, **settings)
    dense = run(protocol, general_twin(), everyone, **settings)
    twin = general_twin()
    monkeypatch.setattr(cohort, "CACHE_FLOATS", 2 * numbers_of_one(twin))  # chunks of two machines and of one
    chunked = run(protocol, twin, everyone, **settings)
    for other in (dense, chunked):
        chex.assert_trees_all_close(other.metrics, factored.metrics, rtol=1e-4, atol=1e-5)
        close(other.params, factored.params, 1e-4)


@pytest.mark.parametrize(
    ("trust", "oracle"),
    sparing(
        [("server", pseudocode.mu2_full_trusted), ("none", pseudocode.mu2_full_untrusted)],
        [("server", pseudocode.mu2_full_trusted)],
    ),
)
def test_full_participation_is_the_first_papers_algorithm(trust, oracle, softmax_problem):
    """Its d_{t,i} and q_{t,i} = t·d_{t,i} are another way to write the running sums of increments."""
    protocol = DPMu2(trust=trust, **SETTINGS)
    start = start_of(protocol, softmax_problem, Full(2))
    outcome = replayed(oracle, start, start.protocol.noise_std * drawn(start))
    close(execute(start).metrics["probe"], probes(outcome.points))
    if trust == "none":
        view = transcript(protocol, softmax_problem, Full(2), seed=3, order="stored")
        running = np.cumsum(view.messages, axis=0)
        close(running, outcome.messages.reshape(running.shape))


@pytest.mark.slow
def test_records_at_uneven_places(softmax_problem):
    """`every` that does not divide the rounds records the same run, and its last round."""
    protocol = POOL_CASES["mu2-none-clipped-uniform"].protocol
    base, uneven = (run(protocol, softmax_problem, eval_every=every) for every in (1, 7))
    assert uneven.rounds.tolist() == [7, 14, 21, 28, 30]
    for name, values in uneven.metrics.items():
        np.testing.assert_allclose(values, base.metrics[name][uneven.rounds - 1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_public_prefix(softmax_problem):
    """Over whole cycles the uniform schedule scales with √T only: with that undone, a short run opens a long one."""
    long = run(DPMu2(noise_std=0.5, step_size=0.02), softmax_problem, CYCLIC)
    short = run(
        DPMu2(noise_std=0.5 * (30 / 12) ** 0.5, step_size=0.02), softmax_problem, CYCLIC, rounds=12, eval_every=4
    )
    np.testing.assert_allclose(short.metrics["probe"], long.metrics["probe"][[3, 7, 11]], rtol=1e-5)
    np.testing.assert_allclose(short.metrics["noise_norm"], long.metrics["noise_norm"][[3, 7, 11]], rtol=1e-5)
