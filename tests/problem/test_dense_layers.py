"""Gradients that stay factored at dense layers: norms, clipped sums and bounds are those of every record's gradient."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import linen as nn

from fedprivjax import (
    MLP,
    DPMu2,
    FedAvg,
    Full,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    from_dataset,
    general_problem,
    ready,
    simulate,
    sweep,
)
from fedprivjax.datasets import from_arrays
from fedprivjax.method import round as round_machinery
from fedprivjax.method.clipping import clip
from fedprivjax.problem.dense_layers import in_layers, layered_gradient
from fedprivjax.problem.models import Outer, length
from fedprivjax.testing import check_protocol

RNG = np.random.default_rng(5)
FEATURES, HIDDEN, CLASSES, RECORDS = 12, 5, 3, 24
PIXELS, LABELS = RNG.uniform(size=(RECORDS, 4, 3)).astype(np.float32), RNG.integers(0, CLASSES, RECORDS)
PICTURES = from_arrays(PIXELS, LABELS, PIXELS[:6], LABELS[:6], feature_bound=4.0, classes=CLASSES)
TABLE = np.arange(RECORDS).reshape(2, -1)
BATCHES = {"batch": 4, "clip": 0.7, "step_size": 0.3}


class Shared(nn.Module):
    """A network that uses one layer twice, and normalises."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(HIDDEN)
        values = nn.LayerNorm()(nn.Dense(HIDDEN)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES, use_bias=False)(layer(nn.relu(layer(values))))


class OfRows(nn.Module):
    """A network with a layer that is applied to every row of a picture, and a layer that is computed again."""

    @nn.compact
    def __call__(self, x):
        values = nn.silu(nn.Dense(HIDDEN)(x)).reshape(x.shape[0], -1)
        return nn.Dense(CLASSES)(nn.remat(nn.Dense)(HIDDEN)(values))


def by_hand(params, example):
    """A loss with a kernel [outputs, inputs], and a term that does not depend on the record."""
    hidden = jnp.tanh(params["first"] @ example[0] + params["bias"])
    scores = hidden @ params["last"]
    return jax.nn.logsumexp(scores) - scores[example[1]] + 0.1 * jnp.sum(params["extra"] ** 2)


def doubled(params, example):
    """The same with a regulariser on a kernel, which is therefore used twice."""
    return by_hand(params, example) + 0.1 * jnp.sum(params["last"] ** 2)


def own(loss):
    shapes = {"first": (HIDDEN, FEATURES), "bias": (HIDDEN,), "last": (HIDDEN, CLASSES), "extra": (2,)}
    start = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return general_problem(loss, (PIXELS.reshape(RECORDS, -1), LABELS), start)


PROBLEMS = {  # with the number of parameters in dense layers
    "mlp": (lambda: from_dataset(PICTURES, network=MLP((HIDDEN,))), HIDDEN * (FEATURES + CLASSES)),
    "shared": (lambda: from_dataset(PICTURES, network=Shared()), HIDDEN * (FEATURES + CLASSES)),
    "rows": (lambda: from_dataset(PICTURES, network=OfRows()), HIDDEN * CLASSES),
    "by hand": (lambda: own(by_hand), HIDDEN * (FEATURES + CLASSES)),
    "regularised": (lambda: own(doubled), HIDDEN * FEATURES),
}


@pytest.mark.parametrize("name", sparing(list(PROBLEMS), ["shared", "by hand", "regularised"]))
def test_dense_layers_are_kernels_that_the_loss_uses_once_with_one_vector(name):
    make, count = PROBLEMS[name]
    assert in_layers(make()) == count


@pytest.mark.parametrize("name", sparing(list(PROBLEMS), ["by hand"]))
def test_norms_and_clipped_sums_are_those_of_every_gradient(name):
    """Each record's clipped vector is written out in float64: it is not longer than the clip."""
    problem, scales = PROBLEMS[name][0](), jnp.array([1.0, 3.0, 30.0, 0.0, 1e-3, 1e4])
    features, labels = (leaf[:6] for leaf in problem.pool)
    examples = features * scales.reshape(-1, *[1] * (features.ndim - 1)), labels

    @jax.jit
    def found(examples):
        rows = jax.vmap(jax.grad(problem.model.value), (None, 0))(problem.start, examples)
        vectors = jax.vmap(partial(layered_gradient, problem.model.value, problem.start))(examples)
        bound = jnp.median(norms_of(rows))
        clipped = jax.vmap(lambda vector: clip(vector, bound))(vectors)
        alone = jax.vmap(lambda vector: jax.tree.map(lambda leaf: leaf[None], vector).total())(clipped)
        return rows, jax.vmap(lambda vector: vector.norm())(vectors), bound, clipped.total(), alone

    rows, norms, bound, total, alone = found(examples)
    exact = norms_of(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rows))
    np.testing.assert_allclose(norms, exact * (1 + 1e-5), rtol=3e-6)
    assert (norms >= exact).all()
    assert (norms_of(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), alone)) <= bound).all()
    factors = float(bound) / np.maximum(exact, bound)
    wanted = jax.tree.map(lambda leaf: np.tensordot(factors, leaf, 1), rows)
    difference = norms_of(jax.tree.map(lambda leaf, other: (leaf - other)[None], total, wanted))
    assert difference < 1.2e-5 * bound * np.sum(exact > bound)


