"""Predictions of a run for new rows, and named coefficients."""

from dataclasses import replace

import numpy as np
import pytest
from cases import sparing

import fedprivjax as fpj
from fedprivjax import Refusal
from fedprivjax.problem.networks import CNN, MLP

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(40, 3)).astype(np.float32)
IMAGES = RNG.uniform(size=(40, 4, 4)).astype(np.float32)


def run_on(problem):
    return fpj.simulate(fpj.NoisySGD(mu=np.inf, step_size=0.2), problem, fpj.Full(4), rounds=10)


def dataset(labels, classes=None, values=X, bound=4.0, **options):
    return fpj.datasets.from_arrays(values, labels, values, labels, feature_bound=bound, classes=classes, **options)


def expected(params, loss, features):
    scores = np.asarray(features, float) @ np.asarray(params, float).T
    if isinstance(loss, fpj.Softmax):
        return np.argmax(scores, axis=1)
    return (scores > 0).astype(int) if loss.classifies else scores


LOSSES = [fpj.Softmax(3), fpj.Logistic(), fpj.Hinge(), fpj.Moreau(fpj.Hinge(), 1.0), fpj.Squared(6.0)]


@pytest.mark.parametrize("loss", sparing(LOSSES, [*LOSSES[:2], LOSSES[-1]]), ids=lambda loss: type(loss).__name__)
def test_a_linear_prediction_is_that_of_the_scores(loss):
    classes = loss.outputs or 2 if loss.classifies else None
    labels = {None: X.sum(1), 2: (X[:, 0] > 0).astype(int), 3: X.argmax(1)}[classes]
    run = run_on(fpj.from_dataset(dataset(labels, classes, bias=True), loss, constraint=fpj.Ball(8.0)))
    wanted = expected(run.params, loss, np.column_stack([X, np.ones(40)]))
    assert len(set(wanted.tolist())) > 1
    np.testing.assert_allclose(run.predict(X), wanted, rtol=1e-4, atol=1e-5)
    prepared = np.column_stack([X, np.ones(40, np.float32)])
    for rows in (prepared, prepared.astype(float), prepared.tolist()):
        np.testing.assert_array_equal(run.predict(rows), run.predict(X))
    if classes:
        accuracy = (run.predict(X) == labels).mean()
        assert accuracy == pytest.approx(run.metrics["test_accuracy"][-1], abs=1e-6)


@pytest.mark.parametrize(
    "network", [pytest.param(MLP((4,)), id="mlp"), pytest.param(CNN((2,)), id="cnn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("bias", sparing([False, True], [True]))
def test_a_networks_prediction_is_what_its_accuracy_counts(network, bias):
    labels = np.arange(40) % 3
    data = dataset(labels, 3, IMAGES, bias=bias)
    run = run_on(fpj.from_dataset(data, network=network))
    predicted = run.predict(IMAGES)
    assert (predicted == labels).mean() == pytest.approx(run.metrics["test_accuracy"][-1], abs=1e-6)
    assert len(set(predicted.tolist())) > 1
    np.testing.assert_array_equal(run.predict(data.features), predicted)
    many = np.tile(data.features, (60, 1))  # more rows than a batch
    np.testing.assert_array_equal(run.predict(many), np.tile(predicted, 60))
    with pytest.raises(Refusal, match=r"^coefficients must be those of a linear predictor, got a network\. [^\n]+$"):
        run.coefficients  # noqa: B018


def test_class_names_are_predicted():
    named = replace(dataset(np.arange(40) % 2, 2), class_names=("no", "yes"), raw_rows=None)
    run = run_on(fpj.from_dataset(named))
    assert run.predict(X).tolist() == [("no", "yes")[int(score > 0)] for score in X @ np.asarray(run.params)]


def test_coefficients_have_names():
    run = run_on(fpj.from_dataset(dataset(np.arange(40) % 3, 3, bias=True)))
    found = run.coefficients
    assert found.dims == ("class", "feature")
    assert found["feature"].values.tolist() == ["x[0]", "x[1]", "x[2]", "constant"]
    np.testing.assert_array_equal(found.sel({"class": 1}), np.asarray(run.params)[1])
    problem = fpj.linear_problem(X, X.sum(1), fpj.Squared(6.0), feature_bound=4.0, constraint=fpj.Ball(2.0))
    assert run_on(problem).coefficients["feature"].values.tolist() == ["x[0]", "x[1]", "x[2]"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones((2, 5)), r"rows must have 4 features, or 3 without the constant, got 5"),
        (np.ones(3), r"rows must be \[rows, features\], got shape \(3,\)"),
        (np.array([["a", "b", "c"]]), r"rows must be numbers, got <U1\. Convert them as the training data"),
        (np.array([[1.0, np.nan, 0.0], [1.0, 1.0, 1.0]]), r"rows must be finite, got 1 others \(first: row 1\)"),
        (np.ones((0, 3)), r"rows must be one or more, got none"),
        ([[1.0], [1.0, 2.0]], r"rows must have one length, got .*"),
    ],
)
def test_rows_that_are_not_numbers_of_the_width_are_refused(rows, message):
    run = run_on(fpj.from_dataset(dataset(np.arange(40) % 3, 3, bias=True)))
    with pytest.raises(Refusal, match=f"^{message}$"):
        run.predict(rows)


def test_a_frame_is_refused_if_the_data_were_no_table():
    pd = pytest.importorskip("pandas")
    run = run_on(fpj.from_dataset(dataset(np.arange(40) % 3, 3)))
    with pytest.raises(
        Refusal, match=r"^rows must be an array of features, got a DataFrame\. A DataFrame goes [^\n]+$"
    ):
        run.predict(pd.DataFrame(X))


def test_custom_functions_and_diverged_runs_predict_nothing():
    problem = fpj.general_problem(lambda w, x: ((w - x) ** 2).sum(), X, np.zeros(3), constraint=fpj.Ball(1.0))
    with pytest.raises(Refusal, match=r"^predictor must be a linear predictor or a network that is known, got none"):
        run_on(problem).predict(X)
    run = run_on(fpj.from_dataset(dataset(np.arange(40) % 3, 3)))
    with pytest.raises(Refusal, match=r"^params must be finite for predictions"):
        replace(run, params=np.full((3, 3), np.nan, np.float32)).predict(X)
