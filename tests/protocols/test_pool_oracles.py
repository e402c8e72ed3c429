"""One table of protocols crossed with one list of properties."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import pseudocode

from fedprivjax import Ball, DPMu2, Full, Given, NoisySGD, Seeds, StaleMomentum, draw_plan, simulate, sweep, transcript
from fedprivjax.engine.iterates import by_iterate, iterate_names
from fedprivjax.engine.metrics import check_metrics
from fedprivjax.engine.simulate import Recipe, _run, as_leaves, round_inputs, trajectory
from fedprivjax.noise import PerMachine, Silent
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.protocols import cohort
from fedprivjax.sweeps.results import of_iterate
from fedprivjax.sweeps.sweep import _run_many

ROUNDS, MACHINES, PER_ROUND = 30, 4, 2
CYCLE = np.array([[0, 1], [2, 3], [1, 2], [3, 0], [0, 2], [1, 3]])  # each machine three times in six rounds
RANDOM = np.array([np.random.default_rng(t).permutation(MACHINES)[:PER_ROUND] for t in range(ROUNDS)])
CYCLIC = Given(MACHINES, np.tile(CYCLE, (ROUNDS // len(CYCLE), 1)))
PARTIAL = Given(MACHINES, RANDOM)
SEQUENCE = tuple(1.0 + 0.2 * k for k in range(ROUNDS))


class Case(NamedTuple):
    protocol: Any
    oracle: Any


def probe(problem, snapshot):
    """The reported point seen along one direction that no symmetry of the problem fixes."""
    params = jnp.ravel(snapshot.params)
    return params @ jnp.sin(1.0 + jnp.arange(params.size) ** 2)


RECORD = ("test_loss", "noise_norm", probe)
SETTINGS = {"mu": 6.0, "step_size": 0.02}
CLIPS = {"bounded": None, "clipped": 0.5}


def mu2_cases():
    oracles = {"none": pseudocode.mu2_cancelling, "server": pseudocode.mu2_partial_trusted}
    schedules = {"uniform": "uniform", "proportional": "proportional", "gap": "gap", "sequence": SEQUENCE}
    kinds = [("bounded", "uniform"), *(("clipped", schedule) for schedule in schedules)]
    for trust, (clip, schedule) in product(oracles, kinds):
        protocol = DPMu2(trust=trust, clip=CLIPS[clip], noise_schedule=schedules[schedule], **SETTINGS)
        yield f"mu2-{trust}-{clip}-{schedule}", Case(protocol, oracles[trust])
    for clip in CLIPS:
        protocol = DPMu2(clip=CLIPS[clip], cancel=False, **SETTINGS)
        yield f"mu2-fresh-{clip}", Case(protocol, pseudocode.mu2_fresh_noise)


def sgd_cases():
    for trust, (clip, end) in product(("none", "server"), [*product(CLIPS, ["last"]), ("clipped", "average")]):
        protocol = NoisySGD(trust=trust, clip=CLIPS[clip], average=end == "average", **SETTINGS)
        yield f"sgd-{trust}-{clip}-{end}", Case(protocol, partial(pseudocode.noisy_sgd, average=end == "average"))


def stale_cases():
    for name, schedule in {"uniform": "uniform", "sequence": SEQUENCE}.items():
        protocol = StaleMomentum(clip=0.5, noise_schedule=schedule, **SETTINGS)
        yield f"stale-clipped-{name}", Case(protocol, pseudocode.stale_momentum)


CASES = dict([*mu2_cases(), *sgd_cases(), *stale_cases()])
ONCE = [name for name in CASES if not name.endswith(("proportional", "gap", "sequence"))]  # schedules left out
PROGRAMS = [name for name in ONCE if not name.endswith("average")]
MESSAGES = [name for name in PROGRAMS if "server" not in name and "fresh" not in name]  # one of each kind of message


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def run(protocol, problem, participation=PARTIAL, *, seed=3, **settings):
    settings = {"record": RECORD, "every": 1, "order": "stored", "noise_method": "materialised", **settings}
    return simulate(protocol, problem, participation, seed=seed, **settings)


@pytest.fixture(scope="module")
def base(case, softmax_problem):
    """The run that the properties are read off or compared with."""
    return run(case.protocol, softmax_problem)


def pieces(protocol, problem, participation=PARTIAL, seed=3, **settings):
    """What `simulate` hands to the engine: calibrated protocol, noise mechanism, plan, key."""
    plan = draw_plan(problem, participation, seed=seed, order="stored", **settings)
    ready = calibrate(protocol, problem, plan)
    return ready, ready.noise(problem, plan, "materialised"), plan, jax.random.key(seed)


def drawn(source, plan, key, dimension):
    """The noise that the mechanism draws, at unit scale: [rounds, per_round, d], or [rounds, d] of a server."""
    keys = [jax.random.fold_in(key, t) for t in range(1, plan.size.rounds + 1)]
    if not hasattr(source, "message_noise"):
        return np.asarray(source.block(source.init(dimension, key), source.inputs, jnp.stack(keys), dimension)[1])
    memory, rows = source.init_memory(dimension), []
    for t, round_key in enumerate(keys):
        inputs = jax.tree.map(lambda leaf, t=t: leaf[t], source.inputs)
        memory, sent = source.message_noise(memory, inputs, round_key, dimension)
        rows.append(sent if isinstance(source, PerMachine) else memory[inputs.machine])
    return np.asarray(jnp.stack(rows))


def replayed(oracle, protocol, problem, data, plan, noise=0.0, constraint_radius=1.0):
    return oracle(
        pseudocode.softmax_gradient(data[0], data[1]),
        plan.samples,
        plan.schedule.participants,
        np.asarray(problem.start, np.float64),
        radius=constraint_radius,
        step_size=protocol.step_size,
        clip=protocol.clip,
        noise=noise,
    )


def probes(points):
    rows = points.reshape(len(points), -1)
    return rows @ np.sin(1.0 + np.arange(rows.shape[1]) ** 2)


def close(a, b, tolerance=1e-4):
    """Equal up to `tolerance` of the largest value."""
    a, b = np.asarray(a), np.asarray(b)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


def test_structure_and_dtypes_are_stable(case, softmax_problem):
    ready, _, plan, _ = pieces(case.protocol, softmax_problem)
    inputs = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    state = ready.init(softmax_problem, plan.size)
    noise = jnp.zeros(softmax_problem.dimension)
    protocol = as_leaves(ready)
    after = jax.eval_shape(lambda s: protocol.round(softmax_problem, s, inputs, noise), state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    output = jax.eval_shape(protocol.output, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(output, softmax_problem.start)
    chex.assert_trees_all_equal_shapes_and_dtypes(protocol.query(state), softmax_problem.start)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {np.dtype(np.float32)}


def test_jit_equals_eager(case, base, softmax_problem):
    ready, source, plan, key = pieces(case.protocol, softmax_problem)
    recipe = Recipe(plan.size._replace(rounds=3), check_metrics(softmax_problem, (probe, "noise_norm")), 3)
    first = jax.tree.map(lambda leaf: leaf[:3], (source.inputs, round_inputs(plan)))
    with jax.disable_jit():
        _, metrics = trajectory(
            as_leaves(ready), softmax_problem, replace(source, inputs=first[0]), first[1], key, recipe
        )
    assert base.metrics["noise_norm"][2] > 0
    for name, values in metrics.items():
        if name in base.metrics:
            np.testing.assert_allclose(values[0], base.metrics[name][2], rtol=1e-5)


def test_new_numbers_are_no_new_program(case, base, softmax_problem):
    before = _run._cache_size()
    clip = None if case.protocol.clip is None else 0.3
    other = replace(case.protocol, mu=2, step_size=0.7, step_scale=0.1, clip=clip)
    problem = replace(softmax_problem, constraint=Ball(0.6))
    result = run(other, problem, Given(MACHINES, RANDOM[::-1]), seed=Seeds(5, 6, 7), order="shuffled", delta=1e-3)
    assert _run._cache_size() == before
    assert not np.array_equal(result.params, base.params)


@pytest.mark.parametrize("protocol", [DPMu2(mu=1.0), NoisySGD(mu=1.0)], ids=type)
def test_another_trust_is_no_new_program(protocol):
    one, other = (jax.tree.structure(as_leaves(replace(protocol, trust=trust))) for trust in ("none", "server"))
    assert one == other


def test_another_noise_schedule_is_no_new_program(softmax_problem):
    protocol = DPMu2(noise_schedule=SEQUENCE, **SETTINGS)
    one = run(protocol, softmax_problem)
    before = _run._cache_size()
    two = run(replace(protocol, noise_schedule=SEQUENCE[::-1]), softmax_problem)
    three = run(replace(protocol, noise_schedule="gap"), softmax_problem)
    assert _run._cache_size() == before
    assert not np.array_equal(one.params, two.params)
    assert not np.array_equal(one.params, three.params)


def test_seeds_decide(case, base, softmax_problem):
    again = run(case.protocol, softmax_problem)
    other = run(case.protocol, softmax_problem, seed=4)
    chex.assert_trees_all_equal(again.metrics, base.metrics)
    np.testing.assert_array_equal(again.params, base.params)
    assert np.all(np.abs(other.metrics["noise_norm"] - base.metrics["noise_norm"]) > 0)
    assert np.linalg.norm(other.params - base.params) > 1e-3


def test_machines_relabelled(case, base, softmax_problem):
    """A machine's name says nothing: the same slots under other names are the same run."""
    names = np.array([2, 0, 3, 1])
    other = run(case.protocol, softmax_problem, Given(MACHINES, names[RANDOM]))
    np.testing.assert_array_equal(other.params, base.params)
    np.testing.assert_array_equal(
        other.guarantee.per_machine[names],
        base.guarantee.per_machine,
    )


