"""Computed examples: equal to stored ones, for any number of machines, and rejected if invalid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    Logistic,
    NoisySGD,
    Refusal,
    Softmax,
    Squared,
    StaleMomentum,
    Uniform,
    datasets,
    draw_plan,
    experiment,
    from_dataset,
    linear_problem,
    procedural_problem,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner

MACHINES, ROUNDS = 6, 8
SOME = Uniform(MACHINES, 3)


def example(key, machine):
    x = jax.random.normal(key, (5,)) + machine
    return x / jnp.linalg.norm(x), (machine + jax.random.bernoulli(key)) % 3


@pytest.fixture(scope="module")
def computed():
    return procedural_problem(example, Softmax(3), seed=4, feature_bound=1.01, constraint=Ball(1.0))


@pytest.fixture(scope="module")
def stored(computed):
    """Return the same examples as arrays, machine by machine."""
    whose = np.repeat(np.arange(MACHINES), ROUNDS)
    examples = computed.take(np.tile(np.arange(ROUNDS), MACHINES), whose)
    table = np.arange(MACHINES * ROUNDS).reshape(MACHINES, ROUNDS)
    return linear_problem(
        examples.features, examples.label, Softmax(3), feature_bound=1.01, constraint=Ball(1.0), partition_table=table
    )


@pytest.mark.parametrize(
    "protocol",
    sparing([DPMu2(mu=2.0, clip=0.5), NoisySGD(mu=2.0), StaleMomentum(mu=2.0, clip=0.5)], []),
)
def test_computed_examples_are_the_stored_ones(protocol, computed, stored):
    """A machine's k-th participation uses its k-th example."""
    options = {"rounds": ROUNDS, "order": "stored", "metrics": ["noise_norm"]}
    runs = [simulate(protocol, problem, SOME, **options) for problem in (computed, stored)]
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-5, atol=1e-7)
    assert runs[0].guarantee.mu == runs[1].guarantee.mu
    views = [transcript(protocol, problem, SOME, rounds=ROUNDS, order="stored") for problem in (computed, stored)]
    np.testing.assert_allclose(views[0].messages, views[1].messages, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_examples_differ_by_machine_and_by_participation(computed):
    taken = computed.take(np.array([[0, 1], [0, 1]]), np.array([2, 3]))
    assert taken.features.shape == (2, 2, 5)
    assert np.unique(np.asarray(taken.features).reshape(4, 5), axis=0).shape == (4, 5)
    np.testing.assert_array_equal(taken.features[1, 0], computed.take(0, 3).features)


@pytest.fixture(scope="module")
def stream():
    return datasets.load("stream", features=20, classes=4, heterogeneity=1.0)


def test_a_million_machines_leave_nothing_of_their_number_on_the_device(stream):
    problem = from_dataset(stream, constraint=Ball(1.0))
    plan = draw_plan(problem, Uniform(10**6, 50), 30)
    mechanism = DPMu2(mu=4.0, clip=0.4).mechanism(problem, plan)
    given = (problem.traced, mechanism, round_inputs(plan))
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(given)) < 10**5


@pytest.mark.slow
def test_a_million_machines_take_part(stream):
    problem = from_dataset(stream, constraint=Ball(1.0))
    run = simulate(DPMu2(mu=4.0, clip=0.4, step_size=0.1), problem, Uniform(10**6, 50), rounds=30)
    assert run.guarantee.per_machine.shape == (10**6,)
    assert run.guarantee.mu == pytest.approx(4.0)
    assert not run.diverged


@pytest.mark.slow
def test_a_stream_can_be_learnt():
    problem = from_dataset(datasets.load("stream", features=20, classes=3, spread=0.5), constraint=Ball(8.0))
    run = simulate(DPMu2(mu=np.inf), problem, Uniform(10**5, 50), rounds=100)
    assert run.metrics["test_accuracy"][-1] > 0.9


@pytest.mark.slow
def test_machines_of_a_heterogeneous_stream_hold_their_own_class(stream):
    problem = from_dataset(stream)
    labels = problem.take(np.tile(np.arange(5), (8, 1)), np.arange(8)).label
    np.testing.assert_array_equal(labels, np.tile(np.arange(8)[:, None] % 4, (1, 5)))
    assert set(stream.test_labels) == {0, 1, 2, 3}


@pytest.mark.slow
def test_any_loss_takes_computed_examples():
    problem = procedural_problem(
        lambda key, machine: jax.random.normal(key, (3,)),
        lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
        start=jnp.ones(3),
        optimum=jnp.zeros(3),
        constraint=Ball(4.0),
    )
    run = simulate(DPMu2(mu=np.inf, step_size=0.01, clip=100.0), problem, Uniform(10**6, 20), rounds=60)
    assert run.metrics["distance"][-1] < 0.2 * np.sqrt(3)


STREAMED = {
    "title": "a stream",
    "problem": {"dataset": "stream", "options": {"features": 12}, "radius": 4.0},
    "participation": {"machines": 10**6, "per_round": 20, "rounds": 5},
    "protocol": [{"name": "dp_mu2", "clip": 0.4}],
    "sweep": {"mu": [4.0], "seeds": 1},
}


@pytest.mark.slow
def test_an_experiment_file_reaches_a_stream():
    found = runner.run(experiment.parse(STREAMED))
    assert np.isfinite(found["dp_mu2"]["test_loss"]).all()


