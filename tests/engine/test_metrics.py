import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from fedprivjax import Ball, Logistic, Snapshot, Softmax, Squared, general_problem, linear_problem
from fedprivjax.engine.metrics import METRICS, check_metrics, default_metrics, mean_loss, metric_name

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
}


def test_relative_mse_is_one_for_the_mean_of_the_training_labels():
    targets = np.linspace(-1.0, 3.0, len(FEATURES))
    features = np.column_stack([np.ones(len(FEATURES)), FEATURES])
    problem = linear_problem(features[TRAIN], targets[TRAIN], Squared(), test=(features[TEST], targets[TEST]))
    naive = np.zeros(5, np.float32)
    naive[0] = targets[TRAIN].mean()
    assert float(METRICS["relative_mse"](problem, Snapshot(jnp.asarray(naive)))) == pytest.approx(1.0, rel=1e-5)
    w = np.arange(5.0) / 5
    expected = np.mean((features[TEST] @ w - targets[TEST]) ** 2) / np.mean(
        (targets[TEST] - targets[TRAIN].mean()) ** 2
    )
    found = METRICS["relative_mse"](problem, Snapshot(jnp.asarray(w, jnp.float32)))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    message = "metric 'relative_mse' must have the squared loss of a linear predictor, and the problem has none"
    with pytest.raises(ValueError, match=message):
        check_metrics(make(), ["relative_mse"])


@pytest.mark.parametrize("name", EXPECTED)
def test_values(name):
    value = METRICS[name](make(), Snapshot(jnp.asarray(PARAMS), jnp.array([3.0, 0.0, -4.0])))
    assert jnp.shape(value) == ()
    np.testing.assert_allclose(value, EXPECTED[name], rtol=1e-5)


def test_without_noise_its_norm_is_zero():
    assert float(METRICS["noise_norm"](make(), Snapshot(PARAMS))) == 0.0


def test_excess_risk_without_a_test_set_is_on_the_pool_and_a_known_one_comes_first():
    snapshot = Snapshot(jnp.asarray(PARAMS))
    on_pool = METRICS["excess_risk"](make(test=False), snapshot)
    np.testing.assert_allclose(on_pool, loss(PARAMS, TRAIN) - loss(OPTIMUM, TRAIN), rtol=1e-5)
    exact = make(excess=lambda params: jnp.sum(params) + 7.0)
    np.testing.assert_allclose(METRICS["excess_risk"](exact, snapshot), PARAMS.sum() + 7.0, rtol=1e-5)


def test_distance_of_a_pytree():
    start = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    problem = general_problem(
        lambda params, x: jnp.sum(params["w"] @ x),
        np.ones((3, 2)),
        start,
        optimum={"w": np.ones((2, 2)), "b": start["b"]},
    )
    far = {"w": jnp.full((2, 2), 3.0), "b": jnp.array([0.0, 3.0])}
    assert float(METRICS["distance"](problem, Snapshot(far))) == pytest.approx(5.0)
    assert float(mean_loss(problem, far, problem.pool)) == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (make(), ("test_loss", "test_accuracy", "excess_risk", "distance", "noise_norm")),
        (make(optimum=False), ("test_loss", "test_accuracy", "noise_norm")),
        (make(test=False), ("excess_risk", "distance", "noise_norm")),
        (make(test=False, optimum=False), ("noise_norm",)),
        (make(test=False, optimum=False, excess=lambda params: 0.0), ("excess_risk", "noise_norm")),
        (
            linear_problem(FEATURES, LABELS, Squared(), test=(FEATURES, LABELS)),
            ("test_loss", "noise_norm"),
        ),
        (
            linear_problem(FEATURES, LABELS > 1, Logistic(), test=(FEATURES, LABELS > 1), constraint=Ball(1.0)),
            ("test_loss", "test_accuracy", "noise_norm"),
        ),
    ],
)
def test_defaults_are_what_the_problem_defines(problem, names):
    assert default_metrics(problem) == names
    assert check_metrics(problem, names) == names


@pytest.mark.parametrize(
    ("problem", "name", "message"),
    [
        (
            make(),
            "test_acuracy",
            "unknown metric 'test_acuracy', did you mean 'test_accuracy'? (known: test_loss, test_accuracy, "
            "test_error, train_loss, train_accuracy, excess_risk, relative_mse, distance, noise_norm)",
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


def test_metrics_of_ones_own_pass_and_keep_their_name():
    def largest(problem, snapshot):
        return jnp.max(snapshot.params)

    assert check_metrics(make(), [largest, "test_loss"]) == (largest, "test_loss")
    assert (metric_name(largest), metric_name("distance")) == ("largest", "distance")


def step_size(problem, snapshot):
    return 0.0


@pytest.mark.parametrize(
    "record",
    [["test_loss", "test_loss"], [lambda p, s: 0.0, lambda p, s: 1.0], "test_loss", [step_size]],
    ids=["twice", "two of one name", "a string", "a variable of every result"],
)
def test_what_would_overwrite_a_metric_is_refused(record):
    """Two metrics of one name would be one variable, and the first would be lost; a string is not a list of names."""
    with pytest.raises(ValueError, match="record must"):
        check_metrics(make(), record)