def test_metrics_see_the_trajectory_of_the_oracle_with_the_same_noise(case, base, softmax_problem, data):
    ready, source, plan, key = pieces(case.protocol, softmax_problem)
    noise = ready.noise_std * drawn(source, plan, key, softmax_problem.dimension)
    noise = noise.reshape(*noise.shape[:-1], *softmax_problem.start.shape)
    outcome = replayed(case.oracle, ready, softmax_problem, data, plan, noise)
    close(base.metrics["probe"], probes(outcome.points))
    close(base.params, outcome.points[-1])
    view = transcript(case.protocol, softmax_problem, PARTIAL, seed=3, order="stored")
    close(view.params, base.params, 1e-5)
    assert (view.messages is None) == (ready.trust == "server")
    if view.messages is not None:
        close(view.messages, outcome.messages.reshape(view.messages.shape))


@pytest.mark.parametrize("name", ONCE)
def test_without_noise_equals_the_oracle(name, softmax_problem, data):
    case = CASES[name]
    silent = run(replace(case.protocol, mu=np.inf), softmax_problem)
    outcome = replayed(case.oracle, silent.protocol, softmax_problem, data, silent.plan)
    assert not silent.metrics["noise_norm"].any()
    close(silent.metrics["probe"], probes(outcome.points))
    close(silent.params, outcome.points[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_prefix_of_a_longer_run(name, softmax_problem):
    """Given the same noise, T rounds are the first T of more; how often one records changes nothing."""
    rounds, every = 18, 7
    base = run(CASES[name].protocol, softmax_problem)
    ready, source, plan, key = pieces(CASES[name].protocol, softmax_problem)
    first = jax.tree.map(lambda leaf: leaf[:rounds], (source.inputs, round_inputs(plan)))
    recipe = Recipe(plan.size._replace(rounds=rounds), check_metrics(softmax_problem, RECORD), every)
    args = as_leaves(ready), softmax_problem, replace(source, inputs=first[0]), first[1], key
    _, values = _run(*args, recipe)
    found = by_iterate(recipe.record, iterate_names(ready, softmax_problem, plan.size), values)
    at = np.array([7, 14, 18]) - 1
    assert found.keys() == base.iterates.keys()
    for iterate, metrics in found.items():
        for name, values in metrics.items():
            np.testing.assert_allclose(values, base.iterates[iterate][name][at], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sweep_equals_a_loop(name, softmax_problem):
    over = {"mu": [3.0, 9.0], "radius": [0.4, 1.0], "step_scale": [0.5, 2.5]}
    case = CASES[name]
    settings = {"record": RECORD, "every": 1, "noise_method": "auto"}
    grid = sweep(case.protocol, softmax_problem, PARTIAL, over=over, seeds=[2, 5], **settings)
    for mu, radius, step_scale, seed in product(*over.values(), [2, 5]):
        protocol = replace(case.protocol, mu=mu, step_scale=step_scale)
        problem = replace(softmax_problem, constraint=Ball(radius))
        alone = run(protocol, problem, seed=seed, order="shuffled", **settings)
        cell = grid.sel(mu=mu, radius=radius, step_scale=step_scale, seed=seed)
        for name in ("test_loss", "noise_norm", "probe"):
            close(of_iterate(cell[name]).values, alone.metrics[name], 1e-5)
    before = _run_many._cache_size()
    other = {"mu": [1.0, 2.0], "radius": [0.5, 0.9], "step_scale": [1.0, 1.5]}
    sweep(case.protocol, softmax_problem, Given(MACHINES, RANDOM[::-1]), over=other, seeds=[7, 8], **settings)
    assert _run_many._cache_size() == before


def test_sweep_over_the_numbers_that_calibration_fills_in(softmax_problem):
    over = {"noise_std": [0.1, 0.4], "step_size": [0.01, 0.05]}
    grid = sweep(NoisySGD(clip=0.5), softmax_problem, PARTIAL, over=over, seeds=[2], record=(probe,), every=1)
    for noise_std, step_size in product(*over.values()):
        protocol = NoisySGD(clip=0.5, noise_std=noise_std, step_size=step_size)
        alone = simulate(protocol, softmax_problem, PARTIAL, seed=2, record=(probe,), every=1)
        close(grid.probe.sel(noise_std=noise_std, step_size=step_size, seed=2), alone.metrics["probe"], 1e-5)


@pytest.mark.parametrize("name", MESSAGES)
def test_factored_dense_and_chunked_are_one(name, softmax_problem, general_twin, monkeypatch):
    protocol = CASES[name].protocol
    everyone = Given(3, np.tile(np.arange(3), (20, 1)))
    settings = {"record": ("test_accuracy", probe), "rounds": 20}
    factored = run(protocol, softmax_problem, everyone, **settings)
    dense = run(protocol, general_twin(), everyone, **settings)
    monkeypatch.setattr(cohort, "CHUNK_FLOATS", 2 * softmax_problem.dimension)  # chunks of two machines and of one
    chunked = run(protocol, general_twin(), everyone, **settings)
    for other in (dense, chunked):
        chex.assert_trees_all_close(other.metrics, factored.metrics, rtol=1e-4, atol=1e-5)
        close(other.params, factored.params, 1e-4)


@pytest.mark.parametrize(
    ("trust", "oracle"), [("server", pseudocode.mu2_full_trusted), ("none", pseudocode.mu2_full_untrusted)]
)
def test_full_participation_is_the_first_papers_algorithm(trust, oracle, softmax_problem, data):
    """Its d_{t,i} and q_{t,i} = t·d_{t,i} are another way to write the running sums of increments."""
    protocol = DPMu2(trust=trust, **SETTINGS)
    ready, source, plan, key = pieces(protocol, softmax_problem, Full(2))
    noise = ready.noise_std * drawn(source, plan, key, softmax_problem.dimension)
    noise = noise.reshape(*noise.shape[:-1], *softmax_problem.start.shape)
    result = run(protocol, softmax_problem, Full(2))
    outcome = replayed(oracle, ready, softmax_problem, data, plan, noise)
    close(result.metrics["probe"], probes(outcome.points))
    if trust == "none":
        view = transcript(protocol, softmax_problem, Full(2), seed=3, order="stored")
        running = np.cumsum(view.messages, axis=0)
        close(running, outcome.messages.reshape(running.shape))


@pytest.mark.parametrize("name", MESSAGES)
def test_order_within_a_round_is_no_matter(name, softmax_problem):
    """Slots of a round swapped, machine and sample together: the same trajectory without noise."""
    protocol = replace(CASES[name].protocol, mu=np.inf)
    plan, key = draw_plan(softmax_problem, PARTIAL), jax.random.key(0)
    ready = calibrate(protocol, softmax_problem, plan)
    inputs = round_inputs(plan)
    swapped = inputs._replace(
        samples=inputs.samples[:, ::-1],
        machine=inputs.machine[:, ::-1],
        participation=inputs.participation[:, ::-1],
    )
    recipe = Recipe(plan.size, check_metrics(softmax_problem, RECORD), 1)
    _, one = _run(as_leaves(ready), softmax_problem, Silent(), inputs, key, recipe)
    _, two = _run(as_leaves(ready), softmax_problem, Silent(), swapped, key, recipe)
    assert one["probe"][-1] != one["probe"][5]
    close(two["probe"], one["probe"], 1e-5)


def test_public_prefix(softmax_problem):
    """Over whole cycles the uniform schedule scales with √T only: with that undone, a short run opens a long one."""
    long = run(DPMu2(noise_std=0.5, step_size=0.02), softmax_problem, CYCLIC)
    short = run(DPMu2(noise_std=0.5 * (30 / 12) ** 0.5, step_size=0.02), softmax_problem, CYCLIC, rounds=12, every=5)
    np.testing.assert_allclose(short.metrics["probe"], long.metrics["probe"][[4, 9, 11]], rtol=1e-5)
    np.testing.assert_allclose(short.metrics["noise_norm"], long.metrics["noise_norm"][[4, 9, 11]], rtol=1e-5)
