"""The table of methods that sample a machine's records, crossed with one list of properties."""

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import isrl

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    Full,
    Given,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Seeds,
    Squared,
    Varying,
    draw_plan,
    general_problem,
    linear_problem,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.metrics import check_metrics
from fedprivjax.engine.simulate import Recipe, _run, as_leaves, round_inputs, trajectory
from fedprivjax.noise import PerStep, Silent
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.sweeps.sweep import _run_many

ROUNDS, MACHINES, RECORDS, FEATURES, RADIUS = 12, 4, 36, 3, 1.5
ROWS = np.array([np.random.default_rng([8, t]).permutation(MACHINES)[:2] for t in range(ROUNDS)])
PARTIAL = Given(MACHINES, ROWS)
VARYING = Varying.between(MACHINES, 1, 3)
RNG = np.random.default_rng(1)
X = RNG.normal(size=(MACHINES, RECORDS, FEATURES)).astype(np.float32)
X /= np.linalg.norm(X, axis=2, keepdims=True)
Y = X[..., 0] > 0.1
PROBLEM = linear_problem(X, Y.astype(int), Logistic(), feature_bound=1.0, constraint=Ball(RADIUS))
STEP = {"step_size": 0.7}


class Case(NamedTuple):
    protocol: Any
    oracle: Any
    participation: Any = PARTIAL


def minibatch(**settings):
    def oracle(ready, gradients, plan, start, noise):
        own = {"step": ready.step_size, "modulus": ready.strong_convexity, "window": ready.window}
        factor = plan[0][2].sum() if ready.aggregate == "sum" else 1.0
        own["step"] *= factor
        return isrl.minibatch(gradients, plan, start, radius=RADIUS, noise=np.asarray(noise) / factor, **own)

    return NoisyMinibatchSGD(**{"noise_std": 0.4, "batch": 4, **STEP, **settings}), oracle


def accelerated(**settings):
    def oracle(ready, gradients, plan, start, noise):
        own = {"modulus": float(ready.strong_convexity), "regularisation": float(ready.regularisation or 0.0)}
        places = [(round(float(r)), float(v)) for r, v in ready.schedule]
        points, _ = isrl.accelerated(gradients, plan, start, places=places, radius=RADIUS, noise=noise, **own)
        return points, points[-1]

    return AcceleratedMinibatchSGD(**{"noise_std": 0.4, "batch": 4, **settings}), oracle


def local(**settings):
    def oracle(ready, gradients, plan, start, noise):
        own = {"step": ready.step_size, "window": ready.window}
        return isrl.local(gradients, plan, start, radius=RADIUS, noise=noise, **own)

    return LocalSGD(**{"noise_std": 0.4, "batch": 3, **STEP, **settings}), oracle


SAMPLERS = {"replacement": 4, "subset": 4, "poisson": 4, "disjoint": 3, "full": None}
CASES = {
    **{f"minibatch-{name}": Case(*minibatch(sampler=name, batch=batch)) for name, batch in SAMPLERS.items()},
    "minibatch-sum": Case(*minibatch(aggregate="sum", step_size=0.3)),
    "minibatch-window": Case(*minibatch(window=5)),
    "minibatch-strong": Case(*minibatch(strong_convexity=0.2)),
    "minibatch-clipped": Case(*minibatch(clip=0.3)),
    "minibatch-varying": Case(*minibatch(), VARYING),
    "minibatch-batches": Case(*minibatch(batch=(1, 2, 3, 4))),
    "minibatch-weights": Case(*minibatch(machine_weights=(0.4, 0.3, 0.2, 0.1))),
    "accelerated-plain": Case(*accelerated(step_size=0.5)),
    "accelerated-theory": Case(*accelerated()),
    "accelerated-regularised": Case(*accelerated(form="regularised", regularisation=0.3)),
    "accelerated-multistage": Case(*accelerated(form="multistage", strong_convexity=0.24, variance=1e-5, gap=0.2)),
    "accelerated-one-pass": Case(*accelerated(sampler="disjoint", batch=3)),
    "accelerated-varying": Case(*accelerated(), VARYING),
    "local": Case(*local()),
    "local-window": Case(*local(window=4)),
    "local-clipped": Case(*local(clip=0.3)),
    "local-disjoint": Case(*local(sampler="disjoint")),
    "local-varying": Case(*local(), VARYING),
}
SOME = ["minibatch-subset", "minibatch-poisson", "minibatch-varying", "accelerated-regularised", "local-window"]


