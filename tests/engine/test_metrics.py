from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import sparing
from flax import struct
from scipy.special import logsumexp

from fedprivjax import (
    Ball,
    Full,
    Logistic,
    NoisyMessages,
    NoisySGD,
    Protocol,
    Refusal,
    Snapshot,
    Softmax,
    Squared,
    Tukey,
    general_problem,
    linear_problem,
    procedural_problem,
    ready,
)
from fedprivjax.engine import chunked_sums
from fedprivjax.engine.metric import Metric, evaluate, never, of_info, unknown
from fedprivjax.engine.metrics import (
    METRICS,
    check_metrics,
    default_metrics,
    known,
    mean_loss,
    non_private,
    recorded_name,
)
from fedprivjax.protocols.noisy_sgd import SGD

RNG = np.random.default_rng(41)
FEATURES = RNG.normal(size=(20, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 20)
PARAMS = RNG.normal(size=(3, 4)).astype(np.float32)
OPTIMUM = RNG.normal(size=(3, 4)).astype(np.float32)
TRAIN, TEST = slice(0, 12), slice(12, 20)


def make(test=True, optimum=True, **options):
    return linear_problem(
        FEATURES[TRAIN],
        LABELS[TRAIN],
        Softmax(3),
        test=(FEATURES[TEST], LABELS[TEST]) if test else None,
        optimum=OPTIMUM if optimum else None,
        **options,
    )


def loss(params, part):
    scores = FEATURES[part].astype(float) @ params.T
    return np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(scores)), LABELS[part]])


def accuracy(params, part):
    return np.mean((FEATURES[part] @ params.T).argmax(1) == LABELS[part])


EXPECTED = {
    "test_loss": loss(PARAMS, TEST),
    "test_accuracy": accuracy(PARAMS, TEST),
    "test_error": 1 - accuracy(PARAMS, TEST),
    "train_loss": loss(PARAMS, TRAIN),
    "train_accuracy": accuracy(PARAMS, TRAIN),
    "excess_risk": loss(PARAMS, TEST) - loss(OPTIMUM, TEST),
    "distance": np.linalg.norm(PARAMS - OPTIMUM),
    "noise_norm": 5.0,
    "noise_mean_square": 25 / 3,
}


def test_relative_mse_is_one_for_the_mean_of_the_training_labels():
    targets = np.linspace(-1.0, 3.0, len(FEATURES))
    features = np.column_stack([np.ones(len(FEATURES)), FEATURES])
    problem = linear_problem(features[TRAIN], targets[TRAIN], Squared(), test=(features[TEST], targets[TEST]))
    naive = np.zeros(5, np.float32)
    naive[0] = targets[TRAIN].mean()
    assert float(METRICS["relative_mse"].function(problem, Snapshot(jnp.asarray(naive)))) == pytest.approx(
        1.0, rel=1e-5
    )
    w = np.arange(5.0) / 5
    expected = np.mean((features[TEST] @ w - targets[TEST]) ** 2) / np.mean(
        (targets[TEST] - targets[TRAIN].mean()) ** 2
    )
    found = METRICS["relative_mse"].function(problem, Snapshot(jnp.asarray(w, jnp.float32)))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    message = "metric 'relative_mse' must have the squared loss of a linear predictor, and the problem has none"
    with pytest.raises(ValueError, match=message):
        check_metrics(make(), ["relative_mse"])


@pytest.mark.parametrize("name", EXPECTED)
def test_values(name):
    value = METRICS[name].function(make(), Snapshot(jnp.asarray(PARAMS), jnp.array([3.0, 0.0, -4.0])))
    assert jnp.shape(value) == ()
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-5)


def test_without_noise_its_norm_is_zero():
    for name in ("noise_norm", "noise_mean_square"):
        assert float(METRICS[name].function(make(), Snapshot(PARAMS))) == 0.0