def norms_of(rows):
    """Return the norm of every row, shape [rows]."""
    return sum((leaf.reshape(len(leaf), -1) ** 2).sum(axis=1) for leaf in jax.tree.leaves(rows)) ** 0.5


@pytest.mark.slow
def test_a_record_without_a_finite_gradient_adds_nothing():
    problem = from_dataset(PICTURES, network=MLP((HIDDEN,), activation="relu"))
    wrong = np.array([[np.inf], [np.nan], [1e30], [1.0]], np.float32)
    examples = problem.pool[0][:4] * wrong.reshape(4, 1, 1, 1), problem.pool[1][:4]
    one = lambda gradient: gradient(problem.start)  # noqa: E731
    sums = {}
    for clipping in ("rows", "ghost"):
        changed = replace(problem, model=replace(problem.model, clipping=clipping))
        sums[clipping] = jax.jit(lambda examples: round_machinery.examples_sum(changed, one, examples, None, 0.5)[0])(  # noqa: B023
            examples
        )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sums))
    assert norms_of(jax.tree.map(lambda leaf: leaf[None], sums["ghost"])) > 0.01
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), sums["ghost"], sums["rows"])


@pytest.mark.parametrize(
    "size", [1e-39, *(pytest.param(one, marks=pytest.mark.slow) for one in (1e-30, 1e19, 8e37, 1e38)), 3e38]
)
def test_vectors_of_any_size_are_clipped(size):
    """A CPU may divide by a large number as it multiplies by its reciprocal, which it rounds to 0."""
    vectors = {
        "factored": Outer(jnp.full((1, 4), size), jnp.full((1, 3), 0.5), jnp.full(1, 0.75**0.5)),
        "features": Outer(jnp.ones((1, 4)), jnp.full((1, 3), size), jax.vmap(length)(jnp.full((1, 3), size))),
        "layers": jax.vmap(partial(layered_gradient, product, jnp.ones((4, 3))))(jnp.full((1, 3), size)),
    }
    for name, vector in vectors.items():
        total = jax.jit(lambda one: jax.vmap(lambda each: clip(each, 0.1))(one).total())(vector)
        assert np.linalg.norm(np.asarray(total, np.float64)) <= 0.1 * (1 + 1e-6), name


def product(params, example):
    return jnp.sum(params @ example)


CONSTANT = {  # losses whose gradients are 0, or do not depend on the record
    "a number": lambda params, x: 1.0,
    "an array": lambda params, x: jnp.float32(1.0),
    "no parameter": lambda params, x: jnp.sum(x),
    "a parameter": lambda params, x: params["bias"][0],
    "no record": lambda params, x: jnp.sum(params["kernel"] ** 2),
    "an unused layer": lambda params, x: (x @ params["kernel"], 1.0)[1],
    "a layer of a constant": lambda params, x: jnp.sum(jnp.ones(FEATURES) @ params["kernel"]),
    "a layer without a gradient": lambda params, x: jax.lax.stop_gradient(jnp.sum(x @ params["kernel"])),
}


@pytest.mark.parametrize("name", sparing(list(CONSTANT), ["a number", "an unused layer"]))
def test_losses_that_do_not_depend_on_parameters_or_records(name, monkeypatch):
    monkeypatch.setattr(round_machinery, "ONE_BY_ONE", 1)
    pool, start = PIXELS.reshape(RECORDS, -1), {"kernel": np.ones((FEATURES, 2)), "bias": np.zeros(2)}
    sums = {}
    for clipping in ("rows", "auto", "ghost"):
        if clipping == "ghost" and "layer" not in name:
            with pytest.raises(Refusal, match="without a network that has dense layers, got 'ghost'"):
                general_problem(CONSTANT[name], pool, start, clipping=clipping)
            continue
        problem = general_problem(CONSTANT[name], pool, start, clipping=clipping)
        one = lambda gradient: gradient(problem.start)  # noqa: B023, E731
        sums[clipping], _ = round_machinery.examples_sum(problem, one, problem.pool, None, 0.5)
    for total in sums.values():
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5), total, sums["rows"])