def probe(problem, snapshot):
    params = jnp.ravel(snapshot.params)
    return params @ jnp.sin(1.0 + jnp.arange(params.size) ** 2)


RECORD = ("train_loss", probe)


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def run(protocol, participation, problem=PROBLEM, *, seed=3, **settings):
    return simulate(
        protocol, problem, participation, **{"rounds": ROUNDS, "seed": seed, "every": 1, "record": RECORD, **settings}
    )


@pytest.fixture(scope="module")
def base(case):
    return run(case.protocol, case.participation)


def pieces(case, protocol=None, seed=3):
    """What `simulate` hands to the engine: calibrated protocol, noise mechanism, plan, key."""
    protocol = case.protocol if protocol is None else protocol
    plan = draw_plan(PROBLEM, case.participation, ROUNDS, seed, sampling=protocol.sampling)
    ready = calibrate(protocol, PROBLEM, plan)
    source = Silent() if ready.noise_std == 0 else ready.noise(PROBLEM, plan)
    return ready, source, plan, jax.random.key(seed)


def gradients_of(protocol):
    """Every sample's own gradient, clipped where the protocol clips records."""
    features, labels = X.reshape(-1, FEATURES).astype(float), Y.ravel().astype(float)

    def gradients(w, samples):
        x = features[samples]
        g = (1 / (1 + np.exp(-x @ w)) - labels[samples])[..., None] * x
        if protocol.clip is None:
            return g
        return g * np.minimum(1.0, protocol.clip / np.maximum(np.linalg.norm(g, axis=-1, keepdims=True), 1e-30))

    return gradients


def followed(case, ready, source, plan, key):
    """The oracle's points and its reported point, on the engine's own samples and noise."""
    keys = jnp.stack([jax.random.fold_in(key, t) for t in range(1, ROUNDS + 1)])
    if isinstance(source, Silent):
        noise = None if isinstance(ready, LocalSGD) else 0.0
    elif isinstance(source, PerStep):
        rounds = list(zip(keys, source.inputs, strict=True))
        noise = np.array([[PerStep.draw(each, step, FEATURES) for step in range(ready.batch)] for each in rounds])
        noise = ready.noise_std * noise
    else:
        block = source.block(source.init(FEATURES, key), source.inputs, keys, FEATURES)[1]
        noise = ready.noise_std * np.asarray(block, float)
    steps = list(zip(plan.samples, np.asarray(plan.weights, float), plan.schedule.present.astype(float), strict=True))
    return case.oracle(ready, gradients_of(ready), steps, np.zeros(FEATURES), noise)


def test_structure_and_dtypes_are_stable(case):
    ready, source, plan, key = pieces(case)
    inputs = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    state = ready.init(PROBLEM, plan.size)
    noise = (key, source.inputs[0]) if isinstance(source, PerStep) else jnp.zeros(FEATURES)
    protocol = as_leaves(ready)
    after = jax.eval_shape(lambda s: protocol.round(PROBLEM, s, inputs, noise), state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.eval_shape(protocol.output, state), PROBLEM.start)
    chex.assert_trees_all_equal_shapes_and_dtypes(protocol.query(state), PROBLEM.start)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {np.dtype(np.float32), np.dtype(np.int32)}


@pytest.mark.parametrize("noisy", [True, False], ids=["noisy", "silent"])
def test_the_oracle_goes_where_the_engine_goes(case, noisy):
    protocol = case.protocol if noisy else replace(case.protocol, noise_std=0.0)
    found = run(protocol, case.participation)
    points, reported = followed(case, *pieces(case, protocol))
    np.testing.assert_allclose(found.params, reported, atol=2e-4)
    assert np.linalg.norm(reported) > 0.05
    assert max(np.linalg.norm(point) for point in points) <= RADIUS + 1e-6