def test_the_root_of_the_mean_of_mean_squares_is_the_noise_rms():
    rounds = [jnp.asarray(noise, jnp.float32) for noise in RNG.normal(size=(6, 7))]
    squares = [METRICS["noise_mean_square"].function(make(), Snapshot(PARAMS, noise)) for noise in rounds]
    made = METRICS["noise_mean_square"].of_mean
    assert made is not None
    assert (made.name, recorded_name("noise_rms")) == ("noise_rms", "noise_mean_square")
    assert made.function(np.mean(squares)) == pytest.approx(np.sqrt(np.mean(np.square(rounds))), rel=1e-5)


def objective(problem, params):
    return jnp.mean(jax.vmap(partial(problem.model.value, params))(problem.pool))


def tanh_loss(params, example):
    features, label = example
    return (jnp.tanh(params["w"] @ features) @ params["v"] - label) ** 2


GENERAL = general_problem(
    tanh_loss,
    (FEATURES, LABELS.astype(np.float32)),
    {"w": RNG.normal(size=(3, 4)).astype(np.float32), "v": jnp.ones(3)},
)
ROBUST = linear_problem(FEATURES, LABELS, Tukey(2.0), start=RNG.normal(size=4))


POOLS = {"linear": make(), "robust": ROBUST, "general": GENERAL}
CHUNKS = {"whole": 2**24, "uneven chunks": 200, "one by one": 1}


@pytest.mark.parametrize(
    ("name", "chunk"),
    sparing(list(product(POOLS, CHUNKS)), [("linear", "uneven chunks"), ("general", "uneven chunks")]),
)
def test_the_gradient_norm_is_that_of_the_mean_loss_over_the_pool(name, chunk, monkeypatch):
    problem = POOLS[name]
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", CHUNKS[chunk])
    params = jax.tree.map(lambda leaf: leaf + 0.5, problem.start)
    wanted = optax.tree.norm(jax.grad(partial(objective, problem))(params))
    found = METRICS["gradient_norm"].function(problem, Snapshot(params))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert float(found) > 0.01
    np.testing.assert_allclose(mean_loss(problem, params, problem.pool), objective(problem, params), rtol=1e-5)


def test_chunks_leave_accuracies_alone(monkeypatch):
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", 200)
    assert 1 < chunked_sums.at_once(make(), 12) < 12
    assert float(METRICS["train_accuracy"].function(make(), Snapshot(jnp.asarray(PARAMS)))) == pytest.approx(
        accuracy(PARAMS, TRAIN)
    )


def test_losses_and_accuracies_of_the_same_examples_are_computed_together(monkeypatch):
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", 200)
    problem, names = make(), ("test_loss", "test_accuracy", "test_error", "train_loss", "train_accuracy")

    def values(params):
        snapshot = Snapshot(params, shared={})
        return {name: METRICS[name].function(problem, snapshot) for name in names}

    found = jax.jit(values)(jnp.asarray(PARAMS))
    for name in names:
        np.testing.assert_allclose(
            found[name], METRICS[name].function(problem, Snapshot(jnp.asarray(PARAMS))), rtol=1e-6
        )
    passes = str(jax.make_jaxpr(values)(jnp.asarray(PARAMS))).count("scan[")
    alone = str(jax.make_jaxpr(lambda params: METRICS["train_loss"].function(problem, Snapshot(params)))(PARAMS))
    assert passes == 2 * alone.count("scan[") == 2  # one over the test set, one over the pool


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear_problem(np.ones((60_000, 785), np.float32), np.zeros(60_000), Softmax(10)),
        lambda: general_problem(
            lambda params, x: jnp.sum(jnp.tanh(params * x)), np.ones((20_000, 785), np.float32), jnp.ones(785)
        ),
    ],
    ids=["linear", "general"],
)
def test_memory_of_the_gradient_norm_stays_bounded(make, monkeypatch):
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", 2**20)
    problem = make()

    def norm(params, problem):
        return METRICS["gradient_norm"].function(problem, Snapshot(params))

    used = jax.jit(norm).lower(problem.start, problem).compile().memory_analysis().temp_size_in_bytes
    assert used < 4 * 4 * 2**20  # the gradients of all records by themselves are 1.9 GB and 63 MB


