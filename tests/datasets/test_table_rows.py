"""Predictions for raw rows of a table: the preparation is that of training."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedprivjax as fpj
from fedprivjax import Refusal

pytestmark = pytest.mark.filterwarnings("ignore:.* lie outside ")  # of tests that clip values on purpose
RNG = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(15, 95, 60),
        "job": RNG.choice(["cook", "nurse", "smith"], 60),
        "plan": RNG.integers(1, 4, 60).astype(float),
        "member": RNG.choice([True, False], 60),
        "clinic": RNG.choice(["a", "b"], 60),
    }
).assign(outcome=lambda frame: np.where(frame["age"] + 20 * frame["member"] > 60, "ill", "well"))
FRAME.loc[3, "plan"] = np.nan
OPTIONS = {"client": "clinic", "bounds": {"age": [18, 90]}, "categories": {"plan": [1, 2, 3]}, "fill": {"plan": 1}}
ROWS = FRAME.drop(columns=["outcome", "clinic"])


def run_on(data):
    problem = fpj.from_dataset(data, constraint=fpj.Ball(8.0))
    return fpj.simulate(fpj.NoisySGD(mu=np.inf, step_size=0.5), problem, fpj.Full(2), rounds=8)


def quietly(run, rows):
    with warnings.catch_warnings(action="ignore"):
        return run.predict(rows)


@pytest.fixture(scope="module")
def run():
    return run_on(fpj.datasets.from_frame(FRAME, "outcome", test_fraction=0, **OPTIONS))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"feature_bound": 1.1},
        {"standardise": "statistics", "bounds": {}},
        {"features": ["job", "age"], "fill": {}, "categories": {}},
    ],
)
def test_raw_rows_become_the_features_of_training(options):
    data = fpj.datasets.from_frame(FRAME, "outcome", test_fraction=0, **{**OPTIONS, **options})
    with warnings.catch_warnings(action="ignore"):
        prepared = data.raw_rows.features(ROWS)
    np.testing.assert_array_equal(prepared, data.features)
    assert prepared.dtype == np.float32
    assert len(data.raw_rows.feature_names()) == data.features.shape[1]


def test_classes_are_predicted_by_name_with_the_training_accuracy(run):
    data = fpj.datasets.from_frame(FRAME, "outcome", test_fraction=0, **OPTIONS)
    predicted = quietly(run, ROWS)
    assert set(predicted) == {"ill", "well"}
    scores = data.features @ np.asarray(run.params)
    np.testing.assert_array_equal(predicted, np.array(data.class_names)[(scores > 0).astype(int)])
    np.testing.assert_array_equal(run.predict(data.features), predicted)
    np.testing.assert_array_equal(
        quietly(run, ROWS[::-1]), predicted[::-1]
    )  # the index and order of columns are ignored
    np.testing.assert_array_equal(quietly(run, FRAME[FRAME.columns[::-1]]), predicted)


def test_a_scaled_target_is_predicted_in_its_units():
    frame = pd.DataFrame({"x": np.linspace(0, 10, 40), "cost": np.linspace(100, 300, 40)})
    bounds = {"x": [0, 10], "cost": [100, 300]}
    data = fpj.datasets.from_frame(frame, "cost", test_fraction=0, bounds=bounds)
    run = run_on(data)
    scores = data.features @ np.asarray(run.params)
    np.testing.assert_allclose(run.predict(frame[["x"]]), 200 + 100 * scores, rtol=1e-5)
    exact = replace(run, params=np.array([1.0, 0.0], np.float32))
    np.testing.assert_allclose(exact.predict(frame[["x"]]), frame["cost"], rtol=1e-5)


def test_values_outside_of_bounds_are_moved_and_said(run):
    rows = ROWS.iloc[[0, 1, 2]].assign(age=[200, 50, -3])
    with pytest.warns(
        UserWarning, match=r"^2 values of 'age' in rows are outside of its bounds \[18, 90\]: moved to"
    ) as said:
        predicted = run.predict(rows)
    assert len(said) == 1
    np.testing.assert_array_equal(predicted, quietly(run, rows.assign(age=[90, 50, 18])))


def test_rows_that_are_longer_than_the_bound_are_shortened_and_said():
    bounds = {"x": [0, 10], "y": [0, 10]}
    frame = pd.DataFrame({"x": [0.0, 5.0, 5.0, 6.0], "y": [0.0, 5.0, 6.0, 5.0], "z": [0, 1, 1, 0]})
    data = fpj.datasets.from_frame(frame, "z", test_fraction=0, bounds=bounds, feature_bound=1.0, bias=False)
    with pytest.warns(UserWarning, match=r"^1 rows have features of norm above feature_bound = 1: shortened to it$"):
        found = data.raw_rows.features(frame)
    np.testing.assert_allclose(found[0], [-np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_array_equal(found, data.features)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS.drop(columns=["age", "job"]), r"rows must have all columns of the features, got none of 'age', 'job'"),
        (
            ROWS.assign(job="baker"),
            r"column 'job' must be one of cook, nurse, smith, got 'baker' \(row 1 of the data\)",
        ),
        (ROWS.assign(plan=7), r"column 'plan' must be one of 1, 2, 3, got '7' \(row 1 of the data\)"),
        (ROWS.assign(age="old"), r"column 'age' must hold numbers, got 'old' \(row 1 of the data\).*"),
        (ROWS.assign(age=np.nan), r"column 'age' must have a value in every row, got 60 missing .*"),
        (ROWS.iloc[:0], r"rows must have at least one row, got none"),
        (np.ones((2, 8)), r"rows must have 9 features, got 8"),
    ],
)
def test_rows_that_training_would_reject_are_refused(run, rows, message):
    with pytest.raises(Refusal, match=f"^{message}$"):
        run.predict(rows)


def test_coefficients_are_named_by_column_and_category(run):
    names = ["age", "job=cook", "job=nurse", "job=smith", "plan=1", "plan=2", "plan=3", "member", "constant"]
    assert run.coefficients["feature"].values.tolist() == names
    assert float(run.coefficients.sel(feature="age")) == float(np.asarray(run.params)[0])


@pytest.mark.parametrize("kind", ["table", "array", "regression"])
def test_a_loaded_run_predicts_the_same(run, kind, tmp_path):
    one, rows = run, ROWS
    if kind != "table":
        rows = RNG.uniform(-1, 1, size=(40, 3))
        labels = rows.sum(1) if kind == "regression" else rows.argmax(1)
        classes = None if kind == "regression" else 3
        one = run_on(fpj.datasets.from_arrays(rows, labels, feature_bound=2.0, classes=classes, bias=True))
    one.save(tmp_path)
    loaded = fpj.load_run(tmp_path)
    np.testing.assert_array_equal(quietly(loaded, rows), quietly(one, rows))
    assert loaded.coefficients.equals(one.coefficients)


def test_a_loaded_network_predicts_with_its_problem(tmp_path):
    data = fpj.datasets.from_frame(FRAME, "outcome", test_fraction=0, **OPTIONS)
    problem = fpj.from_dataset(data, network=fpj.MLP((3,)))
    one = fpj.simulate(fpj.NoisySGD(mu=np.inf, step_size=0.5), problem, fpj.Full(2), rounds=8)
    one.save(tmp_path)
    with pytest.raises(Refusal, match=r"^predictor must be [^\n]+ for a saved run load_run\(path, problem\)$"):
        fpj.load_run(tmp_path).predict(ROWS)
    np.testing.assert_array_equal(quietly(fpj.load_run(tmp_path, problem), ROWS), quietly(one, ROWS))
    with pytest.raises(Refusal, match=r"^params must have "):
        fpj.load_run(tmp_path, fpj.from_dataset(data))