METHODS = {
    "poisson": NoisyMinibatchSGD(epsilon=np.inf, sampler="poisson", **BATCHES),
    "one record": NoisySGD(mu=np.inf, clip=0.7, step_size=0.3),
    "local steps": FedAvg(local_steps=2, unit="record", noise_std=0.0, **BATCHES),
}


@pytest.mark.parametrize("name", sparing(list(METHODS), ["poisson"]))
def test_runs_are_those_of_rows(name, monkeypatch):
    """Also in chunks and one after another."""
    monkeypatch.setattr(round_machinery, "CACHE_FLOATS", 200)
    table, names = (None if name == "one record" else TABLE), ("clipped_share", "message_norm")
    runs, metrics = {}, () if name == "local steps" else names
    for clipping in ("rows", "ghost"):
        monkeypatch.setattr(round_machinery, "in_a_loop", lambda problem: problem.model.clipping == "ghost")
        problem = from_dataset(PICTURES, network=MLP((HIDDEN,)), partition_table=table, clipping=clipping)
        runs[clipping] = simulate(METHODS[name], problem, Full(2), rounds=4, metrics=metrics)
    assert not metrics or np.mean(runs["rows"].metrics["clipped_share"]) > 0.1
    for name, values in runs["rows"].metrics.items():
        np.testing.assert_allclose(runs["ghost"].metrics[name], values, rtol=5e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-6), runs["ghost"].params, runs["rows"].params)


def test_auto_factors_large_networks_of_dense_layers(monkeypatch):
    monkeypatch.setattr(round_machinery, "ONE_BY_ONE", 70)
    large, small = (from_dataset(PICTURES, network=MLP((width,))) for width in (5, 3))
    one, two = (lambda gradient: gradient(1.0)), (lambda gradient: gradient(1.0, 2.0)[0])
    assert round_machinery.layered_point(large, one) == 1.0
    rows = replace(large, model=replace(large.model, clipping="rows"))
    for problem, machine in ((small, one), (rows, one), (large, two), (large, lambda gradient: 2.0 * gradient(1.0))):
        assert round_machinery.layered_point(problem, machine) is None


def softmax(params, example):
    """A loss of one dense layer with a kernel [outputs, inputs]."""
    scores = params["kernel"] @ example[0] + params["bias"]
    return jax.nn.logsumexp(scores) - scores[example[1]]


@pytest.mark.slow
def test_the_contract_holds_with_factored_gradients():
    data = PIXELS.reshape(4, 6, -1), LABELS.reshape(4, 6)
    start = {"kernel": np.zeros((CLASSES, FEATURES)), "bias": np.zeros(CLASSES)}
    problem = general_problem(softmax, data, start, split=True, clipping="ghost")
    method = NoisyMinibatchSGD(epsilon=2.0, delta=1e-5, batch=3, clip=0.7, step_size=0.3)
    check_protocol(method, problem, rounds=4)


@pytest.mark.slow
def test_a_sweep_of_sums_one_after_another_equals_runs(monkeypatch):
    monkeypatch.setattr(round_machinery, "in_a_loop", lambda problem: True)
    problem = from_dataset(PICTURES, network=MLP((HIDDEN,)), partition_table=TABLE)
    method = NoisyMinibatchSGD(epsilon=np.inf, **BATCHES)
    steps = [0.1, 0.3]
    grid = sweep(method, problem, Full(2), rounds=4, over={"step_size": steps}, seeds=1, metrics=["test_loss"])
    for step, loss in zip(steps, np.ravel(grid["test_loss"].isel(round=-1, iterate=0)), strict=True):
        run = simulate(method.replace(step_size=step), problem, Full(2), rounds=4, metrics=["test_loss"])
        np.testing.assert_allclose(loss, run.metrics["test_loss"][-1], rtol=1e-5)


def test_ghost_norms_are_refused_where_they_do_not_apply():
    with pytest.raises(Refusal, match=r"clipping must be 'auto' or 'rows' without a network that has dense layers"):
        general_problem(lambda w, x: jnp.sum((w - x) ** 2), jnp.ones((5, 3)), jnp.zeros(3), clipping="ghost")
    with pytest.raises(Refusal, match=r"clipping must be 'auto' for a linear predictor, .* Leave it out"):
        from_dataset(PICTURES, clipping="ghost")
    with pytest.raises(Refusal, match=r"clipping.* 'gost'"):
        from_dataset(PICTURES, network=MLP((HIDDEN,)), clipping="gost")
    problem = from_dataset(PICTURES, network=MLP((HIDDEN,)), clipping="ghost")
    with pytest.raises(Refusal, match="clipping must be 'auto' or 'rows' with DPMu2, got 'ghost'"):
        ready(DPMu2(mu=1.0, clip=1.0), problem, Full(2), rounds=4)