def test_an_experiment_file_cannot_split_a_stream():
    problem = {**STREAMED["problem"], "partition": {"kind": "iid"}}
    with pytest.raises(ValueError, match=r"problem\.partition must be left out: each machine of 'stream'"):
        listed.jobs(experiment.parse({**STREAMED, "problem": problem}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: draw_plan(p, SOME), "rounds must be given if examples are computed, without a limit"),
        (
            lambda p: simulate(DPMu2(mu=1.0), p, SOME, rounds=3, metrics=["train_loss"]),
            "metric 'train_loss' must have stored examples, and the problem has none",
        ),
        (
            lambda p: procedural_problem(lambda key, machine: jnp.zeros(3), Softmax(2)),
            "generate must return (features [features], label []), got ShapeDtypeStruct(shape=(3,), dtype=float32)",
        ),
        (
            lambda p: procedural_problem(example, lambda w, z: 0.0),
            "start must be given unless the loss is that of a linear predictor",
        ),
        (lambda p: datasets.load("stream", classes=1), "classes must be at least 2, got 1"),
        (lambda p: datasets.load("stream", heterogeneity=1.5), "heterogeneity must lie in 0..1, got 1.5"),
        (lambda p: datasets.load("stream", spread="wide"), "stream option spread must be a number, got 'wide'"),
        (lambda p: datasets.load("stream", features=2.5), "stream option features must be an integer, got 2.5"),
        (
            lambda p: from_dataset(datasets.load("stream"), partition_table=np.zeros((1, 1), int)),
            "partition_table must be None for a stream: every machine computes its own examples",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message, computed):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        call(computed)
    assert str(caught.value) == message


def broken(bad):
    """Return a problem in which machine 1's features are `bad`."""

    def generate(key, machine):
        x, label = example(key, machine)
        return jnp.where(machine == 1, bad, x), label

    return procedural_problem(generate, Softmax(3), feature_bound=1.01, constraint=Ball(1.0))


@pytest.mark.parametrize("bad", sparing([jnp.nan, jnp.inf, 1e10], [jnp.inf, 1e10]))
def test_features_keep_the_bound_of_the_guarantee(bad):
    """One machine's features are not finite, or far above the bound."""
    taken = broken(bad).take(jnp.arange(3), jnp.array([0, 1, 2]))
    norms = np.linalg.norm(np.asarray(taken.features), axis=1)
    np.testing.assert_allclose(norms, taken.feature_norm, rtol=1e-6)
    np.testing.assert_allclose(norms, [1, 1.01 if bad == 1e10 else 0, 1], rtol=1e-6)


CLIPPED = DPMu2(mu=1.0, clip=1.0)


@pytest.mark.parametrize("protocol", [CLIPPED, DPMu2(mu=1.0), NoisySGD(mu=1.0, clip=1.0)])
@pytest.mark.slow
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e10])
def test_no_features_touch_another_machines_part_of_a_run(bad, protocol):
    assert np.isfinite(simulate(protocol, broken(bad), SOME, rounds=ROUNDS).params).all()


@pytest.mark.parametrize(
    ("loss", "label", "kept"), [(Squared(1.0), 100.0, 1.0), (Squared(1.0), jnp.nan, 0.0), (Logistic(), 7, 1)]
)
def test_labels_keep_the_range_of_the_guarantee(loss, label, kept):
    problem = procedural_problem(
        lambda key, machine: (jnp.ones(1), jnp.asarray(label)), loss, feature_bound=1.0, constraint=Ball(1.0)
    )
    example = problem.take(0, 0)
    assert float(example.label) == kept
    assert float(problem.model.gradients((-jnp.ones(1),), example)[0].norm()) <= problem.lipschitz + 1e-6


def test_clipped_gradients_of_computed_examples_have_the_norms_of_dense_layers():
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["kernel"]))

    def example(key, machine):
        return jax.random.normal(key, (4,))

    method = NoisySGD(mu=np.inf, clip=0.5, step_size=0.1)
    ends = []
    for clipping in ("rows", "ghost"):
        problem = procedural_problem(example, loss, start={"kernel": np.ones((4, 3))}, clipping=clipping)
        assert problem.model.clipping == clipping
        ends.append(simulate(method, problem, SOME, rounds=3, metrics=()).params["kernel"])
    np.testing.assert_allclose(*ends, rtol=1e-5)
    assert (ends[0] != ends[1]).any()
    with pytest.raises(Refusal, match=r"clipping must be 'auto' for a linear predictor, .* Leave it out"):
        procedural_problem(lambda key, machine: (jnp.ones(1), 0.0), Squared(1.0), clipping="ghost")
    with pytest.raises(Refusal, match="without a network that has dense layers, got 'ghost'"):
        procedural_problem(example, lambda w, x: jnp.sum((w - x) ** 2), start=np.zeros(4), clipping="ghost")


def test_data_and_noise_of_one_seed_are_apart():
    """The keys of noise and of data are both folded from seeds. Equal seeds must not give equal keys."""
    problem = procedural_problem(
        lambda key, machine: (jax.random.normal(key, (4,)), 0.0), Squared(1.0), feature_bound=100.0
    )
    taken = np.asarray(problem.take(jnp.arange(6)[None], jnp.zeros(1, int)).features).ravel()
    grid = sweep(
        NoisySGD(clip=1.0, step_size=0.1),
        problem,
        Full(1),
        over={"noise_std": [1.0, 2.0]},
        seeds=[0],
        rounds=3,
        eval_every=1,
        common_noise=False,
        noise_method="materialised",
        metrics=[lambda problem, snapshot: snapshot.noise[0]],
    )
    grid = grid.sel(iterate="output")  # the noise of a round is the same at every iterate
    noise = np.concatenate([(grid[name] / grid["noise_std"]).values.ravel() for name in grid if "lambda" in name])
    assert noise.size == 6
    assert np.abs(noise[:, None] - taken).min() > 1e-4