def test_jit_equals_eager(case, base):
    ready, source, plan, key = pieces(case)
    recipe = Recipe(plan.size._replace(rounds=3), check_metrics(PROBLEM, (probe,)), 3)
    inputs = jax.tree.map(lambda leaf: leaf[:3], round_inputs(plan))
    cut = replace(source, inputs=source.inputs[:3])
    with jax.disable_jit():
        _, metrics = trajectory(as_leaves(ready), PROBLEM, cut, inputs, key, recipe)
    np.testing.assert_allclose(metrics["probe"][0], base.metrics["probe"][2], rtol=1e-4, atol=1e-6)


def test_new_numbers_are_no_new_program(case, base):
    before = _run._cache_size()
    clip = None if case.protocol.clip is None else 0.2
    host = {"lipschitz": 3.0, "diameter": 0.7, "delta": 1e-4}  # what only the host reads is no part of the program
    other = replace(case.protocol, noise_std=0.9, step_size=0.2, step_scale=0.5, clip=clip, **host)
    rows = Given(MACHINES, ROWS[::-1]) if case.participation is PARTIAL else case.participation
    result = run(other, rows, replace(PROBLEM, constraint=Ball(0.8)), seed=Seeds(5, 6, 7), delta=1e-3)
    assert _run._cache_size() == before
    assert not np.allclose(result.params, base.params)


def test_seeds_decide(case, base):
    again, other = run(case.protocol, case.participation), run(case.protocol, case.participation, seed=4)
    chex.assert_trees_all_equal(again.metrics, base.metrics)
    assert np.linalg.norm(np.asarray(other.params) - base.params) > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_noise_alone_follows_its_own_seed(name):
    case = CASES[name]
    one, two = (run(case.protocol, case.participation, seed=Seeds(1, 1, noise)) for noise in (1, 2))
    np.testing.assert_array_equal(one.plan.samples, two.plan.samples)
    assert np.linalg.norm(np.asarray(one.params) - two.params) > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_order_within_a_round_is_no_matter(name):
    case = CASES[name]
    ready, _, plan, key = pieces(case, replace(case.protocol, noise_std=0.0))
    inputs = round_inputs(plan)
    swapped = jax.tree.map(lambda leaf: leaf if leaf.ndim == 1 else leaf[:, ::-1], inputs)
    recipe = Recipe(plan.size, check_metrics(PROBLEM, RECORD), 1)
    one, two = (_run(as_leaves(ready), PROBLEM, Silent(), some, key, recipe)[1] for some in (inputs, swapped))
    np.testing.assert_allclose(two["probe"], one["probe"], rtol=1e-4, atol=1e-6)
    assert one["probe"][-1] != one["probe"][5]