def test_the_gradient_norm_needs_stored_examples_and_is_not_private():
    problem = procedural_problem(lambda key, machine: (jnp.ones(2), 1.0), Squared())
    with pytest.raises(Refusal, match="metric 'gradient_norm' must have stored examples, and the problem has none"):
        check_metrics(problem, ["gradient_norm"])
    assert non_private(make(), check_metrics(make(), ["gradient_norm", "noise_mean_square"])) == (
        "gradient_norm",
        "noise_mean_square",
    )


def test_excess_risk_without_a_test_set_is_on_the_pool_and_a_known_one_comes_first():
    snapshot = Snapshot(jnp.asarray(PARAMS))
    on_pool = METRICS["excess_risk"].function(make(test=False), snapshot)
    np.testing.assert_allclose(on_pool, loss(PARAMS, TRAIN) - loss(OPTIMUM, TRAIN), rtol=1e-5)
    exact = make(excess=lambda params: jnp.sum(params) + 7.0)
    np.testing.assert_allclose(METRICS["excess_risk"].function(exact, snapshot), PARAMS.sum() + 7.0, rtol=1e-5)


def test_distance_of_a_pytree():
    start = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    problem = general_problem(
        lambda params, x: jnp.sum(params["w"] @ x),
        np.ones((3, 2)),
        start,
        optimum={"w": np.ones((2, 2)), "b": start["b"]},
    )
    far = {"w": jnp.full((2, 2), 3.0), "b": jnp.array([0.0, 3.0])}
    assert float(METRICS["distance"].function(problem, Snapshot(far))) == pytest.approx(5.0)
    assert float(mean_loss(problem, far, problem.pool)) == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (make(), ("test_accuracy", "test_loss", "excess_risk", "distance", "noise_norm")),
        (make(optimum=False), ("test_accuracy", "test_loss", "noise_norm")),
        (make(test=False), ("excess_risk", "distance", "noise_norm")),
        (make(test=False, optimum=False), ("noise_norm",)),
        (make(test=False, optimum=False, excess=lambda params: 0.0), ("excess_risk", "noise_norm")),
        (
            linear_problem(FEATURES, LABELS, Squared(), test=(FEATURES, LABELS)),
            ("test_loss", "noise_norm"),
        ),
        (
            linear_problem(FEATURES, LABELS > 1, Logistic(), test=(FEATURES, LABELS > 1), constraint=Ball(1.0)),
            ("test_accuracy", "test_loss", "noise_norm"),
        ),
    ],
)
def test_defaults_are_what_the_problem_defines(problem, names):
    assert default_metrics(problem) == names
    assert check_metrics(problem, names) == tuple(METRICS[name] for name in names)


@pytest.mark.parametrize(
    ("problem", "name", "message"),
    [
        (
            make(),
            "test_acuracy",
            "unknown metric 'test_acuracy', did you mean 'test_accuracy'? "
            "(nearest: test_accuracy, client_test_accuracy, models_accuracy)",
        ),
        (make(test=False), "test_loss", "metric 'test_loss' must have a test set, and the problem has none"),
        (
            make(optimum=False),
            "excess_risk",
            "metric 'excess_risk' must have a known optimum, and the problem has none",
        ),
        (make(optimum=False), "distance", "metric 'distance' must have a known optimum, and the problem has none"),
        (
            linear_problem(FEATURES, LABELS, Squared()),
            "train_accuracy",
            "metric 'train_accuracy' must have a loss that classifies, and the problem has none",
        ),
        (
            general_problem(lambda params, x: jnp.sum(params * x), FEATURES, jnp.zeros(4)),
            "train_accuracy",
            "metric 'train_accuracy' must have a loss that classifies, and the problem has none",
        ),
    ],
)
def test_refusals(problem, name, message):
    with pytest.raises(ValueError, match="metric") as caught:
        check_metrics(problem, ["noise_norm", name])
    assert str(caught.value) == message


