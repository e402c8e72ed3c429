from math import inf, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import Ball, Logistic, Softmax, Squared, WholeSpace, general_problem, linear_problem
from fedprivjax.problem.problem import Table

RNG = np.random.default_rng(31)
FEATURES = RNG.normal(size=(12, 4)).astype(np.float32)
FEATURES /= np.linalg.norm(FEATURES, axis=1, keepdims=True)
LABELS = RNG.integers(0, 3, 12)
BAD = FEATURES.copy()
BAD[3, 1] = np.nan
BAD[7, 0] = np.inf


def refusal(call, /, *args, **kwargs):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def squares(params, example):
    return jnp.sum((params - example) ** 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.where(LABELS == 2, 3, LABELS)}, "labels must lie in 0..2, got 3"),
        ({"labels": LABELS - 3}, f"labels must lie in 0..2, got {LABELS[0] - 3}"),
        ({"labels": np.where(np.arange(12) == 5, np.nan, LABELS)}, "labels must lie in 0..2, got nan"),
        ({"loss": Logistic(), "labels": np.full(12, 2)}, "labels must lie in 0..1, got 2"),
        ({"loss": Squared(1.0), "labels": np.full(12, -1.5)}, "labels must lie in -1.0..1.0, got -1.5"),
        ({"labels": LABELS[:11]}, "labels must have shape (12,) to match features, got (11,)"),
        ({"labels": LABELS[:, None]}, "labels must have shape (12,) to match features, got (12, 1)"),
        ({"features": BAD}, "features must be finite, got 2 bad examples (first at 3)"),
        (
            {"features": FEATURES[0]},
            "features must be [examples, features] or have a leading machines axis, got (4,)",
        ),
        (
            {"features": FEATURES[None, None]},
            "features must be [examples, features] or have a leading machines axis, got (1, 1, 12, 4)",
        ),
        ({"feature_bound": 0.5}, "features must have norm at most feature_bound (0.5), got 1"),
        ({"feature_bound": -1.0}, "feature_bound must be positive, got -1.0"),
        ({"feature_bound": inf}, "feature_bound must be finite, got inf"),
        ({"start": np.zeros((4, 3))}, "start must have shape (3, 4), got (4, 3)"),
        (
            {"start": np.ones((3, 4)), "constraint": Ball(2.0)},
            "start must lie in the constraint set, a ball of radius 2",
        ),
        ({"optimum": np.zeros(4)}, "optimum must have shape (3, 4), got (4,): is it this loss's?"),
        ({"test": (BAD, LABELS)}, "test features must be finite, got 2 bad examples (first at 3)"),
        (
            {"test": (FEATURES, LABELS[:5])},
            "labels must have shape (12,) to match test features, got (5,)",
        ),
        (
            {"test": (3 * FEATURES, LABELS), "feature_bound": 1.0},
            "test features must have norm at most feature_bound (1), got 3",
        ),
        ({"partition_table": np.array([[0, 12]])}, "partition_table must index the 12 examples, got 12"),
        ({"partition_table": np.array([0, 1])}, "partition_table must be integers [machines, most], got int64 (2,)"),
        (
            {"partition_table": np.array([[0.0, 1.0]])},
            "partition_table must be integers [machines, most], got float64 (1, 2)",
        ),
        (
            {"partition_table": np.array([[0, 1], [1, 2]])},
            "partition_table must give each example to one machine at most, got a repeated index",
        ),
        (
            {"features": FEATURES.reshape(3, 4, 4), "labels": LABELS.reshape(3, 4), "partition_table": np.array([[0]])},
            "partition_table must be None when features are [machines, examples, features]",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refusals(change, message):
    settings = {"features": FEATURES, "labels": LABELS, "loss": Softmax(3), **change}
    args = [settings.pop(name) for name in ("features", "labels", "loss")]
    assert refusal(linear_problem, *args, **settings) == message


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"features": np.zeros((0, 4)), "labels": np.zeros(0, int)}, "features"),
        ({"labels": LABELS + 0.5 * (LABELS < 2)}, "labels"),  # a class must not be 0.5, or be silently rounded to 0
        ({"labels": np.array(["a", "b", "c"] * 4)}, "labels"),
        ({"loss": Squared(), "labels": np.full(12, np.inf)}, "labels"),
        (
            {"features": FEATURES.reshape(3, 4, 4), "labels": LABELS.reshape(4, 3)},
            "labels",
        ),  # machines and examples exchanged
        ({"test": (FEATURES[:, :3], LABELS)}, "test features"),
        ({"test": (FEATURES[0], LABELS[:4])}, "test features"),
        ({"start": np.full((3, 4), np.nan)}, "start"),
        ({"optimum": np.full((3, 4), np.inf)}, "optimum"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_input_that_would_fail_later_or_silently_is_refused_by_name(change, subject):
    settings = {"features": FEATURES, "labels": LABELS, "loss": Softmax(3), **change}
    args = [settings.pop(name) for name in ("features", "labels", "loss")]
    assert refusal(linear_problem, *args, **settings).startswith(f"{subject} must ")


def test_bounds_are_sharp_up_to_rounding():
    at_bound = linear_problem(FEATURES, LABELS, Softmax(3), feature_bound=1.0)
    assert np.asarray(at_bound.pool.feature_norm).max() == pytest.approx(1.0)
    assert refusal(linear_problem, FEATURES, LABELS, Softmax(3), feature_bound=0.9999).startswith("features must have")
    start = np.zeros((3, 4), np.float32)
    start[0, 0] = 1.0
    assert linear_problem(FEATURES, LABELS, Softmax(3), start=start, constraint=Ball(1.0)).start[0, 0] == 1.0
    assert linear_problem(FEATURES, LABELS, Squared(2.0)).pool.label.max() == LABELS.max()


def test_contents_of_a_problem():
    optimum = RNG.normal(size=(3, 4))
    problem = linear_problem(
        FEATURES, LABELS, Softmax(3), feature_bound=2.0, test=(FEATURES[:5], LABELS[:5]), optimum=optimum
    )
    np.testing.assert_array_equal(problem.pool.features, FEATURES)
    np.testing.assert_array_equal(problem.pool.label, LABELS)
    np.testing.assert_allclose(problem.pool.feature_norm, np.linalg.norm(FEATURES, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(problem.test.label, LABELS[:5])
    np.testing.assert_array_equal(problem.start, np.zeros((3, 4)))
    np.testing.assert_allclose(problem.optimum, optimum, rtol=1e-6)
    assert (problem.pool.label.dtype, problem.optimum.dtype) == (jnp.int32, jnp.float32)
    assert (problem.examples, problem.dimension) == (12, 12)
    assert isinstance(problem.constraint, WholeSpace)
    assert linear_problem(FEATURES, LABELS > 1, Logistic()).pool.label.dtype == jnp.float32
    taken = problem.take(jnp.array([[3, 0], [1, 1]]))
    np.testing.assert_array_equal(taken.features, FEATURES[[[3, 0], [1, 1]]])
    np.testing.assert_array_equal(problem.unravel(jnp.arange(12.0)), np.arange(12.0).reshape(3, 4))


def test_constants():
    mnist = linear_problem(FEATURES, LABELS, Softmax(10), feature_bound=sqrt(785))
    assert mnist.lipschitz == pytest.approx(39.6, abs=0.03)
    assert mnist.smoothness == pytest.approx(392.5)
    assert mnist.lipschitz + 2 * mnist.smoothness * Ball(0.05).diameter == pytest.approx(118.1, abs=0.05)  # S
    ball = linear_problem(FEATURES, LABELS, Squared(2.0), feature_bound=1.0, constraint=Ball(3.0))
    assert (ball.lipschitz, ball.smoothness) == (5.0, 1.0)
    unbounded = linear_problem(FEATURES, LABELS, Squared(2.0), feature_bound=1.0)
    assert (unbounded.lipschitz, unbounded.smoothness) == (inf, 1.0)
    unknown = linear_problem(FEATURES, LABELS, Softmax(3))
    assert (unknown.lipschitz, unknown.smoothness) == (inf, inf)


def test_the_constants_of_a_general_problem_are_declared():
    known = general_problem(squares, FEATURES, jnp.zeros(4), lipschitz=3.0, smoothness=2.0, constraint=Ball(0.5))
    assert (known.lipschitz, known.smoothness) == (3.0, 2.0)
    unknown = general_problem(squares, FEATURES, jnp.zeros(4))
    assert (unknown.lipschitz, unknown.smoothness) == (inf, inf)


def test_data_already_split_over_machines():
    split = linear_problem(FEATURES.reshape(3, 4, 4), LABELS.reshape(3, 4), Softmax(3))
    np.testing.assert_array_equal(split.partition_table.rows, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(split.pool.features, FEATURES)
    np.testing.assert_array_equal(split.pool.label, LABELS)
    general = general_problem(squares, FEATURES.reshape(3, 4, 4), jnp.zeros(4), split=True)
    np.testing.assert_array_equal(general.partition_table.rows, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(general.pool, FEATURES)


def test_padding_goes_last():
    problem = linear_problem(FEATURES, LABELS, Softmax(3), partition_table=np.array([[-1, 4, -1, 2], [0, 1, 3, -1]]))
    np.testing.assert_array_equal(problem.partition_table.rows, [[4, 2, -1, -1], [0, 1, 3, -1]])
    np.testing.assert_array_equal(problem.partition_table.sizes, [2, 3])
    assert Table(np.full((1, 2), -1)).sizes.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"function": lambda params, example: params - example},
            "the loss must return a scalar for one example, got shape (4,)",
        ),
        (
            {"function": lambda params, example: (jnp.float32(0), example)},
            "the loss must return a scalar for one example, got a tuple",
        ),
        ({"pool": BAD}, "data must be finite, got 2 bad examples (first at 3)"),
        (
            {"function": lambda params, example: 0.0, "pool": {"x": FEATURES, "y": LABELS[:11]}},
            "the leaves of the data must have equal lengths, got [11, 12]",
        ),
        ({"start": np.ones(4), "constraint": Ball(1.0)}, "start must lie in the constraint set, a ball of radius 1"),
        ({"lipschitz": -1.0}, "lipschitz must be positive, got -1.0"),
        ({"smoothness": inf}, "smoothness must be finite, got inf"),
        ({"partition_table": np.array([[0, 12]])}, "partition_table must index the 12 examples, got 12"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refusals_of_general_problems(change, message):
    settings = {"function": squares, "pool": FEATURES, "start": np.zeros(4), **change}
    assert refusal(general_problem, **settings).startswith(message)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"pool": {"x": FEATURES, "scale": np.float32(2.0)}}, "the leaves of the data"),
        (
            {"pool": {"x": FEATURES.reshape(3, 4, 4), "y": LABELS.reshape(4, 3)}, "split": True},
            "the leaves of the data",
        ),
        ({"test": BAD}, "test"),
        ({"test": FEATURES[:, :3]}, "test"),
        ({"start": np.full(4, np.nan)}, "start"),
        ({"start": np.zeros(4, int)}, "start"),  # no gradient in integers
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_a_general_problem_cannot_use_is_refused_by_name(change, subject):
    settings = {"function": squares, "pool": FEATURES, "start": np.zeros(4), **change}
    if isinstance(settings["pool"], dict):
        settings["function"] = lambda params, example: squares(params, example["x"])
    assert refusal(general_problem, **settings).startswith(f"{subject} ")


def test_parameters_may_be_a_pytree():
    start = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    problem = general_problem(
        lambda params, x: jnp.sum(params["w"] @ x) + jnp.sum(params["b"]), np.ones((5, 3), np.float32), start
    )
    assert (problem.dimension, problem.examples) == (8, 5)
    back = problem.unravel(jnp.arange(8.0))
    assert jax.tree.map(jnp.shape, back) == {"w": (2, 3), "b": (2,)}


def test_a_problem_is_one_program_for_other_numbers():
    traced = []

    @jax.jit
    def value(problem):
        traced.append(1)
        return problem.model.value(problem.start, jax.tree.map(lambda leaf: leaf[0], problem.pool))

    for scale, radius in ((1.0, 1.0), (0.5, 2.0)):
        value(linear_problem(scale * FEATURES, LABELS, Softmax(3), constraint=Ball(radius), feature_bound=1.0))
    assert len(traced) == 1