@pytest.mark.parametrize("name", ["minibatch-subset", "minibatch-clipped", "local", "accelerated-plain"])
def test_machines_relabelled(name):
    """A machine's name says nothing: its records and its slots under another are the same run."""
    names = np.array([2, 0, 3, 1])
    ready, source, plan, key = pieces(CASES[name])
    moved = plan.samples % RECORDS + RECORDS * names[plan.samples // RECORDS]
    x, y = np.empty_like(X), np.empty_like(Y)
    x[names], y[names] = X, Y
    other = linear_problem(x, y.astype(int), Logistic(), feature_bound=1.0, constraint=Ball(RADIUS))
    inputs = round_inputs(plan)
    renamed = inputs._replace(samples=moved.astype(np.int32), machine=names[inputs.machine])
    recipe = Recipe(plan.size, check_metrics(PROBLEM, RECORD), 1)
    one = _run(as_leaves(ready), PROBLEM, source, inputs, key, recipe)[1]
    two = _run(as_leaves(ready), other, source, renamed, key, recipe)[1]
    np.testing.assert_allclose(two["probe"], one["probe"], rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_sweep_equals_a_loop(name):
    case = CASES[name]
    over = {"noise_std": [0.1, 0.6], "step_size": [0.2, 0.5], "step_scale": [0.5, 1.5]}
    blank = replace(case.protocol, noise_std=None, step_size=None)
    settings = {"rounds": ROUNDS, "every": 1, "record": RECORD}
    grid = sweep(blank, PROBLEM, case.participation, over=over, seeds=[2, 5], **settings)
    for noise_std, step_size, step_scale, seed in product(*over.values(), [2, 5]):
        protocol = replace(case.protocol, noise_std=noise_std, step_size=step_size, step_scale=step_scale)
        alone = run(protocol, case.participation, seed=seed)
        cell = grid.sel(noise_std=noise_std, step_size=step_size, step_scale=step_scale, seed=seed)
        np.testing.assert_allclose(cell["probe"], alone.metrics["probe"], rtol=1e-4, atol=1e-5)
    before = _run_many._cache_size()
    other = {"noise_std": [0.2, 0.3], "step_size": [0.1, 0.3], "step_scale": [0.7, 1.1]}
    sweep(blank, PROBLEM, case.participation, over=other, seeds=[7, 8], **settings)
    assert _run_many._cache_size() == before


@pytest.mark.parametrize("name", ["minibatch-subset", "minibatch-varying", "accelerated-plain", "local"])
def test_a_sweep_that_starts_without_noise_equals_a_loop(name):
    """Also over cohorts of random size, whose own sizes decide no default."""
    case = CASES[name]
    step = 0.5 if isinstance(case.protocol, LocalSGD) else None  # local SGD has no default
    blank = replace(case.protocol, noise_std=None, step_size=step)
    settings = {"rounds": ROUNDS, "every": 1, "record": RECORD}
    grid = sweep(blank, PROBLEM, case.participation, over={"epsilon": [np.inf, 0.5]}, seeds=[2, 5], **settings)
    for epsilon, seed in product([np.inf, 0.5], [2, 5]):
        alone = run(replace(blank, epsilon=epsilon), case.participation, seed=seed)
        cell = grid.sel(epsilon=epsilon, seed=seed)
        np.testing.assert_allclose(cell["probe"], alone.metrics["probe"], rtol=1e-4, atol=1e-5)
        assert float(cell["noise_std"]) == pytest.approx(alone.protocol.noise_std)
        assert float(cell["step_size"]) == pytest.approx(alone.protocol.step_size)


def test_trust_and_samplers_are_no_other_programs():
    before = None
    for sampler in ("subset", "replacement", "disjoint"):
        run(replace(CASES["minibatch-subset"].protocol, sampler=sampler, batch=3), PARTIAL)
        before = _run._cache_size() if before is None else before
    assert _run._cache_size() == before


def test_every_query_of_a_multistage_run_lies_in_the_set():
    """Rounds that no stage needs are queries, too: the Lipschitz constant holds on the set alone."""
    squared = linear_problem(X, X[..., 0], Squared(1.0), feature_bound=1.0, constraint=Ball(1.0))
    protocol = AcceleratedMinibatchSGD(
        form="multistage", noise_std=0.05, strong_convexity=0.3, gap=1.0, variance=1e-4, batch=4
    )
    view = transcript(protocol, squared, Full(MACHINES), rounds=20, seed=1)
    left_over = calibrate(protocol, squared, view.plan).schedule[:, 0] == 0
    assert left_over.sum() > 3
    assert np.linalg.norm(view.queries, axis=1).max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "name", ["minibatch-subset", "minibatch-clipped", "minibatch-poisson", "local", "accelerated-plain"]
)
def test_factored_and_dense_are_one(name):
    loss, pool = Logistic(), PROBLEM.pool
    twin = general_problem(
        lambda w, example: loss.value(w @ example.features, example.label),
        pool,
        PROBLEM.start,
        constraint=PROBLEM.constraint,
        lipschitz=PROBLEM.lipschitz,
        smoothness=PROBLEM.smoothness,
        table=PROBLEM.table.rows,
    )
    case = CASES[name]
    one, two = (run(case.protocol, case.participation, problem) for problem in (PROBLEM, twin))
    np.testing.assert_allclose(two.metrics["probe"], one.metrics["probe"], rtol=1e-4, atol=1e-5)