def test_making_runs_ready_asks_the_loss_once_if_it_classifies():
    asked = []

    def correct(w, x):
        asked.append(1)
        return jnp.sum(w * x) > 0

    problem = general_problem(
        lambda w, x: jnp.sum(w * x), np.ones((8, 2)), np.zeros(2), test=np.ones((4, 2)), correct=correct
    )
    for seed in range(2):
        start = ready(NoisySGD(mu=1.0, clip=1.0, step_size=0.1), problem, Full(2), rounds=2, seed=seed)
    assert "test_accuracy" in [metric.name for metric in start.static.metrics]
    assert len(asked) == 1


def test_custom_metrics_are_accepted_and_keep_their_name():
    def largest(problem, snapshot):
        return jnp.max(snapshot.params)

    one, other = check_metrics(make(), [largest, "test_loss"])
    assert (one.name, one.function, other) == ("largest", largest, METRICS["test_loss"])
    assert check_metrics(make(), [largest]) == check_metrics(make(), [largest])  # so no second program is compiled
    assert non_private(make(), [one]) == ("largest (not known)",)


def spread(problem, snapshot):
    return jnp.std(snapshot.params)


def compared(problem):
    return "a known optimum" if problem.optimum is None else None


SPREAD = Metric("spread", spread, needs=compared, private=lambda problem: True, better="higher", unit="%", digits=2)


def test_a_custom_metric_object_declares_its_properties():
    assert check_metrics(make(), [SPREAD, "train_loss"]) == (SPREAD, METRICS["train_loss"])
    assert non_private(make(), [SPREAD, METRICS["test_loss"]]) == ("spread",)
    own = [replace(SPREAD, private=unknown), replace(SPREAD, private=never), *check_metrics(make(), [spread])]
    assert non_private(make(), own) == ("spread (not known)", "spread (not known)")
    with pytest.raises(ValueError, match="metric 'spread' must have a known optimum, and the problem has none"):
        check_metrics(make(optimum=False), [SPREAD])
    assert (SPREAD.title, SPREAD.text(0.12345), SPREAD.text(np.nan)) == ("spread %", "12.35", "–")
    assert (SPREAD.text(-0.5, sign=True), SPREAD.text(0.5, sign=True), SPREAD.amount(0.02)) == (
        "-50.00",
        "+50.00",
        "2 points",
    )
    assert known(SPREAD) is SPREAD
    assert known("spread").unit == ""  # results store only the name


class TwoIterates:
    """The members of a protocol that an evaluation needs."""

    def output(self, state):
        return state

    def iterates(self, state):
        return {"twice": 2 * state}


def test_metrics_of_parameters_are_recorded_for_every_iterate_and_those_of_rounds_once():
    plain = check_metrics(make(), [lambda problem, snapshot: jnp.sum(snapshot.params)])
    record = (SPREAD, *check_metrics(make(), ["noise_norm"]), *plain, *check_metrics(make(), ["clipped"], ["clipped"]))
    found = evaluate(TwoIterates(), make(), jnp.asarray(PARAMS), jnp.array([3.0, 4.0]), record, {"clipped": 0.25})
    np.testing.assert_allclose(found["spread"], np.std(PARAMS) * np.array([1, 2]), rtol=1e-5)
    np.testing.assert_allclose(found["<lambda>"], PARAMS.sum() * np.array([1, 2]), rtol=1e-5)
    np.testing.assert_allclose(found["noise_norm"], 5.0, rtol=1e-5)
    assert found["clipped"] == 0.25


def private(algorithm):
    return Protocol(algorithm, privacy=NoisyMessages(clip=1.0), noise_std=0.1, step_size=0.1)


@struct.dataclass(kw_only=True)
class OtherIterates(SGD):
    """An algorithm that reports points which are not like its output."""

    other: Any = struct.field(pytree_node=False, default=None)

    def iterates(self, server):
        return {"each": self.other(self.point(server))}


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (lambda point: jnp.stack([point] * 5), r"\[3, 4\], got \[5, 3, 4\] for 'each'"),
        (lambda point: {"w": point}, r"\[3, 4\], got {'w': \[3, 4\]} for 'each'"),
    ],
    ids=["a row a machine", "a dict"],
)
def test_iterates_of_other_shapes_are_refused_before_anything_is_compiled(other, got):
    protocol = private(OtherIterates(other=other))
    with pytest.raises(Refusal, match=f"^iterates must have the structure and shapes of the output, {got}"):
        ready(protocol, make(), Full(2), rounds=2)
    assert ready(private(OtherIterates(other=lambda point: 2 * point)), make(), Full(2), rounds=2)


@struct.dataclass(kw_only=True)
class NamedIterates(OtherIterates):
    """An algorithm whose further points have other names, or none."""

    def iterates(self, server):
        return self.other(self.point(server))


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (lambda point: [point], "a list"),
        (lambda point: {"output": 2 * point}, "'output', which is the reported point,"),
    ],
    ids=["a list", "the output's name"],
)
def test_iterates_without_names_of_their_own_are_refused(other, got):
    with pytest.raises(Refusal, match=f"^iterates must be a dict of further points by name, got {got} of Named"):
        ready(private(NamedIterates(other=other)), make(), Full(2), rounds=2)


def test_a_scalar_of_the_rounds_is_a_metric_on_private_data_where_the_protocol_reports_it():
    (clipped,) = check_metrics(make(), ["clipped"], ["clipped", "bits"])
    assert clipped is of_info("clipped")
    assert (clipped.of, clipped.default, non_private(make(), [clipped])) == ("info", False, ("clipped",))
    with pytest.raises(ValueError, match="unknown metric 'clippd', did you mean 'clipped'"):
        check_metrics(make(), ["clippd"], ["clipped", "bits"])
    for metric in ("clipped", clipped):
        with pytest.raises(Refusal, match="unknown metric 'clipped'"):
            check_metrics(make(), [metric])
    with pytest.raises(Refusal, match="unknown metric 'clipped', did you mean 'clips'"):
        check_metrics(make(), [clipped], ["clips"])


def step_size(problem, snapshot):
    return 0.0


@pytest.mark.parametrize(
    "record",
    [["test_loss", "test_loss"], [lambda p, s: 0.0, lambda p, s: 1.0], "test_loss", SPREAD, [step_size]],
    ids=["twice", "two of one name", "a string", "a metric", "a variable of every result"],
)
def test_duplicate_metrics_are_refused(record):
    """Two metrics of one name would share one variable, and a string is not a list of names."""
    with pytest.raises(ValueError, match="metrics must"):
        check_metrics(make(), record)


def test_the_constant_predictor_is_the_pools_most_frequent_class_on_the_test_set():
    labels, tested = np.array([0, 1, 1, 1, 0]), np.array([1, 0, 0, 0])
    test = (np.ones((4, 2)), tested)
    problem = linear_problem(np.ones((5, 2)), labels, Logistic(), test=test)
    found = {name: METRICS[name].constant(problem) for name in ("test_accuracy", "test_error", "train_accuracy")}
    assert found == {"test_accuracy": 0.25, "test_error": 0.75, "train_accuracy": 0.6}
    pairs = general_problem(lambda w, x: jnp.sum(w * x[0]), (np.ones((5, 2)), labels), np.zeros(2), test=test)
    assert METRICS["test_accuracy"].constant(pairs) == 0.25
    bare = general_problem(lambda w, x: jnp.sum(w * x), np.ones((5, 2)), np.zeros(2), test=np.ones((4, 2)))
    assert METRICS["test_accuracy"].constant(bare) is None
    assert METRICS["relative_mse"].constant(problem) == 1.0
    assert METRICS["test_loss"].constant(problem) is None
